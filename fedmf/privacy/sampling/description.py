"""Clauses with which a sampling scheme describes itself in the privacy statement."""

import dataclasses
from typing import Any

from fedmf import checks

# The neighbouring relations that accountants may use. A bound under any of them also holds for
# zero-out, the relation of the guarantee; the template of the statement says why.
RELATIONS = ("add-or-remove", "replace", "zero-out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """Clauses about one sampling scheme, from which the template of the privacy statement,
    `statement.md.jinja`, makes sentences.

    Attributes:
      selection: the selection of a round's clients, a main clause in lower case without a full
        stop, such as "each client takes part with probability 0.1, independently of all others".
      accountant: the accounting method, a noun phrase, such as "privacy loss distributions".
      accounted: the mechanism that is accounted, a noun phrase without a full stop, such as "12
        Gaussian queries on Poisson samples".
      relation: the accountant's neighbouring relation, one of `RELATIONS`. With "replace", epsilon
        is computed with half the noise multiplier.
      by_partition: whether rounds sample from the scheme's `partitions` of the population in turn.
    """

    selection: str
    accountant: str
    accounted: str
    relation: str = "add-or-remove"
    by_partition: bool = False

    def __post_init__(self) -> None:
        checks.one_of("relation", self.relation, RELATIONS)

    def values(self) -> dict[str, Any]:
        """Returns the clauses by field name, in plain JSON types.

        >>> clauses = {"selection": "a coin each", "accountant": "coins", "accounted": "a round"}
        >>> Description(**clauses).values()["relation"]
        'add-or-remove'
        """
        return dataclasses.asdict(self)
