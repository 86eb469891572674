"""The participation ledger, which records who took part in which round. Audits compute the
guarantee that a run achieved from it.
"""

import json
import os
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fedmf import checks
from fedmf.files import checked_path, write_atomically
from fedmf.participation import ledger_csv
from fedmf.participation.clients import ClientRounds
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats

_FORMAT = "fedmf ledger 1"


class _LedgerFile(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a ledger file. Each entry of `rounds` holds the three client lists of one
    `_Round`.
    """

    format: str
    cohort_size: int | None
    rounds: list[tuple[list[int], list[int], list[int]]]


class _Round(NamedTuple):
    """The indices of the clients of one round, in a read-only int64 array for each role.

    Attributes:
      cohort: clients that took part.
      selected: clients that were selected.
      noncompliant: the selected clients that ignore their timer or limit.
    """

    cohort: np.ndarray
    selected: np.ndarray
    noncompliant: np.ndarray


class ParticipationLedger:
    """An append-only record of a run's cohorts, the clients that took part in rounds 0, 1, ...

    The ledger also holds the selected clients, of which some may have contributed nothing, and the
    noncompliant clients of a simulation.

    Args:
      cohort_size: planned number of clients of a round; None if cohorts vary in size by design.
      cohorts: clients of each round, from round 0 on.

    Raises:
      TypeError, ValueError: a cohort is not a 1-D array of distinct client indices.

    >>> ledger = ParticipationLedger(cohort_size=2)
    >>> for cohort in ([0, 1], [2, 3], [1]):
    ...     ledger.append(np.array(cohort))
    >>> ledger.observed().min_separation, ledger.observed().histogram
    (2, {1: 3, 2: 1})
    """

    def __init__(self, *, cohort_size: int | None, cohorts: Sequence[np.ndarray] = ()) -> None:
        self.cohort_size = _check_cohort_size(cohort_size)
        self._rounds: list[_Round] = []
        hint = "give a list of cohorts, arrays of ints"
        for t, cohort in enumerate(checks.entries("cohorts", cohorts, hint=hint)):
            clients = checked_client_indices(f"cohorts[{t}]", cohort)
            self._rounds.append(_Round(clients, clients, clients[:0]))

    def __len__(self) -> int:
        return len(self._rounds)

    def append(
        self,
        cohort: np.ndarray,
        *,
        selected: np.ndarray | None = None,
        noncompliant: np.ndarray | None = None,
    ) -> None:
        """Records the clients of the next round.

        Args:
          cohort: distinct clients that took part, ints (clients,).
          selected: the selected clients, which include the cohort; None means exactly the cohort.
          noncompliant: the selected clients that are known to ignore their timer or limit; None
            means none.

        Raises:
          TypeError: entries are not ints.
          ValueError: a client is negative, occurs twice, or took part without being selected.
        """
        cohort = checked_client_indices("cohort", cohort)
        selected = cohort if selected is None else checked_client_indices("selected", selected)
        if noncompliant is None:
            noncompliant = cohort[:0]
        unselected_clients = cohort[~np.isin(cohort, selected)]
        if len(unselected_clients):
            raise ValueError(
                f"cohort of round {len(self)} has client {unselected_clients[0]}, who is not in "
                "selected: select all who take part"
            )
        noncompliant = checked_client_indices("noncompliant", noncompliant)
        self._rounds.append(_Round(cohort, selected, noncompliant))

    def restore(
        self,
        cohorts: Sequence[np.ndarray],
        selections: Sequence[np.ndarray],
        is_noncompliant: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        """Appends rounds that were read from a journal. Their clients are not checked again, since
        they were checked when they were recorded.

        Args:
          cohorts, selections: clients of each round, int64.
          is_noncompliant: clients -> whether each of them is noncompliant, bool; None if all of
            them comply.
        """
        for cohort, selected in zip(cohorts, selections, strict=True):
            noncompliant = selected[:0]
            if is_noncompliant is not None:
                noncompliant = selected[is_noncompliant(selected)]
            for clients in (cohort, selected, noncompliant):
                clients.setflags(write=False)
            self._rounds.append(_Round(cohort, selected, noncompliant))

    def cohort(self, t: int) -> np.ndarray:
        """Returns the clients that took part in round t, a read-only int64 array.

        Args:
          t: a round of the ledger, from 0 on.
        """
        return self._recorded_round(t).cohort

    def selected(self, t: int) -> np.ndarray:
        """Returns the clients that were selected for round t, a read-only int64 array.

        They are `cohort(t)` and the clients that contributed nothing.

        Args:
          t: a round of the ledger, from 0 on.
        """
        return self._recorded_round(t).selected

    @property
    def cohorts(self) -> list[np.ndarray]:
        """The clients that took part in each round, as a list of read-only arrays."""
        return [recorded.cohort for recorded in self._rounds]

    @property
    def selections(self) -> list[np.ndarray]:
        """The clients that were selected for each round, as a list of read-only arrays."""
        return [recorded.selected for recorded in self._rounds]

    def _recorded_round(self, t: int) -> _Round:
        """Returns the record of round t, or raises TypeError or ValueError if there is none."""
        hint = f"ask for a round that is recorded, of {len(self)}"
        return self._rounds[checks.integer("t", t, low=0, high=len(self) - 1, hint=hint)]

    def noncompliant(self, participation: Participation | None = None) -> np.ndarray:
        """Returns the clients that are known to ignore their timer or limit, int64 and increasing.

        Args:
          participation: a schema; adds the clients whose rounds it does not allow.

        Raises:
          ValueError: the schema is "budget", whose allowed rounds depend on the encoder:
            `fedmf.audit_ledger` has one.

        >>> ledger = ParticipationLedger(
        ...     cohort_size=1, cohorts=[np.array([7]), np.array([7]), np.array([9])]
        ... )
        >>> participation = Participation(rounds=3, schema="min_sep", min_sep=2)
        >>> ledger.noncompliant(), ledger.noncompliant(participation)
        (array([], dtype=int64), array([7]))
        """
        client_arrays = [recorded.noncompliant for recorded in self._rounds]
        if participation is not None and not isinstance(participation, Participation):
            raise TypeError(
                f"participation={reprlib.repr(participation)} must be a fedmf.Participation, or "
                "None"
            )
        if participation is not None:
            clients, rounds = self.clients()
            client_arrays.append(clients[~participation.allows_each(rounds)])
        return np.unique(np.concatenate([np.zeros(0, np.int64), *client_arrays]))

    def planned(self) -> "ParticipationLedger":
        """Returns the ledger of a run in which all selected clients take part, as planned."""
        return self._with_rounds(
            [_Round(old.selected, old.selected, old.noncompliant[:0]) for old in self._rounds]
        )

    def compliant(self) -> "ParticipationLedger":
        """Returns the ledger without the noncompliant clients, so that its cohorts vary in size."""
        excluded_clients = self.noncompliant()
        rounds: list[_Round] = []
        for recorded in self._rounds:
            rounds.append(
                _Round(*(clients[~np.isin(clients, excluded_clients)] for clients in recorded))
            )
        ledger = self._with_rounds(rounds)
        ledger.cohort_size = None
        return ledger

    def first(self, rounds: int) -> "ParticipationLedger":
        """Returns the ledger of the first `rounds` rounds.

        Args:
          rounds: their number.
        """
        rounds = checks.integer("rounds", rounds, low=0, hint="use a number of rounds")
        return self._with_rounds(self._rounds[:rounds])

    def _with_rounds(self, rounds: list[_Round]) -> "ParticipationLedger":
        """Returns a ledger with these rounds and the same planned cohort size."""
        ledger = ParticipationLedger(cohort_size=self.cohort_size)
        ledger._rounds = rounds
        return ledger

    def clients(self) -> tuple[np.ndarray, ClientRounds]:
        """Returns the clients that took part, int64 and increasing, and the rounds of each."""
        return ClientRounds.of_cohorts(self.cohorts)

    def pairs(self) -> np.ndarray:
        """Returns all (round, client) pairs in order of rounds, int64 (participations, 2)."""
        pair_arrays = [np.zeros((0, 2), np.int64)]
        for t, cohort in enumerate(self.cohorts):
            pair_arrays.append(np.stack(np.broadcast_arrays(t, cohort), axis=1))
        return np.concatenate(pair_arrays)

    def observed(self) -> ParticipationStats:
        """Returns the participation statistics of the run.

        A round is short if its cohort has fewer clients than the cohort size or, if cohorts vary in
        size by design, than were selected.
        """
        num_short = 0
        for recorded in self._rounds:
            planned_size = self.cohort_size
            if planned_size is None:
                planned_size = len(recorded.selected)
            num_short += len(recorded.cohort) < planned_size
        return ParticipationStats.of_cohorts(self.cohorts, short_rounds=num_short)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the ledger to a file that only its owner can read (mode 0600). `load` reads it.

        Raises:
          TypeError: `path` is not a path.
          OSError: the file cannot be written.

        >>> import tempfile
        >>> ledger = ParticipationLedger(cohort_size=2, cohorts=[np.array([3, 1]), np.array([])])
        >>> path = tempfile.mkdtemp() + "/ledger.json"
        >>> ledger.save(path)
        >>> loaded = ParticipationLedger.load(path)
        >>> len(loaded), loaded.cohort_size, loaded.cohort(0)
        (2, 2, array([3, 1]))
        """
        client_lists = [[clients.tolist() for clients in recorded] for recorded in self._rounds]
        ledger_content = {
            "format": _FORMAT,
            "cohort_size": self.cohort_size,
            "rounds": client_lists,
        }
        write_atomically(checked_path("path", path), json.dumps(ledger_content) + "\n", mode=0o600)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "ParticipationLedger":
        """Reads a ledger from a file that `save` wrote.

        Raises:
          TypeError: `path` is not a path.
          ValueError: the file is not a ledger, or is damaged.
          OSError: the file cannot be read.
        """
        ledger_path = checked_path("path", path)
        file_content = ledger_path.read_bytes()
        try:
            ledger_file = msgspec.json.decode(file_content, type=_LedgerFile, strict=True)
            if ledger_file.format != _FORMAT:
                raise ValueError(f"its format is {ledger_file.format!r}")
            ledger = ParticipationLedger(cohort_size=ledger_file.cohort_size)
            for cohort, selected, noncompliant in ledger_file.rounds:
                ledger.append(
                    np.array(cohort, np.int64),
                    selected=np.array(selected, np.int64),
                    noncompliant=np.array(noncompliant, np.int64),
                )
        except (ValueError, OverflowError) as error:
            raise ValueError(
                f"path={str(path)!r} holds no whole ledger ({error}): write it again with save; "
                "from_csv reads the text of to_csv"
            ) from error
        return ledger

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Returns the ledger as CSV text, with the header round,client and then a row for each
        participation, in order of rounds.

        Unlike `save`, it omits the number of rounds and the selected clients that contributed
        nothing.

        Args:
          path: a file to which the text is written as well; None writes no file.
        """
        csv_lines = [ledger_csv.HEADER]
        for t, cohort in enumerate(self.cohorts):
            csv_lines.extend(f"{t},{client}\n" for client in cohort.tolist())
        csv_text = "".join(csv_lines)
        if path is not None:
            write_atomically(checked_path("path", path), csv_text, mode=0o600)
        return csv_text

    @staticmethod
    def from_csv(
        text: str | os.PathLike[str], *, rounds: int, cohort_size: int | None
    ) -> "ParticipationLedger":
        """Builds a ledger from CSV text that `to_csv` wrote.

        Nobody took part in a round without a row.

        Args:
          text: header round,client and one row per participation, each with a line end; or the path
            of a file of that.
          rounds: number of recorded rounds, at least one more than the largest round in the text.
          cohort_size: planned number of clients of a round; None if cohorts vary in size by design.

        Raises:
          ValueError: the header is wrong; a row is not two non-negative whole numbers with a round
            below `rounds`, where rows count from 1 without the header; or a row occurs twice.
          OSError: the file cannot be read.
        """
        hint = "pass the number of rounds recorded"
        rounds = checks.integer("rounds", rounds, low=0, high=checks.MAX_ROUNDS, hint=hint)
        round_client_pairs = ledger_csv.parse_pairs(ledger_csv.read_text(text), rounds)
        round_client_pairs = round_client_pairs[np.argsort(round_client_pairs[:, 0], kind="stable")]
        round_ends = np.cumsum(np.bincount(round_client_pairs[:, 0], minlength=rounds))
        cohorts = np.split(round_client_pairs[:, 1], round_ends[:-1]) if rounds else []
        return ParticipationLedger(cohort_size=cohort_size, cohorts=cohorts)


def _check_cohort_size(cohort_size: Any) -> int | None:
    """Returns the planned cohort size as an int, or None. Raises TypeError or ValueError for other
    values.
    """
    if cohort_size is None:
        return None
    hint = "use the number of clients a round, or None where cohorts vary"
    return checks.integer("cohort_size", cohort_size, low=0, hint=hint)


def checked_client_indices(name: str, values: Any) -> np.ndarray:
    """Returns a read-only int64 copy of client indices, or raises an error unless they are distinct
    and non-negative.
    """
    client_array = np.asarray(values)
    if client_array.size and client_array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} holds {client_array.dtype} entries: pass client indices, an array of ints"
        )
    client_array = client_array.astype(np.int64)
    is_one_dimensional = client_array.ndim == 1
    has_negative = client_array.size > 0 and client_array.min() < 0
    if not is_one_dimensional or has_negative or len(np.unique(client_array)) < len(client_array):
        clients_text = " ".join(np.array2string(client_array, separator=", ", threshold=20).split())
        raise ValueError(f"{name}={clients_text} must list different, non-negative client indices")
    client_array.setflags(write=False)
    return client_array
