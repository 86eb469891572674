"""The class `Server`, which releases a noisy mean of clipped client updates in each round of a
privacy plan. It computes in numpy, draws the clients, and never releases one noise vector with two
sums.
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedmf import checks
from fedmf.audits.audit import Audit
from fedmf.audits.guarantee import audit_ledger
from fedmf.numpy_errors import numpy_defaults
from fedmf.participation.ledger import ParticipationLedger
from fedmf.privacy.describe import audit_log_command, calibrate_command
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import markdown
from fedmf.privacy.systems import Subject
from fedmf.server.calls import ExclusiveCalls, count_seed, exclusive, warn_of_used_seed
from fedmf.server.clipping import largest_norm
from fedmf.server.folder import Released, ServerConfig, ServerFolder
from fedmf.server.host_noise import HostNoise
from fedmf.server.journal import checked_arrays
from fedmf.server.means import (
    MeansState,
    NoisyMeans,
    check_zeroing_norm,
    in_shapes,
    leaves_of,
)
from fedmf.server.messages import ClientParams
from fedmf.server.metrics_stream import MetricsStream
from fedmf.server.participants import Participants
from fedmf.server.roster import Client
from fedmf.server.source import check_noise_seed
from fedmf.server.state import check_plan, check_single_run


class _NoisyRound(NamedTuple):
    """A round whose noise has been added to the sum, but whose release is not committed yet.

    Attributes:
      mean: release of the round, float32 (d,).
      state: state after the round.
      before: arrays of the caller that are committed with the release.
    """

    mean: np.ndarray
    state: MeansState
    before: list[np.ndarray]


class Server(ExclusiveCalls):
    """A server that enforces a privacy plan round by round. It clips and sums client updates, adds
    noise, and refuses calls that would break the guarantee.

    Formal guarantee: all releases together have the (epsilon, delta)-DP of `plan` for each client,
    under the zero-out relation, if the noise seed stays secret and is used for one server, and no
    server is opened from a copy of the folder. A client is an id that `add` is called with.

    With a folder the server survives a crash at any point. A release is on disk before it is
    returned, and after a crash `last_release` of the opened server has it. If a release was not
    written, nobody has seen it, and its round is done again with whatever updates come.

    Args:
      plan: plan from `calibrate` or `PlanConfig.plan`; not a simulation of a larger cohort.
      shapes: shapes of the arrays of an update.
      clients_per_round: the number that every sum is divided by, however many clients take part;
        the expected number where a sampling scheme draws them independently.
      noise_seed: a non-negative int, secret and used for nothing else; "os" draws one.
      folder: a new or empty folder; None keeps everything in memory, so that a crash loses it.
      zeroing_norm: an update with an entry above it counts as zero (papers: 100), as does one with
        a NaN or an infinity, always; None for no limit.
      population: the server draws from clients 0 .. population - 1, as sampling needs; None for
        clients of any name, who check in.

    Raises:
      TypeError: an argument has another type.
      ValueError: the plan simulates a larger cohort or does not suit the other arguments, shapes
        have no entries, clients_per_round, zeroing_norm or population is out of range, noise_seed
        is negative, or folder holds a server or other files.

    Warns:
      UserWarning: once, where another server of this process has the same noise seed.

    Example:
      >>> import fedmf
      >>> twice = fedmf.Participation(rounds=4, schema="min_sep", min_sep=2)
      >>> plan = fedmf.calibrate(
      ...     fedmf.fit(fedmf.prefix_sum(4), twice), twice, epsilon=8.0, delta=1e-6
      ... )
      >>> server = fedmf.Server(plan, shapes=[(2,)], clients_per_round=2, noise_seed=1)
      >>> for client in server.cohort(available=["ann", "bo"]):
      ...     server.add([np.array([0.3, 0.4])], client=client)
      >>> [mean] = server.release()
      >>> mean.shape, mean.dtype, server.round, server.cohort(available=["ann", "cy"])
      ((2,), dtype('float32'), 1, ['cy'])
    """

    def __init__(
        self,
        plan: Plan,
        *,
        shapes: Sequence[tuple[int, ...]],
        clients_per_round: int,
        noise_seed: int | str,
        folder: str | os.PathLike[str] | None = None,
        zeroing_norm: float | None = None,
        population: int | None = None,
    ) -> None:
        check_plan(plan)
        config = ServerConfig(
            shapes=shapes,
            clients_per_round=clients_per_round,
            zeroing_norm=zeroing_norm,
            population=population,
        )
        seed = check_noise_seed(noise_seed)
        server_folder = None if folder is None else ServerFolder(folder)
        with contextlib.ExitStack() as failed, numpy_defaults():
            if server_folder is not None:
                failed.callback(server_folder.close)
                server_folder.prepare()
            self._begin(config, plan, seed, server_folder)
            folder_path = None if server_folder is None else server_folder.path
            warn_of_used_seed(seed, folder_path)
            if server_folder is not None:
                server_folder.create(config, plan, seed)
            count_seed(seed, folder_path)
            failed.pop_all()

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Server":
        """Opens the server of a folder again, for example after a crash. It resumes after the
        newest committed round.

        Raises:
          ValueError: there is none, it is in use, or a file is damaged or of another server.
        """
        server_folder = ServerFolder(folder, make=False)
        with contextlib.ExitStack() as failed, numpy_defaults():
            failed.callback(server_folder.close)
            config, plan, seed, released = server_folder.read()
            server = cls.__new__(cls)
            server._begin(config, plan, seed, server_folder)
            server._resume_from(released)
            count_seed(seed, server_folder.path)
            failed.pop_all()
        return server

    def _begin(
        self, config: ServerConfig, plan: Plan, seed: int, folder: ServerFolder | None
    ) -> None:
        """Sets all attributes to their values before round 0.

        Raises:
          ValueError: a plan that simulates a larger cohort, or samples without a population.
        """
        super().__init__()
        self.plan = plan
        self._config = config
        self._folder = folder
        # Privacy statements use this key of privacy.systems.SYSTEMS to look up their sentences.
        self.system = "server"
        check_single_run(plan)
        if plan.simulation is not None:
            raise ValueError(
                f"the plan simulates {plan.simulation.claimed} clients with "
                f"{plan.simulation.simulated}, and a server enforces the guarantee of its plan: "
                "leave `simulating` out"
            )
        self._means = NoisyMeans(
            plan=plan,
            size=config.size,
            clients_per_round=config.clients_per_round,
            zeroing_norm=check_zeroing_norm(config.zeroing_norm),
        )
        self._metrics: MetricsStream | None = None
        if plan.private_metrics is not None:
            self._metrics = MetricsStream(plan, noise_seed=seed)
        self._participants = Participants(plan, config, seed)
        private_folder = None if folder is None else folder.path / "private"
        self._noise = HostNoise(plan, config.size, noise_seed=seed, folder=private_folder)
        self._state = self._means.initial()
        self._last_mean: np.ndarray | None = None
        self._last_before: list[np.ndarray] = []
        self._sum = self._means.empty_sum()
        self._begin_round()

    def _begin_round(self) -> None:
        """Clears the sums of updates and metrics for a new round, and forgets the noisy mean of the
        round before.
        """
        self._sum.clear()
        self._metric_sum = np.zeros(0)
        if self._metrics is not None:
            self._metric_sum = self._metrics.empty_sum()
        self._noisy_round: _NoisyRound | None = None

    def _resume_from(self, released: Released) -> None:
        """Restores the state after the newest round that the folder has committed."""
        if released.state is None or released.mean is None:
            return
        self._participants.restore(released)
        released.mean.setflags(write=False)
        self._state = released.state
        self._last_mean = released.mean
        self._last_before = released.before

    @property
    def round(self) -> int:
        """The number t of the round that is released next; the plan's number of rounds once all are
        released.
        """
        return int(self._state.next_round)

    @property
    def ledger(self) -> ParticipationLedger:
        """A copy of the ledger, which records the clients of each released round."""
        return self._participants.ledger.first(self.round)

    @property
    def clients(self) -> list[Client]:
        """The ids of the clients that took part, in the order of the ledger's client numbers. Each
        id is spelled as in the client's first update. The list is empty for a server with a
        population, whose clients are numbers already.
        """
        return list(self._participants.roster.names)

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of clients, clipped updates and zeroed updates so far in the coming round.
        They are exact functions of the clients' data, which the guarantee does not cover.
        """
        update_sum = self._sum
        return {
            "clients": update_sum.clients,
            "clipped": update_sum.clipped,
            "zeroed": update_sum.zeroed,
        }

    def client_params(self) -> ClientParams:
        """Returns the clip norm, the zeroing norm and the scales of the coming round, for clients
        that clip their own updates. The scales are a copy.
        """
        clip_params = self._means.client_params(self._state)
        return clip_params._replace(scales=np.array(clip_params.scales))

    def to_clients(self) -> ClientParams:
        """Returns the parameters of the coming round for clients, as `client_params` does. This is
        its old name, kept for one release.
        """
        return self.client_params()

    @exclusive
    def cohort(self, available: Sequence[Client] | None = None) -> list[Client]:
        """Draws the clients of this round at random, by the plan's sampling scheme or, without one,
        at most clients_per_round of the eligible clients.

        It draws the same cohort for the same clients, also after `open`.

        Args:
          available: clients that have checked in; needed without a population, and refused with
            one.

        Raises:
          TypeError: an id is neither an integer nor a text.
          ValueError: available is missing without a population or passed with one, an id occurs
            twice, or all rounds are done.

        Warns:
          PoolRanDryWarning: fewer clients of the population are eligible than a round should have.
        """
        self._check_round()
        return self._participants.cohort(self.round, available)

    @property
    def metrics(self) -> dict[str, Any] | None:
        """The private metrics of the newest release, which the guarantee covers. They are
        "clients", the clients' mean "accuracy" and "loss", and the "stddev" of the noise in each.
        None for a plan without private metrics, and before the first release.
        """
        if self._metrics is None or not self.round:
            return None
        released_metrics = np.asarray(self._state.metrics)
        return self._metrics.values(range(self.round - 1, self.round), released_metrics)

    @exclusive
    def add(
        self,
        update: Sequence[Any],
        *,
        client: Client,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Adds a client's update to the sum of this round. All arrays of the update are clipped
        together, as one vector; an invalid update counts as zero.

        Args:
          update: arrays of the server's shapes, of any float dtype.
          client: an int or a text, always the same for one client.
          metrics: with a plan that pays for private_metrics, the client's "accuracy" and "loss". A
            client without them is left out of the metrics.

        Raises:
          TypeError: integer arrays, or another structure.
          ValueError: another shape; a client that may not take part in this round, was not drawn,
            or is in the round already; more than clients_per_round; all rounds are done. The sum
            is as before.
        """
        self._check_round()
        update_leaves = leaves_of("update", update, self._config.shapes)
        max_clients = self._participants.max_clients(self.round)
        metric_contribution = np.zeros_like(self._metric_sum)
        if metrics is not None:
            if self._metrics is None:
                raise ValueError(
                    "`metrics` are given, and the plan pays for none: plan with "
                    "`private_metrics`, or leave them out"
                )
            metric_contribution = self._metrics.contribution(metrics)
        roster = self._participants.roster
        plain_client = roster.plain_client(client)
        client_id = roster.normalised_id(plain_client)
        self._participants.admit({client_id: plain_client}, self.round)
        # The client counts as added before its update is added to the sum, so that after an
        # interrupt the update cannot be added twice.
        clip_params = self.client_params()
        scales: Sequence[np.ndarray] = ()
        if len(clip_params.scales):
            scales = in_shapes(clip_params.scales, self._config.shapes)
        self._sum.set_margin(max_clients)
        self._sum.add(
            update_leaves,
            clip_norm=clip_params.clip_norm,
            zeroing_norm=clip_params.zeroing_norm,
            scales=scales,
        )
        self._metric_sum += metric_contribution

    @exclusive
    def add_sum(
        self, total: Sequence[Any], *, clients: Sequence[Client], clipped: int | None = None
    ) -> None:
        """Adds a sum of updates that were clipped elsewhere, for example before secure aggregation.

        The guarantee then rests on whoever clipped each update, by `client_params()`, before the
        sum. This method checks only that clipped updates of so many clients can have a sum of this
        norm.

        Args:
          total: arrays of the server's shapes.
          clients: all clients whose updates are in the sum.
          clipped: number of clients whose updates were clipped; needed if the clip norm adapts.

        Raises:
          TypeError, ValueError: as of `add`; a sum that is too long.
        """
        self._check_round()
        if self._metrics is not None:
            raise ValueError(
                "the plan has `private_metrics`, which are bounded here for each client: add "
                "updates one by one, or plan without"
            )
        sum_leaves = [
            np.array(leaf, np.float64) for leaf in leaves_of("total", total, self._config.shapes)
        ]
        client_by_id = self._participants.roster.by_normalised_id(
            "clients", clients, allows_repeats=False
        )
        num_clients = len(client_by_id)
        max_norm = largest_norm(num_clients, self.client_params().clip_norm, self._config.size)
        sum_norm = math.hypot(*(float(np.linalg.norm(leaf)) for leaf in sum_leaves))
        # The tolerance allows for a sum that was rounded to float32.
        if not sum_norm <= max_norm * (1 + 1e-6):
            raise ValueError(
                f"total has norm {sum_norm:.6g}, and clipped updates of {num_clients} clients have "
                f"at most {max_norm:.6g}: clip each with server.client_params() before they are "
                "summed"
            )
        if self.plan.quantile_clipping is not None or clipped is not None:
            hint = "count the updates that were clipped"
            clipped = checks.integer("clipped", clipped, low=0, high=num_clients, hint=hint)
        self._participants.admit(client_by_id, self.round)
        self._sum.add_clipped(sum_leaves, num_clients, clipped or 0, 0)

    @exclusive
    def release(self, *, before: Sequence[np.ndarray] = ()) -> list[np.ndarray]:
        """Ends the round and returns its noisy mean, (sum + noise vector t) / clients_per_round, as
        read-only float32 arrays.

        Without any client the release is noise alone.

        Args:
          before: arrays that are committed with the release, such as the model and the optimizer's
            state of before the step: after a crash the step is done again from `last_before` and
            `last_release`.

        Raises:
          TypeError: `before` is no list of arrays of numbers or texts.
          ValueError: all rounds are done; or somebody changed a file of the folder.
          OSError: it could not be written. Nothing was released; call it again, for the same sum.
        """
        self._check_round(is_release=True)
        before_arrays = checked_arrays("before", before)
        t = self.round
        if self._noisy_round is None:
            self._participants.draw(t, is_quiet=True)
            mean, state = self._means.release(self._state, self._sum, self._noise.row(t))
            if self._metrics is not None:
                state = state._replace(metrics=self._metrics.release(t, self._metric_sum))
            self._noisy_round = _NoisyRound(mean, state, before_arrays)
        # If the call is repeated after an error, the arrays `before` of the first call are
        # committed.
        noisy_round = self._noisy_round
        noisy_round.mean.setflags(write=False)
        release_arrays = in_shapes(noisy_round.mean, self._config.shapes)
        if self._folder is not None:
            self._folder.commit(
                t,
                clients=self._participants.added(),
                selected=self._participants.selected(t),
                mean=noisy_round.mean,
                state=noisy_round.state,
                before=noisy_round.before,
            )
        # An interrupt in the middle of the following changes would leave the old sum for the next
        # round. The flag makes the server refuse all calls after such an interrupt.
        self._is_torn = True
        self._participants.record(t)
        self._begin_round()
        self._state = noisy_round.state
        self._last_mean = noisy_round.mean
        self._last_before = noisy_round.before
        self._is_torn = False
        return release_arrays

    @property
    def last_release(self) -> list[np.ndarray] | None:
        """The arrays of the newest release, read-only; None before the first release."""
        if self._last_mean is None:
            return None
        return in_shapes(self._last_mean, self._config.shapes)

    @property
    def last_before(self) -> list[np.ndarray]:
        """The arrays that the caller committed as `before` with the newest release, read-only."""
        return list(self._last_before)

    def audit(self) -> Audit:
        """Computes the privacy guarantee of the rounds released so far, for the clients that took
        part.
        """
        audit = audit_ledger(self._participants.ledger, self.plan)
        return dataclasses.replace(audit, system=self.system)

    def statement(self) -> str:
        """Returns the privacy statement as Markdown, with the planned guarantee, the participation
        observed so far, and the guarantee achieved so far.
        """
        audit = self.audit()
        folder_name = None
        commands = [calibrate_command(self.plan)]
        if self._folder is not None:
            folder_name = self._folder.path.resolve().name
            commands = self._commands(
                folder_name, is_record_empty=not audit.observed.participations
            )
        statement_values = audit.statement_values(
            subject=Subject(system=self.system, folder=folder_name),
            cohort_size=self._config.clients_per_round,
            population=self._config.population,
            commands=commands,
        )
        return markdown(statement_values)

    def _commands(self, folder: str, *, is_record_empty: bool) -> list[str]:
        """Returns the fedmf commands that verify the folder of this name."""
        mechanism_path = f"{folder}/mechanism.npz"
        calibrate_command_text = calibrate_command(self.plan, mechanism_path)
        if is_record_empty:  # `fedmf audit log` refuses a log without rows.
            return [calibrate_command_text]
        log_path = f"{folder}/participation.jsonl"
        audit_command_text = audit_log_command(
            self.plan, log_path, mechanism_path, rounds_run=self.round
        )
        return [audit_command_text, calibrate_command_text]

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_round(self, *, is_release: bool = False) -> None:
        """Raises ValueError after the last round. If the release of a round could not be written,
        only `release` may be called again.
        """
        if self.round >= self.plan.participation.rounds:
            raise ValueError(
                f"all rounds={self.plan.participation.rounds} of the plan are released: more "
                "need a plan, a server and a guarantee of their own"
            )
        if self._noisy_round is not None and not is_release:
            raise ValueError(
                f"round {self.round} has its noise, and its release could not be written: make "
                "room and call release() again"
            )
