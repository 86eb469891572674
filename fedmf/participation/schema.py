"""The participation schemas of the literature, each a subclass of `Participation`."""

from fedmf.participation.base import SCHEMAS, Participation
from fedmf.participation.budgeted import BUDGET_ROUNDING, Budgeted
from fedmf.participation.limits import ROUNDS_HINT
from fedmf.participation.separated import EveryRound, FixedEpoch, MinSep, Single

__all__ = [
    "BUDGET_ROUNDING",
    "ROUNDS_HINT",
    "SCHEMAS",
    "Budgeted",
    "EveryRound",
    "FixedEpoch",
    "MinSep",
    "Participation",
    "Single",
]
