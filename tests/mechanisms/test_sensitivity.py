"""Sensitivity: never below what contributions attain, and exact where it says so."""

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from fedmf.mechanisms import BandedMechanism, IdentityMechanism, ToeplitzMechanism
from fedmf.mechanisms.sensitivity import Sensitivity, sensitivity
from fedmf.noise.stream import banded_matrix
from fedmf.participation.schema import Participation
from tests.mechanisms.schemas import every_round, separated
from tests.oracles import allowed_sets, attained_sensitivity, sensitivity_of_nonnegative
from tests.paper_figures import VECTOR_COUNTEREXAMPLE, VECTOR_COUNTEREXAMPLE_INPUTS
from tests.participation.test_participation import participations
from tests.refusals import refusal


def random_matrix(draw, rounds, rng):
    """Draws a matrix, square or tall, of any signs, with or without bands."""
    C = rng.standard_normal((draw(st.sampled_from([rounds, rounds + 3])), rounds))
    if draw(st.booleans()):
        C = np.abs(C)
    if draw(st.booleans()):  # banded, and with gaps inside the band
        bands = draw(st.integers(1, rounds))
        C = np.tril(np.triu(C, 1 - bands)) * (rng.random(C.shape) < 0.7)
    return C


class Matrix:
    """An encoder known by its matrix, which may have more rows than columns."""

    def __init__(self, C):
        self.encoder = lambda: C


class Stationary:
    """An encoder known by its X, random, positive definite and Toeplitz, (rounds, rounds)."""

    def __init__(self, rounds, rng):
        self._x = np.fft.irfft(rng.exponential(size=rounds + 1) ** 3, 2 * rounds)[:rounds]

    def toeplitz_gram(self):
        return self._x

    def encoder(self):
        return scipy.linalg.cholesky(scipy.linalg.toeplitz(self._x))


FORMS = ("matrix", "rows", "coefficients", "decreasing", "gram")


def random_encoder(draw, form, rounds):
    """Draws an encoder that is known by its matrix, the rows of its bands, its first column, or its
    X.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if form == "matrix":
        return Matrix(random_matrix(draw, rounds, rng))
    if form == "gram":
        return Stationary(rounds, rng)
    bands = draw(st.integers(1, rounds))
    if form == "rows":
        rows = rng.standard_normal((rounds, bands))
        rows[np.arange(rounds)[:, None] < np.arange(bands)] = 0.0
        rows[:, 0] = 1.0 + np.abs(rows[:, 0])
        return BandedMechanism(diagonals=rows)
    column = rng.uniform(draw(st.sampled_from([-1.0, 0.0])), 1.0, bands)
    if form == "decreasing":
        column = np.sort(np.abs(column))[::-1]
        if draw(st.booleans()):
            column[bands // 2 :] = column[-1]  # ties
    column[0] = 1.0
    return ToeplitzMechanism(rounds=rounds, coefficients=column)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(max_examples=150)
def test_no_vectors_exceed_the_sensitivity_and_exact_ones_attain_it(form, data):
    """Compares with the definition: the largest change by one client's vectors (multi-epoch paper,
    Def. 1).
    """
    participation = data.draw(participations(max_rounds=8))
    encoder = random_encoder(data.draw, form, participation.rounds)
    C = encoder.encoder()
    claimed_sensitivity = sensitivity(encoder, participation)
    attained_value = attained_sensitivity(C, participation, np.random.default_rng(0), starts=3)
    assert claimed_sensitivity.value >= attained_value * (1.0 - 1e-9)
    if claimed_sensitivity.exact:
        # The ascent is slow where columns are nearly orthogonal.
        if attained_value < claimed_sensitivity.value * (1.0 - 1e-5):
            attained_value = attained_sensitivity(
                C, participation, np.random.default_rng(0), starts=3, sweeps=20_000
            )
        assert_allclose(claimed_sensitivity.value, attained_value, rtol=1e-5)
    if (C >= 0.0).all():
        assert claimed_sensitivity.value >= sensitivity_of_nonnegative(C, participation) * (
            1.0 - 1e-12
        )
    by_matrix = sensitivity(C, participation)
    if form == "rows":
        assert_allclose(claimed_sensitivity.value, by_matrix.value, rtol=1e-12)
        assert (claimed_sensitivity.exact, claimed_sensitivity.method) == (
            by_matrix.exact,
            by_matrix.method,
        )
    if form == "gram" and participation.schema != "min_sep":
        assert_allclose(claimed_sensitivity.value, by_matrix.value, rtol=1e-12)
    if form in ("coefficients", "decreasing"):  # no worse than what is known of the matrix
        assert claimed_sensitivity.value <= by_matrix.value * (1.0 + 1e-9)
    if form == "decreasing":
        assert claimed_sensitivity.exact


@given(st.data())
@settings(max_examples=60)
def test_nonnegative_encoders_have_an_exact_sensitivity(data):
    """Tests X >= 0, where it is a sum of X over a client's rounds (multi-epoch paper, Cor. 2.1;
    banded paper, Prop. E.1).
    """
    participation = data.draw(participations(max_rounds=10))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    C = np.abs(random_matrix(data.draw, participation.rounds, rng))
    claimed_sensitivity = sensitivity(C, participation)
    expected = sensitivity_of_nonnegative(C, participation)
    if participation.schema != "min_sep" or participation.max_participations <= 2:
        assert claimed_sensitivity.exact
        assert_allclose(claimed_sensitivity.value, expected, rtol=1e-12)
    else:
        assert claimed_sensitivity.value >= expected * (1.0 - 1e-12)


@pytest.mark.parametrize("tiny", [1e-9, 1e-200])
def test_tiny_entries_outside_the_band_are_not_ignored(tiny):
    # With as many bands as min_sep, Alg. 5 of the banded paper (Thm. 2 there) is exact. The band is
    # read off exact zeros: with one small entry outside it, that no longer applies.
    C = np.eye(8) + 0.5 * np.eye(8, k=-1)
    participation = separated(8, 2)
    exact_sensitivity = sensitivity(C, participation)
    assert exact_sensitivity.exact
    assert_allclose(
        exact_sensitivity.value, sensitivity_of_nonnegative(C, participation), rtol=1e-12
    )
    C[7, 0] = tiny
    bound = sensitivity(C, participation)
    assert not bound.exact
    assert bound.value >= sensitivity_of_nonnegative(C, participation) * (1.0 - 1e-12)


@pytest.mark.parametrize("schema", ["every_round", "fixed_epoch", "min_sep"])
def test_vector_contributions_can_exceed_scalar_ones(schema):
    attained_value = np.linalg.norm(VECTOR_COUNTEREXAMPLE @ VECTOR_COUNTEREXAMPLE_INPUTS)
    assert_allclose(attained_value, np.sqrt(1.1))
    min_sep = None if schema == "every_round" else 1
    participation = Participation(rounds=3, schema=schema, min_sep=min_sep)
    bound = sensitivity(VECTOR_COUNTEREXAMPLE, participation)
    assert bound.exact
    assert attained_value <= bound.value < 1.3
    best = attained_sensitivity(VECTOR_COUNTEREXAMPLE, participation, np.random.default_rng(0))
    assert best >= 1.0488
    assert_allclose(bound.value, best, rtol=1e-8)


def test_sums_of_magnitudes_are_exact_where_signs_attain_them():
    C = np.array([[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [-1.0, 0.5, 1.0]])
    claimed_sensitivity = sensitivity(C, every_round(3))
    assert claimed_sensitivity.exact is True  # numpy's would not go into a plan's JSON
    assert_allclose(claimed_sensitivity.value, np.linalg.norm(C @ [-1.0, 1.0, 1.0]))


def test_the_spectral_bound_is_used_where_it_is_smaller():
    """Tests the bound of sqrt(k) times the spectral norm (multi-epoch paper, Thm. 2.1)."""
    rng = np.random.default_rng(3)
    C = np.linalg.qr(rng.standard_normal((10, 10)))[0] + 0.01 * rng.standard_normal((10, 10))
    for schema, min_sep in (("every_round", None), ("min_sep", 2)):
        participation = Participation(rounds=10, schema=schema, min_sep=min_sep)
        bound = sensitivity(C, participation)
        assert bound.exact == (schema == "every_round")
        spectral_norm = np.linalg.norm(C, 2)
        assert bound.value <= np.sqrt(participation.max_participations) * spectral_norm * (
            1.0 + 1e-12
        )
        assert bound.value >= attained_sensitivity(C, participation, rng)


def test_a_mechanism_is_judged_by_its_encoder():
    class Liar:
        sensitivity = Sensitivity(value=1e-3, exact=True, method="trust me")

        def encoder(self):
            return 10.0 * np.eye(4)

    participation = separated(4, 2)
    assert_allclose(sensitivity(Liar(), participation).value, 10.0 * np.sqrt(2.0))


def test_sensitivity_is_computed_once_for_each_participation():
    computed_rounds = []

    class Counted(IdentityMechanism):
        def toeplitz_coefficients(self):
            computed_rounds.append(self.rounds)
            return np.ones(1)

    mechanism = Counted(rounds=6)
    squares = [sensitivity(mechanism, separated(6, b)).value ** 2 for b in (2, 3, 2)]
    assert_allclose(squares, [3, 2, 3])
    assert len(computed_rounds) == 2


@pytest.mark.parametrize("unit", [1e-101, 1e101])
def test_encoders_whose_squares_lose_digits_are_refused(unit):
    # At 1e-200 they are 0, and a sensitivity of 0 would mean no noise.
    rows = np.where(np.arange(6)[:, None] >= np.arange(2), [1.0, -0.75], 0.0) * unit
    for encoder in (
        banded_matrix(rows),
        BandedMechanism(diagonals=rows),
        ToeplitzMechanism(rounds=6, coefficients=rows[5]),
    ):
        with refusal("lose digits in float64: divide it"):
            sensitivity(encoder, separated(6, 2))


@pytest.mark.parametrize(
    ("b", "k", "bands"), [(2, 3, 4), (2, 3, 3), (1, 4, 2), (1, 4, 3), (2, 4, 8)]
)
@pytest.mark.parametrize("seed", range(3))
def test_min_sep_bounds_are_those_of_alg_4_of_the_banded_paper(b, k, bands, seed):
    """Compares with Alg. 4 of the banded paper, the bound of its Thm. 3, with sums over a client's
    rounds (its Alg. 3) found by trying all.
    """
    rows = -np.random.default_rng(seed).random((8, bands))
    rows[:, 0] = 1.0
    rows[np.arange(8)[:, None] < np.arange(bands)] = 0.0
    X = banded_matrix(rows).T @ banded_matrix(rows)
    assert X.min() < 0.0 < X.max()
    participation = separated(8, b, k)
    allowed_rounds = [list(rounds) for rounds in allowed_sets(participation)]
    lag = np.abs(np.subtract.outer(np.arange(8), np.arange(8)))
    magnitudes = np.where((lag == 0) | (lag >= b), np.abs(X), 0.0)
    row_sums = np.max([magnitudes[:, rounds].sum(axis=1) for rounds in allowed_rounds], axis=0)
    bound = min(
        max(row_sums[rounds].sum() for rounds in allowed_rounds), k * np.linalg.eigvalsh(X)[-1]
    )
    assert_allclose(sensitivity(banded_matrix(rows), participation).value ** 2, bound, rtol=1e-12)
