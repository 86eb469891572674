"""Epsilon by Renyi accounting, for comparison with the older literature."""

import functools
from typing import TYPE_CHECKING

from fedmf.privacy.gaussian import check_delta

if TYPE_CHECKING:
    import dp_accounting
    from dp_accounting import rdp


# Orders of the Renyi divergences that are tried. They are close together where the best orders for
# epsilons from 0.1 to 20 are, and farther apart beyond.
_ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [2**i for i in range(6, 17)]


def event_rdp_epsilon(event: "dp_accounting.DpEvent", delta: float) -> float:
    """Computes epsilon of a dp_accounting event by Renyi accounting, for adding or removing a
    client. It is infinite without noise.
    """
    return float(_rdp_accountant(event).get_epsilon(check_delta(delta)))


def selection_rdp_epsilon(
    event: "dp_accounting.DpEvent", delta: float, *, mean_trials: float, shape: float
) -> float:
    """Computes epsilon, by Renyi accounting, of a private selection: a random number of runs of the
    event, of which the best one is released (Papernot and Steinke 2022, Theorems 2 and 6).

    Args:
      event: one run.
      delta: in [1e-15, 1).
      mean_trials: mean number of runs, at least 1.
      shape: shape of the truncated negative binomial distribution of the number of runs; infinite
        for a Poisson distribution.
    """
    from dp_accounting.dp_event import RepeatAndSelectDpEvent

    return event_rdp_epsilon(RepeatAndSelectDpEvent(event, mean_trials, shape), delta)


@functools.lru_cache(maxsize=16)
def _rdp_accountant(event: "dp_accounting.DpEvent") -> "rdp.RdpAccountant":
    """Returns the Renyi accountant of a dp_accounting event, from which epsilon for any delta
    follows.
    """
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(_ORDERS)
    accountant.compose(event)
    return accountant
