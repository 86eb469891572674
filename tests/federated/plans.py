"""Small plans, and the noise that they promise, from the definitions."""

import numpy as np

from fedmf import Participation, Plan
from fedmf.federated.noise.source import gaussian_source


def plan_of(mechanism, **changes):
    rounds = mechanism.rounds
    participation = Participation(rounds=rounds, schema="min_sep", min_sep=min(3, rounds))
    values = {"participation": participation, "noise_multiplier": 0.7, "clip_norm": 0.5, "delta": 1e-6}
    return Plan(mechanism=mechanism, **(values | changes))


def noise_of_sums(plan, size, seed):
    """What is added to the sum in each round of the plan, float64 (rounds, size)."""
    L, draw = plan.mechanism.stream().causal().as_contraction().contraction, gaussian_source(seed, size)
    Z = np.stack([draw(i).numpy() for i in range(plan.mechanism.rounds)]).astype(np.float64)
    return L @ Z * plan.stddev
