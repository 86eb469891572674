"""Low-rank mechanisms: their matrices, streams and fits."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedmf.mechanisms import LowRankMechanism
from fedmf.mechanisms.fit import fit
from fedmf.workloads import Workload, momentum_sgd, prefix_sum
from tests.mechanisms.schemas import fitted, single
from tests.refusals import refusal


def random_decoder(n, seed=0):
    """Returns a random lower-triangular B with a large diagonal."""
    return np.tril(np.random.default_rng(seed).uniform(-1.0, 1.0, (n, n))) + 3.0 * np.eye(n)


def low_rank(n, bands, rank, **options):
    """Fits a low-rank mechanism to prefix sums under a single participation."""
    return fitted(single(n), "low_rank", bands=bands, rank=rank, **options)


@pytest.mark.parametrize(("n", "h", "r"), [(1, 1, 1), (5, 2, 1), (9, 3, 2), (9, 9, 9)])
def test_matrices_are_those_of_the_definition(n, h, r):
    # Denisov et al. 2022, App. H: B = D + (L R^T) o U, entry by entry. N is the bands of A^-1 times
    # B (banded paper, Alg. 8).
    rng = np.random.default_rng(n)
    D = random_decoder(n)[:, :h]
    L = rng.standard_normal((n, r))
    R = rng.standard_normal((n, r))
    D = np.where(np.arange(n)[:, None] >= np.arange(h), D, 0.0)
    D[:, 0] = 1.0 + rng.uniform(size=n)
    mechanism = LowRankMechanism(
        diagonals=D, left=L, right=R, inverse_workload=momentum_sgd(n, 0.5).inverse_diagonals
    )
    B = np.zeros((n, n))
    for t in range(n):
        for s in range(t + 1):
            B[t, s] = D[t, t - s] if t - s < h else L[t] @ R[s]
    A = momentum_sgd(n, 0.5).matrix
    assert_allclose(A @ mechanism.noising(), B, atol=1e-12)
    assert_allclose(B @ mechanism.encoder(), A, atol=1e-9)
    assert mechanism.rank == r


@pytest.mark.parametrize(
    ("workload", "window_length"),
    [(prefix_sum(40), 4), (momentum_sgd(40), 5)],
    ids=["prefix", "momentum"],
)
def test_the_stream_needs_a_short_window_and_rank_sums(workload, window_length):
    # Denisov et al. 2022, App. H, Alg. 3: h + r vectors a round for B, plus the bands of A^-1.
    stream = fit(workload, single(40), family="low_rank", bands=3, rank=2).stream()
    assert stream.buffers is not None
    assert stream.buffers.window.shape == (40, window_length)
    assert stream.buffers.decay.tolist() == [1.0, 1.0]


def test_more_rank_and_more_bands_come_closer_to_the_optimum():
    certificates = [
        low_rank(64, h, r, tolerance=1e-9).certificate for h, r in ((1, 1), (3, 3), (10, 10))
    ]
    losses = [certificate.loss for certificate in certificates]
    assert losses == sorted(losses, reverse=True)
    optimum = fitted(single(64), "dense", tolerance=1e-6).certificate.loss
    for certificate in certificates:
        assert certificate.lower_bound <= optimum <= certificate.loss
    assert certificates[1].gap < 0.01
    assert_allclose(losses[-1], optimum, rtol=1e-3)
    # With all bands B is the optimum.
    assert_allclose(low_rank(64, 64, 1).certificate.loss, optimum, rtol=1e-3)


def test_a_negative_workload_diagonal_gives_a_positive_noising_diagonal():
    workload = Workload.from_inverse("negative", -prefix_sum(24).inverse_diagonals)
    mechanism = fit(workload, single(24), family="low_rank", bands=3, rank=2)
    assert (np.diagonal(mechanism.noising()) > 0.0).all()
    assert_allclose(
        workload.matrix @ mechanism.noising() @ mechanism.encoder(), workload.matrix, atol=1e-9
    )


def test_default_bands_and_rank_are_those_of_denisov():
    # Denisov et al. 2022, App. H, Table 2: h + r = log2(n).
    for n, h, r in ((1, 1, 1), (2, 1, 1), (3, 1, 1), (16, 2, 2), (128, 4, 3)):
        mechanism = fitted(single(n), "low_rank", max_iterations=1)
        assert (mechanism.diagonals.shape[1], mechanism.rank) == (h, r)


def test_a_gap_due_to_few_bands_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert low_rank(40, 1, 1).certificate.gap > 1e-3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"left": np.ones((2, 1))}, "left has 2 rows and diagonals has 3"),
        ({"left": np.ones((3, 2))}, "pass the same rank"),
        ({"diagonals": np.ones((3, 2))}, r"diagonals\[0, 1\]=1.0"),
        ({"diagonals": -np.ones((3, 1))}, r"diagonals\[0, 0\]=-1.0"),
        ({"right": np.full((3, 1), np.nan)}, "not finite"),
    ],
)
def test_invalid_arrays_are_refused_by_name(change, words):
    names = ("diagonals", "left", "right", "inverse_workload")
    with refusal(words):
        LowRankMechanism(**dict.fromkeys(names, np.ones((3, 1))) | change)
