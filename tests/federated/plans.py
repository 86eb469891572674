"""Small plans, and the noise of the graph's source that they promise, from the definitions."""

import numpy as np

from fedmf.federated.tff.noise_source import source_of_key
from fedmf.server.source import noise_key
from tests.server.plans import plan_of

__all__ = ["noise_of_sums", "plan_of"]


def noise_of_sums(plan, size, seed):
    """What is added to the sum in each round of the plan, float64 (rounds, size)."""
    L, draw = (
        plan.mechanism.stream().causal().as_contraction().contraction,
        source_of_key(noise_key(seed), size),
    )
    Z = np.stack([draw(i).numpy() for i in range(plan.mechanism.rounds)]).astype(np.float64)
    return L @ Z * plan.stddev
