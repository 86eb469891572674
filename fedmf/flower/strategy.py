"""The strategy: from Flower's messages to a server's updates, and back."""

import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fedmf import checks
from fedmf.files import expanded
from fedmf.flower.arrays import (
    SavedRound,
    as_record,
    fitted,
    floats,
    in_order,
    metrics_of,
    read_model,
    record_of,
    shapes_of,
    update_of,
    write_model,
)
from fedmf.flower.evaluation import evaluate, text_of
from fedmf.flower.identity import check_same_run, epsilons
from fedmf.flower.nodes import Nodes, PatientGrid, log
from fedmf.flower.strategy_state import StrategyState, restore, round_state
from fedmf.flower.trial import check_is_kept, next_model, refusal_of, shown, try_strategy
from fedmf.privacy.plan import Plan
from fedmf.server.folder import ServerConfig
from fedmf.server.server import Server
from fedmf.server.source import check_noise_seed
from fedmf.server.state import check_plan

_MODEL = "model.npz"


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

    Before the first round a copy of the wrapped strategy gets a synthetic reply: one that does not
    move the model by it is refused.

    With a folder the run survives a crash at any point: the same program, started again, goes on
    with the round after the newest release. The folder holds the server (see `fedmf.Server`) and
    model.npz: the arrays, and the attributes of the wrapped strategy that rounds changed (its
    momentum), written before a message goes out. A release that nobody used is applied to them.
    A strategy with attributes that the file cannot hold is refused before the first round.

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
        if not isinstance(strategy, Strategy):
            raise TypeError(
                f"strategy={strategy!r} is no flwr.serverapp.strategy.Strategy: wrap one such as "
                "FedAvg()"
            )
        takes_metrics = getattr(strategy, "train_metrics_aggr_fn", aggregate_metricrecords)
        if takes_metrics is not aggregate_metricrecords:
            raise ValueError(
                f"strategy.train_metrics_aggr_fn={takes_metrics!r} needs metrics of clients, which "
                "the guarantee does not cover and which are dropped: leave it out"
            )
        check_plan(plan)
        self.strategy, self.plan = strategy, plan
        self._settings: dict[str, Any] = {
            "clients_per_round": clients_per_round,
            "zeroing_norm": zeroing_norm,
            "population": population,
        }
        ServerConfig(shapes=[(1,)], **self._settings)  # refused before any node is asked
        self._seed = check_noise_seed(noise_seed)
        # Absolute, whatever becomes of the working folder.
        self._folder = None if folder is None else expanded(folder).absolute()
        self._server: Server | None = None
        self._nodes: Nodes | None = None
        self._model: dict[str, np.ndarray] = {}  # of the round under way, by name
        self._moved: ArrayRecord | None = None  # after the newest release
        self._asked: dict[int, int] | None = None  # node -> client
        self._patience = 3600.0
        self._state = StrategyState(strategy)
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
        timeout: float = 3600,
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
          timeout: how long to wait for replies, and for nodes that may come, in seconds.
          train_config, evaluate_config: as of Flower.
          evaluate_fn: as of Flower; rounds are numbered over the whole run.

        Returns:
          Flower's result, of the rounds done here, numbered over the whole run.

        Raises:
          TypeError, ValueError: naming the argument, its value and what to do instead.
          TimeoutError: no node that may come was connected in time.
        """
        most = self.plan.participation.rounds
        hint = "the plan has no more rounds, and its guarantee covers no others"
        rounds = (
            most
            if num_rounds is None
            else checks.integer("num_rounds", num_rounds, low=1, high=most, hint=hint)
        )
        self._begin(initial_arrays)
        arrays = initial_arrays if self._moved is None else self._moved
        self._patience = timeout
        done = self.server.round

        def evaluate(number: int, model: ArrayRecord) -> MetricRecord | None:
            assert evaluate_fn is not None
            return evaluate_fn(done + number, model)

        result = super().start(
            grid,
            arrays,
            max(0, rounds - done),
            timeout,
            train_config,
            evaluate_config,
            evaluate if evaluate_fn else None,
        )
        if not result.arrays:
            result.arrays = arrays
        for metrics in (
            "train_metrics_clientapp",
            "evaluate_metrics_clientapp",
            "evaluate_metrics_serverapp",
        ):
            by_round = getattr(result, metrics).items()
            setattr(result, metrics, {done + number: said for number, said in by_round})
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
        self._begin(arrays)
        names = list(self._model)
        self._model = in_order(floats(arrays), names)
        if list(arrays) != names:
            arrays = as_record(self._model)
        t = self.server.round
        before = self._state.changes(self.strategy).kept if self._folder else {}
        messages = self._messages(t, arrays, config, grid)
        if not messages:
            raise ValueError(
                f"strategy={type(self.strategy).__name__} sends no message for training: let it "
                "train one node at least (fraction_train, min_train_nodes)"
            )
        content = messages[0].content
        if any(m.content is not content and m.content != content for m in messages):
            raise ValueError(
                f"strategy={type(self.strategy).__name__} sends nodes messages of their own, and "
                "the nodes that train are drawn by the server: use one that sends all the same"
            )
        self._try_once(t)
        assert self._nodes is not None
        self._asked = self._nodes.draw(grid, self._patience)
        if self._folder is not None:  # before anybody sees it
            state, lost = round_state(self._state, self.strategy, before)
            write_model(self._folder / _MODEL, SavedRound(t, self._model, before, state))
            if lost:
                self._say(
                    f"the folder does not keep strategy.{shown(lost)}: a run that is started again "
                    "goes on without"
                )
        log.info(
            "fedmf: round %d of %d goes to %d nodes",
            t + 1,
            self.plan.participation.rounds,
            len(self._asked),
        )
        return [
            Message(content, node, MessageType.TRAIN, group_id=str(t + 1)) for node in self._asked
        ]

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
          OSError: the release could not be written; start the program again.
        """
        if self._asked is None:
            raise ValueError("no round is under way: call configure_train first")
        server, asked, t = self.server, dict(self._asked), self.server.round
        dropped: Counter[str] = Counter()
        misfit = ""
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                dropped["failed"] += 1
            elif reply.metadata.group_id != str(t + 1):
                dropped["of another round"] += 1
            elif node not in self._asked:
                dropped["of nodes that were not drawn"] += 1
            elif node not in asked:
                dropped["come twice"] += 1
            else:
                try:
                    update = update_of(reply.content, self._model)
                    metrics = metrics_of(reply.content) if self.plan.private_metrics else None
                except Exception as error:  # whatever a hostile client makes of its bytes
                    dropped["with other arrays"] += 1
                    misfit = misfit or " ".join(str(error).split())
                    continue
                server.add(update, client=asked.pop(node), metrics=metrics)
                if metrics is None and any(map(len, reply.content.metric_records.values())):
                    self._say(
                        "metrics that clients send with their updates are dropped: they are exact "
                        "functions of the clients' data, which the guarantee does not cover"
                    )
        came = len(self._asked) - len(asked)
        misfits = dropped["with other arrays"]
        # Clients that send others are hostile, and stop nobody; where all have done so from the
        # first round on it is the program.
        is_everybody = misfits > 1 or len(self._asked) == 1
        if misfits and not came and is_everybody and not self._has_worked():
            raise ValueError(
                f"no reply of round {t + 1} has the arrays that were sent ({misfit}): let clients "
                "send back all of them, of the same names and shapes, as floats"
            )
        missing = len(asked) - sum(dropped[why] for why in ("failed", "with other arrays"))
        if missing > 0:
            dropped["missing"] = missing
        mean = server.release()
        self._asked = None
        self._log_round(t, came, dropped)
        self._moved = self._step(t, mean)
        return self._moved, record_of(server.metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages, to nodes that it draws."""
        number = self._server.round if self._server else server_round
        patient: Any = PatientGrid(grid, self._patience)
        try:
            messages = list(self.strategy.configure_evaluate(number, arrays, config, patient))
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
        number = self._server.round if self._server else server_round
        metrics, dropped = evaluate(self.strategy, number, list(replies))
        if dropped:
            lost = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
            log.warning("fedmf: evaluation after round %d: dropped: %s", number, lost)
        return metrics

    def summary(self) -> None:
        """Logs the plan, and what it guarantees so far and in all."""
        plan = self.plan
        log.info("\t├──> Matrix-factorization differential privacy (fedmf):")
        log.info("\t│\t├── Mechanism: %s", plan.mechanism.family)
        log.info(
            "\t│\t├── Noise multiplier %.6g, clip norm %g, divisor %d",
            plan.noise_multiplier,
            plan.clip_norm,
            self._settings["clients_per_round"],
        )
        log.info("\t│\t├── Who takes part: %s", plan.participation)
        log.info("\t│\t└── %s", epsilons(self.plan, self._server.round if self._server else 0))
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
                self._moved = self._recover(server, folder)
            except BaseException:
                server.close()
                raise
            log.info("fedmf: %s goes on with round %d", folder, server.round + 1)
        server.system = "flower"
        self._server, self._nodes = server, Nodes(server, self._settings["population"])

    def _recover(self, server: Server, folder: pathlib.Path) -> ArrayRecord:
        """Checks that the folder is of this run, and returns the model after its newest release."""
        begun = json.loads((folder / "server.json").read_text())["server"]
        path = folder / _MODEL
        saved = read_model(path) if path.exists() or server.round else None
        if saved is None:
            self._model = fitted(self._model, begun["shapes"])
        else:
            self._model = in_order(self._model, list(saved.model))
        shapes = [list(shape) for shape in shapes_of(self._model).values()]
        settings = {"shapes": shapes, **self._settings}
        check_same_run(folder, (server.plan, begun), (self.plan, settings))
        if saved is None:
            return as_record(self._model)
        is_of_release = saved.round in (server.round - 1, server.round)
        if list(saved.model) != list(self._model) or not is_of_release:
            raise ValueError(
                f"{path} is of round {saved.round + 1} with the arrays {shapes_of(saved.model)}, "
                f"and the server has released {server.round} rounds for {shapes_of(self._model)}: "
                "put back its own newest file"
            )
        self._model = saved.model
        restore(self.strategy, saved.before)
        mean = server.last_release
        if saved.round == server.round or mean is None:
            return as_record(saved.model)
        restore(self.strategy, saved.after)
        arrays = self._step(saved.round, mean)
        self._model = floats(arrays)
        return arrays

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

    def _has_worked(self) -> bool:
        """Returns whether a client's update has fitted in any round of this run."""
        return self.server.ledger.observed().participations > 0

    def _try_once(self, t: int) -> None:
        """Refuses, before the first round of this program, a strategy that cannot train or be kept.

        Raises:
          ValueError: it does not move the model by one reply, or the folder does not keep its
            state.
        """
        if self._is_tried:
            return
        lost = try_strategy(self.strategy, t, self._model)
        if self._folder is not None:
            check_is_kept(lost | self._state.changes(self.strategy).lost, self._folder)
            if opaque := self._state.opaque:
                self._say(
                    f"the folder does not keep strategy.{shown(opaque)}: a run that is started "
                    "again has those that its program makes"
                )
        self._is_tried = True

    def _step(self, t: int, mean: Sequence[np.ndarray]) -> ArrayRecord:
        """What the wrapped strategy makes of round t's release, as one reply of weight 1."""
        moved = {
            name: (array + change).astype(array.dtype)
            for (name, array), change in zip(self._model.items(), mean, strict=True)
        }
        result = next_model(self.strategy, t, self._model, moved)
        if result is None:
            log.warning("fedmf: the strategy gives no model after round %d: it stays", t + 1)
        return as_record(self._model if result is None else result)

    def _log_round(self, t: int, came: int, dropped: Mapping[str, int]) -> None:
        lost = ", ".join(f"{number} {why}" for why, number in dropped.items() if number)
        log.info(
            "fedmf: round %d of %d: %d updates%s; %s",
            t + 1,
            self.plan.participation.rounds,
            came,
            f" (dropped: {lost})" if lost else "",
            epsilons(self.plan, self._server.round if self._server else 0),
        )
        if not came:
            log.warning("fedmf: no update came, so that round %d moves by noise alone", t + 1)

    def _say(self, text: str) -> None:
        """Warns of something once."""
        if text not in self._said:
            self._said.add(text)
            log.warning("fedmf: %s", text)
