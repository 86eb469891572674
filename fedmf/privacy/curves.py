"""Privacy curves, which are pairs (epsilon, delta) for many epsilons that hold simultaneously.
Bounds on the risk of an attack follow from them.
"""

import functools

from fedmf.privacy.gaussian import loss_scale
from fedmf.privacy.loss_samples import MAX_LOSS, PROOF, SEARCH, add_sample, remove_sample
from fedmf.privacy.losses import Losses
from fedmf.privacy.monte_carlo import FAILURE

# First word of the seed of the sample from which a privacy curve is computed. Searches and proofs
# have other first words, so that their samples are independent of this one.
_CURVE = PROOF + 1
# Limits of the simulation of a curve. It may draw or compute _WORK numbers, which takes ten
# seconds, or _SEARCH_WORK numbers during a search for the noise.
_WORK = 2e8
_SEARCH_WORK = 1e8
_MAX_SIZE = 2**18
# Largest epsilon of a simulated curve. Samples clip privacy losses to MAX_LOSS, so that delta would
# be understated near that epsilon. At this one, 1 - exp(epsilon - loss) rounds to 1 for all losses
# that are clipped.
_LARGEST_EPSILON = MAX_LOSS - 100


def epsilons_of_curve(noise_multiplier: float) -> list[float]:
    """Returns the epsilons of a privacy curve, which are 0 and a geometric sequence up to an
    epsilon at which a Gaussian release with this noise multiplier has a negligible delta.

    >>> len(epsilons_of_curve(1.0))
    101
    """
    largest_epsilon = min(loss_scale(noise_multiplier) + 2 / noise_multiplier, 700.0)
    return [0.0, *(largest_epsilon * 1.1 ** (i - 99) for i in range(100))]


@functools.lru_cache(maxsize=64)
def simulated_curve(
    losses: Losses, epsilons: tuple[float, ...], *, search: bool = False
) -> tuple[tuple[float, float], ...]:
    """Computes upper bounds on delta for many epsilons from one sample of privacy losses, as pairs
    (epsilon, delta).

    All pairs hold simultaneously except with probability `FAILURE`, which is divided among them.
    The sample is drawn without importance sampling (order 1). So it bounds large deltas well, but
    cannot prove a delta below about 1e-4.

    Args:
      losses: privacy losses of the run.
      epsilons: non-negative numbers, of which those above `_LARGEST_EPSILON` are left out.
      search: True for a smaller sample with random numbers that are independent of those of the
        proof.

    Returns:
      The pairs; empty if the losses overflow.
    """
    work_limit = _SEARCH_WORK if search else _WORK
    purpose = SEARCH if search else _CURVE
    sample_size = int(min(max(work_limit / losses.work, 2**10), _MAX_SIZE))
    try:
        removal_sample = remove_sample(losses, 1, sample_size, purpose)
        addition_sample = add_sample(losses, sample_size, purpose)
    except FloatingPointError:
        return ()
    epsilons = tuple(epsilon for epsilon in epsilons if epsilon <= _LARGEST_EPSILON)
    # For each epsilon there are two bounds on delta, for removing and for adding a client. Each of
    # the bounds may fail with this probability.
    failure_per_bound = FAILURE / (2 * len(epsilons))
    line_points = (0.0, -1.0)
    curve_points = []
    for epsilon in epsilons:
        removal_delta = removal_sample.bound(epsilon, failure_per_bound)
        addition_delta = addition_sample.bound(epsilon, line_points, failure_per_bound)
        curve_points.append((epsilon, min(1.0, max(removal_delta, addition_delta))))
    return tuple(curve_points)
