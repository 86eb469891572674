"""Confidence intervals for the mean of a few values."""

import math

import numpy as np
import pytest
import scipy.stats

from fedmf import intervals

# Five standard deviations of the share of 10,000 sets in which an interval of confidence 95% lies
# above the true mean: a test fails by chance once in a million.
_NUM_SETS = 10_000
_TOLERANCE = 5 * math.sqrt(0.025 * 0.975 / _NUM_SETS)


@pytest.mark.parametrize("num_values", [2, 6, 29])
def test_students_interval_misses_the_mean_of_normal_values_in_5_percent_of_sets(num_values):
    values = np.random.default_rng(11).normal(0.0, 1.0, (num_values, _NUM_SETS))
    band = intervals.mean_band(values)
    assert abs(np.mean(band.low > 0) - 0.025) < _TOLERANCE
    assert abs(np.mean(band.high < 0) - 0.025) < _TOLERANCE
    if num_values == 6:
        # Plain percentiles of resampled means are the control that must fail the bound: they lie
        # above the mean in 7.6% of sets of 6 values.
        drawn_rows = np.random.default_rng(0).integers(0, 6, (200, 6))
        resampled_means = values[:, :3000][drawn_rows].mean(axis=1)
        assert np.mean(np.quantile(resampled_means, 0.025, axis=0) > 0) > 0.025 + _TOLERANCE
        # A mean of twice the standard deviation is shown by more than nine sets of ten.
        assert np.mean(band.low + 2 > 0) > 0.9


def test_one_interval_is_that_of_scipy():
    values = [0.31, 0.28, 0.35, 0.33]
    expected_ends = scipy.stats.t.interval(0.95, 3, np.mean(values), scipy.stats.sem(values))
    for interval in (intervals.mean_interval(values), intervals.student_interval(values)):
        assert interval == pytest.approx((np.mean(values), *expected_ends))


def test_many_values_are_resampled():
    # The bootstrap's interval of skewed values is not symmetric.
    values = np.random.default_rng(3).exponential(1.0, intervals.MANY_VALUES)
    mean, low, high = intervals.mean_interval(values)
    assert (mean, low, high) == intervals.bootstrap_interval(values)
    assert high - mean > 1.05 * (mean - low)
    few_values = values[: intervals.MANY_VALUES - 1]
    assert intervals.mean_interval(few_values) == intervals.student_interval(few_values)


@pytest.mark.parametrize("values", [[], [0.5], [0.5, math.nan], [0.5, math.inf, 0.25]])
def test_there_is_no_interval_without_two_finite_values(values):
    assert intervals.mean_interval(values) is None
