"""A Flower strategy with differential privacy, which trains with a `fedmf.Server`."""

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
from fedmf.flower.evaluation import number_from
from fedmf.flower.identity import log_plan, log_round
from fedmf.flower.nodes import Nodes, log, seconds_of
from fedmf.flower.record import StepRecord, recovered
from fedmf.flower.rounds import Replies, Round, add_updates, letter_of
from fedmf.flower.trial import attribute_list, check_strategy, step
from fedmf.flower.wrapped import WrappedStrategy
from fedmf.privacy.plan import Plan
from fedmf.server.folder import ServerConfig
from fedmf.server.server import Server
from fedmf.server.source import check_noise_seed
from fedmf.server.state import check_plan, check_single_run


class MatrixFactorizationDP(Strategy):
    """A Flower strategy that wraps a second strategy, and adds the noise and the guarantee of a
    plan.

    It wraps a strategy that moves a model by the average of its clients, such as FedAvg, FedAvgM,
    FedAdam, FedAdagrad, FedYogi or FedProx. A `fedmf.Server` draws the nodes of a round from the
    eligible ones, clips each update (reply minus model) as one vector, adds the updates with equal
    weights, adds the noise vector of the round, and divides by clients_per_round. The wrapped
    strategy sees one reply: the model plus this noisy mean.

    Formal guarantee: all models together have the (epsilon, delta)-DP of `plan` for each client,
    under the zero-out relation, as with `fedmf.Server`. A client is an id. Without a population it
    is a node id, which Flower gives to a registration of a SuperNode, and which identifies neither
    a person nor a device. With a population it is a partition id, which the node itself tells
    (`tell_partition`). The guarantee covers arrays alone. Therefore metrics of training are
    dropped; metrics of evaluation go to the wrapped strategy.

    Before the first round the wrapped strategy gets a synthetic reply, and its state is restored
    afterwards. A strategy that does not move the model by this reply is refused.

    With a folder the run survives a crash at any point: the same program, started again, resumes
    with the round after the newest release. The folder is that of a `fedmf.Server`. Each release is
    committed with the model before the round and with the state of the wrapped strategy, such as
    its momentum, from which the strategy's step is done again. A strategy whose rounds change
    values that no file can hold is refused before the first round.

    Replies that failed, come twice, answer another round, are not of a drawn node or have other
    arrays are dropped and counted, and so are evaluations that the wrapped strategy cannot
    aggregate. Fewer replies than clients_per_round do not change the divisor.

    Args:
      strategy: the wrapped one. Of its settings, min_available_nodes and min_train_nodes are waited
        for; clients_per_round decides how many nodes train.
      plan: plan from `calibrate` or `PlanConfig.plan`.
      clients_per_round: the most clients of a round, and the divisor of each sum.
      noise_seed: a non-negative int, secret and used for nothing else; "os" draws one. A folder
        with a server has its own seed, which is used.
      folder: a new one, or that of this run; None keeps everything in memory, where no crash is
        survived.
      population: the server draws from clients 0 .. population - 1, which are partition ids; a
        round without a connected client is noise alone. None for node ids. A simulated run needs a
        population to be resumed, because simulations give nodes new ids.
      zeroing_norm: an update with an entry above it counts as zero; None for no limit.

    Raises:
      TypeError: strategy is no Flower strategy, or an argument has another type.
      ValueError: the strategy needs metrics of training, the plan simulates a larger cohort,
        clients_per_round, zeroing_norm or population is out of range, or noise_seed is negative.

    Example:
      >>> import fedmf
      >>> from flwr.serverapp.strategy import FedAvg
      >>> config = fedmf.PlanConfig(rounds=8, min_sep=4, epsilon=8.0)
      >>> private = MatrixFactorizationDP(
      ...     FedAvg(), config.plan(), clients_per_round=10, noise_seed="os", folder=None
      ... )
      >>> private.plan.epsilon <= 8.0
      True
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
        check_single_run(plan)
        self.strategy = strategy
        self.plan = plan
        self._settings: dict[str, Any] = {
            "clients_per_round": clients_per_round,
            "zeroing_norm": zeroing_norm,
            "population": population,
        }
        # The constructor of ServerConfig checks the settings.
        ServerConfig(shapes=[(1,)], **self._settings)
        self._seed = check_noise_seed(noise_seed)
        self._folder = arguments.checked_folder(folder)
        self._server: Server | None = None
        self._nodes: Nodes | None = None
        # `_model` is the model before the current round, and `_next_model` the model after the
        # newest release. `_round` is the current round until its step is done.
        self._model: dict[str, np.ndarray] = {}
        self._next_model: ArrayRecord | None = None
        self._round: Round | None = None
        # `_dropped` counts the dropped replies of the round by their reason. `_last_evaluated` is
        # the number of rounds before the last evaluation on clients.
        self._dropped: Counter[str] = Counter()
        self._last_evaluated = 0
        self._patience = 3600.0  # Seconds to wait for nodes.
        self._wrapped = WrappedStrategy(strategy)
        self._past_warnings: set[str] = set()

    @property
    def server(self) -> Server:
        """The `fedmf.Server` that enforces the plan. It has the ledger, the audit and the
        statement.

        Raises:
          ValueError: before the first call of `start` or `configure_train`.
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
        """Trains for some rounds as Flower's `Strategy.start` does, or resumes a run that was
        interrupted.

        Args:
          grid: grid of the ServerApp.
          initial_arrays: the model before the first round; a resumed run has its own.
          num_rounds: number of rounds of the whole run, with those before an interruption; None for
            all rounds of the plan.
          timeout: seconds to wait for replies, and for eligible nodes; None for no limit.
          train_config, evaluate_config: configs that Flower's `start` takes.
          evaluate_fn: function that Flower's `start` takes; rounds are numbered over the whole run.

        Returns:
          Flower's result of the rounds of this call, numbered over the whole run.

        Raises:
          TypeError: an argument has another type.
          ValueError: num_rounds is not positive or exceeds the rounds of the plan, timeout is
            negative, or the folder holds another run.
          TimeoutError: no eligible node was connected in time.
        """
        arguments.check_grid(grid)
        arguments.check_arrays("initial_arrays", initial_arrays)
        arguments.check_config("train_config", train_config, is_optional=True)
        arguments.check_config("evaluate_config", evaluate_config, is_optional=True)
        arguments.check_evaluate_fn(evaluate_fn)
        total_rounds = self.plan.participation.rounds
        if num_rounds is not None:
            rounds_hint = "the plan has no more rounds, and its guarantee covers no others"
            total_rounds = checks.integer(
                "num_rounds", num_rounds, low=1, high=total_rounds, hint=rounds_hint
            )
        self._patience = seconds_of(timeout)
        self._begin(initial_arrays)
        self._undo_interrupted()
        try:
            return self._train(
                grid,
                initial_arrays,
                total_rounds,
                timeout,
                train_config,
                evaluate_config,
                evaluate_fn,
            )
        except BaseException:  # An interrupt in this call must undo the strategy's changes as well.
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
        """Trains until the run has `rounds` rounds in total, including those before an
        interruption.
        """
        self._finish_round()
        model_record = initial_arrays if self._next_model is None else self._next_model
        num_rounds_done = self.server.round
        final_metrics = None
        if 0 < num_rounds_done < rounds and self._last_evaluated != num_rounds_done:
            final_metrics = self._evaluate_again(grid, model_record, evaluate_config, timeout)

        def evaluate_copy(number: int, model: ArrayRecord) -> MetricRecord | None:
            assert evaluate_fn is not None
            return evaluate_fn(num_rounds_done + number, copy_of(model))

        server_evaluation = evaluate_copy if evaluate_fn else None
        training_result = super().start(
            grid,
            copy_of(model_record),
            max(0, rounds - num_rounds_done),
            timeout,
            train_config,
            evaluate_config,
            server_evaluation,
        )
        if not training_result.arrays:
            training_result.arrays = copy_of(model_record)
        number_from(training_result, num_rounds_done)
        if final_metrics is not None:
            training_result.evaluate_metrics_clientapp[num_rounds_done] = final_metrics
        return training_result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns the training messages of a round, one for each node that the server draws.

        Args:
          server_round: Flower's number, not used: the server counts rounds, also for the wrapped
            strategy.
          arrays: the model.
          config: config for the clients.
          grid: grid of the ServerApp.

        Raises:
          ValueError: arrays that are no floats or not those of the run; all rounds are done.
          TimeoutError: no eligible node was connected in time.
        """
        arguments.check_sending(server_round, arrays, config, grid)
        self._begin(arrays)
        self._undo_interrupted()
        self._finish_round()
        array_names = list(self._model)
        self._model = in_order(floats(arrays), array_names)
        t = self.server.round
        added_clients: set[int] = set()
        if self._round is not None:  # The round was interrupted, so its messages are created again.
            added_clients = self._round.added
        under_way = Round(
            t=t, before=self._wrapped.state.changes().state, model=self._model, added=added_clients
        )
        self._round = under_way
        model_record = as_record(self._model)
        train_messages = self._wrapped.messages(t, model_record, config, grid, self._patience)
        round_letter = letter_of(type(self.strategy).__name__, train_messages, self._model)
        self._wrapped.try_once(t, self._model, self._folder, self._warn_once)
        assert self._nodes is not None
        client_by_node = self._nodes.draw(grid, self._patience, added_clients)
        under_way.after, lost_values = self._wrapped.state.changes()
        if self._folder is not None and lost_values:
            self._warn_once(
                f"the folder does not keep strategy.{attribute_list(lost_values)}, which a "
                "resumed run therefore does not restore"
            )
        under_way.asked = client_by_node
        under_way.message_type = round_letter.message_type
        num_rounds = self.plan.participation.rounds
        log.info("fedmf: round %d of %d goes to %d nodes", t + 1, num_rounds, len(client_by_node))
        return [round_letter.to(node, t) for node in client_by_node]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Returns the next model, which the wrapped strategy computes from the noisy mean of the
        replies. Its only reply is the model plus the noisy mean of the clients' updates.

        Args:
          server_round: Flower's number, not used.
          replies: replies of the nodes, in any order.

        Returns:
          The model; and the private metrics of the round, if the plan pays for them. Metrics in the
          replies are dropped.

        Raises:
          ValueError: no reply of this run has had the arrays that were sent; or `configure_train`
            was not called before.
          OSError: the release could not be written; start again.
        """
        arguments.check_round(server_round)
        reply_messages = arguments.checked_replies(replies)
        under_way = self._round
        if under_way is None or under_way.asked is None:
            raise ValueError("no round is under way: call configure_train first")
        if not under_way.is_summed:
            self._add(under_way, reply_messages)
        self._finish_round()
        assert self._next_model is not None
        return copy_of(self._next_model), record_of(self.server.metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Returns the messages of an evaluation on clients. The wrapped strategy makes them, and
        chooses the nodes.
        """
        arguments.check_sending(server_round, arrays, config, grid)
        round_number = self._server.round if self._server else server_round
        try:
            evaluation_messages = self._wrapped.evaluation_messages(
                round_number, arrays, config, grid, self._patience
            )
        except TimeoutError as error:
            log.warning("fedmf: round %d is not evaluated on clients: %s", round_number, error)
            return []
        if evaluation_messages:
            self._warn_once(
                "metrics of evaluation on clients are exact functions of their data, which the "
                "guarantee does not cover: do not publish them, or evaluate on the server "
                "(evaluate_fn)"
            )
        return evaluation_messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Returns the metrics of an evaluation, as the wrapped strategy aggregates them. They have
        no noise, and the guarantee does not cover them.

        Replies that it cannot aggregate are dropped and counted.
        """
        arguments.check_round(server_round)
        reply_messages = arguments.checked_replies(replies)
        round_number = self._server.round if self._server else server_round
        metrics, dropped = self._wrapped.evaluate(round_number, reply_messages)
        self._last_evaluated = round_number
        self._wrapped.end_evaluation()
        if dropped:
            dropped_counts = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
            log.warning(
                "fedmf: evaluation after round %d: dropped: %s", round_number, dropped_counts
            )
        return metrics

    def summary(self) -> None:
        """Logs the plan with its guarantee so far and after all rounds, and the wrapped strategy's
        summary.
        """
        num_released = self._server.round if self._server else 0
        log_plan(self.plan, self._settings["clients_per_round"], num_released)
        self.strategy.summary()

    def _begin(self, arrays: ArrayRecord) -> None:
        """Creates the server of a new run, or opens that of an interrupted run, in the first call.
        Later calls only check that the model has the run's arrays.
        """
        initial_model = floats(arrays)
        if self._server is not None:
            if shapes_of(self._model) != shapes_of(in_order(initial_model, list(self._model))):
                raise ValueError(
                    f"arrays have the names and shapes {shapes_of(initial_model)}, and the run's "
                    f"are {shapes_of(self._model)}: give a model of the same"
                )
            return
        self._wrapped.begin(has_folder=self._folder is not None)
        self._model = initial_model
        run_folder = self._folder
        if run_folder is None or not (run_folder / "server.json").exists():
            array_shapes = list(shapes_of(initial_model).values())
            server = Server(
                self.plan,
                shapes=array_shapes,
                noise_seed=self._seed,
                folder=run_folder,
                **self._settings,
            )
        else:
            server = Server.open(run_folder)
            try:
                self._recover(server, run_folder)
            except BaseException:
                server.close()
                raise
            log.info("fedmf: %s resumes with round %d", run_folder, server.round + 1)
        server.system = "flower"
        self._server = server
        self._nodes = Nodes(
            server, self._settings["population"], self._settings["clients_per_round"]
        )

    def _recover(self, server: Server, folder: pathlib.Path) -> None:
        """Restores the state before the step of the newest release, so that the step can be
        repeated.
        """
        self._model, record = recovered(server, folder, self.plan, self._settings, self._model)
        if record is None:
            self._next_model = as_record(self._model)
            return
        self._wrapped.state.restore(record.state)
        self._round = Round(
            t=server.round - 1,
            before=record.state,
            model=record.model,
            after=record.state,
            is_summed=True,
        )

    def _add(self, under_way: Round, messages: Iterable[Message]) -> None:
        """Adds the updates in the replies to the server's sum."""
        replies = Replies(messages, under_way, bool(self.plan.private_metrics))
        add_updates(self.server, under_way, replies)
        if replies.has_unpaid_metrics:
            self._warn_once(
                "metrics that clients send with their updates are dropped: they are exact "
                "functions of the clients' data, which the guarantee does not cover"
            )
        under_way.is_summed = True
        self._dropped = replies.dropped

    def _finish_round(self) -> None:
        """Releases the noisy mean of the current round if all its replies are added, and lets the
        wrapped strategy make its step.

        After an interrupt or an error it may be called again.

        Raises:
          OSError: the release could not be written.
        """
        under_way = self._round
        server = self.server
        if under_way is None or not under_way.is_summed:
            return
        t = under_way.t
        if server.round == t:
            assert under_way.after is not None
            record_arrays: list[np.ndarray] = []
            if self._folder is not None:
                record_arrays = StepRecord(t, under_way.model, under_way.after).to_arrays()
            server.release(before=record_arrays)
        # After a restart, `asked` is None because the round was logged before.
        if under_way.asked is not None:
            log_round(self.plan, t, len(under_way.added), self._dropped)
            under_way.asked = None
        under_way.is_step_begun = True
        mean_update = server.last_release
        assert mean_update is not None
        self._next_model = step(self.strategy, t, under_way.model, mean_update)
        self._round = None

    def _undo_interrupted(self) -> None:
        """Restores the state that the wrapped strategy had before a call that was interrupted.

        This is done at once and not in the next `start`, so that changes which somebody makes to
        the strategy before then are not lost.
        """
        self._wrapped.undo_evaluation()
        if self._round is not None:
            self._round.undo_interrupted(self._wrapped.state)

    def _evaluate_again(
        self,
        grid: Grid,
        arrays: ArrayRecord,
        config: ConfigRecord | None,
        timeout: float | None,
    ) -> MetricRecord | None:
        """Evaluates the newest model on clients again, if the run was interrupted before its
        evaluation ended.

        The wrapped strategy may depend on the evaluation, and its changes by one are committed only
        with the next release.
        """
        round_number = self.server.round
        evaluation_messages = list(
            self.configure_evaluate(round_number, arrays, config or ConfigRecord(), grid)
        )
        replies: Iterable[Message] = []
        if evaluation_messages:
            replies = grid.send_and_receive(evaluation_messages, timeout=timeout)
        return self.aggregate_evaluate(round_number, replies)

    def _warn_once(self, text: str) -> None:
        """Logs a warning, unless the same text was logged before."""
        if text not in self._past_warnings:
            self._past_warnings.add(text)
            log.warning("fedmf: %s", text)
