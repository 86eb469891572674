"""The clients of a server by their ids, with a check of which are eligible in a round."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf import identifiers
from fedmf.mechanisms.budget import Budget
from fedmf.participation.schema import Participation

Client = int | str


class Roster:
    """The clients of a server by their ids, with the rounds in which each has taken part.

    Args:
      rule: rule that decides which clients are eligible.
      population: clients are 0 .. population - 1, and number themselves; None for ints or texts.

    Attributes:
      names: the clients by number, each as its id was spelled first.

    >>> roster = Roster(Participation(rounds=8, schema="min_sep", min_sep=4), None)
    >>> roster.record([roster.number("zo\\u00eb")], 0)
    >>> roster.is_eligible(["zoe\\u0308", "bo"], 3), roster.is_eligible(["zoe\\u0308", "bo"], 4)
    (array([False,  True]), array([ True,  True]))
    """

    def __init__(self, rule: Participation | Budget, population: int | None) -> None:
        self._rule = rule
        self._population = population
        self._number_by_id: dict[str, int] = {}
        # In the participation history, all clients that have never taken part share entry 0.
        self._history = rule.new_history(1)
        self._entry_by_number: dict[int | None, int] = {}
        self.names: list[Client] = []

    def plain_client(self, client: Any, name: str = "client") -> Client:
        """Returns a client's id as a plain int or str. An object of a subclass could change later.

        Args:
          client: client id that the caller passed.
          name: name of the argument that has it.

        Raises:
          TypeError: neither int nor text; or an int where others are texts.
          ValueError: outside the population, without a visible character, or with blanks around it.
        """
        verb = "is" if name == "client" else "has"
        if isinstance(client, bool | np.bool_) or not isinstance(client, int | np.integer | str):
            type_name = type(client).__name__
            raise TypeError(f"`{name}` {verb} a {type_name}: name clients by ints or texts")
        if isinstance(client, str):
            # `str.__str__` returns the characters of the client id, even if a subclass of str
            # overrides __str__.
            plain_id: Client = str.__str__(client)
        else:
            plain_id = int.__index__(client) if isinstance(client, int) else int(client)
            if not -(2**63) <= plain_id < 2**64:
                raise ValueError(
                    f"`{name}` {verb} an int of more than 64 bits: name the client by a text"
                )
        client_text = f"client={identifiers.format_client(plain_id)}"
        if self._population is not None and not (
            isinstance(plain_id, int) and 0 <= plain_id < self._population
        ):
            raise ValueError(
                f"{client_text} is none of 0 .. {self._population - 1}: with a population clients "
                "are these numbers"
            )
        if self.names and type(plain_id) is not type(self.names[0]):
            raise TypeError(
                f"{client_text} beside clients such as {identifiers.format_client(self.names[0])}: "
                "name all of them by ints, or all by texts"
            )
        if isinstance(plain_id, str):
            id_fault = identifiers.client_fault(plain_id)
            if id_fault is not None:
                raise ValueError(f"{client_text}: it {id_fault}")
            if any("\ud800" <= character <= "\udfff" for character in plain_id):
                raise ValueError(f"{client_text} holds half of a character: give a whole text")
        return plain_id

    def by_normalised_id(
        self, name: str, clients: Any, *, allows_repeats: bool = True
    ) -> dict[str, Client]:
        """Returns a dict of the plain ids of these clients by their normalised ids.

        Args:
          name: name of the argument, for errors.
          clients: client ids that the caller passed.
          allows_repeats: whether it may have a client twice.

        Raises:
          TypeError, ValueError: no list of clients, or as of `plain_client`.
        """
        hint = "give a list of clients, ints or texts"
        if isinstance(clients, str | bytes) or not np.iterable(clients):
            raise TypeError(f"`{name}` is a {type(clients).__name__}: {hint}")
        plain_clients = [self.plain_client(client, name) for client in clients]
        if len(set(map(type, plain_clients))) > 1:
            raise TypeError(f"`{name}` has ints and texts: name all clients by one of them")
        client_by_id = {self.normalised_id(client): client for client in plain_clients}
        if not allows_repeats and len(client_by_id) < len(plain_clients):
            raise ValueError(f"`{name}` has a client twice: add one update a client")
        return client_by_id

    def normalised_id(self, client: Client) -> str:
        """Returns an id that is the same for all spellings of a client's id that look alike. The
        audit of a log counts clients by the same id.
        """
        return identifiers.skeleton(str(client))

    def number(self, client: Client) -> int:
        """Returns a client's number in the ledger. A new client gets the next number."""
        if self._population is not None:
            return int(client)
        client_id = self.normalised_id(client)
        if client_id not in self._number_by_id:
            self.names.append(client)
            self._number_by_id[client_id] = len(self.names) - 1
        return self._number_by_id[client_id]

    def recorded_client(self, client: Client) -> Client:
        """Returns a client's id as records spell it, which is the spelling in its first update. So
        a log has one spelling for each client.
        """
        client_number = self.number(client)
        return client_number if self._population is not None else self.names[client_number]

    def existing_number(self, client: Client) -> int | None:
        """Returns a client's number in the ledger; None for a client that has none yet."""
        if self._population is not None:
            return int(client)
        return self._number_by_id.get(self.normalised_id(client))

    def is_eligible(self, clients: Sequence[Client], t: int) -> np.ndarray:
        """Returns for each client whether it is eligible in round t, as a bool array of shape
        (clients,).
        """
        client_numbers = [self.existing_number(client) for client in clients]
        history_entries = [self._entry_by_number.get(number, 0) for number in client_numbers]
        return self._rule.is_eligible(t, self._history, np.array(history_entries, np.int64))

    def record(self, numbers: Sequence[int], t: int) -> None:
        """Records that the clients with these numbers, all different, took part in round t."""
        history_entries = []
        for number in numbers:
            next_entry = len(self._entry_by_number) + 1
            history_entries.append(self._entry_by_number.setdefault(number, next_entry))
        self._history.grow(len(self._entry_by_number) + 1)
        self._history.record(t, np.array(history_entries, np.int64))

    def restore(self, clients_by_round: Sequence[Sequence[Client]]) -> list[np.ndarray]:
        """Records the clients of all past rounds, and returns the sorted client numbers of each
        round.

        Args:
          clients_by_round: client ids of each round, as `recorded_client` spells them.
        """
        if self._population is None:
            # In the records each client has a single spelling of its id, so different spellings are
            # different clients.
            self.names = list(dict.fromkeys(itertools.chain.from_iterable(clients_by_round)))
            self._number_by_id = {
                self.normalised_id(name): number for number, name in enumerate(self.names)
            }
            number_by_name = {name: number for number, name in enumerate(self.names)}
            cohorts = [
                np.sort(np.array([number_by_name[name] for name in clients], np.int64))
                for clients in clients_by_round
            ]
        else:
            cohorts = [np.sort(np.array(clients, np.int64)) for clients in clients_by_round]
        for t, cohort in enumerate(cohorts):
            self.record(cohort.tolist(), t)
        return cohorts
