"""The largest draws of fedmf's Gaussian sources, and the plans for which they are too small.

The host's source draws for `fedmf.train`, `fedmf.Server`, Flower and noise_strategy="precomputed";
the source inside TensorFlow graphs for every other aggregator of a TFF pipeline.
"""

import math
from typing import Protocol

import numpy as np


class NoisyPlan(Protocol):
    """The numbers of a plan that decide how far out its noise has to be drawn."""

    @property
    def noise_multiplier(self) -> float: ...  # noqa: D102
    @property
    def delta(self) -> float: ...  # noqa: D102


# In standard deviations: the radius of the smallest uniform number, of 104 bits and of 64.
HOST_END = (2 * 105 * math.log(2)) ** 0.5
GRAPH_END = (2 * 65 * math.log(2)) ** 0.5

# Below this noise multiplier epsilon is above 50 for every delta that anybody states: such noise is
# for tests.
_NO_PROTECTION = 0.15


def check_tail(plan: NoisyPlan, end: float, *, entries: int | None = None) -> None:
    """Refuses a plan whose delta is so small that the end of the source's tail counts.

    No pair of draws has a radius above `end`, so a release that is further out than the noise
    without the client proves that the client is there. Let the client's shift have length a = 1 /
    noise_multiplier and part a_p in pair p. The chance in one pair is at most f(a_p), with f(a) <=
    Q_1(a, end), Marcum's function, and f(a) <= end a exp(-(end - a)^2 / 2) / pi, the largest
    density times the area of the crescent that two discs leave. As a function of a^2, f is concave
    and then convex, so that the sum over P pairs is at most that of a shift in one of them and of
    one that is spread over all: f(a) + P f(a / sqrt(P)).

    Args:
      plan: of the run.
      end: the largest radius, in standard deviations.
      entries: draws of the run; None refuses what models of every size would be refused.

    Raises:
      ValueError: that chance is above a tenth of delta.
    """
    z = plan.noise_multiplier
    if z < _NO_PROTECTION:
        return
    a = 1 / z
    is_far_away = a < end and math.exp(-((end - a) ** 2) / 2) <= plan.delta / 10
    if entries is None and is_far_away:
        return  # because Q_1(a, end) is at most that
    chance = _marcum(a, end)
    if entries is not None:
        pairs = max(1.0, entries / 2)
        spread = a / math.sqrt(pairs)
        crescent = end * spread * math.exp(-((end - spread) ** 2) / 2) / math.pi
        chance += pairs * min(_marcum(spread, end), crescent)
    if chance <= plan.delta / 10:
        return
    way_out = "use a larger delta or more noise"
    if end < HOST_END:
        way_out += (
            ', and in a TFF pipeline noise_strategy="precomputed", whose draws go further out'
        )
    raise ValueError(
        f"delta={plan.delta:g}: no draw passes {end:.2f} standard deviations, and the chance to "
        f"see that is {chance:.1g} at noise_multiplier={z:g}, above a tenth of delta; {way_out}"
    )


def _marcum(a: float, b: float) -> float:
    """Q_1(a, b), the chance that a pair of normals with a mean of length a is further
    than b from 0.
    """
    # A tenth of a second, which `fedmf --help` need not wait for.
    import scipy.integrate
    import scipy.special

    def density(r: float) -> float:
        return float(r * math.exp(-((r - a) ** 2) / 2) * scipy.special.ive(0, a * r))

    with np.errstate(under="ignore"):  # far out the density is 0
        return float(
            scipy.integrate.quad(density, b, max(a, b) + 40, points=[b + 1], epsabs=0, epsrel=1e-6)[
                0
            ]
        )


def tail_remark(plan: NoisyPlan) -> str | None:
    """Returns how a plan's noise can be drawn, where the source of TensorFlow graphs cannot.

    >>> import fedmf
    >>> once = fedmf.Participation(rounds=4, schema="single")
    >>> identity = fedmf.fit(fedmf.prefix_sum(4), once, family="identity")
    >>> plans = [
    ...     fedmf.calibrate(identity, once, epsilon=epsilon, delta=1e-6) for epsilon in (8.0, 30.0)
    ... ]
    >>> [tail_remark(plan) is None for plan in plans]
    [True, False]
    """
    try:
        check_tail(plan, GRAPH_END)
    except ValueError:
        return (
            f"Noise drawn inside a TensorFlow graph ends at {GRAPH_END:.2f} standard deviations, "
            f"too near for noise multiplier {plan.noise_multiplier:.3g} at delta {plan.delta:g}: "
            'in a TFF pipeline use noise_strategy="precomputed", elsewhere fedmf.Server'
        )
    return None
