"""`Server`: the keeper of a plan, in numpy. Who takes part, what is clipped, which row of noise is
added, and that no row is ever released under two sums.
"""

import contextlib
import dataclasses
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedmf import checks, identifiers
from fedmf.audits.guarantee import Audit, audit_ledger
from fedmf.cohorts.controller import PoolRanDryWarning
from fedmf.mechanisms.budget import participation_rule
from fedmf.numpy_errors import numpy_defaults
from fedmf.participation.ledger import ParticipationLedger
from fedmf.privacy.describe import audit_log_command, calibrate_command
from fedmf.privacy.plan import Plan
from fedmf.privacy.statement import markdown
from fedmf.privacy.systems import Subject
from fedmf.server.calls import ExclusiveCalls, count_seed, exclusive, warn_of_used_seed
from fedmf.server.clipping import largest_norm
from fedmf.server.drawing import cohort_seed, draw_cohort, server_controller
from fedmf.server.folder import Released, ServerConfig, ServerFolder
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
from fedmf.server.roster import Client, Roster
from fedmf.server.rows import HostNoise
from fedmf.server.source import check_noise_seed
from fedmf.server.state import check_plan


class Server(ExclusiveCalls):
    """Keeps the promise of a plan, round by round: it clips, sums, adds noise, and refuses what
    would break the guarantee.

    Formal guarantee: all releases together are what `plan` says, (epsilon, delta)-DP for each
    client under the zero-out relation, if the noise seed stays secret and is used for one server,
    and the folder is never copied to be gone on with. Clients are those of the ids given to `add`.

    With a folder it survives a crash at any point. A release is on disk before it is handed out.
    After a crash `open` has it as `last_release`; a round whose release was not written has been
    seen by nobody, and is done again with whatever updates come.

    Args:
      plan: from `calibrate` or `PlanConfig.plan`; not a simulation of a larger cohort.
      shapes: of the arrays of an update.
      clients_per_round: the number that every sum is divided by, however many come; the expected
        number where a sampling scheme draws them independently.
      noise_seed: a non-negative int, secret and used for nothing else; "os" draws one.
      folder: a new or empty one; None keeps all in memory, and nothing survives.
      zeroing_norm: an update with an entry above it counts as zero (papers: 100); None for no
        limit. One with a NaN or an infinity always does.
      population: the server draws from clients 0 .. population - 1, as sampling needs; None for
        clients of any name, who check in.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

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
        files = None if folder is None else ServerFolder(folder)
        with contextlib.ExitStack() as failed, numpy_defaults():
            if files is not None:
                failed.callback(files.close)
            self._begin(config, plan, seed, files)
            path = None if files is None else files.path
            warn_of_used_seed(seed, path)
            if files is not None:
                files.create(config, plan, seed)
            count_seed(seed, path)
            failed.pop_all()

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Server":
        """The server of a folder, after a crash or at another time; it goes on with round `round`.

        Raises:
          ValueError: there is none, it is in use, or a file is damaged or of another server.
        """
        files = ServerFolder(folder, make=False)
        with contextlib.ExitStack() as failed, numpy_defaults():
            failed.callback(files.close)
            config, plan, seed, released = files.read()
            server = cls.__new__(cls)
            server._begin(config, plan, seed, files)
            server._go_on_from(released)
            count_seed(seed, files.path)
            failed.pop_all()
        return server

    def _begin(
        self, config: ServerConfig, plan: Plan, seed: int, folder: ServerFolder | None
    ) -> None:
        """The state before round 0."""
        super().__init__()
        self.plan, self._config, self._folder = plan, config, folder
        self.system = "server"  # what its statements are about, a key of privacy.systems.SYSTEMS
        if plan.simulation is not None:
            raise ValueError(
                f"the plan simulates {plan.simulation.claimed} clients with "
                f"{plan.simulation.simulated}, and a server keeps what it promises: leave "
                "`simulating` out"
            )
        self._means = NoisyMeans(
            plan=plan,
            size=config.size,
            clients_per_round=config.clients_per_round,
            zeroing_norm=check_zeroing_norm(config.zeroing_norm),
        )
        self._metrics = plan.private_metrics and MetricsStream(plan, noise_seed=seed)
        self._seed = cohort_seed(seed)
        self._controller = server_controller(plan, config, seed)
        private = None if folder is None else folder.path / "private"
        self._noise = HostNoise(plan, config.size, noise_seed=seed, folder=private)
        self._state = self._means.initial()
        self._last: np.ndarray | None = None
        self._before: list[np.ndarray] = []
        self._sum = self._means.empty_sum()
        varies = plan.sampling is not None and plan.sampling.independent
        self._ledger = ParticipationLedger(cohort_size=None if varies else config.clients_per_round)
        rule = participation_rule(plan.mechanism, plan.participation)
        self._roster = Roster(rule, config.population)
        self._next()

    def _next(self) -> None:
        """Begins to collect the next round."""
        self._sum.clear()
        self._metric_sum = self._metrics.empty_sum() if self._metrics else np.zeros(0)
        self._added: dict[str, Client] = {}  # by their looks
        self._sealed: tuple[np.ndarray, MeansState, list[np.ndarray]] | None = None

    def _go_on_from(self, released: Released) -> None:
        if released.state is None:
            return
        cohorts = self._roster.restore(released.clients)
        selections = [
            cohort if selected is None else np.array(selected, np.int64)
            for cohort, selected in zip(cohorts, released.selected, strict=True)
        ]
        self._ledger.restore(cohorts, selections)
        if self._controller is not None:
            self._controller.restore(selections, selections)
        self._state, self._last, self._before = released.state, released.mean, released.before
        if self._last is not None:
            self._last.setflags(write=False)

    @property
    def round(self) -> int:
        """t of the next release; the plan's rounds when all are released."""
        return int(self._state.next_round)

    @property
    def ledger(self) -> ParticipationLedger:
        """Who took part in the rounds that were released; a copy."""
        return self._ledger.first(self.round)

    @property
    def clients(self) -> list[Client]:
        """The clients that took part, as they were named first: client i of the ledger is
        clients[i]. Empty with a population, whose clients are the ledger's numbers.
        """
        return list(self._roster.names)

    @property
    def counts(self) -> dict[str, int]:
        """clients, clipped and zeroed updates of the round being collected: exact functions of the
        clients' data, not covered by the guarantee.
        """
        total = self._sum
        return {"clients": total.clients, "clipped": total.clipped, "zeroed": total.zeroed}

    def to_clients(self) -> ClientParams:
        """Clip norm, zeroing norm and scales of the round, for clients that clip themselves."""
        return self._means.to_clients(self._state)

    @exclusive
    def cohort(self, available: Sequence[Client] | None = None) -> list[Client]:
        """The clients of this round: drawn at random among those who may take part, at most
        clients_per_round of them, or as the plan's sampling draws.

        The same for the same clients, also after `open`.

        Args:
          available: who has checked in; needed without a population, and refused with one.

        Raises:
          TypeError, ValueError: naming the argument and what to do instead; or all rounds are done.

        Warns:
          PoolRanDryWarning: with a population, of which fewer may come than a round should have.
        """
        self._check_round()
        if self._controller is not None:
            if available is not None:
                raise ValueError(
                    f"`available` beside population={self._config.population}, from which the "
                    "server draws: leave one of them out"
                )
            drawn: list[Client] = self._draw(self.round).tolist()
            return drawn
        if available is None:
            raise ValueError(
                "available=None: name the clients that have checked in, or give the server a "
                "population to draw from"
            )
        named = self._roster.by_look("available", available)
        clients = [named[look] for look in sorted(named)]
        is_eligible = self._roster.is_eligible(clients, self.round)
        eligible = [clients[i] for i in np.flatnonzero(is_eligible)]
        return draw_cohort(eligible, self._config.clients_per_round, self._seed, self.round)

    @property
    def metrics(self) -> dict[str, Any] | None:
        """The private metrics of the newest release, covered by the guarantee: "clients", and over
        them the mean "accuracy" and "loss", with the "stddev" of each by its noise. None before.
        """
        if not self._metrics or not self.round:
            return None
        released = np.asarray(self._state.metrics)
        return self._metrics.values(range(self.round - 1, self.round), released)

    @exclusive
    def add(
        self,
        update: Sequence[Any],
        *,
        client: Client,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Adds the update of a client to this round's sum: zeroed, or clipped as one vector.

        Args:
          update: arrays of the server's shapes, of any float dtype.
          client: an int or a text, always the same for one client.
          metrics: with a plan that pays for private_metrics, the client's "accuracy" and "loss";
            None where it has none, and it is then not counted among their clients.

        Raises:
          TypeError: integer arrays, or another structure.
          ValueError: another shape; a client who may not take part in this round, was not drawn, or
            is there twice; more than clients_per_round; all rounds are done. The sum is as before.
        """
        self._check_round()
        leaves = leaves_of("update", update, self._config.shapes)
        most = max(self._config.clients_per_round, len(self._draw(self.round)))
        part = np.zeros_like(self._metric_sum)
        if metrics is not None:
            if not self._metrics:
                raise ValueError(
                    "`metrics` are given, and the plan pays for none: plan with "
                    "`private_metrics`, or leave them out"
                )
            part = self._metrics.contribution(metrics)
        self._admit({self._roster.look(plain := self._roster.plain(client)): plain})
        # From here on the client counts, whatever interrupts this.
        to_clients = self.to_clients()
        scales = to_clients.scales
        # A sampling scheme may draw more than clients_per_round.
        self._sum.set_margin(most)
        self._sum.add(
            leaves,
            clip_norm=to_clients.clip_norm,
            zeroing_norm=to_clients.zeroing_norm,
            scales=in_shapes(scales, self._config.shapes) if len(scales) else (),
        )
        self._metric_sum += part

    @exclusive
    def add_sum(
        self, total: Sequence[Any], *, clients: Sequence[Client], clipped: int | None = None
    ) -> None:
        """Adds a sum of updates that were clipped elsewhere, as secure aggregation gives it.

        The guarantee then rests on whoever clipped: each update with `to_clients()`, before the
        sum. Only that the sum is no longer than so many clipped updates can be is checked here.

        Args:
          total: arrays of the server's shapes.
          clients: whose updates it is the sum of.
          clipped: how many of them were clipped; needed where the clip norm adapts.

        Raises:
          TypeError, ValueError: as of `add`; a sum that is too long.
        """
        self._check_round()
        if self._metrics:
            raise ValueError(
                "the plan has `private_metrics`, of which each client's are bounded here: add "
                "updates one by one, or plan without"
            )
        leaves = [
            np.array(leaf, np.float64) for leaf in leaves_of("total", total, self._config.shapes)
        ]
        named = self._roster.by_look("clients", clients, twice=False)
        most = largest_norm(len(named), self.to_clients().clip_norm, self._config.size)
        norm = math.hypot(*(float(np.linalg.norm(leaf)) for leaf in leaves))
        if not norm <= most * (1 + 1e-6):  # of a sum that was rounded to float32
            raise ValueError(
                f"total has norm {norm:.6g}, and clipped updates of {len(named)} clients have at "
                f"most {most:.6g}: clip each with server.to_clients() before they are summed"
            )
        if self.plan.quantile_clipping is not None or clipped is not None:
            hint = "count the updates that were clipped"
            clipped = checks.integer("clipped", clipped, low=0, high=len(named), hint=hint)
        self._admit(named)
        self._sum.add_clipped(leaves, len(named), clipped or 0, 0)

    @exclusive
    def release(self, *, before: Sequence[np.ndarray] = ()) -> list[np.ndarray]:
        """Ends the round: (sum + row t of N Z) / clients_per_round, read-only float32 arrays of the
        shapes.

        With no client at all it is the noise.

        Args:
          before: arrays that are committed with the release, such as the model and the optimizer's
            state of before the step: after a crash the step is done again from `last_before` and
            `last_release`.

        Raises:
          TypeError: `before` is no list of arrays of numbers or texts.
          ValueError: all rounds are done; or a file of the folder is not the server's own any more.
          OSError: it could not be written. Nothing was released; call it again, for the same sum.
        """
        self._check_round(sealed=True)
        arrays = checked_arrays("before", before)  # a repeated call keeps those of the first
        t = self.round
        if self._sealed is None:
            self._draw(t, quiet=True)
            mean, state = self._means.release(self._state, self._sum, self._noise.row(t))
            if self._metrics:
                state = state._replace(metrics=self._metrics.release(t, self._metric_sum))
            self._sealed = mean, state, arrays
        mean, state, arrays = self._sealed
        mean.setflags(write=False)
        release = in_shapes(mean, self._config.shapes)
        if self._folder is not None:
            selected = None if self._controller is None else self._controller.ledger.selected(t)
            self._folder.commit(
                t,
                clients=list(self._added.values()),
                selected=None if selected is None else selected.tolist(),
                mean=mean,
                state=state,
                before=arrays,
            )
        # An interrupt between these would leave the old sum for the next round.
        self._torn = True
        self._record(t)
        self._state, self._last, self._before = state, mean, arrays
        self._torn = False
        return release

    @property
    def last_release(self) -> list[np.ndarray] | None:
        """The newest release, read-only arrays; None before the first."""
        return None if self._last is None else in_shapes(self._last, self._config.shapes)

    @property
    def last_before(self) -> list[np.ndarray]:
        """The arrays that `before` had at the newest release, read-only."""
        return list(self._before)

    def audit(self) -> Audit:
        """What the rounds that were released have cost, for the clients that took part."""
        return dataclasses.replace(audit_ledger(self._ledger, self.plan), system=self.system)

    def statement(self) -> str:
        """Returns the privacy statement: planned, observed so far and achieved, as Markdown."""
        audit = self.audit()
        folder = None
        commands = [calibrate_command(self.plan)]
        if self._folder is not None:
            folder = self._folder.path.resolve().name
            commands = self._commands(folder, is_record_empty=not audit.observed.participations)
        values = audit.statement_values(
            subject=Subject(system=self.system, folder=folder),
            cohort_size=self._config.clients_per_round,
            population=self._config.population,
            commands=commands,
        )
        return markdown(values)

    def _commands(self, folder: str, *, is_record_empty: bool) -> list[str]:
        """Returns the commands that check the folder of this name."""
        mechanism = f"{folder}/mechanism.npz"
        calibrate = calibrate_command(self.plan, mechanism)
        if is_record_empty:  # there is no row that a command could read
            return [calibrate]
        log = f"{folder}/participation.jsonl"
        return [audit_log_command(self.plan, log, mechanism, rounds_run=self.round), calibrate]

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a fedmf.Server cannot be copied or pickled: two of it would release the same noise "
            "under two sums; hand on what it releases"
        )

    def _check_round(self, *, sealed: bool = False) -> None:
        """Refuses a call after the last round, or of a round that has its noise and could not be
        written, unless the call is for such a `sealed` one.
        """
        if self.round >= self.plan.participation.rounds:
            raise ValueError(
                f"all rounds={self.plan.participation.rounds} of the plan are released: more "
                "need a plan, a server and a guarantee of their own"
            )
        if self._sealed is not None and not sealed:
            raise ValueError(
                f"round {self.round} has its noise, and its release could not be written: make "
                "room and call release() again"
            )

    def _admit(self, clients: dict[str, Client]) -> None:
        """Counts clients, by their looks, into the round: all or none."""
        t = self.round
        drawn = None if self._controller is None else set(self._draw(t).tolist())
        is_eligible = self._roster.is_eligible(list(clients.values()), t).tolist()
        for (look, client), may_add in zip(clients.items(), is_eligible, strict=True):
            shown = f"client={identifiers.format_client(client)}"
            if look in self._added:
                raise ValueError(f"{shown} is in round {t} already: add one update a client")
            if drawn is not None and client not in drawn:
                raise ValueError(
                    f"{shown} was not drawn for round {t}: add clients of server.cohort()"
                )
            if not may_add:
                before = identifiers.format_rounds(self._rounds_of(client))
                raise ValueError(
                    f"{shown} took part in {before}, and {self.plan.participation} does not allow "
                    f"round {t}: leave it out, as server.cohort() does"
                )
        most = self._config.clients_per_round if drawn is None else len(drawn)
        if len(self._added) + len(clients) > most:
            raise ValueError(
                f"round {t} has its clients_per_round={most}: release it, or plan for more"
            )
        self._added |= {look: self._roster.recorded(client) for look, client in clients.items()}

    def _rounds_of(self, client: Client) -> list[int]:
        """Returns the rounds in which a plain client took part."""
        number = self._roster.known_number(client)
        return [t for t in range(len(self._ledger)) if number in self._ledger.cohort(t)]

    def _draw(self, t: int, *, quiet: bool = False) -> np.ndarray:
        """The clients that the server drew for round t; nobody where they check in."""
        if self._controller is None:
            return np.zeros(0, np.int64)
        with warnings.catch_warnings() if quiet else contextlib.nullcontext():
            if quiet:
                warnings.simplefilter("ignore", PoolRanDryWarning)
            return self._controller.cohort(t)

    def _record(self, t: int) -> None:
        """Counts round t among the released ones."""
        selected = None if self._controller is None else self._draw(t)
        numbers = [self._roster.number(client) for client in self._added.values()]
        self._ledger.append(np.array(sorted(numbers), np.int64), selected=selected)
        self._roster.record(numbers, t)
        self._next()
