"""The strategy: from Flower's messages to a server's updates, and back."""

import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedmf import checks
from fedmf.flower import arguments
from fedmf.flower.arrays import (
    as_record,
    copy_of,
    floats,
    in_order,
    record_of,
    shapes_of,
)
from fedmf.flower.evaluation import evaluate, number_from, text_of
from fedmf.flower.identity import log_plan, log_round
from fedmf.flower.nodes import Nodes, PatientGrid, log, seconds_of
from fedmf.flower.record import StepRecord, recovered
from fedmf.flower.rounds import Replies, Round, add_updates, letter_of
from fedmf.flower.strategy_state import State, StrategyState, Watch
from fedmf.flower.trial import (
    check_is_kept,
    check_strategy,
    refusal_of,
    shown,
    step,
    try_strategy,
)
from fedmf.privacy.plan import Plan
from fedmf.server.folder import ServerConfig
from fedmf.server.server import Server
from fedmf.server.source import check_noise_seed
from fedmf.server.state import check_plan


class MatrixFactorizationDP(Strategy):
    """Flower's strategy, with the noise and the guarantee of a plan.

    It wraps a strategy that moves a model by the average of its clients, such as FedAvg, FedAvgM,
    FedAdam, FedAdagrad, FedYogi or FedProx. A `fedmf.Server` draws the nodes of a round among those
    that may come, clips each update (reply minus model) as one vector, adds them with equal
    weights and one row of correlated noise, and divides by clients_per_round. The wrapped strategy
    sees one reply: the model plus that noisy mean.

    Formal guarantee: all models together are what `plan` says, (epsilon, delta)-DP for each client
    under the zero-out relation, as of `fedmf.Server`. A client is what has one id: without a
    population a node id, which Flower gives to a registration of a SuperNode and which proves no
    person and no device; with a population a partition id, which a node tells of itself
    (`tell_partition`). Not covered: what clients send beside their arrays. Their metrics of
    training are dropped for that reason; those of evaluation are the wrapped strategy's to keep.

    Before the first round the wrapped strategy gets a synthetic reply, and then its own state back:
    one that does not move the model by it is refused.

    With a folder the run survives a crash at any point: the same program, started again, goes on
    with the round after the newest release. The folder is that of a `fedmf.Server`. Each release is
    committed together with the model before the round and with what rounds have changed in the
    wrapped strategy (its momentum), and the strategy's step is done again from them. A strategy
    that changes what no file can hold is refused before the first round.

    Replies that failed, come twice, answer another round, are not of a drawn node or have other
    arrays are dropped and counted, and so are evaluations that the wrapped strategy cannot take.
    Fewer replies than clients_per_round do not change the divisor.

    Args:
      strategy: what it wraps. How many nodes train is clients_per_round; its min_available_nodes
        and min_train_nodes are waited for.
      plan: from `calibrate` or `PlanConfig.plan`.
      clients_per_round: the most clients of a round, and what each sum is divided by.
      noise_seed: a non-negative int, secret and used for nothing else; "os" draws one. A folder
        that holds a server goes on with its own.
      folder: a new one, or that of this run; None keeps all in memory, and nothing survives.
      population: clients are the partition ids 0 .. population - 1, of which the server draws; a
        round none of whose clients is connected is noise alone. None for node ids. Runs that are
        simulated need it to be gone on with: a simulation gives its nodes new ids.
      zeroing_norm: an update with an entry above it counts as zero; None for no limit.

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.
    """

    def __init__(
        self,
        strategy: Strategy,
        plan: Plan,
        *,
        clients_per_round: int,
        noise_seed: int | str,
        folder: str | os.PathLike[str] | None,
        population: int | None = None,
        zeroing_norm: float | None = None,
    ) -> None:
        check_strategy(strategy)
        check_plan(plan)
        self.strategy, self.plan = strategy, plan
        self._settings: dict[str, Any] = {
            "clients_per_round": clients_per_round,
            "zeroing_norm": zeroing_norm,
            "population": population,
        }
        ServerConfig(shapes=[(1,)], **self._settings)  # refused before any node is asked
        self._seed = check_noise_seed(noise_seed)
        self._folder = arguments.checked_folder(folder)
        self._server: Server | None = None
        self._nodes: Nodes | None = None
        self._model: dict[str, np.ndarray] = {}  # of the round under way, by name
        self._moved: ArrayRecord | None = None  # after the newest release
        self._round: Round | None = None  # under way
        self._dropped: Counter[str] = Counter()  # replies of it, by the reason
        self._evaluated = 0  # the rounds after which clients have evaluated the model
        self._before_evaluation: State | None = None  # of the wrapped strategy, while it lasts
        self._patience = 3600.0
        self._state = StrategyState(strategy)
        self._watch: Watch | None = None  # of what the folder cannot keep
        self._is_tried = False
        self._said: set[str] = set()

    @property
    def server(self) -> Server:
        """The keeper of the plan: ledger, audit and statement.

        Raises:
          ValueError: no model has been given to `start` or `configure_train` yet.
        """
        if self._server is None:
            raise ValueError(
                "the strategy has no server yet, because the shapes of the model are not known: "
                "call start first"
            )
        return self._server

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Trains, as of Flower's `Strategy.start`, or goes on with a run that was interrupted.

        Args:
          grid: of the ServerApp.
          initial_arrays: the model before the first round; a run that goes on has its own.
          num_rounds: of the whole run, those that were done before it was interrupted included;
            None for all of the plan.
          timeout: how long to wait for replies, and for nodes that may come, in seconds; None
            for no limit.
          train_config, evaluate_config: as of Flower.
          evaluate_fn: as of Flower; rounds are numbered over the whole run.

        Returns:
          Flower's result, of the rounds done here, numbered over the whole run.

        Raises:
          TypeError, ValueError: naming the argument, its value and what to do instead.
          TimeoutError: no node that may come was connected in time.
        """
        arguments.check_grid(grid)
        arguments.check_arrays("initial_arrays", initial_arrays)
        arguments.check_config("train_config", train_config, is_optional=True)
        arguments.check_config("evaluate_config", evaluate_config, is_optional=True)
        arguments.check_evaluate_fn(evaluate_fn)
        rounds = self.plan.participation.rounds
        hint = "the plan has no more rounds, and its guarantee covers no others"
        if num_rounds is not None:
            rounds = checks.integer("num_rounds", num_rounds, low=1, high=rounds, hint=hint)
        self._patience = seconds_of(timeout)
        self._begin(initial_arrays)
        self._undo_interrupted()
        try:
            return self._train(
                grid, initial_arrays, rounds, timeout, train_config, evaluate_config, evaluate_fn
            )
        except BaseException:  # an interrupt, too
            self._undo_interrupted()
            raise

    def _train(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        rounds: int,
        timeout: float | None,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> Result:
        """Trains until so many rounds of the whole run are done."""
        self._finish_round()
        arrays = initial_arrays if self._moved is None else self._moved
        done = self.server.round
        metrics = None
        if 0 < done < rounds and self._evaluated != done:
            metrics = self._evaluate_again(grid, arrays, evaluate_config, timeout)

        def evaluate_copy(number: int, model: ArrayRecord) -> MetricRecord | None:
            assert evaluate_fn is not None
            return evaluate_fn(done + number, copy_of(model))

        result = super().start(
            grid,
            copy_of(arrays),
            max(0, rounds - done),
            timeout,
            train_config,
            evaluate_config,
            evaluate_copy if evaluate_fn else None,
        )
        if not result.arrays:
            result.arrays = copy_of(arrays)
        number_from(result, done)
        if metrics is not None:
            result.evaluate_metrics_clientapp[done] = metrics
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of a round, to the nodes that the server draws.

        Args:
          server_round: Flower's number. The server's own counts, also for the wrapped strategy.
          arrays: the model.
          config: for the clients.
          grid: of the ServerApp.

        Raises:
          ValueError: arrays that are no floats or not those of the run; all rounds are done.
          TimeoutError: no node that may come was connected in time.
        """
        arguments.check_sending(server_round, arrays, config, grid)
        self._begin(arrays)
        self._undo_interrupted()
        self._finish_round()
        names = list(self._model)
        self._model = in_order(floats(arrays), names)
        t, added = self.server.round, set()
        if self._round is not None:  # it was interrupted, and its messages are made again
            added = self._round.added
        under_way = Round(t=t, before=self._state.changes().state, model=self._model, added=added)
        self._round = under_way
        messages = self._messages(t, as_record(self._model), config, grid)
        letter = letter_of(type(self.strategy).__name__, messages, self._model)
        self._try_once(t)
        assert self._nodes is not None
        client_by_node = self._nodes.draw(grid, self._patience, added)
        under_way.after, lost = self._state.changes()
        if self._folder is not None and lost:
            self._say(
                f"the folder does not keep strategy.{shown(lost)}: a run that is started again "
                "goes on without"
            )
        under_way.asked, under_way.message_type = client_by_node, letter.message_type
        rounds = self.plan.participation.rounds
        log.info("fedmf: round %d of %d goes to %d nodes", t + 1, rounds, len(client_by_node))
        return [letter.to(node, t) for node in client_by_node]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The wrapped strategy's next model, from the noisy mean of the replies' updates.

        Args:
          server_round: Flower's number, not used.
          replies: of the nodes, in any order.

        Returns:
          The model; and with a plan that pays for private_metrics those of the round, which the
          guarantee covers. The clients' own are dropped.

        Raises:
          ValueError: no reply of this run has had the arrays that were sent; no round is under way.
          OSError: the release could not be written; start again.
        """
        arguments.check_round(server_round)
        messages = arguments.checked_replies(replies)
        under_way = self._round
        if under_way is None or under_way.asked is None:
            raise ValueError("no round is under way: call configure_train first")
        if not under_way.is_summed:
            self._add(under_way, messages)
        self._finish_round()
        assert self._moved is not None
        return copy_of(self._moved), record_of(self.server.metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages, to nodes that it draws."""
        arguments.check_sending(server_round, arrays, config, grid)
        number = self._server.round if self._server else server_round
        self._before_evaluation = self._state.changes().state
        patient: Any = PatientGrid(grid, self._patience)
        try:
            messages = list(
                self.strategy.configure_evaluate(number, copy_of(arrays), config, patient)
            )
        except TimeoutError as error:
            log.warning("fedmf: round %d is not evaluated on clients: %s", number, error)
            return []
        if messages:
            self._say(
                "metrics of evaluation on clients are exact functions of their data, which the "
                "guarantee does not cover: do not publish them, or evaluate on the server "
                "(evaluate_fn)"
            )
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The wrapped strategy's, without any noise: not covered by the guarantee.

        Replies that it cannot take are dropped and counted.
        """
        arguments.check_round(server_round)
        messages = arguments.checked_replies(replies)
        number = self._server.round if self._server else server_round
        state = self._state.changes().state
        metrics, dropped = evaluate(
            self.strategy, number, messages, lambda: self._state.rewind(state)
        )
        self._evaluated = number
        self._before_evaluation = None
        if dropped:
            lost = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
            log.warning("fedmf: evaluation after round %d: dropped: %s", number, lost)
        return metrics

    def summary(self) -> None:
        """Logs the plan, and what it guarantees so far and in all."""
        num_released = self._server.round if self._server else 0
        log_plan(self.plan, self._settings["clients_per_round"], num_released)
        self.strategy.summary()

    def _begin(self, arrays: ArrayRecord) -> None:
        """Makes the server or opens it, once."""
        model = floats(arrays)
        if self._server is not None:
            if shapes_of(self._model) != shapes_of(in_order(model, list(self._model))):
                raise ValueError(
                    f"arrays have the names and shapes {shapes_of(model)}, and the run's are "
                    f"{shapes_of(self._model)}: give a model of the same"
                )
            return
        self._state = StrategyState(self.strategy)
        self._watch = self._state.watch() if self._folder else None
        self._model = model
        folder = self._folder
        if folder is None or not (folder / "server.json").exists():
            shapes = list(shapes_of(model).values())
            server = Server(
                self.plan, shapes=shapes, noise_seed=self._seed, folder=folder, **self._settings
            )
        else:
            server = Server.open(folder)
            try:
                self._recover(server, folder)
            except BaseException:
                server.close()
                raise
            log.info("fedmf: %s goes on with round %d", folder, server.round + 1)
        server.system = "flower"
        self._server = server
        self._nodes = Nodes(
            server, self._settings["population"], self._settings["clients_per_round"]
        )

    def _recover(self, server: Server, folder: pathlib.Path) -> None:
        """Takes up the round of the newest release: the step after it is done again."""
        self._model, saved = recovered(server, folder, self.plan, self._settings, self._model)
        if saved is None:
            self._moved = as_record(self._model)
            return
        self._state.restore(saved.state)
        self._round = Round(
            t=server.round - 1,
            before=saved.state,
            model=saved.model,
            after=saved.state,
            is_summed=True,
        )

    def _add(self, under_way: Round, messages: Iterable[Message]) -> None:
        """Adds the updates of the replies to the server's sum."""
        replies = Replies(messages, under_way, bool(self.plan.private_metrics))
        add_updates(self.server, under_way, replies)
        if replies.has_unpaid_metrics:
            self._say(
                "metrics that clients send with their updates are dropped: they are exact "
                "functions of the clients' data, which the guarantee does not cover"
            )
        under_way.is_summed = True
        self._dropped = replies.dropped

    def _finish_round(self) -> None:
        """Releases the round whose replies are all added, and lets the strategy make its step.

        Where an interrupt or an error ended one of the two, it is done again.

        Raises:
          OSError: the release could not be written; it may be called again.
        """
        under_way, server = self._round, self.server
        if under_way is None or not under_way.is_summed:
            return
        t = under_way.t
        if server.round == t:
            assert under_way.after is not None
            step_record = StepRecord(t, under_way.model, under_way.after)
            server.release(before=step_record.to_arrays() if self._folder else ())
        if under_way.asked is not None:  # in a run that was started again it was said before
            log_round(self.plan, t, len(under_way.added), self._dropped)
            under_way.asked = None
        under_way.is_step_begun = True
        mean = server.last_release
        assert mean is not None
        self._moved = step(self.strategy, t, under_way.model, mean)
        self._round = None

    def _undo_interrupted(self) -> None:
        """Gives the wrapped strategy the state before what it has begun and not ended.

        At once, so that whoever mends the strategy before the next start finds it mended.
        """
        if self._before_evaluation is not None:
            self._state.rewind(self._before_evaluation)
            self._before_evaluation = None
        if self._round is not None:
            self._round.undo_interrupted(self._state)

    def _evaluate_again(
        self,
        grid: Grid,
        arrays: ArrayRecord,
        config: ConfigRecord | None,
        timeout: float | None,
    ) -> MetricRecord | None:
        """Evaluates the newest model on clients, where an interruption came before that was over.

        A strategy may go by it, and what it has changed then is kept with the next release only.
        """
        number = self.server.round
        messages = list(self.configure_evaluate(number, arrays, config or ConfigRecord(), grid))
        replies: Iterable[Message] = []
        if messages:
            replies = grid.send_and_receive(messages, timeout=timeout)
        return self.aggregate_evaluate(number, replies)

    def _messages(
        self, t: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Returns the wrapped strategy's messages of round t."""
        patient: Any = PatientGrid(grid, self._patience)
        try:
            return list(self.strategy.configure_train(t + 1, arrays, config, patient))
        except TimeoutError:
            raise
        except Exception as error:
            if self._is_tried:
                raise
            raise ValueError(refusal_of(self.strategy, text_of(error))) from error

    def _try_once(self, t: int) -> None:
        """Refuses, before the first round of this program, a strategy that cannot train or be kept.

        Raises:
          ValueError: it does not move the model by one reply, or the folder does not keep its
            state.
        """
        if self._is_tried:
            return
        lost = try_strategy(self.strategy, t, self._model)
        if self._folder is not None and self._watch is not None:
            lost |= self._state.changes().lost | self._watch.changed()
            check_is_kept(lost, self._folder)
            if opaque := self._state.opaque:
                self._say(
                    f"the folder does not keep strategy.{shown(opaque)}: a run that is started "
                    "again has those that its program makes"
                )
        self._is_tried = True

    def _say(self, text: str) -> None:
        """Warns of something once."""
        if text not in self._said:
            self._said.add(text)
            log.warning("fedmf: %s", text)
