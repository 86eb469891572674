"""The data that a run commits after each round, and `RUN`, the kind of its folder.

The readable files metrics.jsonl, participation.csv and selected.csv follow from the journal. Lines
that are missing after a crash are written when the run is resumed.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmf import strict_json
from fedmf.mechanisms.storage import READ_ERRORS
from fedmf.runs.digests import sha256
from fedmf.server.folder_kind import FolderKind, ReadableFile
from fedmf.server.journal import Committed, with_numbers
from fedmf.server.journal_reading import JOURNAL, bound_digests, committed_rows, newest_of

IDENTITY = "private/identity.json"
# Files that a run has before round 0, beside config.json and the readable files.
_FIRST_FILES = (
    "plan.json",
    "statement.md",
    "mechanism.npz",
    "initial_model.npz",
    "vocabulary.json",
)
# Files because of which no run may begin in a folder. They are those that a run writes after its
# first round, and server.json, which a server's folder has.
_LATER_FILES = (
    "server.json",
    "timings.jsonl",
    "metrics.csv",
    "tensorboard",
    "trackers.json",
    "result.json",
    "model.npz",
    "final_statement.md",
    "final_statement.json",
    "clients.json",
    "fine_tuned.json",
    "stopped_by_data",
)
_HEADER = "round,client\n"
# Names of a round's arrays in the journal begin with these prefixes.
_BEFORE = "before."
_RELEASE = "release."


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CommittedRound:
    """The data of a round that are committed before anything of the round is shown.

    Attributes:
      t: the round.
      clients: indices of the clients that took part, int64.
      selected: indices of the clients that were selected, int64.
      statistics: counts, losses and public scales of the round.
      private: private metrics of the round; None without them.
      canaries: products of the release with the canaries' directions; empty without canaries.
      release: arrays of the release that the server's step needs.
      before: arrays of the state before the step that it needs: weights and optimizer state.
      program: fingerprint of the program that computes this and later rounds, if it differs from
        that of the earlier rounds; None otherwise.
    """

    t: int
    clients: np.ndarray
    selected: np.ndarray
    statistics: Mapping[str, Any]
    private: Mapping[str, Any] | None = None
    canaries: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    release: Sequence[np.ndarray] = ()
    before: Sequence[np.ndarray] = ()
    program: Mapping[str, Any] | None = None

    def journal_row(self) -> dict[str, Any]:
        """Returns the round without its arrays, as a JSON object for the journal."""
        journal_row: dict[str, Any] = {"clients": self.clients.tolist()}
        if len(self.selected) > len(self.clients):
            journal_row["selected"] = self.selected.tolist()
        journal_row["statistics"] = dict(self.statistics)
        if self.private is not None:
            journal_row["private"] = dict(self.private)
        if len(self.canaries):
            journal_row["canaries"] = self.canaries.tolist()
        if self.program is not None:
            journal_row["program"] = dict(self.program)
        return journal_row

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays of the round by the names under which the journal stores them."""
        return with_numbers(_BEFORE, self.before) | with_numbers(_RELEASE, self.release)

    def metrics_row(self) -> dict[str, Any]:
        """Returns the part of the round's row in metrics.jsonl that the commit determines."""
        metrics_row: dict[str, Any] = {"round": self.t, "clients": len(self.clients)}
        metrics_row |= self.statistics
        metrics_row.pop("not_finite", None)
        if self.private is not None:
            metrics_row["private"] = dict(self.private)
        return metrics_row

    @classmethod
    def of(cls, committed: Committed) -> "CommittedRound":
        """Returns the newest round among those read from a journal.

        Raises:
          KeyError: an array or an entry of its row is missing.
        """
        journal_row = committed.rows[-1]
        return cls(
            t=journal_row["round"],
            clients=np.array(journal_row["clients"], np.int64),
            selected=selected_of(journal_row),
            statistics=journal_row["statistics"],
            private=journal_row.get("private"),
            canaries=np.array(journal_row.get("canaries", ()), np.float64),
            release=committed.numbered_arrays(_RELEASE),
            before=committed.numbered_arrays(_BEFORE),
            program=journal_row.get("program"),
        )


def selected_of(journal_row: Mapping[str, Any]) -> np.ndarray:
    """Returns the indices of the clients that were selected for a round, from its row in the
    journal.
    """
    return np.array(journal_row.get("selected", journal_row["clients"]), np.int64)


def newest_round(path: pathlib.Path) -> CommittedRound | None:
    """Returns the newest committed round of a run folder; None before the first commit.

    Another process may be training in the folder.

    Raises:
      ValueError: the journal is damaged.
    """
    try:
        journal_rows, arrays = newest_of(path)
    except READ_ERRORS as error:
        raise ValueError(
            f"{path / JOURNAL} is damaged ({error}): put back the run's own"
        ) from error
    if not journal_rows:
        return None
    return CommittedRound.of(Committed(rows=journal_rows, arrays=arrays))


def journal_cohorts(path: pathlib.Path) -> list[np.ndarray]:
    """Returns the clients that took part in each committed round, as the journal of a run folder
    records them.

    Raises:
      ValueError: the journal is damaged, or participation.csv does not agree with it.
    """
    try:
        # participation.csv is read before the journal, because a process that trains this run
        # meanwhile commits a round before it writes the round's rows.
        csv_content = b""
        if (path / "participation.csv").exists():
            csv_content = (path / "participation.csv").read_bytes()
        journal_rows = committed_rows(path)
    except READ_ERRORS as error:
        raise ValueError(
            f"{path / JOURNAL} is damaged ({error}): put back the run's own"
        ) from error
    csv_texts = [_csv_rows(row["round"], row["clients"]) for row in journal_rows]
    # participation.csv may lack rows after a power failure. If it has rows that the journal lacks,
    # the journal was replaced by an older copy.
    if not (_HEADER + "".join(csv_texts)).encode().startswith(csv_content):
        raise ValueError(
            f"{path / 'participation.csv'} does not agree with the run's journal: put back the "
            "run's own, or remove it and resume the run"
        )
    return [np.array(row["clients"], np.int64) for row in journal_rows]


def bound_content(path: pathlib.Path) -> bytes:
    """Returns the part of a file's content that its digest in the journal covers.

    It is the whole file, except for the "programs" of plan.json, which are added to it when another
    program resumes the run.

    Raises:
      OSError: the file cannot be read.
    """
    file_content = path.read_bytes()
    if path.name != "plan.json" or b'"programs"' not in file_content:
        return file_content
    try:
        plan_values = dict(json.loads(file_content))
    # If a file is damaged, its digest is computed over the whole file, and so differs from the
    # recorded one.
    except (TypeError, ValueError):
        return file_content
    return plan_content(plan_values)


def plan_content(plan: Mapping[str, Any]) -> bytes:
    """Returns the part of a plan.json with these values that its digest in the journal covers."""
    bound_values = {name: value for name, value in plan.items() if name != "programs"}
    return (strict_json.dumps(bound_values, indent=2) + "\n").encode()


def _participation_lines(journal_row: Mapping[str, Any]) -> str:
    """Returns the lines of a round for participation.csv, from its row in the journal."""
    return _csv_rows(journal_row["round"], journal_row["clients"])


def _selected_lines(journal_row: Mapping[str, Any]) -> str:
    """Returns the lines of a round for selected.csv, from its row in the journal."""
    selected_clients = journal_row.get("selected", journal_row["clients"])
    return _csv_rows(journal_row["round"], selected_clients)


RUN = FolderKind(
    noun="run",
    way_to_begin="run its command again, without resume=True",
    way_to_resume="resume it with resume=True",
    way_to_retry="resume it with resume=True",
    config_name="config.json",
    bound=("config.json", "plan.json", "mechanism.npz", "private/noise_seed", IDENTITY),
    bound_content=bound_content,
    first_files=_FIRST_FILES,
    later_files=_LATER_FILES,
    allows_other_files=True,
    requires_lock=False,
    readable_files=(
        ReadableFile(name="participation.csv", lines_of=_participation_lines, header=_HEADER),
        ReadableFile(
            name="selected.csv",
            lines_of=_selected_lines,
            header=_HEADER,
            starts_as="participation.csv",
            is_needed=lambda journal_row: "selected" in journal_row,
        ),
    ),
    metrics_name="metrics.jsonl",
)


def changed_bound_files(path: pathlib.Path) -> list[str]:
    """Returns the names of files that changed since the run was begun, among those that determine
    noise and updates.

    Raises:
      ValueError: the journal is missing or damaged.
    """
    try:
        digest_by_name = bound_digests(path)
        return [name for name in RUN.bound if digest_by_name[name] != _digest_of(path / name)]
    except READ_ERRORS as error:
        raise ValueError(
            f"{path / JOURNAL} is missing or damaged, so that the released rounds are unknown: put "
            "back the run's own, or start a new folder"
        ) from error


def _digest_of(path: pathlib.Path) -> str | None:
    """Returns the SHA-256 digest of the part of a file that the journal covers; None if there is no
    file.
    """
    try:
        return sha256(bound_content(path))
    except FileNotFoundError:
        return None


def _csv_rows(t: int, clients: Sequence[int]) -> str:
    """Returns a CSV row (t, client) for each client of round t."""
    return "".join(f"{t},{client}\n" for client in clients)
