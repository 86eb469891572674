"""Fits for several possible runs: the smallest worst-case regret."""

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
def test_fit_range_returns_the_candidate_with_the_smallest_worst_regret(family, options):
    range_fit = fit_range(RUNS, family, options=options)
    candidates = [fitted(run, family, objective="max", **options) for run in RUNS]

    def error(mechanism, run):
        return fedmf.max_error(for_rounds(mechanism, run.rounds), fedmf.prefix_sum(run.rounds), run)

    errors = np.array([[error(candidate, run) for run in RUNS] for candidate in candidates])
    worst_regrets = (errors / errors.min(axis=0) - 1).max(axis=1)
    assert range_fit.worst_regret == pytest.approx(worst_regrets.min(), abs=1e-12)
    assert range_fit.fitted_for == RUNS[worst_regrets.argmin()]
    assert min(range_fit.regrets) >= 0.0
    assert range_fit.mechanism.rounds == 160
    # Not knowing the run has a cost here, smaller than that of the worst candidate.
    assert 0.0 < range_fit.worst_regret < worst_regrets.max()


def test_longer_and_shorter_mechanisms_have_the_same_coefficients():
    blt = fitted(separated(40, 10), "blt", buffers=2)
    for rounds in (7, 40, 90):
        C = for_rounds(blt, rounds).encoder()
        shared_rounds = min(rounds, 40)
        np.testing.assert_allclose(
            C[:shared_rounds, :shared_rounds],
            blt.encoder()[:shared_rounds, :shared_rounds],
            rtol=1e-12,
        )
        assert for_rounds(blt, rounds).rounds == rounds
