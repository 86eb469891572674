"""The bound on vector contributions: above everything attainable, and attained."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.participation.vector_bound import vector_sensitivity_bounds


def random_gram(seed, k, rank):
    """Returns the gram matrix of random columns of two scales, (k, k)."""
    rng = np.random.default_rng(seed)
    C = rng.standard_normal((rank, k)) * rng.choice([1.0, 1e-3], k)
    return C.T @ C


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 8), rank=st.integers(1, 10))
@settings(max_examples=80)
def test_no_contributions_exceed_the_bound(seed, k, rank):
    X = random_gram(seed, k, rank)
    rng = np.random.default_rng(seed)
    attained_value, bound = vector_sensitivity_bounds(X)
    assert attained_value <= bound * (1.0 + 1e-12)
    for signs in itertools.product([-1.0, 1.0], repeat=k):
        assert np.array(signs) @ X @ np.array(signs) <= bound * (1.0 + 1e-12)
    for _ in range(20):
        G = rng.standard_normal((k, rng.integers(1, k + 1)))
        G /= np.linalg.norm(G, axis=1, keepdims=True)
        assert np.sum(G * (X @ G)) <= bound * (1.0 + 1e-12)
    # Sums of |X| and k times the spectral norm are bounds as well, and never smaller ones.
    assert bound <= np.abs(X).sum() * (1.0 + 1e-6)
    assert bound <= k * np.linalg.norm(X, 2) * (1.0 + 1e-6)


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 12))
@settings(max_examples=40)
def test_the_bound_is_attained_to_1e_6(seed, k):
    attained_value, bound = vector_sensitivity_bounds(random_gram(seed, k, k))
    np.testing.assert_allclose(attained_value, bound, rtol=1e-6)


def test_the_bound_of_a_zero_matrix_is_zero():
    attained_value, bound = vector_sensitivity_bounds(np.zeros((3, 3)))
    assert attained_value == 0.0
    assert 0.0 <= bound < 1e-300
