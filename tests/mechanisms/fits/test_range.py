"""A mechanism for runs that are not known yet."""

import numpy as np
import pytest

import fedmf
from fedmf.mechanisms.fit_range import fit_range, for_rounds
from tests.mechanisms.schemas import fitted, separated, single

RUNS = (separated(40, 10), separated(160, 10), single(160))


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("blt", {"buffers": 2}),
        ("toeplitz", {"coefficients": "optimized_inverse", "bands": 8}),
    ],
)
def test_the_candidate_with_the_least_worst_regret(family, options):
    found = fit_range(RUNS, family, options=options)
    candidates = [fitted(of, family, objective="max", **options) for of in RUNS]

    def error(mechanism, run):
        return fedmf.max_error(for_rounds(mechanism, run.rounds), fedmf.prefix_sum(run.rounds), run)

    errors = np.array([[error(candidate, run) for run in RUNS] for candidate in candidates])
    worst = (errors / errors.min(axis=0) - 1).max(axis=1)
    assert found.worst_regret == pytest.approx(worst.min(), abs=1e-12)
    assert found.fitted_for == RUNS[worst.argmin()]
    assert min(found.regrets) >= 0.0
    assert found.mechanism.rounds == 160
    # Not having known costs something here, and less than the worst choice does.
    assert 0.0 < found.worst_regret < worst.max()


def test_longer_and_shorter_are_the_same_recurrence():
    blt = fitted(separated(40, 10), "blt", buffers=2)
    for rounds in (7, 40, 90):
        C = for_rounds(blt, rounds).encoder()
        shared = min(rounds, 40)
        np.testing.assert_allclose(C[:shared, :shared], blt.encoder()[:shared, :shared], rtol=1e-12)
        assert for_rounds(blt, rounds).rounds == rounds
