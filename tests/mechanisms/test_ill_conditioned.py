"""Encoders that float64 has too few digits to invert: their noise would not have the privacy that
is claimed.
"""

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
    C = np.tril(np.random.default_rng(0).standard_normal((n, n)))
    np.fill_diagonal(C, np.abs(np.diagonal(C)) + 0.1)
    return C


def largest_column_of_exact_inverse(N: np.ndarray) -> float:
    """The single-participation sensitivity of the encoder that a lower-triangular N really has, in
    rational numbers.
    """
    n = len(N)
    exact = [[Fraction(float(entry)) for entry in row] for row in N]
    squares = []
    for j in range(n):
        column = [Fraction(0)] * n
        for i in range(j, n):
            column[i] = (
                int(i == j) - sum((exact[i][s] * column[s] for s in range(j, i)), Fraction(0))
            ) / exact[i][i]
        squares.append(float(sum(entry * entry for entry in column)))
    return float(np.sqrt(max(squares)))


def refused(mechanism) -> bool:
    try:
        mechanism.stream().as_contraction()
    except ValueError as error:
        return "ill-conditioned" in str(error)
    return False


def test_the_danger_is_real():
    # The inverse that float64 finds of this encoder is that of another,
    # many times more sensitive one.
    C = np.tril(np.full((80, 80), 1e-9)) + np.eye(80) + 1.9 * np.eye(80, k=-1)
    claimed = fedmf.sensitivity(C, single(80)).value
    assert largest_column_of_exact_inverse(triangular_inverse(C)) > 1000.0 * claimed
    with refusal("ill-conditioned"):
        DenseMechanism(matrix=C).stream()


@pytest.mark.parametrize(
    "columns", [1.0, 10.0 ** np.linspace(-9, 9, 100), 10.0 ** np.linspace(9, -9, 100)]
)
def test_dense_encoders(columns):
    mechanism = DenseMechanism(matrix=random_triangle(100) * columns)
    for use in (mechanism.noising, mechanism.stream, stamp(mechanism, 2).noising):
        with refusal("too ill-conditioned for float64"):
            use()
    well = DenseMechanism(matrix=(np.eye(100) + 0.5 * np.eye(100, k=-1)) * columns)
    assert not refused(well)  # of any scale


def test_unstable_recurrences_as_matrices():
    wide = np.where(np.arange(80)[:, None] >= np.arange(2), [1.0, 1.9], 0.0)
    assert refused(BandedMechanism(diagonals=wide))
    coefficients = np.concatenate([[1.0, 1.9], np.zeros(77), [1e-9]])
    assert refused(ToeplitzMechanism(rounds=80, coefficients=coefficients))
    assert not refused(ToeplitzMechanism(rounds=80, noising_window=[1.0, 1.9]))  # here N is exact


def test_encoders_computed_from_noise():
    rows = np.zeros((100, 100))
    N = triangular_inverse(random_triangle(100))
    for j in range(100):
        rows[j:, j] = np.diagonal(N, -j)
    nothing = np.zeros((100, 1))
    mechanism = LowRankMechanism(
        diagonals=rows, left=nothing, right=nothing, inverse_workload=np.ones((100, 1))
    )
    with refusal("ill-conditioned"):
        mechanism.encoder()
    with refusal("ill-conditioned"):
        fedmf.sensitivity(mechanism, single(100))


def test_small_errors_that_add_up_are_refused():
    # Each entry of N C is within 1e-6 of I's, but what runs is an encoder 0.04 % more sensitive.
    n = 400
    C = np.eye(n)
    C[0] = 100.0
    N = np.linalg.solve(np.eye(n) + 9.9e-7, np.linalg.inv(C))
    with refusal("differs from the identity"):
        ExplicitMechanism(encoder_matrix=C, noising_matrix=N)
    ExplicitMechanism(encoder_matrix=C, noising_matrix=np.linalg.inv(C))
