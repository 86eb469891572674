"""Who took part when: the record that a run keeps and that its guarantee after the fact is computed from."""

import csv
import dataclasses
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

# Pairs that are sorted at a time, and characters of a file that are parsed at a time: bounds on the memory.
_PAIRS_AT_ONCE = 1 << 22
_TEXT_AT_ONCE = 1 << 24
# At most 18 digits fit in int64. Possessive, so that no state is kept for going back.
_ROWS = re.compile(r"(?:[0-9]{1,18}+,[0-9]{1,18}+\n)*+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observed:
    """What a ledger shows, over all clients.

    Attributes:
      rounds: rounds recorded.
      participations: (client, round) pairs recorded.
      clients: different clients seen.
      max_participations: of one client; 0 for an empty ledger.
      min_separation: smallest difference between two rounds of one client; None if no client came twice.
      short_rounds: rounds in which fewer than the cohort size took part; where cohorts vary in size by design, fewer than were selected.
    """

    rounds: int
    participations: int
    clients: int
    max_participations: int
    min_separation: int | None
    short_rounds: int


class ParticipationLedger:
    """An append-only list of cohorts: entry t holds the clients of round t. Four bytes a participation.

    A cohort is what was achieved: the clients that took part. Where others had been selected too and contributed nothing, the ledger
    also holds what was planned; where a simulation lets clients deviate, it holds which.

    Args:
      cohort_size: clients that a round should have; None where cohorts vary in size by design.
      cohorts: of the rounds from 0 on.

    >>> ledger = ParticipationLedger(cohort_size=2)
    >>> for cohort in ([0, 1], [2, 3], [1]):
    ...     ledger.append(np.array(cohort))
    >>> ledger.observed()
    Observed(rounds=3, participations=5, clients=4, max_participations=2, min_separation=2, short_rounds=1)
    """

    def __init__(self, *, cohort_size: int | None, cohorts: Sequence[np.ndarray] = ()) -> None:
        self.cohort_size = cohort_size
        self._cohorts: list[np.ndarray] = []
        self._selected: dict[int, np.ndarray] = {}
        self._disobedient: dict[int, np.ndarray] = {}
        for cohort in cohorts:
            self.append(cohort)

    def __len__(self) -> int:
        return len(self._cohorts)

    def append(
        self, cohort: np.ndarray, *, selected: np.ndarray | None = None, noncompliant: np.ndarray | None = None
    ) -> None:
        """Records the next round.

        Args:
          cohort: the clients that took part: ints, shape (clients,), none of them twice.
          selected: the clients that were planned, those of `cohort` among them; None means exactly those.
          noncompliant: those of the selected that are known to deviate their timer or limit; None means nobody.

        Raises:
          TypeError: entries that are not ints.
          ValueError: a negative client, one twice, one that took part unselected.
        """
        cohort = _clients("cohort", cohort)
        if selected is not None:
            planned = _clients("selected", selected)
            if not np.isin(cohort, planned).all():
                raise ValueError(
                    f"cohort of round {len(self)} has client {cohort[~np.isin(cohort, planned)][0]}, who is not in selected: "
                    "select all who take part"
                )
            if len(planned) > len(cohort):
                self._selected[len(self)] = planned
        if noncompliant is not None and len(noncompliant):
            self._disobedient[len(self)] = _clients("noncompliant", noncompliant)
        self._cohorts.append(cohort)

    def cohort(self, t: int) -> np.ndarray:
        """The clients that took part in round t, int64 (clients,), read-only."""
        return _wide(self._cohorts[t])

    def selected(self, t: int) -> np.ndarray:
        """The clients that were selected for round t, int64 (clients,), read-only: `cohort(t)` and those that contributed nothing."""
        return _wide(self._selected.get(t, self._cohorts[t]))

    def noncompliant(self) -> np.ndarray:
        """The clients known to deviate, int64, sorted."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *(_wide(c) for c in self._disobedient.values())]))

    def planned(self) -> "ParticipationLedger":
        """The ledger of what was planned: its cohorts are the clients that were selected."""
        return self._changed(lambda t: self._selected.get(t, self._cohorts[t]), self.cohort_size, len(self))

    def well_behaved(self) -> "ParticipationLedger":
        """The ledger without the clients known to deviate. Its cohorts vary in size."""
        away = self.noncompliant()

        def without(clients: np.ndarray) -> np.ndarray:
            return clients[~np.isin(clients, away)]

        result = ParticipationLedger(cohort_size=None)
        for t in range(len(self)):
            result.append(without(self._cohorts[t]), selected=without(self.selected(t)))
        return result

    def first(self, rounds: int) -> "ParticipationLedger":
        """The ledger of the first `rounds` rounds, with all that it holds of them."""
        result = self._changed(lambda t: self._cohorts[t], self.cohort_size, rounds)
        result._selected = {t: clients for t, clients in self._selected.items() if t < rounds}
        result._disobedient = {t: clients for t, clients in self._disobedient.items() if t < rounds}
        return result

    def _changed(self, of: Callable[[int], np.ndarray], cohort_size: int | None, rounds: int) -> "ParticipationLedger":
        result = ParticipationLedger(cohort_size=cohort_size)
        result._cohorts = [of(t) for t in range(min(rounds, len(self)))]
        return result

    def pairs(self) -> np.ndarray:
        """All (round, client) pairs, int64 (participations, 2), in order of rounds: 16 bytes a participation."""
        result = np.empty((sum(map(len, self._cohorts)), 2), np.int64)
        start = 0
        for t, cohort in enumerate(self._cohorts):
            result[start : start + len(cohort)] = np.stack([np.full(len(cohort), t), cohort], axis=1)
            start += len(cohort)
        return result

    def observed(self) -> Observed:
        """Counts and separations actually seen, over all clients, in bounded memory beside the ledger itself."""
        clients = most = 0
        least: int | None = None
        for counts, gaps in self._by_client():
            clients += len(counts)
            most = max(most, int(counts.max(initial=0)))
            if len(gaps):
                least = int(gaps.min()) if least is None else min(least, int(gaps.min()))
        return Observed(
            rounds=len(self),
            participations=sum(map(len, self._cohorts)),
            clients=clients,
            max_participations=most,
            min_separation=least,
            short_rounds=sum(len(cohort) < self._planned_size(t) for t, cohort in enumerate(self._cohorts)),
        )

    def _planned_size(self, t: int) -> int:
        return len(self._selected.get(t, self._cohorts[t])) if self.cohort_size is None else self.cohort_size

    def histogram(self) -> dict[int, int]:
        """Participations -> clients with so many, for those that took part at all; increasing."""
        totals = np.zeros(1, np.int64)
        for counts, _ in self._by_client():
            found = np.bincount(counts, minlength=len(totals))
            found[: len(totals)] += totals
            totals = found
        return {times: int(clients) for times, clients in enumerate(totals) if clients}

    def _by_client(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For one share of the clients after the other: participations of each, and all gaps between consecutive rounds of one."""
        shares = 1 + sum(map(len, self._cohorts)) // _PAIRS_AT_ONCE
        for share in range(shares):
            clients, rounds = self._sorted(share, shares)
            new = np.ones(len(clients), bool)
            new[1:] = clients[1:] != clients[:-1]
            gaps = np.diff(rounds)[~new[1:]]
            yield np.diff(np.append(np.flatnonzero(new), len(clients))), gaps

    def _sorted(self, share: int = 0, shares: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """(clients, rounds) of the clients that are `share` modulo `shares`, by client and then by round."""
        parts = [cohort[cohort % shares == share] if shares > 1 else cohort for cohort in self._cohorts]
        clients = np.concatenate([np.zeros(0, np.uint32), *parts])
        rounds = np.repeat(np.arange(len(parts), dtype=np.int64), [len(part) for part in parts])
        # Stable: the rounds of a client stay in order.
        order = np.argsort(clients, kind="stable")
        return clients[order], rounds[order]

    def rounds_of_clients(self) -> Mapping[int, list[int]]:
        """client -> its rounds in increasing order. The lists are made when they are asked for."""
        return _RoundsOfClients(*self._sorted())

    def to_csv(self) -> str:
        """The pairs as CSV with the header round,client."""
        return "".join(self.csv_pieces())

    def csv_pieces(self) -> Iterator[str]:
        """The text of `to_csv` piece by piece, a round each after the header."""
        yield "round,client\n"
        for t, cohort in enumerate(self._cohorts):
            if len(cohort):
                yield f"{t}," + f"\n{t},".join(map(str, cohort.tolist())) + "\n"

    @staticmethod
    def from_csv(text: str, *, rounds: int, cohort_size: int | None) -> "ParticipationLedger":
        """The inverse of `to_csv`; rounds without a row are rounds in which nobody took part.

        Args:
          text: header round,client and one row a participation.
          rounds: rounds recorded, at least one more than the largest in the text.
          cohort_size: of the run; None where cohorts vary in size by design.

        Raises:
          ValueError: another header, or a row that is not two non-negative whole numbers with a round below `rounds`.
        """
        cohorts = _parsed(text, rounds)
        if cohorts is None:
            cohorts = _parsed_row_by_row(text, rounds)
        return ParticipationLedger(cohort_size=cohort_size, cohorts=cohorts)


class _RoundsOfClients(Mapping[int, list[int]]):
    """Participations sorted by client, read as a mapping."""

    def __init__(self, clients: np.ndarray, rounds: np.ndarray) -> None:
        new = np.ones(len(clients), bool)
        new[1:] = clients[1:] != clients[:-1]
        starts = np.flatnonzero(new)
        self._clients, self._rounds, self._ends = clients[starts], rounds, np.append(starts, len(clients))

    def __getitem__(self, client: int) -> list[int]:
        place = int(np.searchsorted(self._clients, client))
        if place == len(self._clients) or self._clients[place] != client:
            raise KeyError(client)
        return self._rounds[self._ends[place] : self._ends[place + 1]].tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients.tolist())

    def __len__(self) -> int:
        return len(self._clients)


def _clients(name: str, given: Any) -> np.ndarray:
    """Different, non-negative clients as a read-only copy, uint32 where they fit, in the order given."""
    clients = np.asarray(given)
    if clients.size and clients.dtype.kind not in "iu":
        raise TypeError(f"{name} holds {clients.dtype} entries: pass client indices, an array of ints")
    increasing = clients.ndim == 1 and bool((clients[1:] > clients[:-1]).all())
    if (
        clients.ndim != 1
        or (clients.size and clients.min() < 0)
        or not (increasing or len(np.unique(clients)) == len(clients))
    ):
        shown = " ".join(np.array2string(clients, separator=", ", threshold=20).split())
        raise ValueError(f"{name}={shown} must list different, non-negative client indices")
    large = clients.size and clients.max() > np.iinfo(np.uint32).max
    result = np.array(clients, dtype=np.int64 if large else np.uint32)
    result.setflags(write=False)
    return result


def _wide(clients: np.ndarray) -> np.ndarray:
    result = clients.astype(np.int64, copy=False)
    result.setflags(write=False)
    return result


def _parsed(text: str, rounds: int) -> list[np.ndarray] | None:
    """The cohorts of a file as `to_csv` writes it, whatever the order of its rows; None where anything is unusual."""
    header = "round,client\n"
    if not text.startswith(header):
        return None
    rounds_found, clients_found = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    start = len(header)
    while start < len(text):
        end = text.rfind("\n", start, start + _TEXT_AT_ONCE) + 1
        if end == 0 or _ROWS.fullmatch(text, start, end) is None:
            return None
        numbers = np.fromstring(text[start:end].replace("\n", ","), np.int64, sep=",")
        rounds_found.append(numbers[0::2].copy())
        clients_found.append(numbers[1::2].copy())
        start = end
    t, clients = np.concatenate(rounds_found), np.concatenate(clients_found)
    if len(t) and t.max() >= rounds:
        return None
    clients = clients[np.argsort(t, kind="stable")]
    cohorts = np.split(clients, np.cumsum(np.bincount(t, minlength=rounds))[:-1]) if rounds else []
    return None if any(len(np.unique(cohort)) != len(cohort) for cohort in cohorts) else cohorts


def _parsed_row_by_row(text: str, rounds: int) -> list[np.ndarray]:
    """As `_parsed` for everything that the csv module reads; names the line of what it cannot."""
    reader = csv.reader(io.StringIO(text))
    if next(_rows(reader), None) != ["round", "client"]:
        raise ValueError("a participation ledger starts with the header round,client: this file does not")
    cohorts: list[list[int]] = [[] for _ in range(rounds)]
    seen: set[tuple[int, int]] = set()
    for row in _rows(reader):
        pair = _pair(row, rounds)
        if pair is None or pair in seen:
            raise ValueError(
                f"line {reader.line_num} of the ledger, {','.join(row)[:80]!r}, must be round,client with round < {rounds}, "
                "every pair once: write the file again with to_csv"
            )
        seen.add(pair)
        cohorts[pair[0]].append(pair[1])
    return [np.array(cohort, np.int64) for cohort in cohorts]


def _rows(reader: Any) -> Iterator[list[str]]:
    """The reader's rows; what the csv module itself cannot read is one row of garbage."""
    try:
        yield from reader
    except csv.Error as error:
        yield [str(error)]


def _pair(row: list[str], rounds: int) -> tuple[int, int] | None:
    # At most 18 digits fit in int64; isdecimal alone lets other scripts' digits pass.
    if len(row) != 2 or not all(part.isascii() and part.isdecimal() and len(part) <= 18 for part in row):
        return None
    t, client = int(row[0]), int(row[1])
    return (t, client) if t < rounds else None
