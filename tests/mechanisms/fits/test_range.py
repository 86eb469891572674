"""A mechanism for runs that are not known yet."""

import numpy as np
import pytest

import fedmf
from fedmf.mechanisms.fit_range import fit_range, for_rounds
from tests.mechanisms.schemas import separated, single

RUNS = (separated(40, 10), separated(160, 10), single(160), separated(400, 100))


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("blt", {"buffers": 2}),
        ("toeplitz", {"bands": 8}),
        ("toeplitz", {"coefficients": "optimized_inverse", "bands": 8}),
    ],
)
def test_the_candidate_with_the_least_worst_regret(family, options):
    found = fit_range(RUNS, family, options=options)
    errors = {}
    for fitted_for in RUNS:
        n = fitted_for.rounds
        candidate = fedmf.fit(
            fedmf.prefix_sum(n), fitted_for, family=family, objective="max", **options
        )
        for i, run in enumerate(RUNS):
            workload = fedmf.prefix_sum(run.rounds)
            errors[fitted_for, i] = fedmf.max_error(
                for_rounds(candidate, run.rounds), workload, run
            )
    least = [min(errors[other, i] for other in RUNS) for i in range(len(RUNS))]
    worst = {run: max(errors[run, i] / least[i] - 1 for i in range(len(RUNS))) for run in RUNS}
    assert found.worst_regret == pytest.approx(min(worst.values()), abs=1e-12)
    assert worst[found.fitted_for] == found.worst_regret
    assert min(found.regrets) >= 0.0
    assert found.mechanism.rounds == 400
    # Not having known costs something here, and less than the worst choice does.
    assert 0.0 < found.worst_regret < max(worst.values())


def test_longer_and_shorter_are_the_same_recurrence():
    blt = fedmf.fit(fedmf.prefix_sum(40), separated(40, 10), family="blt", buffers=2)
    for rounds in (7, 40, 90):
        C = for_rounds(blt, rounds).encoder()
        shared = min(rounds, 40)
        np.testing.assert_allclose(C[:shared, :shared], blt.encoder()[:shared, :shared], rtol=1e-12)
        assert for_rounds(blt, rounds).rounds == rounds


def test_refusals():
    with pytest.raises(ValueError, match="participations is empty"):
        fit_range([])
    with pytest.raises(ValueError, match="family='banded'"):
        fit_range(RUNS, "banded")
    with pytest.raises(ValueError, match="objective='median'"):
        fit_range(RUNS, objective="median")
