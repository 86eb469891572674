"""Small plans, and the draws of the host's source."""

import numpy as np

from fedmf import Participation, Plan
from fedmf.server.source import GaussianSource, noise_key


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
    """Z, float64 (rounds, size)."""
    Z = np.empty((rounds, size), np.float32)
    GaussianSource(noise_key(seed)).fill(Z, 0)
    return Z.astype(np.float64)
