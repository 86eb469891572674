"""Small plans and servers, and numbers of the host's Gaussian source."""

import numpy as np

from fedmf import Participation, Plan, Server
from fedmf.server.source import GaussianSource, noise_key
from tests.mechanisms.registry import MECHANISMS

SHAPES = [(2, 3), (4,)]


def plan_of(mechanism, **changes):
    rounds = mechanism.rounds
    participation = Participation(rounds=rounds, schema="min_sep", min_sep=min(3, rounds))
    values = {
        "participation": participation,
        "noise_multiplier": 0.7,
        "clip_norm": 0.5,
        "delta": 1e-6,
    }
    return Plan(mechanism=mechanism, **(values | changes))


def draws_of_host(seed, rounds, size):
    """Returns Z, float64 (rounds, size)."""
    Z = np.empty((rounds, size), np.float32)
    GaussianSource(noise_key(seed)).fill(Z, 0)
    return Z.astype(np.float64)


def make_server(folder=None, plan=None, **options):
    """Returns a server of twelve rounds, with three clients in each."""
    plan = plan or plan_of(MECHANISMS["banded"](12))
    values = {"shapes": SHAPES, "clients_per_round": 3, "noise_seed": 5}
    return Server(plan, folder=folder, **(values | options))


def update(number=0, length=0.1):
    """Returns an update of this norm, in a direction that depends on the number."""
    rng = np.random.default_rng(number)
    leaves = [rng.standard_normal(shape) for shape in SHAPES]
    scale = length / np.sqrt(sum(np.square(leaf).sum() for leaf in leaves))
    return [(leaf * scale).astype(np.float32) for leaf in leaves]
