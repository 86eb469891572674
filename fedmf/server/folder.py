"""The folder of a server: what a crash must not lose, written before it is handed out.

server/
  server.json          plan, shapes, clients a round; makes the folder a server
  mechanism.npz        of the plan
  participation.jsonl  a row {"round", "client"} for each participation that was released, as
                       `fedmf audit log` reads it; mode 0600
  release.npz          the newest release, and what later rounds need of the past; mode 0600
  private/noise_seed   secret; do not publish
  private/released     rounds that were released, at least

A round is released when release.npz is: one rename. Rows of participation.jsonl that belong to no
release are those of a round that nobody saw, and go.

release.npz holds digests of the files that noise and sums follow from. They are taken once, of what
this process wrote or read, and compared with the files before every release: what somebody edits
while the server runs is refused, and never signed.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedmf import checks, fields, strict_json
from fedmf.files import check_archive, expanded, lock, make_folder, write_atomically
from fedmf.mechanisms import load_mechanism
from fedmf.mechanisms.storage import READ_ERRORS
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import mechanism_digest
from fedmf.privacy.stopping import stopped_after
from fedmf.server.following import ClipState, ScalingState
from fedmf.server.means import MeansState, check_zeroing_norm
from fedmf.server.metrics_stream import SIZE

_FORMAT = "fedmf server 1"
_WARNING = (
    "Never go on with a copy of this folder, or with one that was put back from a backup: rounds "
    "that were released would be released again with the same noise under other sums, which gives "
    "both away."
)
_CHANGED = (
    "the server's folder {} was moved, replaced, closed or gone on with elsewhere: nothing was "
    "released; open it again where it is, in one process"
)
_EDITED = (
    "{} of the server's folder {} changed while it was in use: nothing was released; put back the "
    "server's own file and call release() again, or begin a new server, with another seed"
)
_MOST_CLIENTS = 10**9
_CONFIG, _MECHANISM, _SEED = "server.json", "mechanism.npz", "private/noise_seed"
# What rows of noise and sums follow from.
_BOUND = (_CONFIG, _MECHANISM, _SEED)
_FILES = ("server.json", "mechanism.npz", "participation.jsonl", "release.npz", "private")


def _shapes(name: str, shapes: Any) -> tuple[tuple[int, ...], ...]:
    """The check of the shapes of an update's arrays."""
    hint = "give the shape of each array of an update, such as [(784, 10), (10,)]"
    if isinstance(shapes, str) or not isinstance(shapes, Sequence):
        raise TypeError(f"{name}={shapes!r} is no list of shapes: {hint}")
    for shape in shapes:
        if isinstance(shape, str) or not isinstance(shape, Sequence):
            raise TypeError(f"{name}={shapes!r} holds {shape!r}, no shape: {hint}")
    checked = tuple(
        tuple(checks.integer(name, n, low=0, hint=hint) for n in shape) for shape in shapes
    )
    if not sum(map(math.prod, checked)):
        raise ValueError(f"{name}={shapes!r} have no entries: {hint}")
    return checked


def _clients(hint: str) -> Callable[[str, Any], int]:
    """The check of a number of clients."""
    return functools.partial(checks.integer, low=1, high=_MOST_CLIENTS, hint=hint)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig(fields.Checked):
    """What a server is made with beside its plan and its seed.

    Attributes:
      shapes: of the arrays of an update.
      clients_per_round: the fixed divisor; the expected number where a sampling scheme draws them
        independently.
      zeroing_norm: an update with an entry above it counts as zero; None for no limit.
      population: clients 0 .. population - 1, of whom the server draws; None for clients of any
        name, who check in.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.
    """

    shapes: Sequence[tuple[int, ...]] = fields.checked(_shapes)
    clients_per_round: int = fields.checked(
        _clients("use the number of clients a round, which the sum is divided by however many come")
    )
    zeroing_norm: float | None = fields.checked(lambda _, norm: check_zeroing_norm(norm), None)
    population: int | None = fields.checked(
        _clients("use the number of clients, or None for clients of any name"), None
    )

    @property
    def size(self) -> int:
        """Entries of an update, d."""
        return sum(map(math.prod, self.shapes))


class Released(NamedTuple):
    """What a folder holds of the past.

    Attributes:
      mean: float32 (d,), the newest release; None before the first.
      state: for the next round; None before the first.
      clients: of each round.
    """

    mean: np.ndarray | None
    state: MeansState | None
    clients: list[list[int | str]]


class _Past(NamedTuple):
    """Rounds released, and the bytes of participation.jsonl that are theirs, with their digest."""

    rounds: int
    end: int
    digest: Any


class ServerFolder:
    """Write access to the folder of one server, of this process alone until `close`.

    Raises:
      TypeError, ValueError: no path, another process has it, it cannot be made, or its file system
        has no locks.
    """

    def __init__(self, path: str | os.PathLike[str], *, make: bool = True) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise TypeError(f"folder={path!r} must be the path of a folder, or None")
        shown = f"folder={str(path)!r}"
        try:
            self.path = expanded(path).absolute()  # whatever becomes of the working folder
            if make:
                make_folder(self.path / "private")
                (self.path / "private").chmod(0o700)
            folder_lock = lock(self.path, without=False)
        except NotImplementedError:
            raise ValueError(
                f"{shown} is on a file system without locks, where two servers could go on with "
                "it: name a folder on a local disk"
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            hint = "name one that you may write to" if make else "name one that fedmf.Server made"
            raise ValueError(f"{shown} cannot be opened as a folder ({reason}): {hint}") from None
        if folder_lock is None:
            raise ValueError(
                f"{shown} is in use by another server: end that one, or name another folder"
            )
        self._lock = folder_lock
        self.close = weakref.finalize(self, folder_lock.release)
        self._past = _Past(0, 0, hashlib.sha256())
        self._digests = ""
        self._log_stamp: tuple[int, ...] = ()

    def create(self, config: ServerConfig, plan: Plan, seed: int) -> None:
        """Writes all that is there before round 0.

        Raises:
          ValueError: it holds a server, or other files.
        """
        if (self.path / "server.json").exists():
            raise ValueError(
                f"folder={str(self.path)!r} holds a server already: go on with fedmf.Server.open, "
                "or name another folder"
            )
        # What a constructor that was killed left behind begins with the seed.
        there = {name for name in os.listdir(self.path) if not name.endswith(".part")}
        begun = (self.path / "private" / "noise_seed").exists() and there <= set(_FILES)
        with self._undamaged("release.npz"):
            if begun and (self.path / "release.npz").exists():
                begun = self._header()[0] == 0
        if not begun and there != {"private"}:
            raise ValueError(
                f"folder={str(self.path)!r} is not empty: name a new folder, so that nothing of "
                "yours is overwritten"
            )
        seed_text, whole = f"{seed}\n", plan.longer or plan
        write_atomically(self.path / _SEED, seed_text, mode=0o600)
        whole.mechanism.save(self.path / _MECHANISM)
        mechanism = (self.path / _MECHANISM).read_bytes()
        write_atomically(self.path / "participation.jsonl", b"", mode=0o600)
        content = {
            "format": _FORMAT,
            "warning": _WARNING,
            "server": dataclasses.asdict(config),
            "plan": dataclasses.asdict(PlanConfig.of(whole)),
            "stddev": plan.stddev,
            "mechanism_sha256": mechanism_digest(whole.mechanism),
        }
        if plan.longer is not None:
            content["stop_after"] = plan.mechanism.rounds
        config_text = strict_json.dumps(content, indent=2) + "\n"
        self._digests = _digests_of(config_text.encode(), mechanism, seed_text.encode())
        self._write_release(self._header_of_past(), {})
        write_atomically(self.path / _CONFIG, config_text)
        for folder in (self.path / "private", self.path, *self.path.parents):
            with contextlib.suppress(PermissionError):
                _sync(folder)

    def read(self) -> tuple[ServerConfig, Plan, int, Released]:
        """What the server was made with, its seed, and what was released.

        Raises:
          ValueError: there is no server, or a file is damaged or not that of this server.
        """
        if not (self.path / "server.json").exists():
            raise ValueError(
                f"folder={str(self.path)!r} holds no server (no server.json): make one with "
                "fedmf.Server, or name its folder"
            )
        # What is read here is handed out: no power failure may take it back.
        _sync(self.path)
        with self._undamaged(_CONFIG):
            config_text = (self.path / _CONFIG).read_bytes()
            content = json.loads(config_text)
            if content["format"] != _FORMAT:
                raise ValueError(f"its format is {content['format']!r}")
            config = ServerConfig(**content["server"])
            plan_config = PlanConfig.from_mapping(content["plan"], "plan")
        with self._undamaged(_MECHANISM):
            mechanism = load_mechanism(self.path / _MECHANISM)
            if mechanism_digest(mechanism) != content["mechanism_sha256"]:
                raise ValueError("it is another one than server.json says")
            plan = plan_config.plan_with(mechanism, plan_config.noise_multiplier or 0.0)
            if "stop_after" in content:
                plan = stopped_after(plan, content["stop_after"])
            if not math.isclose(plan.stddev, content["stddev"], rel_tol=1e-9):
                raise ValueError(f"it needs noise of {plan.stddev}, not of {content['stddev']}")
            mechanism_file = (self.path / _MECHANISM).read_bytes()
        with self._undamaged(_SEED):
            seed_text = (self.path / _SEED).read_bytes()
            if not (seed_text.endswith(b"\n") and seed_text[:-1].isdigit()):
                raise ValueError("it is no whole number")
            seed = int(seed_text)
        self._digests = _digests_of(config_text, mechanism_file, seed_text)
        with self._undamaged("release.npz"):
            metrics = 0 if plan.private_metrics is None else SIZE
            mean, state = self._release(config.size, metrics)
        with self._undamaged("participation.jsonl"):
            clients = self._clients()
        return config, plan, seed, Released(mean, state, clients)

    @contextlib.contextmanager
    def _undamaged(self, name: str) -> Iterator[None]:
        try:
            yield
        except checks.TooLargeForMemory:
            raise  # nothing is damaged
        except READ_ERRORS as error:
            cause = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(
                f"{self.path / name} is damaged or not of this server ({cause}): without its own "
                "newest file no round can be released safely, so begin a new server, with another "
                "seed"
            ) from None

    def _header_of_past(self) -> list[Any]:
        """Returns the header with which release.npz holds what was released so far."""
        return [self._past.rounds, self._past.end, self._past.digest.hexdigest(), self._digests]

    def _check_files(self) -> None:
        """Refuses files that are not the ones of `create` or `read`.

        Raises:
          ValueError: one was edited, replaced or removed.
        """
        for name, digest in zip(_BOUND, self._digests.split(), strict=True):
            try:
                is_same = hashlib.sha256((self.path / name).read_bytes()).hexdigest() == digest
            except OSError:
                is_same = False
            if not is_same:
                raise ValueError(_EDITED.format(name, self.path))

    def commit(
        self, t: int, clients: Sequence[int | str], mean: np.ndarray, state: MeansState
    ) -> None:
        """Makes round t a released one; survives a crash at any point, and may be called again with
        the same arguments after an error.

        Raises:
          ValueError: the folder or one of its files is not the one that this process left.
          OSError: it could not be written.
        """
        if self._past.rounds == t + 1:  # an interrupt came when all was done
            return
        rows = "".join(json.dumps({"round": t, "client": client}) + "\n" for client in clients)
        digest = self._past.digest.copy()
        digest.update(rows.encode())
        after = _Past(t + 1, self._past.end + len(rows), digest)
        ours = [after.rounds, after.end, digest.hexdigest(), self._digests]
        on_disk = self._there()
        if on_disk == ours:  # an interrupt came behind its release
            os.fsync(self._descriptor)
            self._end_commit(after)
            return
        if on_disk != self._header_of_past():
            raise ValueError(_CHANGED.format(self.path))
        self._check_files()
        self._check_mark()
        self._write_log(rows.encode())
        arrays = {"mean": mean} | _entries(state.clip) | _entries(state.scaling)
        arrays |= {"metrics": np.asarray(state.metrics)} if len(state.metrics) else {}
        self._write_release(ours, arrays)
        # Before anybody sees it: a rename that a power failure takes back would make the round one
        # that was never released.
        os.fsync(self._descriptor)
        if self._there() != ours:
            raise ValueError(_CHANGED.format(self.path))
        self._end_commit(after)

    def _end_commit(self, after: _Past) -> None:
        """Counts the round as released. Nothing from here on may raise, and lose it."""
        self._past = after
        # Tells a release.npz that was put back from a backup.
        with contextlib.suppress(OSError):
            self._mark.write_text(f"{after.rounds}\n")

    @property
    def _mark(self) -> pathlib.Path:
        return self.path / "private" / "released"

    def _check_mark(self) -> None:
        """Warns, before anything is released, where private/released cannot be written."""
        try:
            self._mark.open("a").close()
        except OSError as error:
            warnings.warn(
                f"{self._mark} cannot be written ({error.strerror}): without it a release.npz that "
                "is put back from a backup is not recognised; make the file writable",
                RuntimeWarning,
                stacklevel=4,
            )

    def _write_log(self, rows: bytes) -> None:
        """Writes the rows behind those of the rounds that were released.

        Raises:
          ValueError: those before are not the ones that this process left.
        """
        path = self.path / "participation.jsonl"
        try:
            log = open(path, "r+b")  # noqa: SIM115 (closed below)
        except FileNotFoundError:
            raise ValueError(_EDITED.format(path.name, self.path)) from None
        with log as out:
            if _stamp(out.fileno()) != self._log_stamp:  # somebody has written to it
                past = hashlib.sha256(out.read(self._past.end))
                if past.digest() != self._past.digest.digest():
                    raise ValueError(_EDITED.format(path.name, self.path))
            out.truncate(self._past.end)
            out.seek(self._past.end)
            out.write(rows)
            out.flush()
            os.fsync(out.fileno())
            self._log_stamp = _stamp(out.fileno())

    @property
    def _descriptor(self) -> int:
        """The folder that is locked.

        Raises:
          ValueError: it is closed, or of the process that this one was forked from.
        """
        if self._lock.descriptor is None:
            raise ValueError(_CHANGED.format(self.path))
        return self._lock.descriptor

    def _there(self) -> Any:
        """Returns the header of the newest release, in the folder that is locked.

        Raises:
          ValueError: the folder is closed, another one stands in its place, or release.npz is
            damaged.
        """
        ours = os.fstat(self._descriptor)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            raise ValueError(_CHANGED.format(self.path)) from None
        if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino):
            raise ValueError(_CHANGED.format(self.path))
        try:
            return self._header()
        except FileNotFoundError:
            raise ValueError(_EDITED.format("release.npz", self.path)) from None
        except OSError:  # which may be over the next time
            raise
        except READ_ERRORS:
            raise ValueError(_EDITED.format("release.npz", self.path)) from None

    def _write_release(self, header: list[Any], arrays: Mapping[str, np.ndarray]) -> None:
        entries = {"header": np.array(json.dumps(header)), **arrays}
        write_atomically(
            self.path / "release.npz", lambda out: np.savez(out, **entries), mode=0o600
        )

    def _header(self) -> Any:
        """Rounds released, end and digest of their participations, digests of the other files."""
        with np.load(self.path / "release.npz", allow_pickle=False) as arrays:
            return json.loads(arrays["header"].item())

    def _release(self, size: int, count: int) -> tuple[np.ndarray | None, MeansState | None]:
        """The newest release and the state after it."""
        check_archive(self.path / "release.npz")
        rounds, _, _, digests = self._header()
        if digests != self._digests:
            raise ValueError(f"it was written with other files {', '.join(_BOUND)}")
        if not rounds:
            return None, None
        with np.load(self.path / "release.npz", allow_pickle=False) as arrays:
            clip = _entered(ClipState, arrays)
            scaling = _entered(ScalingState, arrays)
            mean = arrays["mean"]
            metrics = arrays["metrics"] if count else np.zeros(0, np.float32)
        for array, entries in ((mean, size), (metrics, count)):
            if array.shape != (entries,) or array.dtype != np.float32:
                raise ValueError(f"its release is {array.dtype} of shape {array.shape}")
        return mean, MeansState(np.array(rounds), clip, scaling, metrics if len(metrics) else ())

    def _clients(self) -> list[list[int | str]]:
        """The clients of each round that was released."""
        rounds, end, digest, _ = self._header()
        content = (self.path / "participation.jsonl").read_bytes()
        past = hashlib.sha256(content[:end])
        if past.hexdigest() != digest:
            raise ValueError("it is not the record that release.npz was written with")
        ever = self._mark.read_text().strip() if self._mark.is_file() else "0"
        if ever.isdecimal() and int(ever) > rounds:
            raise ValueError(f"{ever} rounds were released, and release.npz is of {rounds}")
        # What is behind is of the round under way, which nobody saw, and a power failure leaves
        # anything of it. Whole rows of later rounds show that release.npz is an older one.
        for line in content[end:].splitlines(keepends=True):
            if line.endswith(b"\n") and _round_of(line) not in (None, rounds):
                raise ValueError(f"it has rounds behind {rounds}, the rounds of release.npz")
        if len(content) > end:
            with contextlib.suppress(OSError):  # the next release does the same
                os.truncate(self.path / "participation.jsonl", end)
        self._past = _Past(rounds, end, past)
        clients: list[list[int | str]] = [[] for _ in range(rounds)]
        for line in content[:end].splitlines():
            row = json.loads(line)
            clients[row["round"]].append(row["client"])
        return clients


def _stamp(descriptor: int) -> tuple[int, ...]:
    """Returns what changes when somebody writes to a file."""
    state = os.fstat(descriptor)
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _digests_of(*contents: bytes) -> str:
    """Digests of the contents of the files of _BOUND, in their order."""
    return " ".join(hashlib.sha256(content).hexdigest() for content in contents)


def _round_of(line: bytes) -> int | None:
    """Returns the round of a row of participation.jsonl; None where the line is no such row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    t = row.get("round") if isinstance(row, dict) else None
    return t if isinstance(t, int) else None


def _sync(folder: pathlib.Path) -> None:
    """The names in a folder are on disk from now on."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


State = TypeVar("State", ClipState, ScalingState)


def _entries(state: ClipState | ScalingState | tuple[()]) -> dict[str, np.ndarray]:
    """The state's arrays, by the names under which a file has them."""
    arrays = state._asdict() if state else {}
    return {f"{type(state).__name__}.{name}": array for name, array in arrays.items()}


def _entered(kind: type[State], arrays: Mapping[str, np.ndarray]) -> State | tuple[()]:
    """The inverse of `_entries`."""
    names = [f"{kind.__name__}.{name}" for name in kind._fields]
    return kind(*(arrays[name] for name in names)) if names[0] in arrays else ()
