"""The clients of a server: what they are called, and which of them are eligible."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf import identifiers
from fedmf.mechanisms.budget import Budget
from fedmf.participation.schema import Participation

Client = int | str


class Roster:
    """Clients by their ids, and the history of each in the rounds that were released.

    Args:
      rule: which clients are eligible.
      population: clients are 0 .. population - 1, and number themselves; None for ints or texts.

    >>> roster = Roster(Participation(rounds=8, schema="min_sep", min_sep=4), None)
    >>> roster.record([roster.number("zo\\u00eb")], 0)
    >>> roster.is_eligible(["zoe\\u0308", "bo"], 3), roster.is_eligible(["zoe\\u0308", "bo"], 4)
    (array([False,  True]), array([ True,  True]))
    """

    def __init__(self, rule: Participation | Budget, population: int | None) -> None:
        self._rule = rule
        self._population = population
        self._numbers: dict[str, int] = {}
        # Entry 0 of the history stands for clients that never took part.
        self._history = rule.new_history(1)
        self._entry_by_number: dict[int | None, int] = {}
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
        shown = f"client={identifiers.format_client(plain)}"
        if self._population is not None and not (
            isinstance(plain, int) and 0 <= plain < self._population
        ):
            raise ValueError(
                f"{shown} is none of 0 .. {self._population - 1}: with a population clients are "
                "these numbers"
            )
        if self.names and type(plain) is not type(self.names[0]):
            raise TypeError(
                f"{shown} beside clients such as {identifiers.format_client(self.names[0])}: name "
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

    def known_number(self, client: Client) -> int | None:
        """Returns a plain client's number in the ledger; None where it has none yet."""
        if self._population is not None:
            return int(client)
        return self._numbers.get(self.look(client))

    def is_eligible(self, clients: Sequence[Client], t: int) -> np.ndarray:
        """Whether plain clients may take part in round t as well: bool (clients,)."""
        numbers = [self.known_number(client) for client in clients]
        entries = [self._entry_by_number.get(number, 0) for number in numbers]
        return self._rule.is_eligible(t, self._history, np.array(entries, np.int64))

    def record(self, numbers: Sequence[int], t: int) -> None:
        """Counts that the different clients of these numbers took part in round t."""
        entries = []
        for number in numbers:
            next_entry = len(self._entry_by_number) + 1
            entries.append(self._entry_by_number.setdefault(number, next_entry))
        self._history.grow(len(self._entry_by_number) + 1)
        self._history.record(t, np.array(entries, np.int64))

    def restore(self, rounds: Sequence[Sequence[Client]]) -> list[np.ndarray]:
        """Counts the recorded clients of rounds from 0 on, and returns their numbers, sorted.

        Args:
          rounds: of each round its clients, as `recorded` spells them.
        """
        if self._population is None:
            # Each client is recorded in one spelling.
            self.names = list(dict.fromkeys(itertools.chain.from_iterable(rounds)))
            self._numbers = {self.look(name): number for number, name in enumerate(self.names)}
            number_by_name = {name: number for number, name in enumerate(self.names)}
            cohorts = [
                np.sort(np.array([number_by_name[name] for name in clients], np.int64))
                for clients in rounds
            ]
        else:
            cohorts = [np.sort(np.array(clients, np.int64)) for clients in rounds]
        for t, cohort in enumerate(cohorts):
            self.record(cohort.tolist(), t)
        return cohorts
