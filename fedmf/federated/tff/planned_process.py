"""A TFF process whose rounds follow a plan, and are committed one by one in a folder.

folder/
  process.json         says that the folder is a process's
  participation.jsonl  a row {"round", "client"} for each participation, as `fedmf audit log` reads
                       it; mode 0600
  private/             secret: the initial state, the cohort of the coming round, and the journal,
                       whose newest file has the state of TFF, with the noise key, and the ledger
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedmf import checks, fields, strict_json
from fedmf.audits.audit import Audit
from fedmf.audits.guarantee import audit_ledger
from fedmf.cohorts.controller import ParticipationController
from fedmf.federated.tff.aggregator import MatrixFactorizationAggregator
from fedmf.federated.tff.check_process import check_process
from fedmf.federated.tff.cohort_source import controller_arguments
from fedmf.files import check_archive, checked_path, sync_folder, write_atomically
from fedmf.participation.ledger import ParticipationLedger, checked_client_indices
from fedmf.server.calls import ExclusiveCalls, count_seed, exclusive, warn_of_used_seed
from fedmf.server.folder import log_lines
from fedmf.server.folder_kind import FolderKind, ReadableFile
from fedmf.server.host_noise import HostNoise, noise_state_of
from fedmf.server.journal import Committed, checked_arrays, with_numbers
from fedmf.server.journal_folder import JournalFolder
from fedmf.server.journal_reading import JOURNAL
from fedmf.server.state import plan_fingerprint, state_fingerprint

_FORMAT = "fedmf process 1"
_WARNING = (
    "Never resume from a copy of this folder, or from one that was put back from a backup: rounds "
    "that were released would be released again with the same noise under other sums."
)
_CONFIG = "process.json"
_IDENTITY = "private/identity.json"
_INITIAL_STATE = "private/initial_state.npz"
_COHORT = "private/cohort.json"
_STATE = "state."
PROCESS = FolderKind(
    noun="process",
    way_to_begin="begin it again with federated.PlannedProcess",
    way_to_resume="resume it with federated.PlannedProcess",
    way_to_retry="call next() again",
    config_name=_CONFIG,
    bound=(_CONFIG, _IDENTITY, _INITIAL_STATE),
    allows_other_files=False,
    requires_lock=True,
    readable_files=(ReadableFile(name="participation.jsonl", lines_of=log_lines),),
)


class _Progress(NamedTuple):
    """State of a process between two rounds.

    Attributes:
      state: TFF's state after the newest committed round.
      unsaved: output of the coming round, if it was computed and could not be committed yet.
    """

    state: Any
    unsaved: Any = None


class PlannedProcess(ExclusiveCalls):
    """A TFF process that enforces its plan, together with its state and its ledger.

    `next` checks the cohort, runs a round, commits state and ledger in one file, and then returns
    the round's output. A program that is started again with the same arguments resumes after the
    newest committed round.

    Formal guarantee: the states and results of all rounds have the (epsilon, delta)-DP of the
    aggregator's plan for each client, under the zero-out relation, if private/ stays secret, no
    noise seed is used for two folders, and no process resumes from a copy of the folder. Metrics of
    TFF may be exact functions of client data, which the guarantee does not cover.

    A committed round is never computed again. After a crash between a round's computation and its
    commit nobody has seen the round's output, and the round is computed again with the same noise
    vector. Its sum must be the same too, because programs within the process, such as a server
    optimizer that prints, may have shown the first one: two sums with one noise vector reveal their
    difference. So the cohort is written to the folder before the process runs, a resumed process
    takes this cohort and refuses any other, and `client_data` must return the same data again.

    Args:
      process: a TFF process that aggregates with `aggregator`, such as of
        build_unweighted_fed_avg, in a synchronous TFF context. `check_process` is called on it.
      aggregator: of `dp_aggregator`; it has the plan. A noise strategy "precomputed" is served.
      controller: a new controller of the plan's participation, whose cohort_size is the
        aggregator's clients_per_round.
      client_data: index of a client -> its value for `process.next`, for example a
        tf.data.Dataset. Pure: it returns the same values in the same order each time.
      folder: a new or empty folder, or the folder of this process.

    Attributes:
      process, plan, controller: as passed; the plan is the aggregator's.

    Raises:
      TypeError: an argument has another type.
      ValueError: the guarantee does not cover the process; process, aggregator and controller are
        not of one plan; or the folder is in use, is damaged, has other files, or was begun with
        another plan, controller or noise seed, or by a process with other arrays in its state.
      OSError: the folder cannot be written.

    Warns:
      UserWarning: once, where another process of this program has the same noise seed.

    Example:
      >>> import tempfile
      >>> import fedmf, numpy as np, tensorflow_federated as tff
      >>> from fedmf import federated
      >>> twice = fedmf.Participation(rounds=4, schema="min_sep", min_sep=2)
      >>> mechanism = fedmf.fit(fedmf.prefix_sum(4), twice, family="banded")
      >>> plan = fedmf.calibrate(mechanism, twice, epsilon=8.0, delta=1e-6)
      >>> factory = federated.dp_aggregator(plan, clients_per_round=3, noise_seed="os")
      >>> with tempfile.TemporaryDirectory() as folder, federated.PlannedProcess(
      ...     factory.create(tff.TensorType(np.float32, [2])),
      ...     aggregator=factory,
      ...     controller=fedmf.ParticipationController(
      ...         twice, population=6, cohort_size=3, seed=1
      ...     ),
      ...     client_data=lambda client: np.ones(2, np.float32),
      ...     folder=folder,
      ... ) as training:
      ...     while training.round < 4:
      ...         output = training.next()
      ...     print(len(training.ledger), training.audit().epsilon <= plan.epsilon)
      4 True
    """

    _noun = "process"
    _way_to_reopen = "make it again with its folder, in one process of the system at a time"

    def __init__(
        self,
        process: Any,
        *,
        aggregator: MatrixFactorizationAggregator,
        controller: ParticipationController,
        client_data: Callable[[int], Any],
        folder: str | os.PathLike[str],
    ) -> None:
        if not isinstance(aggregator, MatrixFactorizationAggregator):
            raise TypeError(
                f"aggregator is a {type(aggregator).__name__}: pass what dp_aggregator returned"
            )
        fields.instance(ParticipationController)("controller", controller)
        hint = "pass a function: index of a client -> its value for process.next"
        checks.function("client_data", client_data, num_arguments=1, hint=hint)
        folder_path = checked_path("folder", folder, hint="name the folder of a process")
        check_process(process)
        _check_controller(controller, aggregator)
        super().__init__()
        self.process = process
        self.plan = aggregator.plan
        self.controller = controller
        self._client_data = client_data
        self._identity = {
            "plan": plan_fingerprint(self.plan),
            "noise_strategy": aggregator.noise_strategy,
            "noise_seed": aggregator.seed_digest,
            **{
                f"controller.{name}": text
                for name, text in controller_arguments(controller).items()
            },
        }
        self._template = process.initialize()
        _check_noise(self._template, aggregator)
        self._journal_folder = JournalFolder(folder_path, PROCESS)
        with contextlib.ExitStack() as failed:
            failed.callback(self._journal_folder.close)
            if (self._path / _CONFIG).exists():
                self._resume()
            else:
                self._begin()
            count_seed(self._key_number(), self._path)
            self._host_noise: HostNoise | None = None
            if aggregator.noise_strategy == "precomputed":
                self._host_noise = HostNoise.for_state(self.plan, self.state)
            failed.pop_all()

    @property
    def _path(self) -> pathlib.Path:
        """The path of the folder."""
        return self._journal_folder.path

    def _begin(self) -> None:
        """Writes the files that the folder has before round 0."""
        self._progress = _Progress(self._template)
        self._journal_folder.prepare()
        warn_of_used_seed(self._key_number(), self._path)
        state_arrays = with_numbers(_STATE, checked_arrays("state", tf.nest.flatten(self.state)))
        write_atomically(
            self._path / _INITIAL_STATE, lambda out: np.savez(out, **state_arrays), mode=0o600
        )
        config_content = {"format": _FORMAT, "warning": _WARNING}
        self._journal_folder.begin(
            {
                _IDENTITY: strict_json.dumps(self._identity) + "\n",
                _CONFIG: strict_json.dumps(config_content, indent=2) + "\n",
            }
        )

    def _key_number(self) -> int:
        """Returns the key of the noise as one number. It is that of no other noise seed."""
        return int.from_bytes(np.asarray(noise_state_of(self.state).key).tobytes())

    def _resume(self) -> None:
        """Restores state and ledger after the newest committed round.

        Raises:
          ValueError: a file is damaged, or the folder was begun with other arguments.
        """
        with self._journal_folder.undamaged(_IDENTITY):
            recorded_identity = dict(json.loads((self._path / _IDENTITY).read_bytes()))
        changed_names = [
            name
            for name, value in self._identity.items()
            if recorded_identity.get(name) != value and (name, value) != ("noise_seed", None)
        ]
        if changed_names:
            raise ValueError(
                f"the folder {self._path} was begun with another {' and '.join(changed_names)}, "
                "with which its noise could come again under other updates: pass what it was "
                "begun with, or name a new folder, with another noise seed"
            )
        committed = self._journal_folder.read()
        self._journal_folder.end_round()
        num_rounds = len(committed.rows)
        self._progress = _Progress(self._state_of(committed))
        if self.round != num_rounds:
            raise ValueError(
                f"the state in {self._path} is of round {self.round}, and its ledger of "
                f"{num_rounds}: begin a new process, with another noise seed"
            )
        rows = [*committed.rows, *self._begun_round(num_rounds)]
        self.controller.restore(
            [np.array(row["clients"], np.int64) for row in rows],
            [np.array(row["selected"], np.int64) for row in rows],
        )

    def _state_of(self, committed: Committed) -> Any:
        """Returns TFF's state after the newest committed round.

        Raises:
          ValueError: it is damaged, or is the state of another process.
        """
        file_name = JOURNAL
        arrays = committed.arrays
        if not committed.rows:
            file_name = _INITIAL_STATE
        with self._journal_folder.undamaged(file_name):
            if not committed.rows:
                check_archive(self._path / file_name)
                with np.load(self._path / file_name, allow_pickle=False) as entries:
                    arrays = dict(entries)
            leaves = Committed(rows=[], arrays=arrays).numbered_arrays(_STATE)
        template_leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(self._template)]
        recorded_types = [(leaf.shape, leaf.dtype) for leaf in leaves]
        if recorded_types != [(leaf.shape, leaf.dtype) for leaf in template_leaves]:
            raise ValueError(
                f"the folder {self._path} was begun by a process whose state has other arrays: "
                "build the process as it was then, or name a new folder, with another noise seed"
            )
        return tf.nest.pack_sequence_as(self._template, leaves)

    def _begun_round(self, t: int) -> list[dict[str, Any]]:
        """Returns the row of round t, if the folder has the round's cohort already; otherwise an
        empty list.

        Raises:
          ValueError: the file of the cohort is damaged, or is of a later round.
        """
        cohort_path = self._path / _COHORT
        if not cohort_path.exists():
            return []
        with self._journal_folder.undamaged(_COHORT):
            begun_row = json.loads(cohort_path.read_bytes())
            begun_round = int(begun_row["round"])
        if begun_round > t:
            raise PROCESS.backup_error(self._path, _COHORT, begun_round, t)
        return [begun_row] if begun_round == t else []

    @property
    def state(self) -> Any:
        """TFF's state after the newest committed round. It holds the key of the noise: keep it
        secret.
        """
        return self._progress.state

    @property
    def round(self) -> int:
        """The number t of the round that `next` runs; the plan's number of rounds at the end."""
        return _next_round(self.state)

    @property
    def ledger(self) -> ParticipationLedger:
        """A copy of the ledger, which records the clients of each committed round."""
        return self.controller.ledger.first(self.round)

    @exclusive
    def next(self, clients: Sequence[int] | None = None) -> Any:
        """Runs the next round, commits it, and returns the output of `process.next`.

        If the round raises an error, its cohort stays, and the call may be repeated. If the round
        could not be written, the repeated call writes it, and does not run it again.

        Args:
          clients: indices of the round's clients, which the plan must allow; None for the cohort
            that the controller samples.

        Raises:
          TypeError: clients are not ints, or `process.next` returned no state.
          ValueError: all rounds are over; a client may not take part in this round; they are too
            many; the round has another cohort already; a sampling scheme has to sample the
            clients; or somebody changed a file of the folder.
          OSError: the folder cannot be written. Nothing was returned; call it again.
        """
        t = self.round
        num_rounds = self.plan.participation.rounds
        if t >= num_rounds:
            raise ValueError(
                f"all rounds={num_rounds} of the plan are over: more need a plan, a folder and a "
                "guarantee of their own"
            )
        cohort = self._cohort(t, clients)
        selected = self.controller.ledger.selected(t)
        journal_row = {"clients": cohort.tolist(), "selected": selected.tolist()}
        output = self._progress.unsaved
        if output is None:
            client_values = [self._client_data(client) for client in cohort.tolist()]
            cohort_text = strict_json.dumps({"round": t, **journal_row}) + "\n"
            write_atomically(self._path / _COHORT, cohort_text, mode=0o600)
            sync_folder(self._path / "private")
            output = self._run_round(t, client_values)
            self._progress = _Progress(self.state, output)
        state_leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(output.state)]
        self._journal_folder.commit(t, journal_row, with_numbers(_STATE, state_leaves))
        self._journal_folder.end_round()
        self._progress = _Progress(output.state)
        return output

    def _cohort(self, t: int, clients: Sequence[int] | None) -> np.ndarray:
        """Returns the clients of round t, in increasing order, after a check of the caller's.

        Raises:
          TypeError, ValueError: as of `next`.
        """
        is_recorded = len(self.controller.ledger) > t
        if clients is None:
            return self.controller.cohort(t)
        if not is_recorded:
            return self.controller.record_cohort(t, clients)
        recorded_cohort = self.controller.ledger.cohort(t)
        if not np.array_equal(np.sort(checked_client_indices("clients", clients)), recorded_cohort):
            raise ValueError(
                f"clients: round {t} has another cohort already, which the controller sampled or "
                "with which the round was begun, and two sums with the same noise would reveal "
                "their difference: leave `clients` out"
            )
        return recorded_cohort

    def _run_round(self, t: int, client_values: list[Any]) -> Any:
        """Returns the output of the process for round t.

        Raises:
          TypeError: it has no state.
          ValueError: its state is not for the round after t.
        """
        state = self.state
        if self._host_noise is not None:
            state = self._host_noise.hand_in(state)
        output = self.process.next(state, client_values)
        if not hasattr(output, "state"):
            raise TypeError(
                f"process.next returned a {type(output).__name__} without a state: pass a process "
                "of TFF, and call it in a synchronous context"
            )
        if _next_round(output.state) != t + 1:
            raise ValueError(
                f"process.next of round {t} returned the noise's state of round "
                f"{_next_round(output.state)}: return the state of the aggregator in its place"
            )
        return output

    def audit(self) -> Audit:
        """Computes the guarantee of the rounds so far, for the clients that took part.

        The privacy statement is `audit().statement()`.
        """
        audit = audit_ledger(self.ledger, self.plan)
        return dataclasses.replace(audit, system="planned_process")

    def _close_folder(self) -> None:
        """Releases the lock on the folder."""
        self._journal_folder.close()

    def __enter__(self) -> "PlannedProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _next_round(state: Any) -> int:
    """Returns the number of the round that a state of TFF is for."""
    return int(noise_state_of(state).next_round)


def _check_controller(
    controller: ParticipationController, aggregator: MatrixFactorizationAggregator
) -> None:
    """Raises ValueError unless the controller is new and samples cohorts for the aggregator."""
    plan = aggregator.plan
    expected_values = {
        "participation": plan.participation,
        "sampling": plan.sampling,
        "cohort_size": aggregator.clients_per_round,
    }
    for name, expected in expected_values.items():
        value = getattr(controller, name)
        if value != expected:
            raise ValueError(
                f"controller has {name}={value}, and the aggregator's plan needs {expected}: make "
                "the controller for the plan, and the aggregator for its cohort size"
            )
    if len(controller.ledger):
        raise ValueError(
            f"controller has sampled {len(controller.ledger)} rounds already: pass a new one, "
            "which the process resumes itself"
        )


def _check_noise(state: Any, aggregator: MatrixFactorizationAggregator) -> None:
    """Raises ValueError unless an initial state of TFF has the noise of the aggregator's plan."""
    noise_state = noise_state_of(state)
    state_rows, size = np.shape(noise_state.rows)
    expected_fingerprint = state_fingerprint(
        plan_fingerprint(aggregator.plan), aggregator.noise_strategy, state_rows, size
    )
    if int(noise_state.mechanism) != expected_fingerprint:
        raise ValueError(
            "process aggregates with another plan or noise strategy than `aggregator` has: build "
            "the process with this aggregator"
        )
