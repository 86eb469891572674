"""Who took part when: the record that a run keeps and that its guarantee after the fact is computed from."""

import csv
import dataclasses
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observed:
    """What a ledger shows, over all clients.

    Attributes:
      rounds: rounds recorded.
      participations: (client, round) pairs recorded.
      clients: different clients seen.
      max_participations: of one client; 0 for an empty ledger.
      min_separation: smallest difference between two rounds of one client; None if no client came twice.
      short_rounds: rounds in which fewer than the cohort size took part.
    """

    rounds: int
    participations: int
    clients: int
    max_participations: int
    min_separation: int | None
    short_rounds: int


class ParticipationLedger:
    """An append-only list of cohorts: entry t holds the clients of round t.

    >>> ledger = ParticipationLedger(cohort_size=2)
    >>> for cohort in ([0, 1], [2, 3], [1]):
    ...     ledger.append(np.array(cohort))
    >>> ledger.observed()
    Observed(rounds=3, participations=5, clients=4, max_participations=2, min_separation=2, short_rounds=1)
    """

    def __init__(self, *, cohort_size: int, cohorts: Sequence[np.ndarray] = ()) -> None:
        self.cohort_size = cohort_size
        self._cohorts: list[np.ndarray] = []
        for cohort in cohorts:
            self.append(cohort)

    def __len__(self) -> int:
        return len(self._cohorts)

    def append(self, cohort: np.ndarray) -> None:
        """Records the clients of the next round: int64, shape (clients,), none of them twice."""
        given = np.asarray(cohort)
        if given.size and given.dtype.kind not in "iu":
            raise TypeError(f"cohort holds {given.dtype} entries: pass client indices, an array of ints")
        cohort = np.array(given, dtype=np.int64)
        if cohort.ndim != 1 or len(np.unique(cohort)) != len(cohort) or (len(cohort) and cohort.min() < 0):
            raise ValueError(f"cohort={cohort.tolist()} must list different, non-negative client indices")
        cohort.setflags(write=False)
        self._cohorts.append(cohort)

    def cohort(self, t: int) -> np.ndarray:
        """The clients of round t, int64 (clients,), read-only."""
        return self._cohorts[t]

    def pairs(self) -> np.ndarray:
        """All (round, client) pairs, int64 (participations, 2), in order of rounds."""
        if not self._cohorts:
            return np.zeros((0, 2), np.int64)
        rounds = np.repeat(np.arange(len(self._cohorts)), [len(c) for c in self._cohorts])
        return np.stack([rounds, np.concatenate(self._cohorts)], axis=1)

    def observed(self) -> Observed:
        """Counts and separations actually seen."""
        pairs = self.pairs()
        order = np.lexsort((pairs[:, 0], pairs[:, 1]))
        rounds, clients = pairs[order, 0], pairs[order, 1]
        same = clients[1:] == clients[:-1]
        gaps = (rounds[1:] - rounds[:-1])[same]
        _, counts = np.unique(clients, return_counts=True)
        return Observed(
            rounds=len(self),
            participations=len(pairs),
            clients=len(counts),
            max_participations=int(counts.max(initial=0)),
            min_separation=int(gaps.min()) if len(gaps) else None,
            short_rounds=sum(len(c) < self.cohort_size for c in self._cohorts),
        )

    def rounds_of_clients(self) -> dict[int, list[int]]:
        """client -> its rounds in increasing order."""
        result: dict[int, list[int]] = {}
        for t, client in self.pairs().tolist():
            result.setdefault(client, []).append(t)
        return result

    def to_csv(self) -> str:
        """The pairs as CSV with the header round,client."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["round", "client"])
        writer.writerows(self.pairs().tolist())
        return out.getvalue()

    @staticmethod
    def from_csv(text: str, *, rounds: int, cohort_size: int) -> "ParticipationLedger":
        """The inverse of `to_csv`; rounds without a row are rounds in which nobody took part.

        Args:
          text: header round,client and one row a participation.
          rounds: rounds recorded, at least one more than the largest in the text.
          cohort_size: of the run.

        Raises:
          ValueError: another header, or a row that is not two non-negative whole numbers with a round below `rounds`.
        """
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
        return ParticipationLedger(cohort_size=cohort_size, cohorts=[np.array(c, np.int64) for c in cohorts])


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
