"""Small mechanisms of every family; every invariant is tested on each of them."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import pytest

from fedmf.mechanisms import (
    BandedMechanism,
    BLTMechanism,
    DenseMechanism,
    ExplicitMechanism,
    FFTMechanism,
    IdentityMechanism,
    LowRankMechanism,
    Mechanism,
    ToeplitzMechanism,
    TreeMechanism,
    stamp,
)
from fedmf.mechanisms.fit import fit
from fedmf.workloads import Workload, momentum_sgd, prefix_sum
from tests.mechanisms.schemas import fitted, separated, single


def _random_banded(rounds: int, bands: int) -> BandedMechanism:
    diagonals = np.random.default_rng(rounds).uniform(-0.5, 0.5, (rounds, min(bands, rounds)))
    # Neither Toeplitz nor of equal column norms.
    diagonals[:, 0] = 1.0 + np.arange(rounds) / rounds
    diagonals[np.arange(rounds)[:, None] < np.arange(diagonals.shape[1])] = 0.0
    return BandedMechanism(diagonals=diagonals)


def _random_dense(rounds: int) -> DenseMechanism:
    matrix = np.tril(np.random.default_rng(rounds).uniform(-0.5, 0.5, (rounds, rounds)))
    np.fill_diagonal(matrix, 1.5)
    return DenseMechanism(matrix=matrix)


def both_signs(rounds: int, seed: int) -> DenseMechanism:
    """Returns a mechanism with a dense C, such that X has entries of both signs."""
    entries = np.random.default_rng(seed).standard_normal((rounds, rounds))
    return DenseMechanism(matrix=np.tril(entries, -1) + np.eye(rounds))


def _fitted_banded(rounds: int) -> Mechanism:
    return fitted(separated(rounds, min(3, rounds)), "banded")


def _fitted_dense(rounds: int) -> Mechanism:
    return fit(momentum_sgd(rounds), single(rounds), family="dense")


def _given_matrices(rounds: int) -> ExplicitMechanism:
    encoder = (
        np.random.default_rng(rounds).standard_normal((rounds + 2, rounds))
        + np.eye(rounds + 2, rounds) * 4.0
    )
    return ExplicitMechanism(encoder_matrix=encoder, noising_matrix=np.linalg.pinv(encoder))


def _low_rank(rounds: int) -> LowRankMechanism:
    rng = np.random.default_rng(rounds)
    left, right = rng.uniform(-0.3, 0.3, (2, rounds, 2))
    diagonals = _random_banded(rounds, 2).diagonals
    return LowRankMechanism(
        diagonals=diagonals,
        left=left,
        right=right,
        inverse_workload=prefix_sum(rounds).inverse_diagonals,
    )


def _low_rank_of_dense_workload(rounds: int) -> Mechanism:
    matrix = np.tril(
        np.random.default_rng(rounds).uniform(0.0, 1.0, (rounds, rounds))
    ) + 2.0 * np.eye(rounds)
    mechanism = fit(Workload("random", matrix), single(rounds), family="low_rank", bands=1, rank=1)
    return dataclasses.replace(
        mechanism, certificate=None, certificate_reason="fitted to another workload"
    )


def _stamped(build: Callable[[int], Mechanism], rounds: int, decoder: str) -> Mechanism:
    times = next((factor for factor in range(2, rounds + 1) if rounds % factor == 0), 1)
    return stamp(build(rounds // times), times, decoder=decoder)


def _toeplitz(rounds: int, **options: object) -> Mechanism:
    return fitted(separated(rounds, min(3, rounds)), "toeplitz", **options)


def _uneven_toeplitz(rounds: int) -> ToeplitzMechanism:
    """Returns a mechanism of coefficients of both signs, with more bands than most min_sep."""
    return ToeplitzMechanism(
        rounds=rounds, coefficients=np.array([1.5, -0.5, 0.25, 0.5, -0.125])[:rounds]
    )


def _fitted_blt(rounds: int) -> Mechanism:
    return fitted(separated(rounds, min(3, rounds)), "blt", buffers=3)


_BUILDERS: dict[str, Callable[[int], Mechanism]] = {
    "identity": lambda rounds: IdentityMechanism(rounds=rounds),
    "banded": _fitted_banded,
    "banded of one band": lambda rounds: _random_banded(rounds, 1),
    "banded, uneven": lambda rounds: _random_banded(rounds, 4),
    "banded, all bands": lambda rounds: _random_banded(rounds, rounds),
    "dense": _fitted_dense,
    "dense, uneven": _random_dense,
    "matrices": _given_matrices,
    "toeplitz": lambda rounds: _toeplitz(rounds, bands=min(6, rounds)),
    "toeplitz, uneven": _uneven_toeplitz,
    "toeplitz, square root": lambda rounds: _toeplitz(rounds, coefficients="sqrt"),
    "toeplitz, damped": lambda rounds: _toeplitz(rounds, coefficients="nu", nu=0.1),
    "toeplitz, optimized inverse": lambda rounds: _toeplitz(
        rounds, coefficients="optimized_inverse", bands=min(4, rounds)
    ),
    "toeplitz, inverse square root": lambda rounds: _toeplitz(rounds, coefficients="inverse_sqrt"),
    "blt": _fitted_blt,
    "blt, last zero at 0": lambda rounds: BLTMechanism(
        rounds=rounds, decays=[0.9, 0.4], inverse_decays=[0.6, 0.0]
    ),
    "blt, last zero below 0": lambda rounds: BLTMechanism(
        rounds=rounds, decays=[0.9, 0.1], inverse_decays=[0.6, -0.3]
    ),
    "tree online": lambda rounds: TreeMechanism(rounds=rounds, decoder="online"),
    "tree full": lambda rounds: TreeMechanism(rounds=rounds, decoder="full"),
    "tree online, virtual rounds": lambda rounds: TreeMechanism(
        rounds=rounds, decoder="online", completion="virtual"
    ),
    "tree full, virtual rounds": lambda rounds: TreeMechanism(
        rounds=rounds, decoder="full", completion="virtual"
    ),
    "tree online, known zeros": lambda rounds: TreeMechanism(
        rounds=rounds, decoder="online", completion="optimal"
    ),
    "fft plain": lambda rounds: FFTMechanism(rounds=rounds, decoder="plain"),
    "fft optimal": lambda rounds: FFTMechanism(rounds=rounds, decoder="optimal"),
    "low rank": _low_rank,
    "low rank, dense workload": _low_rank_of_dense_workload,
    "stamped banded": lambda rounds: _stamped(lambda n: _random_banded(n, 3), rounds, "optimal"),
    "stamped low rank": lambda rounds: _stamped(_low_rank, rounds, "restarted"),
    "stamped tree, optimal": lambda rounds: _stamped(
        lambda n: TreeMechanism(rounds=n, decoder="online"), rounds, "optimal"
    ),
    "stamped twice": lambda rounds: stamp(_stamped(_random_dense, rounds, "optimal"), 1),
}

# A mechanism is immutable, so that each is built once in a process.
MECHANISMS = {name: functools.cache(build) for name, build in _BUILDERS.items()}

every_mechanism = pytest.mark.parametrize("build", MECHANISMS.values(), ids=MECHANISMS.keys())

# One mechanism for each algorithm that computes noise vectors, for tests that trace TensorFlow:
# test_invariants.py compares the matrices and streams of all others.
REPRESENTATIVES = {
    "identity": "identity",
    "narrow recurrence": "banded",
    "wide recurrence": "banded, all bands",
    "buffers": "blt",
    "buffers and a window": "low rank",
    "causal contraction": "dense",
    "contraction that is not causal": "tree full",
    "stamped": "stamped tree, optimal",
}
every_form = pytest.mark.parametrize(
    "build", [MECHANISMS[name] for name in REPRESENTATIVES.values()], ids=REPRESENTATIVES.keys()
)
