"""Privacy curves: delta at many epsilons at once, from which the risk of an attack follows."""

import functools

from fedmf.privacy.gaussian import loss_scale
from fedmf.privacy.loss_samples import PROOF, SEARCH, add_sample, remove_sample
from fedmf.privacy.losses import Losses
from fedmf.privacy.monte_carlo import FAILURE

# First word of the seed of a curve's sample, which is independent of all searches and proofs.
_CURVE = PROOF + 1
# Numbers that a curve may draw or compute, which takes ten seconds, and the most samples.
_WORK = 2e8
_SEARCH_WORK = 1e8
_MAX_SIZE = 2**18


def epsilons_of_curve(noise_multiplier: float) -> list[float]:
    """Returns the epsilons of a privacy curve: 0, and a geometric sequence up to where one Gaussian
    release with this multiplier has next to no delta.

    >>> len(epsilons_of_curve(1.0))
    101
    """
    largest = min(loss_scale(noise_multiplier) + 2 / noise_multiplier, 700.0)
    return [0.0, *(largest * 1.1 ** (i - 99) for i in range(100))]


@functools.lru_cache(maxsize=64)
def simulated_curve(
    losses: Losses, epsilons: tuple[float, ...], *, search: bool = False
) -> tuple[tuple[float, float], ...]:
    """Computes (epsilon, delta) from one sample of losses: all hold simultaneously except with
    probability `FAILURE`, which is divided among the points.

    The sample is of order 1: it bounds large deltas well, and none below about 1e-4.

    Args:
      losses: of the run.
      epsilons: not negative.
      search: whether to use random numbers that are independent of those of the proof.
    """
    work = _SEARCH_WORK if search else _WORK
    purpose = SEARCH if search else _CURVE
    size = int(min(max(work / losses.work, 2**10), _MAX_SIZE))
    try:
        removed = remove_sample(losses, 1, size, purpose)
        added = add_sample(losses, size, purpose)
    except FloatingPointError:
        return ()
    # Each point has two directions, and each direction a plain bound and one by the line.
    failure = FAILURE / (2 * len(epsilons))
    points = (0.0, -1.0)
    curve = []
    for epsilon in epsilons:
        remove_delta = removed.bound(epsilon, failure)
        add_delta = added.bound(epsilon, points, failure)
        curve.append((epsilon, min(1.0, max(remove_delta, add_delta))))
    return tuple(curve)
