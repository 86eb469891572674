"""Privacy curves: delta at many epsilons at once, which the risk of an attack follows from."""

import functools

from fedmf.privacy.gaussian import loss_scale
from fedmf.privacy.monte_carlo import (
    FAILURE,
    PROOF,
    SEARCH,
    Losses,
    add_sample,
    remove_sample,
)

# The word of the sample of a curve, which no search and no proof of an epsilon has seen.
_CURVE = PROOF + 1
# Numbers that a curve may draw or compute, ten seconds, and samples that are enough.
_WORK = 2e8
_SEARCH_WORK = 1e8
_MOST = 2**18


def epsilons_of_curve(noise_multiplier: float) -> list[float]:
    """Epsilons at which a privacy curve is told: 0, and a geometric row up to where one Gaussian
    release with this multiplier has next to no delta.

    >>> len(epsilons_of_curve(1.0))
    101
    """
    most = min(loss_scale(noise_multiplier) + 2 / noise_multiplier, 700.0)
    return [0.0, *(most * 1.1 ** (i - 99) for i in range(100))]


@functools.lru_cache(maxsize=64)
def simulated_curve(
    losses: Losses, epsilons: tuple[float, ...], *, search: bool = False
) -> tuple[tuple[float, float], ...]:
    """(epsilon, delta) from one sample of losses: all hold at once but for a chance of `FAILURE`,
    of which each point has its share.

    The sample is of order 1: it tells large deltas well, and none below some 1e-4.

    Args:
      losses: of the run.
      epsilons: not negative.
      search: by random numbers that the proof has not seen.
    """
    work, purpose = (_SEARCH_WORK, SEARCH) if search else (_WORK, _CURVE)
    size = int(min(max(work / losses.work, 2**10), _MOST))
    try:
        removed = remove_sample(losses, 1, size, purpose)
        added = add_sample(losses, size, purpose)
    except FloatingPointError:
        return ()
    # Two directions, and in each the plain bound and the one by a line, at each point.
    share = FAILURE / (2 * len(epsilons))
    points = (0.0, -1.0)
    return tuple(
        (e, min(1.0, max(removed.bound(e, share), added.bound(e, points, share)))) for e in epsilons
    )
