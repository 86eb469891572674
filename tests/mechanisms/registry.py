"""Small mechanisms of every family: a new mechanism is one line here, and inherits every law that is tested over
them.
"""

from collections.abc import Callable

import numpy as np
import pytest

from fedmf.mechanisms import BandedMechanism, DenseMechanism, IdentityMechanism, Mechanism, TreeMechanism
from fedmf.optimize import fit
from fedmf.participation import Participation
from fedmf.workloads import momentum_sgd, prefix_sum


def _random_banded(rounds: int, bands: int) -> BandedMechanism:
    diagonals = np.random.default_rng(rounds).uniform(-0.5, 0.5, (rounds, min(bands, rounds)))
    diagonals[:, 0] = 1.0 + np.arange(rounds) / rounds  # neither Toeplitz nor of equal column norms
    diagonals[np.arange(rounds)[:, None] < np.arange(diagonals.shape[1])] = 0.0
    return BandedMechanism(diagonals=diagonals)


def _random_dense(rounds: int) -> DenseMechanism:
    matrix = np.tril(np.random.default_rng(rounds).uniform(-0.5, 0.5, (rounds, rounds)))
    np.fill_diagonal(matrix, 1.5)
    return DenseMechanism(matrix=matrix)


def _fitted_banded(rounds: int) -> Mechanism:
    participation = Participation(rounds=rounds, schema="min_sep", min_sep=min(3, rounds))
    return fit(prefix_sum(rounds), participation, family="banded")


def _fitted_dense(rounds: int) -> Mechanism:
    return fit(momentum_sgd(rounds), Participation(rounds=rounds, schema="single"), family="dense")


MECHANISMS: dict[str, Callable[[int], Mechanism]] = {
    "identity": lambda rounds: IdentityMechanism(rounds=rounds),
    "banded": _fitted_banded,
    "banded of one band": lambda rounds: _random_banded(rounds, 1),
    "banded, uneven": lambda rounds: _random_banded(rounds, 4),
    "banded, all bands": lambda rounds: _random_banded(rounds, rounds),
    "dense": _fitted_dense,
    "dense, uneven": _random_dense,
    "tree online": lambda rounds: TreeMechanism(rounds=rounds, decoder="online"),
    "tree full": lambda rounds: TreeMechanism(rounds=rounds, decoder="full"),
}

every_mechanism = pytest.mark.parametrize("build", MECHANISMS.values(), ids=MECHANISMS.keys())
