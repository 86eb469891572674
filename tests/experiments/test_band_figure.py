"""Banded Fig. 4 at a size for tests; the real size is `make figure-4`."""

import numpy as np
import pytest

import fedmf
from fedmf.experiments import band_figure, band_sweep
from fedmf.privacy.amplification import sampled_gaussian_epsilon, sampled_gaussian_noise_multiplier
from fedmf.privacy.bands import choose_bands


def test_quick_figure():
    said = []
    found = band_figure.compare(band_figure.QUICK_ROUNDS, band_figure.QUICK_EPSILONS, said.append)
    assert band_figure.picture(found)[:8] == b"\x89PNG\r\n\x1a\n"
    dp_sgd, multi_epoch, banded = found.dp_sgd, found.multi_epoch, found.banded
    assert dp_sgd.shape == (2, 5)
    # Banded paper, Sec. 6: BandMF is always at least as good as DP-SGD, which is one band of it.
    assert (banded <= dp_sgd).all()
    assert (banded < 0.95 * dp_sgd).any()
    # Where every round has everyone there is nothing to amplify, and the best encoder of all is a
    # little better than the identity.
    assert (found.bands[:, -1] == 1).all()
    assert (multi_epoch[:, -1] < dp_sgd[:, -1]).all()
    assert (multi_epoch[:, -1] > 0.9 * dp_sgd[:, -1]).all()
    # All errors fall with epochs and with epsilon.
    for errors in (dp_sgd, multi_epoch, banded):
        assert (np.diff(errors, axis=0) < 0).all()
        assert (np.diff(errors, axis=1) < 0).all()
    assert "fitting the dense optimum of 16 epochs" in said


def test_where_epsilon_jumps_over_a_target_the_noise_is_enough():
    def epsilon_of(sigma):
        return 3 / sigma if sigma > 1 else 100 / sigma

    found = band_sweep.inverse(epsilon_of, [1.0, 2.0, 8.0, 40.0, 200.0], tolerance=0.01, ratio=2.0)
    assert found == pytest.approx([3, 1.5, 1, 1, 0.5], rel=0.01)
    assert [epsilon_of(sigma) for sigma in found] == pytest.approx([1, 2, 3, 3, 200], rel=0.01)


def test_curves_are_those_of_calibration():
    found = band_sweep.noise_curve([0.5, 4.0], 1e-6, probability=0.25, compositions=8)
    for sigma, epsilon in zip(found, (0.5, 4.0), strict=True):
        reached = sampled_gaussian_epsilon(float(sigma), 1e-6, probability=0.25, compositions=8)
        assert reached == pytest.approx(epsilon, rel=1.1e-4)
        exact = sampled_gaussian_noise_multiplier(epsilon, 1e-6, probability=0.25, compositions=8)
        assert sigma == pytest.approx(exact, rel=2e-4)


def test_sweep_is_a_grid_of_choices():
    table = band_sweep.sweep(rounds=16, epsilons=(2.0,), epochs=(2, 8))
    for j, k in enumerate((2, 8)):
        choice = choose_bands(
            fedmf.prefix_sum(16),
            population=16,
            cohort_size=k,
            epsilon=2.0,
            delta=1e-6,
            bands=[b for b in table.bands if b * k <= 16],
        )
        assert table.best[0, j] == choice.best.bands
        expected = [row.rmse for row in choice.rows]
        np.testing.assert_allclose(table.rmse[0, j, : len(expected)], expected, rtol=2e-4)
        assert np.isinf(table.rmse[0, j, len(expected) :]).all()
