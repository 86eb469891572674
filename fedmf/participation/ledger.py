"""Who took part when: the record that a run keeps and that its guarantee after the fact
is computed from.
"""

import io
import json
import os
import re
import reprlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fedmf import checks, identifiers
from fedmf.files import checked_path, write_atomically
from fedmf.participation.clients import ClientRounds
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats

_HEADER = "round,client\n"
_FORMAT = "fedmf ledger 1"
_DAMAGED = "the ledger is damaged"
_NOBODY = np.zeros((0, 2), np.int64)  # pairs


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    """What a file holds; of each round the clients that took part, the selected, the deviating."""

    format: str
    cohort_size: int | None
    rounds: list[tuple[list[int], list[int], list[int]]]


class _Round(NamedTuple):
    """Clients, int64 and read-only: those that took part, those that were selected, and the
    selected that deviate.
    """

    cohort: np.ndarray
    selected: np.ndarray
    noncompliant: np.ndarray


class ParticipationLedger:
    """An append-only list of cohorts: entry t holds the clients of round t.

    A cohort is what was achieved: the clients that took part. Where others were selected too and
    contributed nothing, the ledger also holds the selection; where a simulation lets clients
    deviate, it holds which.

    Args:
      cohort_size: clients that a round should have; None where cohorts vary in size by design.
      cohorts: of the rounds from 0 on.

    Raises:
      TypeError, ValueError: a cohort is no 1-D array of different clients' numbers.

    >>> ledger = ParticipationLedger(cohort_size=2)
    >>> for cohort in ([0, 1], [2, 3], [1]):
    ...     ledger.append(np.array(cohort))
    >>> ledger.observed().min_separation, ledger.observed().histogram
    (2, {1: 3, 2: 1})
    """

    def __init__(self, *, cohort_size: int | None, cohorts: Sequence[np.ndarray] = ()) -> None:
        self.cohort_size = _cohort_size(cohort_size)
        self._rounds: list[_Round] = []
        hint = "give a list of cohorts, arrays of ints"
        for t, cohort in enumerate(checks.entries("cohorts", cohorts, hint=hint)):
            clients = _clients(f"cohorts[{t}]", cohort)
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
        """Records the next round.

        Args:
          cohort: the clients that took part: ints, shape (clients,), none of them twice.
          selected: the clients that were planned, those of `cohort` among them;
            None means exactly those.
          noncompliant: those of the selected that are known to ignore their timer or limit; None
            means nobody.

        Raises:
          TypeError: entries that are not ints.
          ValueError: a negative client, one twice, or one that took part unselected.
        """
        cohort = _clients("cohort", cohort)
        planned = cohort if selected is None else _clients("selected", selected)
        unselected = cohort[~np.isin(cohort, planned)]
        if len(unselected):
            raise ValueError(
                f"cohort of round {len(self)} has client {unselected[0]}, who is not in selected: "
                "select all who take part"
            )
        self._rounds.append(
            _Round(
                cohort,
                planned,
                _clients("noncompliant", () if noncompliant is None else noncompliant),
            )
        )

    def restore(
        self,
        cohorts: Sequence[np.ndarray],
        selections: Sequence[np.ndarray],
        is_noncompliant: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        """Takes over rounds of a journal, whose clients were checked when they were recorded.

        Args:
          cohorts, selections: of each round, int64.
          is_noncompliant: which of the selected deviate, bool; None for nobody.
        """
        for cohort, selected in zip(cohorts, selections, strict=True):
            deviating = selected[:0]
            if is_noncompliant is not None:
                deviating = selected[is_noncompliant(selected)]
            for clients in (cohort, selected, deviating):
                clients.setflags(write=False)
            self._rounds.append(_Round(cohort, selected, deviating))

    def cohort(self, t: int) -> np.ndarray:
        """The clients that took part in round t, int64 (clients,), read-only.

        Args:
          t: a round of the ledger, from 0 on.
        """
        return self._entry(t).cohort

    def selected(self, t: int) -> np.ndarray:
        """The clients that were selected for round t, int64 (clients,), read-only: `cohort(t)` and
        those that contributed nothing.

        Args:
          t: a round of the ledger, from 0 on.
        """
        return self._entry(t).selected

    @property
    def cohorts(self) -> list[np.ndarray]:
        """The clients that took part, of all rounds, as `cohort` has them."""
        return [entry.cohort for entry in self._rounds]

    @property
    def selections(self) -> list[np.ndarray]:
        """The clients that were selected, of all rounds, as `selected` has them."""
        return [entry.selected for entry in self._rounds]

    def _entry(self, t: int) -> _Round:
        hint = f"ask for a round that is recorded, of {len(self)}"
        return self._rounds[checks.integer("t", t, low=0, high=len(self) - 1, hint=hint)]

    def noncompliant(self, participation: Participation | None = None) -> np.ndarray:
        """The clients known to deviate, int64, sorted.

        Args:
          participation: adds the clients whose rounds it does not allow.

        Raises:
          ValueError: of schema budget, where it depends on the encoder: ask `fedmf.audit_ledger`,
            which has one.

        >>> ledger = ParticipationLedger(
        ...     cohort_size=1, cohorts=[np.array([7]), np.array([7]), np.array([9])]
        ... )
        >>> apart = Participation(rounds=3, schema="min_sep", min_sep=2)
        >>> ledger.noncompliant(), ledger.noncompliant(apart)
        (array([], dtype=int64), array([7]))
        """
        known = [entry.noncompliant for entry in self._rounds]
        if participation is not None and not isinstance(participation, Participation):
            raise TypeError(
                f"participation={reprlib.repr(participation)} must be a fedmf.Participation, or "
                "None"
            )
        if participation is not None:
            clients, rounds = self.clients()
            known.append(clients[~participation.allows_each(rounds)])
        return np.unique(np.concatenate([np.zeros(0, np.int64), *known]))

    def planned(self) -> "ParticipationLedger":
        """The ledger of what was planned: its cohorts are the clients that were selected."""
        return self._changed(
            lambda entry: _Round(entry.selected, entry.selected, entry.noncompliant[:0])
        )

    def compliant(self) -> "ParticipationLedger":
        """The ledger without the clients known to deviate. Its cohorts vary in size."""
        away = self.noncompliant()
        result = self._changed(
            lambda entry: _Round(*(clients[~np.isin(clients, away)] for clients in entry))
        )
        result.cohort_size = None
        return result

    def first(self, rounds: int) -> "ParticipationLedger":
        """The ledger of the first rounds, with all that it holds of them.

        Args:
          rounds: how many.
        """
        rounds = checks.integer("rounds", rounds, low=0, hint="use a number of rounds")
        result = self._changed(lambda entry: entry)
        del result._rounds[rounds:]
        return result

    def _changed(self, change: Callable[[_Round], _Round]) -> "ParticipationLedger":
        result = ParticipationLedger(cohort_size=self.cohort_size)
        result._rounds = [change(entry) for entry in self._rounds]
        return result

    def clients(self) -> tuple[np.ndarray, ClientRounds]:
        """The clients that took part, int64 and increasing, and the rounds of each."""
        return ClientRounds.of_cohorts(self.cohorts)

    def pairs(self) -> np.ndarray:
        """All (round, client) pairs, int64 (participations, 2), in order of rounds."""
        rounds = (
            np.stack(np.broadcast_arrays(t, entry.cohort), axis=1)
            for t, entry in enumerate(self._rounds)
        )
        return np.concatenate([_NOBODY, *rounds])

    def observed(self) -> ParticipationStats:
        """What was achieved.

        Rounds are short of the cohort size; where cohorts vary in size by design,
        of the clients selected.
        """
        short = sum(
            len(entry.cohort)
            < (len(entry.selected) if self.cohort_size is None else self.cohort_size)
            for entry in self._rounds
        )
        return ParticipationStats.of_cohorts(self.cohorts, short_rounds=short)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all that the ledger holds to a file, for `load`; mode 0600.

        Raises:
          TypeError: no path.
          OSError: the file cannot be written.

        >>> import tempfile
        >>> ledger = ParticipationLedger(cohort_size=2, cohorts=[np.array([3, 1]), np.array([])])
        >>> path = tempfile.mkdtemp() + "/ledger.json"
        >>> ledger.save(path)
        >>> again = ParticipationLedger.load(path)
        >>> len(again), again.cohort_size, again.cohort(0)
        (2, 2, array([3, 1]))
        """
        rounds = [[clients.tolist() for clients in entry] for entry in self._rounds]
        content = {"format": _FORMAT, "cohort_size": self.cohort_size, "rounds": rounds}
        write_atomically(checked_path("path", path), json.dumps(content) + "\n", mode=0o600)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "ParticipationLedger":
        """Reads the ledger that `save` wrote.

        Raises:
          TypeError: no path.
          ValueError: the file holds no ledger, or is damaged.
          OSError: the file cannot be read.
        """
        file = checked_path("path", path)
        content = file.read_bytes()
        try:
            values = msgspec.json.decode(content, type=_Saved, strict=True)
            if values.format != _FORMAT:
                raise ValueError(f"its format is {values.format!r}")
            ledger = ParticipationLedger(cohort_size=values.cohort_size)
            for cohort, selected, noncompliant in values.rounds:
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
        """Returns text with the header round,client and a row for each participation, in order of
        rounds.

        It does not say how many rounds there were, nor who was selected and contributed nothing:
        `save` does.

        Args:
          path: a file that the text is written to as well; None for none.
        """
        rows = [
            f"{t},{client}\n"
            for t, entry in enumerate(self._rounds)
            for client in entry.cohort.tolist()
        ]
        text = _HEADER + "".join(rows)
        if path is not None:
            write_atomically(checked_path("path", path), text, mode=0o600)
        return text

    @staticmethod
    def from_csv(
        text: str | os.PathLike[str], *, rounds: int, cohort_size: int | None
    ) -> "ParticipationLedger":
        """The inverse of `to_csv`; rounds without a row are rounds in which nobody took part.

        Args:
          text: header round,client and one row a participation, every line ended; or the path of a
            file of that.
          rounds: rounds recorded, at least one more than the largest in the text.
          cohort_size: of the run; None where cohorts vary in size by design.

        Raises:
          ValueError: another header; a row that is not two non-negative whole numbers with a round
            below `rounds`, named with its number, counted from 1 without the header;
            or a row twice.
          OSError: the file cannot be read.
        """
        if not isinstance(text, str | os.PathLike):
            raise TypeError(
                f"text={reprlib.repr(text)} must be the text of to_csv, or the path of a file of it"
            )
        hint = "pass the number of rounds recorded"
        rounds = checks.integer("rounds", rounds, low=0, high=checks.MAX_ROUNDS, hint=hint)
        if isinstance(text, os.PathLike) or (text and "\n" not in text and "\r" not in text):
            path = checked_path("text", text)
            try:
                text = path.read_text(encoding="utf-8-sig")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"text={str(path)!r} is no file of text in UTF-8 ({error}): name one that "
                    "to_csv wrote"
                ) from error
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not text.startswith(_HEADER):
            raise ValueError(
                "text does not begin with the header round,client: give the text of to_csv, or the "
                "path of a file of it"
            )
        if not text.endswith("\n"):
            raise ValueError(
                f"{_DAMAGED} (the last line has no line end, so that it may be cut off): "
                "write it again with to_csv"
            )
        try:
            with warnings.catch_warnings():
                # Numpy only warns of numbers that are not whole or too large
                warnings.simplefilter("error")
                rows = io.StringIO(text.removeprefix(_HEADER))
                pairs = (
                    np.loadtxt(rows, np.int64, delimiter=",", comments=None, ndmin=2)
                    if text != _HEADER
                    else _NOBODY
                )
            wrong = pairs.shape[1] != 2 or bool((pairs < 0).any() or (pairs[:, 0] >= rounds).any())
            reason = "a row is not round,client"
        except (ValueError, Warning) as error:
            wrong, reason = True, str(error).splitlines()[0][:120]
        if wrong:
            raise ValueError(
                f"{_DAMAGED} ({_fault(text, rounds) or reason}): write it again with to_csv"
            )
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        ends = np.cumsum(np.bincount(pairs[:, 0], minlength=rounds))
        cohorts = np.split(pairs[:, 1], ends[:-1]) if rounds else []
        return ParticipationLedger(cohort_size=cohort_size, cohorts=cohorts)


def _cohort_size(cohort_size: Any) -> int | None:
    if cohort_size is None:
        return None
    hint = "use the number of clients a round, or None where cohorts vary"
    return checks.integer("cohort_size", cohort_size, low=0, hint=hint)


def _fault(text: str, rounds: int) -> str | None:
    """The first row of a ledger that is wrong, and why."""
    lines = text.removeprefix(_HEADER).splitlines()
    for row, line in enumerate(lines, 1):
        cells = line.split(",")
        where = f"row {row}, {line[:80]!a}"
        if line and len(cells) != 2:
            return f"{where}, is not round,client"
        if line and (fault := identifiers.round_fault(cells[0], 0, rounds - 1)):
            return f"{where}: the round {fault}"
        if line and not (re.fullmatch("[0-9]{1,19}", cells[1]) and int(cells[1]) < 2**63):
            fault = identifiers.client_fault(cells[1])
            return f"{where}: the client {fault or 'is not a whole number from 0 to 2^63 - 1'}"
    return None


def _clients(name: str, values: Any) -> np.ndarray:
    """Different, non-negative clients as a read-only int64 copy, in the same order."""
    clients = np.asarray(values)
    if clients.size and clients.dtype.kind not in "iu":
        raise TypeError(
            f"{name} holds {clients.dtype} entries: pass client indices, an array of ints"
        )
    clients = clients.astype(np.int64)
    if (
        clients.ndim != 1
        or (clients.size and clients.min() < 0)
        or len(np.unique(clients)) < len(clients)
    ):
        shown = " ".join(np.array2string(clients, separator=", ", threshold=20).split())
        raise ValueError(f"{name}={shown} must list different, non-negative client indices")
    clients.setflags(write=False)
    return clients
