"""The guarantee for a group of clients, such as all devices of one user."""

import math
from collections.abc import Callable

from fedmf.privacy.gaussian import MIN_DELTA, check_delta


def group_epsilon(
    epsilon_at: Callable[[float], float],
    delta: float,
    clients: int,
    *,
    min_delta: float = MIN_DELTA,
) -> float:
    """Computes epsilon at `delta` for a group of clients, from the epsilons of one client.

    If one client has the guarantee (e, d), then g clients have the guarantee (g e, d (exp(g e) - 1)
    / (exp(e) - 1)): Vadhan 2017, Lemma 2.2. The function searches for the largest d, down to
    `min_delta`, for which the delta of the group is at most `delta`. The result is infinite if
    there is none.

    Args:
      epsilon_at: returns epsilon of one client at a delta.
      delta: the delta of the group's guarantee.
      clients: g, the number of clients in the group.
      min_delta: the least d that the search tries.

    >>> from fedmf.privacy.gaussian import gaussian_epsilon
    >>> round(group_epsilon(lambda d: gaussian_epsilon(4.0, d), 1e-6, 2), 2) >= gaussian_epsilon(
    ...     2.0, 1e-6
    ... )
    True
    """
    check_delta(delta)
    if clients == 1:
        return epsilon_at(delta)

    def group_guarantee(d: float) -> tuple[float, float]:
        e = epsilon_at(d)
        if e == 0:
            return 0.0, clients * d
        if math.isinf(e) or clients * e > 700:
            return math.inf, math.inf
        return clients * e, d * math.expm1(clients * e) / math.expm1(e)

    if delta / clients < min_delta:
        return math.inf
    low_log_delta = math.log(min_delta)
    high_log_delta = math.log(delta / clients)
    best_epsilon = math.inf
    for _ in range(24):
        middle_log_delta = (low_log_delta + high_log_delta) / 2
        epsilon, delta_of_group = group_guarantee(math.exp(middle_log_delta))
        if delta_of_group <= delta:
            best_epsilon = min(best_epsilon, epsilon)
            low_log_delta = middle_log_delta
        else:
            high_log_delta = middle_log_delta
    return best_epsilon
