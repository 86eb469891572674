"""Small plans, and their noise from the source of TensorFlow graphs, computed by definition."""

import numpy as np

from fedmf.federated.tff.noise_source import source_of_key
from fedmf.server.source import noise_key
from tests.server.plans import plan_of

__all__ = ["noise_of_sums", "plan_of"]


def noise_of_sums(plan, size, seed):
    """Returns the noise that is added to the sum in each round, float64 (rounds, size)."""
    L = plan.mechanism.stream().causal().as_contraction().contraction
    draw = source_of_key(noise_key(seed), size)
    Z = np.stack([draw(i).numpy() for i in range(plan.mechanism.rounds)]).astype(np.float64)
    return L @ Z * plan.stddev
