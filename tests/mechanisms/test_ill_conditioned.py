"""Encoders that float64 cannot invert are refused: their noise would not have their privacy."""

from fractions import Fraction

import numpy as np
import pytest

import fedmf
from fedmf.mechanisms import (
    BandedMechanism,
    DenseMechanism,
    ExplicitMechanism,
    LowRankMechanism,
    ToeplitzMechanism,
    stamp,
)
from fedmf.noise.stream import triangular_inverse
from tests.mechanisms.schemas import single
from tests.refusals import refusal


def random_triangle(n: int) -> np.ndarray:
    """Returns a random lower-triangular matrix, ill-conditioned for large n."""
    C = np.tril(np.random.default_rng(0).standard_normal((n, n)))
    np.fill_diagonal(C, np.abs(np.diagonal(C)) + 0.1)
    return C


def largest_column_of_exact_inverse(N: np.ndarray) -> float:
    """Returns the single-participation sensitivity of the exact inverse of a lower-triangular N, in
    rational numbers.
    """
    n = len(N)
    exact_rows = [[Fraction(float(entry)) for entry in row] for row in N]
    squares = []
    for j in range(n):
        column = [Fraction(0)] * n
        for i in range(j, n):
            column[i] = (
                int(i == j) - sum((exact_rows[i][s] * column[s] for s in range(j, i)), Fraction(0))
            ) / exact_rows[i][i]
        squares.append(float(sum(entry * entry for entry in column)))
    return float(np.sqrt(max(squares)))


def is_refused(mechanism) -> bool:
    try:
        mechanism.stream().as_contraction()
    except ValueError as error:
        return "ill-conditioned" in str(error)
    return False


def test_an_inverse_in_float64_can_be_that_of_a_far_more_sensitive_encoder():
    # The inverse of this encoder in float64 is that of another one, many times as sensitive.
    C = np.tril(np.full((80, 80), 1e-9)) + np.eye(80) + 1.9 * np.eye(80, k=-1)
    claimed_sensitivity = fedmf.sensitivity(C, single(80)).value
    assert largest_column_of_exact_inverse(triangular_inverse(C)) > 1000.0 * claimed_sensitivity
    with refusal("ill-conditioned"):
        DenseMechanism(matrix=C).stream()


@pytest.mark.parametrize(
    "columns", [1.0, 10.0 ** np.linspace(-9, 9, 100), 10.0 ** np.linspace(9, -9, 100)]
)
def test_ill_conditioned_dense_encoders_are_refused_at_any_scale(columns):
    mechanism = DenseMechanism(matrix=random_triangle(100) * columns)
    for compute_matrix in (mechanism.noising, mechanism.stream, stamp(mechanism, 2).noising):
        with refusal("too ill-conditioned for float64"):
            compute_matrix()
    well_conditioned = DenseMechanism(matrix=(np.eye(100) + 0.5 * np.eye(100, k=-1)) * columns)
    assert not is_refused(well_conditioned)


def test_unstable_recurrences_are_refused_as_matrices():
    wide_rows = np.where(np.arange(80)[:, None] >= np.arange(2), [1.0, 1.9], 0.0)
    assert is_refused(BandedMechanism(diagonals=wide_rows))
    coefficients = np.concatenate([[1.0, 1.9], np.zeros(77), [1e-9]])
    assert is_refused(ToeplitzMechanism(rounds=80, coefficients=coefficients))
    assert not is_refused(
        ToeplitzMechanism(rounds=80, noising_window=[1.0, 1.9])
    )  # Here N is exact.


def test_ill_conditioned_noising_matrices_are_refused():
    rows = np.zeros((100, 100))
    N = triangular_inverse(random_triangle(100))
    for j in range(100):
        rows[j:, j] = np.diagonal(N, -j)
    zero_factor = np.zeros((100, 1))
    mechanism = LowRankMechanism(
        diagonals=rows, left=zero_factor, right=zero_factor, inverse_workload=np.ones((100, 1))
    )
    with refusal("ill-conditioned"):
        mechanism.encoder()
    with refusal("ill-conditioned"):
        fedmf.sensitivity(mechanism, single(100))


def test_small_errors_that_add_up_are_refused():
    # Each entry of N C is within 1e-6 of I's, but the noise is that of an encoder 0.04 % more
    # sensitive.
    n = 400
    C = np.eye(n)
    C[0] = 100.0
    N = np.linalg.solve(np.eye(n) + 9.9e-7, np.linalg.inv(C))
    with refusal("differs from the identity"):
        ExplicitMechanism(encoder_matrix=C, noising_matrix=N)
    ExplicitMechanism(encoder_matrix=C, noising_matrix=np.linalg.inv(C))
