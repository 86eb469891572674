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

    def plain(self, client: Any, name: str = "client") -> Client:
        """The client as an int or str and nothing more, which cannot be another one later; `name`
        is of the argument that has it.

        Raises:
          TypeError: neither int nor text; or an int where others are texts.
          ValueError: outside the population, without a visible character, or with blanks around it.
        """
        verb = "is" if name == "client" else "has"
        if isinstance(client, bool | np.bool_) or not isinstance(client, int | np.integer | str):
            kind = type(client).__name__
            raise TypeError(f"`{name}` {verb} a {kind}: name clients by ints or texts")
        if isinstance(client, str):
            # What the text holds, whatever a subclass says that it is.
            plain: Client = str.__str__(client)
        else:
            plain = int.__index__(client) if isinstance(client, int) else int(client)
            if not -(2**63) <= plain < 2**64:
                raise ValueError(
                    f"`{name}` {verb} an int of more than 64 bits: name the client by a text"
                )
        shown = f"client={identifiers.shown_client(plain)}"
        if self._population is not None and not (
            isinstance(plain, int) and 0 <= plain < self._population
        ):
            raise ValueError(
                f"{shown} is none of 0 .. {self._population - 1}: with a population clients are "
                "these numbers"
            )
        if self.names and type(plain) is not type(self.names[0]):
            raise TypeError(
                f"{shown} beside clients such as {identifiers.shown_client(self.names[0])}: name "
                "all of them by ints, or all by texts"
            )
        if isinstance(plain, str):
            if (fault := identifiers.client_fault(plain)) is not None:
                raise ValueError(f"{shown}: it {fault}")
            if any("\ud800" <= character <= "\udfff" for character in plain):
                raise ValueError(f"{shown} holds half of a character: give a whole text")
        return plain

    def by_look(self, name: str, clients: Any, *, twice: bool = True) -> dict[str, Client]:
        """Plain clients of an argument of this name, of which one may be there `twice` or not."""
        hint = "give a list of clients, ints or texts"
        if isinstance(clients, str | bytes) or not np.iterable(clients):
            raise TypeError(f"`{name}` is a {type(clients).__name__}: {hint}")
        plain = [self.plain(client, name) for client in clients]
        if len(set(map(type, plain))) > 1:
            raise TypeError(f"`{name}` has ints and texts: name all clients by one of them")
        named = {self.look(client): client for client in plain}
        if not twice and len(named) < len(plain):
            raise ValueError(f"`{name}` has a client twice: add one update a client")
        return named

    def look(self, client: Client) -> str:
        """A plain client as people see it: ids that look alike are one client's, as in a log's
        audit.
        """
        return identifiers.skeleton(str(client))

    def number(self, client: Client) -> int:
        """A plain client's number in the ledger, from now on."""
        if self._population is not None:
            return int(client)
        look = self.look(client)
        if look not in self._numbers:
            self.names.append(client)
            self._numbers[look] = len(self.names) - 1
        return self._numbers[look]

    def recorded(self, client: Client) -> Client:
        """Returns the spelling in which a plain client is recorded from now on: that of its first
        update, so that a log has one for each client.
        """
        number = self.number(client)
        return number if self._population is not None else self.names[number]

    def rounds(self, client: Client) -> list[int]:
        """The rounds in which a plain client took part."""
        alone = self._population is not None
        known = int(client) if alone else self._numbers.get(self.look(client))
        return [] if known is None else self._rounds.get(known, [])

    def may_come(self, client: Client, t: int) -> bool:
        """Whether a plain client may take part in round t as well."""
        return self._keeps.allows([*self.rounds(client), t])

    def record(self, number: int, t: int) -> None:
        """Counts that the client of this number took part in round t."""
        self._rounds[number].append(t)
