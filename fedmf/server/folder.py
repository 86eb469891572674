"""The folder of a server, to which each release is written before it is returned.

server/
  server.json          plan, shapes, clients a round; makes the folder a server's
  mechanism.npz        of the plan
  participation.jsonl  a row {"round", "client"} for each participation that was released, as
                       `fedmf audit log` reads it; written after the commit, from the journal;
                       mode 0600
  private/             noise_seed, secret: do not publish; and the journal, which has the releases
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedmf import checks, fields, strict_json
from fedmf.files import expanded, lock, sync_names, write_atomically
from fedmf.mechanisms import load_mechanism
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import mechanism_digest
from fedmf.privacy.stopping import stopped_after
from fedmf.server.appended_file import AppendedFile, FileWasEdited
from fedmf.server.following import ClipState, ScalingState
from fedmf.server.journal import (
    SERVER,
    Committed,
    Journal,
    make_private_folder,
    with_numbers,
)
from fedmf.server.journal_reading import JOURNAL, round_of
from fedmf.server.means import MeansState, check_zeroing_norm
from fedmf.server.metrics_stream import SIZE

_FORMAT = "fedmf server 1"
_WARNING = (
    "Never go on with a copy of this folder, or with one that was put back from a backup: rounds "
    "that were released would be released again with the same noise under other sums, which gives "
    "both away."
)
_MOST_CLIENTS = 10**9
_CONFIG = "server.json"
_MECHANISM = "mechanism.npz"
_SEED = "private/noise_seed"
_LOG = "participation.jsonl"
# Files that determine the noise vectors and the sums. The journal keeps their digests.
_BOUND = (_CONFIG, _MECHANISM, _SEED)
_FILES = (_CONFIG, _MECHANISM, _LOG, "private")
_BEFORE = "before."


def _shapes(name: str, shapes: Any) -> tuple[tuple[int, ...], ...]:
    """Checks the shapes of an update's arrays, and returns them as tuples."""
    hint = "give the shape of each array of an update, such as [(784, 10), (10,)]"
    if isinstance(shapes, str) or not isinstance(shapes, Sequence):
        raise TypeError(f"{name}={shapes!r} is no list of shapes: {hint}")
    for shape in shapes:
        if isinstance(shape, str) or not isinstance(shape, Sequence):
            raise TypeError(f"{name}={shapes!r} holds {shape!r}, no shape: {hint}")
    checked_shapes = tuple(
        tuple(checks.integer(name, n, low=0, hint=hint) for n in shape) for shape in shapes
    )
    if not sum(map(math.prod, checked_shapes)):
        raise ValueError(f"{name}={shapes!r} have no entries: {hint}")
    return checked_shapes


def _clients(hint: str) -> Callable[[str, Any], int]:
    """Returns a function that checks a number of clients, and whose errors end with `hint`."""
    return functools.partial(checks.integer, low=1, high=_MOST_CLIENTS, hint=hint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig(fields.Checked):
    """Settings of a server, apart from its plan and its noise seed.

    Attributes:
      shapes: shapes of the arrays of an update.
      clients_per_round: the fixed divisor; the expected number where a sampling scheme draws them
        independently.
      zeroing_norm: an update with an entry above it counts as zero; None for no limit.
      population: the server draws from clients 0 .. population - 1; None for clients of any name,
        who check in.

    Raises:
      TypeError: an attribute has another type.
      ValueError: shapes have no entries or a negative axis, clients_per_round or population is not
        positive, or zeroing_norm is not positive.
    """

    shapes: Sequence[tuple[int, ...]] = fields.validated(_shapes)
    clients_per_round: int = fields.validated(
        _clients("use the number of clients a round, which the sum is divided by however many come")
    )
    zeroing_norm: float | None = fields.validated(lambda _, norm: check_zeroing_norm(norm), None)
    population: int | None = fields.validated(
        _clients("use the number of clients, or None for clients of any name"), None
    )

    @property
    def size(self) -> int:
        """The number of entries of an update, d."""
        return sum(map(math.prod, self.shapes))


class Released(NamedTuple):
    """The rounds that a server has released, as read from its folder.

    Attributes:
      mean: the newest release, float32 (d,); None before the first.
      state: state for the next round; None before the first.
      before: arrays of the caller's that were committed with the newest release.
      clients_by_round: the clients that took part in each round.
      selected_by_round: the clients that the server drew for each round; None where clients check
        in.
    """

    mean: np.ndarray | None
    state: MeansState | None
    before: list[np.ndarray]
    clients_by_round: list[list[int | str]]
    selected_by_round: list[list[int] | None]


class _PendingRows(NamedTuple):
    """Rows of one round for participation.jsonl, which are appended after the round is committed.

    Attributes:
      t: the round.
      start: the byte of the file at which they begin.
      rows: JSON lines.
    """

    t: int
    start: int
    rows: bytes


class ServerFolder:
    """Exclusive write access to the folder of one server, until `close`.

    Args:
      path: path of the folder.
      make: whether to make the folder.

    Raises:
      TypeError, ValueError: no path, another process has it, it cannot be made, or its file system
        has no locks.
    """

    def __init__(self, path: str | os.PathLike[str], *, make: bool = True) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise TypeError(f"folder={path!r} must be the path of a folder, or None")
        argument = f"folder={str(path)!r}"
        try:
            # The path is made absolute, because the process may change its working folder.
            self.path = expanded(path).absolute()
            if make:
                make_private_folder(self.path)
            folder_lock = lock(self.path, requires_lock=True)
        except NotImplementedError:
            raise ValueError(
                f"{argument} is on a file system without locks, where two servers could use it at "
                "once: name a folder on a local disk"
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            hint = "name one that you may write to" if make else "name one that fedmf.Server made"
            raise ValueError(
                f"{argument} cannot be opened as a folder ({reason}): {hint}"
            ) from None
        if folder_lock is None:
            raise ValueError(
                f"{argument} is in use by another server: end that one, or name another folder"
            )
        self.close = weakref.finalize(self, folder_lock.release)
        self._journal = Journal(self.path, folder_lock, _BOUND, SERVER)
        self._participations = AppendedFile(self.path / _LOG)
        self._pending_rows: _PendingRows | None = None

    def create(self, config: ServerConfig, plan: Plan, seed: int) -> None:
        """Writes the files that a server has before round 0.

        Raises:
          ValueError: the folder holds a server, or other files.
        """
        if (self.path / "server.json").exists():
            raise ValueError(
                f"folder={str(self.path)!r} holds a server already: go on with fedmf.Server.open, "
                "or name another folder"
            )
        # A process that is killed while it creates a server leaves some of the files in _FILES,
        # first the seed. So a folder that has a seed, and nothing besides files in _FILES, may be
        # used again.
        names = {name for name in os.listdir(self.path) if not name.endswith(".part")}
        is_unfinished = (self.path / _SEED).exists() and names <= set(_FILES)
        if (not is_unfinished or self._journal.has_rounds()) and names != {"private"}:
            raise ValueError(
                f"folder={str(self.path)!r} is not empty: name a new folder, so that nothing of "
                "yours is overwritten"
            )
        seed_text = f"{seed}\n"
        whole_plan = plan.longer or plan
        write_atomically(self.path / _SEED, seed_text, mode=0o600)
        whole_plan.mechanism.save(self.path / _MECHANISM)
        mechanism_file = (self.path / _MECHANISM).read_bytes()
        self._participations.begin()
        config_content = {
            "format": _FORMAT,
            "warning": _WARNING,
            "server": dataclasses.asdict(config),
            "plan": dataclasses.asdict(PlanConfig.of(whole_plan)),
            "stddev": plan.stddev,
            "mechanism_sha256": mechanism_digest(whole_plan.mechanism),
        }
        if plan.longer is not None:
            config_content["stop_after"] = plan.mechanism.rounds
        config_text = strict_json.dumps(config_content, indent=2) + "\n"
        bound_contents = (config_text.encode(), mechanism_file, seed_text.encode())
        self._journal.begin(dict(zip(_BOUND, bound_contents, strict=True)))
        write_atomically(self.path / _CONFIG, config_text)
        sync_names(self.path)

    def read(self) -> tuple[ServerConfig, Plan, int, Released]:
        """Reads the server's config, plan, noise seed and released rounds.

        Raises:
          ValueError: there is no server, or a file is damaged or of another server.
        """
        if not (self.path / "server.json").exists():
            raise ValueError(
                f"folder={str(self.path)!r} holds no server (no server.json): make one with "
                "fedmf.Server, or name its folder"
            )
        with self._undamaged(_CONFIG):
            config_text = (self.path / _CONFIG).read_bytes()
            config_content = json.loads(config_text)
            if config_content["format"] != _FORMAT:
                raise ValueError(f"its format is {config_content['format']!r}")
            config = ServerConfig(**config_content["server"])
            plan_config = PlanConfig.from_mapping(config_content["plan"], "plan")
        with self._undamaged(_MECHANISM):
            mechanism = load_mechanism(self.path / _MECHANISM)
            if mechanism_digest(mechanism) != config_content["mechanism_sha256"]:
                raise ValueError("its digest differs from that in server.json")
            plan = plan_config.plan_with(mechanism, plan_config.noise_multiplier or 0.0)
            if "stop_after" in config_content:
                plan = stopped_after(plan, config_content["stop_after"])
            if not math.isclose(plan.stddev, config_content["stddev"], rel_tol=1e-9):
                raise ValueError(
                    f"it needs noise of {plan.stddev}, not of {config_content['stddev']}"
                )
            mechanism_file = (self.path / _MECHANISM).read_bytes()
        with self._undamaged(_SEED):
            seed_text = (self.path / _SEED).read_bytes()
            if not (seed_text.endswith(b"\n") and seed_text[:-1].isdigit()):
                raise ValueError("it is no whole number")
            seed = int(seed_text)
        bound_contents = (config_text, mechanism_file, seed_text)
        committed = self._journal.read(dict(zip(_BOUND, bound_contents, strict=True)))
        try:
            self._restore_participations(committed.rows)
        except FileWasEdited:
            raise ValueError(
                f"{self.path / _LOG} has other rows than the journal: put back the server's own, "
                "or remove it, and it is written again"
            ) from None
        with self._undamaged(JOURNAL):
            num_metrics = 0 if plan.private_metrics is None else SIZE
            released = _released(committed, config.size, num_metrics)
        return config, plan, seed, released

    def _undamaged(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Raises ValueError if the `with` block, which reads a file of the folder, finds it
        damaged.
        """
        return self._journal.undamaged(self.path / name)

    def _restore_participations(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes participations of committed rounds that participation.jsonl lacks after a crash.

        Args:
          rows: rows of the journal.

        Raises:
          FileWasEdited: the log has other rows.
          ValueError: the journal was put back from a backup.
        """
        log_rows = [_log_rows(row["round"], row["clients"]) for row in rows]
        extra_bytes = self._participations.restore(b"".join(log_rows))
        # Bytes after the rows belong to no committed release, and are removed. If they hold whole
        # rows of later rounds, the journal was put back from a backup.
        for line in extra_bytes.splitlines(keepends=True):
            later_round = round_of(line)
            if line.endswith(b"\n") and later_round is not None:
                raise ValueError(
                    f"{self.path / _LOG} has round {later_round} and the journal's newest round is "
                    f"{len(rows) - 1}: the journal was put back from a backup, and going on would "
                    "release rounds again with the same noise; begin a new server, with another "
                    "seed"
                )
        with contextlib.suppress(OSError):  # If this write fails, the next commit tries again.
            self._participations.flush()
        self._journal.end_round()

    def commit(
        self,
        t: int,
        clients: Sequence[int | str],
        selected: Sequence[int] | None,
        mean: np.ndarray,
        state: MeansState,
        before: Sequence[np.ndarray],
    ) -> None:
        """Commits the release of round t. A crash at any point leaves the round either committed or
        not. After an error the call may be repeated with the same arguments.

        Args:
          t: the round.
          clients: clients that took part.
          selected: clients that the server drew; None where clients check in.
          mean: the release.
          state: state after the round.
          before: arrays of the caller's.

        Raises:
          ValueError: the folder or one of its files is not the one that this process left.
          OSError: it could not be written.
        """
        if self._journal.rounds == t:
            self._journal.check_place()
            self._check_participations()
            start = self._participations.end
            self._pending_rows = _PendingRows(t, start, _log_rows(t, clients))
        row: dict[str, Any] = {"clients": list(clients)}
        if selected is not None:
            row["selected"] = list(selected)
        arrays = {"mean": mean} | _entries(state.clip) | _entries(state.scaling)
        if len(state.metrics):
            arrays["metrics"] = np.asarray(state.metrics)
        arrays |= with_numbers(_BEFORE, before)
        self._journal.commit(t, row, arrays)
        self._journal.end_round()
        # The release is committed, and no error from here on may keep it from the caller. If this
        # write fails, the next commit or `read` writes the missing rows.
        with contextlib.suppress(OSError, FileWasEdited):
            self._log_committed()

    def _log_committed(self) -> None:
        """Writes the participations of the newest round to participation.jsonl. After an interrupt
        it may be called again.
        """
        pending = self._pending_rows
        if pending is None or self._journal.rounds <= pending.t:
            return
        if self._participations.end == pending.start:
            self._participations.append(pending.rows)
        self._participations.flush()

    def _check_participations(self) -> None:
        """Raises ValueError if participation.jsonl was changed since this process wrote it."""
        try:
            self._participations.check()
            self._log_committed()
        except FileWasEdited:
            raise self._journal.edited(_LOG) from None


def _released(committed: Committed, size: int, num_metrics: int) -> Released:
    """Returns the released rounds of a server, from its journal.

    Args:
      committed: committed rounds of the journal.
      size: entries of a release.
      num_metrics: entries of its private metrics; 0 without them.

    Raises:
      KeyError, ValueError: another server committed them.
    """
    rows, arrays = committed.rows, committed.arrays
    clients = [row["clients"] for row in rows]
    selected_by_round = [row.get("selected") for row in rows]
    if not rows:
        return Released(None, None, [], clients, selected_by_round)
    mean = arrays["mean"]
    metrics = np.zeros(0, np.float32)
    if num_metrics:
        metrics = arrays["metrics"]
    for array, num_entries in ((mean, size), (metrics, num_metrics)):
        if array.shape != (num_entries,) or array.dtype != np.float32:
            raise ValueError(f"its release is {array.dtype} of shape {array.shape}")
    clip = _state_of(ClipState, arrays)
    scaling = _state_of(ScalingState, arrays)
    state = MeansState(np.array(len(rows)), clip, scaling)
    if num_metrics:
        state = state._replace(metrics=metrics)
    before = committed.numbered_arrays(_BEFORE)
    for array in before:
        array.setflags(write=False)
    return Released(mean, state, before, clients, selected_by_round)


def _log_rows(t: int, clients: Sequence[int | str]) -> bytes:
    """Returns the rows of round t for participation.jsonl, as lines of JSON."""
    json_lines = [f'{{"round": {t}, "client": {_json(client)}}}\n' for client in clients]
    return "".join(json_lines).encode()


def _json(client: int | str) -> str:
    """Returns a client's id as JSON."""
    return json.dumps(client) if isinstance(client, str) else str(client)


State = TypeVar("State", ClipState, ScalingState)


def _entries(state: ClipState | ScalingState | tuple[()]) -> dict[str, np.ndarray]:
    """Returns the arrays of a state by the names under which the journal stores them."""
    arrays = state._asdict() if state else {}
    return {f"{type(state).__name__}.{name}": array for name, array in arrays.items()}


def _state_of(state_type: type[State], arrays: Mapping[str, np.ndarray]) -> State | tuple[()]:
    """Returns the state that a journal's arrays hold, as an object of type `state_type`; () if they
    hold none.
    """
    names = [f"{state_type.__name__}.{name}" for name in state_type._fields]
    if names[0] not in arrays:
        return ()
    return state_type(*(arrays[name] for name in names))
