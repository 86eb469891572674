"""The folder of a server, to which each release is written before it is returned. `SERVER` says
what is special about it, and `fedmf.server.journal_folder` has what it shares with a run's folder.

server/
  server.json          plan, shapes, clients a round; makes the folder a server's
  mechanism.npz        of the plan
  participation.jsonl  a row {"round", "client"} for each participation that was released, as
                       `fedmf audit log` reads it; written after the commit, from the journal;
                       mode 0600
  private/             noise_seed, secret: do not publish; and the journal, which has the releases
"""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedmf import checks, fields, strict_json
from fedmf.files import checked_path
from fedmf.mechanisms import load_mechanism
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import mechanism_digest
from fedmf.privacy.stopping import stopped_after
from fedmf.server.folder_kind import FolderKind, ReadableFile
from fedmf.server.following import ClipState, ScalingState
from fedmf.server.journal import Committed, with_numbers
from fedmf.server.journal_folder import JournalFolder, check_begun
from fedmf.server.journal_reading import JOURNAL
from fedmf.server.means import MeansState, check_zeroing_norm
from fedmf.server.metrics_stream import SIZE

_FORMAT = "fedmf server 1"
_WARNING = (
    "Never resume from a copy of this folder, or from one that was put back from a backup: rounds "
    "that were released would be released again with the same noise under other sums, which gives "
    "both away."
)
_MOST_CLIENTS = 10**9
_CONFIG = "server.json"
_MECHANISM = "mechanism.npz"
_SEED = "private/noise_seed"
_LOG = "participation.jsonl"
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


def log_lines(journal_row: Mapping[str, Any]) -> str:
    """Converts the journal's row of a round to the lines of participation.jsonl."""
    t = journal_row["round"]
    clients = journal_row["clients"]
    return "".join(f'{{"round": {t}, "client": {_json(client)}}}\n' for client in clients)


SERVER = FolderKind(
    noun="server",
    way_to_begin="begin it again with fedmf.Server",
    way_to_resume="open it with fedmf.Server.open",
    way_to_retry="call release() again",
    config_name=_CONFIG,
    bound=(_CONFIG, _MECHANISM, _SEED),
    first_files=(_MECHANISM,),
    allows_other_files=False,
    requires_lock=True,
    readable_files=(ReadableFile(name=_LOG, lines_of=log_lines),),
)


class ServerFolder:
    """The folder of one server, which this process has locked until `close`. What it has in common
    with the folder of a run is in `JournalFolder`.

    Args:
      path: path of the folder.
      make: whether to make the folder.

    Raises:
      TypeError, ValueError: no path, another process has it, it cannot be made, or its file system
        has no locks.
    """

    def __init__(self, path: str | os.PathLike[str], *, make: bool = True) -> None:
        folder_path = checked_path("folder", path, hint="name the folder of a server")
        self._folder = JournalFolder(folder_path, SERVER, make=make)
        self.path = self._folder.path
        self.close = self._folder.close

    def prepare(self) -> None:
        """Checks that a new server may begin in this folder, and creates private/ there.

        Raises:
          ValueError: the folder holds a server, or other files.
        """
        self._folder.prepare()

    def create(self, config: ServerConfig, plan: Plan, seed: int) -> None:
        """Writes the files that a server has before round 0, in a folder that was prepared.

        Raises:
          OSError: a file cannot be written.
        """
        whole_plan = plan.longer or plan
        whole_plan.mechanism.save(self.path / _MECHANISM)
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
        self._folder.begin({_SEED: f"{seed}\n", _CONFIG: config_text})

    def read(self) -> tuple[ServerConfig, Plan, int, Released]:
        """Reads the server's config, plan, noise seed and released rounds.

        Raises:
          ValueError: there is no server, or a file is damaged or of another server.
        """
        check_begun(self.path, SERVER)
        raises_if_damaged = self._folder.undamaged
        with raises_if_damaged(_CONFIG):
            config_text = (self.path / _CONFIG).read_bytes()
            config_content = json.loads(config_text)
            if config_content["format"] != _FORMAT:
                raise ValueError(f"its format is {config_content['format']!r}")
            config = ServerConfig(**config_content["server"])
            plan_config = PlanConfig.from_mapping(config_content["plan"], "plan")
        with raises_if_damaged(_MECHANISM):
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
        with raises_if_damaged(_SEED):
            seed_text = (self.path / _SEED).read_bytes()
            if not (seed_text.endswith(b"\n") and seed_text[:-1].isdigit()):
                raise ValueError("it is no whole number")
            seed = int(seed_text)
        committed_rounds = self._folder.read({_CONFIG: config_text, _SEED: seed_text})
        self._folder.end_round()
        with raises_if_damaged(JOURNAL):
            num_metrics = 0 if plan.private_metrics is None else SIZE
            released = _released(committed_rounds, config.size, num_metrics)
        return config, plan, seed, released

    def commit(
        self,
        t: int,
        clients: Sequence[int | str],
        selected: Sequence[int] | None,
        mean: np.ndarray,
        state: MeansState,
        before: Sequence[np.ndarray],
    ) -> None:
        """Commits the release of round t, as `JournalFolder.commit` does.

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
        journal_row: dict[str, Any] = {"clients": list(clients)}
        if selected is not None:
            journal_row["selected"] = list(selected)
        journal_arrays = {"mean": mean} | _entries(state.clip) | _entries(state.scaling)
        if len(state.metrics):
            journal_arrays["metrics"] = np.asarray(state.metrics)
        journal_arrays |= with_numbers(_BEFORE, before)
        self._folder.commit(t, journal_row, journal_arrays)
        self._folder.end_round()


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
    mean_release = arrays["mean"]
    noisy_metrics = np.zeros(0, np.float32)
    if num_metrics:
        noisy_metrics = arrays["metrics"]
    for array, num_entries in ((mean_release, size), (noisy_metrics, num_metrics)):
        if array.shape != (num_entries,) or array.dtype != np.float32:
            raise ValueError(f"its release is {array.dtype} of shape {array.shape}")
    clip_state = _state_of(ClipState, arrays)
    scaling_state = _state_of(ScalingState, arrays)
    means_state = MeansState(np.array(len(rows)), clip_state, scaling_state)
    if num_metrics:
        means_state = means_state._replace(metrics=noisy_metrics)
    arrays_before = committed.numbered_arrays(_BEFORE)
    for array in arrays_before:
        array.setflags(write=False)
    return Released(mean_release, means_state, arrays_before, clients, selected_by_round)


def _json(client: int | str) -> str:
    """Returns a client's id as JSON."""
    return json.dumps(client) if isinstance(client, str) else str(client)


State = TypeVar("State", ClipState, ScalingState)


def _entries(state: ClipState | ScalingState | tuple[()]) -> dict[str, np.ndarray]:
    """Returns the arrays of a state by the names under which the journal stores them."""
    array_by_field = state._asdict() if state else {}
    return {f"{type(state).__name__}.{name}": array for name, array in array_by_field.items()}


def _state_of(state_type: type[State], arrays: Mapping[str, np.ndarray]) -> State | tuple[()]:
    """Returns the state that a journal's arrays hold, as an object of type `state_type`; () if they
    hold none.
    """
    entry_names = [f"{state_type.__name__}.{name}" for name in state_type._fields]
    if entry_names[0] not in arrays:
        return ()
    return state_type(*(arrays[name] for name in entry_names))
