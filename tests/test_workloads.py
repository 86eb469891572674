"""Workloads: their definitions, read-only copies and ranges of numbers."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmf.workloads import Workload, momentum_sgd, prefix_sum, sgd
from tests.refusals import refusal


@pytest.mark.parametrize("n", [1, 2, 9])
def test_prefix_sums_sum(n):
    x = np.arange(1.0, n + 1.0)
    assert np.array_equal(prefix_sum(n).matrix @ x, np.cumsum(x))
    assert prefix_sum(n).rounds == n


@given(rates=st.lists(st.floats(0.01, 10.0), min_size=1, max_size=12), momentum=st.floats(0, 0.99))
def test_momentum_workload_gives_the_iterates_of_heavy_ball_sgd(rates, momentum):
    """Also compares with the product of Denisov et al. 2022, Prop. 4.2."""
    n = len(rates)
    matrix = momentum_sgd(n, momentum, rates).matrix
    gradients = np.random.default_rng(n).standard_normal((n, 3))
    iterate = np.zeros(3)
    buffer = np.zeros(3)
    iterates = []
    for rate, gradient in zip(rates, gradients, strict=True):  # Denisov et al. 2022, Algorithm 2
        buffer = momentum * buffer + gradient
        iterate = iterate - rate * buffer
        iterates.append(iterate)
    np.testing.assert_allclose(-matrix @ gradients, np.stack(iterates), atol=1e-9)
    lags = np.subtract.outer(np.arange(n), np.arange(n))
    M_eta = np.tril(np.broadcast_to(rates, (n, n)))
    M_beta = np.where(lags >= 0, momentum ** np.abs(lags), 0.0)
    np.testing.assert_allclose(matrix, M_eta @ M_beta, rtol=1e-12)


def test_a_workload_keeps_its_own_read_only_copy():
    matrix = np.eye(3)
    by_position = Workload("mine", matrix)
    by_keyword = Workload(name="mine", matrix=matrix)
    matrix[0, 0] = 5.0
    for workload in (by_position, by_keyword):
        assert workload.matrix[0, 0] == 1.0
        assert workload.matrix.dtype == np.float64
        with refusal("read-only"):
            workload.matrix[0, 0] = 2.0
        with pytest.raises(dataclasses.FrozenInstanceError):
            workload.name = "other"


@pytest.mark.parametrize("extreme", [1e-300, 1e-80, 1e80, 1e300])
def test_entries_whose_squares_are_beyond_float64_are_refused(extreme):
    with refusal(r"^matrix has entries from .* another unit$"):
        Workload("extreme", np.diag([1.0, extreme]))
    with refusal(r"^inverse_diagonals has entries from .*learning rates, another unit$"):
        sgd([1.0, extreme])
    factor = 1e70 if extreme > 1.0 else 1e-70
    with refusal("another unit"):
        sgd([1.0, factor]) @ sgd([1.0, factor])
