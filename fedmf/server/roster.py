"""The clients of a server: what they are called, and in which rounds they took part."""

import collections
from typing import Any

import numpy as np

from fedmf import identifiers
from fedmf.mechanisms.budget import Budget
from fedmf.participation.schema import Participation

Client = int | str


class Roster:
    """Clients by their ids, and the rounds of each that were released.

    Args:
      keeps: what each client keeps to.
      population: clients are 0 .. population - 1, and number themselves; None for ints or texts.

    >>> roster = Roster(Participation(rounds=8, schema="min_sep", min_sep=4), None)
    >>> roster.record(roster.number("zo\\u00eb"), 0)
    >>> roster.may_come("zoe\\u0308", 3), roster.may_come("zoe\\u0308", 4), roster.may_come("bo", 3)
    (False, True, True)
    """

    def __init__(self, keeps: Participation | Budget, population: int | None) -> None:
        self._keeps, self._population = keeps, population
        self._numbers: dict[str, int] = {}
        self._rounds: dict[int, list[int]] = collections.defaultdict(list)
        self.names: list[Client] = []  # as they were given first, by number

    def look(self, client: Any) -> str:
        """The client as people see it: ids that look alike are one client's, as in a log's audit.

        Raises:
          TypeError: neither int nor text; or an int where others are texts.
          ValueError: outside the population, without a visible character, or with blanks around it.
        """
        whole = isinstance(client, int | np.integer) and not isinstance(client, bool | np.bool_)
        if not whole and not isinstance(client, str):
            raise TypeError(
                f"client={client!r} is a {type(client).__name__}: name clients by ints or texts"
            )
        if self._population is not None and not (whole and 0 <= client < self._population):
            raise ValueError(
                f"client={client!r} is none of 0 .. {self._population - 1}: with a population "
                "clients are these numbers"
            )
        text = str(client)
        if (fault := identifiers.client_fault(text)) is not None:
            raise ValueError(f"client={client!a}: it {fault}")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError(f"client={client!a} holds half of a character: give a whole text")
        if self.names and isinstance(self.names[0], str) == whole:
            raise TypeError(
                f"client={client!r} beside clients such as {self.names[0]!r}: name all of them by "
                "ints, or all by texts"
            )
        return identifiers.seen(text)

    def number(self, client: Client) -> int:
        """The client's number in the ledger, from now on."""
        look = self.look(client)
        if self._population is not None:
            return int(client)
        if look not in self._numbers:
            self.names.append(client if isinstance(client, str) else int(client))
            self._numbers[look] = len(self.names) - 1
        return self._numbers[look]

    def rounds(self, client: Client) -> list[int]:
        """The rounds in which the client took part."""
        look = self.look(client)
        known = self._numbers.get(look) if self._population is None else int(client)
        return [] if known is None else self._rounds.get(known, [])

    def may_come(self, client: Client, t: int) -> bool:
        """Whether the client may take part in round t as well."""
        return self._keeps.allows([*self.rounds(client), t])

    def record(self, number: int, t: int) -> None:
        """Counts that the client of this number took part in round t."""
        self._rounds[number].append(t)
