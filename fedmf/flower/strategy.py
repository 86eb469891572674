"""The strategy: from Flower's messages to a server's updates, and back."""

import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from fedmf import checks
from fedmf.files import expanded
from fedmf.flower.arrays import (
    as_record,
    floats,
    metrics_of,
    read_model,
    shapes_of,
    update_of,
    write_model,
)
from fedmf.flower.nodes import Nodes, PatientGrid, log
from fedmf.privacy.plan import Plan
from fedmf.privacy.stopping import stopped_after
from fedmf.server.folder import ServerConfig
from fedmf.server.server import Server
from fedmf.server.source import check_noise_seed
from fedmf.server.state import check_plan, plan_mark

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

    With a folder the run survives a crash at any point: the same program, started again, goes on
    with the round after the newest release. The folder holds the server (see `fedmf.Server`) and
    model.npz, the arrays and the wrapped strategy's own arrays (its momentum) of the round under
    way, written before a message goes out. A release that nobody used is applied to them.

    Replies that failed, come twice, answer another round, are not of a drawn node or have other
    arrays are dropped and counted. Fewer replies than clients_per_round do not change the divisor.

    Args:
      strategy: what it wraps. How many nodes train is clients_per_round; its min_available_nodes
        and min_train_nodes are waited for.
      plan: from `calibrate` or `PlanConfig.plan`.
      clients_per_round: the most clients of a round, and what each sum is divided by.
      noise_seed: a non-negative int, secret and used for nothing else; "os" draws one. A folder
        that holds a server goes on with its own.
      folder: a new one, or that of this run; None keeps all in memory, and nothing survives.
      population: clients are the partition ids 0 .. population - 1, of which the server draws;
        None for node ids. Runs that are simulated need it to be gone on with: a simulation gives
        its nodes new ids.
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
        self._folder = None if folder is None else expanded(folder)
        self._server: Server | None = None
        self._nodes: Nodes | None = None
        self._model: dict[str, np.ndarray] = {}  # of the round under way, by name
        self._moved: ArrayRecord | None = None  # after the newest release
        self._asked: dict[int, int] | None = None  # node -> client
        self._patience = 3600.0
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
        self._model = floats(arrays)
        t = self.server.round
        patient: Any = PatientGrid(grid, self._patience)
        messages = list(self.strategy.configure_train(t + 1, arrays, config, patient))
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
        assert self._nodes is not None
        self._asked = self._nodes.draw(grid, self._patience)
        if self._folder is not None:  # before anybody sees it
            write_model(self._folder / _MODEL, t, self._model, self.strategy)
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
          ValueError: no reply has the arrays that were sent; no round is under way.
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
        # One client that sends others is hostile, and stops nobody; where all do it is the program.
        if misfits and not came and (misfits > 1 or len(self._asked) == 1):
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
        return self._moved, _record_of(server.metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages, to nodes that it draws."""
        number = self._server.round if self._server else server_round
        messages = list(self.strategy.configure_evaluate(number, arrays, config, grid))
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
        """The wrapped strategy's, without any noise: not covered by the guarantee."""
        number = self._server.round if self._server else server_round
        return self.strategy.aggregate_evaluate(number, replies)

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
        log.info("\t│\t└── %s", self._epsilons())
        self.strategy.summary()

    def _begin(self, arrays: ArrayRecord) -> None:
        """Makes the server or opens it, once."""
        model = floats(arrays)
        if self._server is not None:
            if shapes_of(self._model) != shapes_of(model):
                raise ValueError(
                    f"arrays have the names and shapes {shapes_of(model)}, and the run's are "
                    f"{shapes_of(self._model)}: give a model of the same"
                )
            return
        self._model, folder = model, self._folder
        shapes = list(shapes_of(model).values())
        if folder is None or not (folder / "server.json").exists():
            server = Server(
                self.plan, shapes=shapes, noise_seed=self._seed, folder=folder, **self._settings
            )
        else:
            server = Server.open(folder)
            try:
                self._check_same(server.plan, folder, shapes)
                if (folder / _MODEL).exists() or server.round:
                    self._moved = self._recover(server, folder / _MODEL)
            except BaseException:
                server.close()
                raise
            log.info("fedmf: %s goes on with round %d", folder, server.round + 1)
        server.system = "flower"
        self._server, self._nodes = server, Nodes(server, self._settings["population"])

    def _check_same(
        self, plan: Plan, folder: pathlib.Path, shapes: Sequence[tuple[int, ...]]
    ) -> None:
        """Refuses to go on with another plan, model or divisor than the folder's."""
        plans = (self.plan, plan)
        if len({(plan_mark(p), p.participation, str(p.sampling), p.delta) for p in plans}) > 1:
            raise ValueError(
                f"folder={str(folder)!r} keeps another plan than the one given: give the plan "
                "that it was begun with, or another folder"
            )
        begun = json.loads((folder / "server.json").read_text())["server"]
        for name, value in {"shapes": [list(shape) for shape in shapes], **self._settings}.items():
            if begun[name] != value:
                raise ValueError(
                    f"folder={str(folder)!r} was begun with {name}={begun[name]} and not {value}: "
                    "give the same, or another folder"
                )

    def _recover(self, server: Server, path: pathlib.Path) -> ArrayRecord:
        """The model after the newest release, from that before it."""
        at, model = read_model(path, self.strategy)
        if list(model) != list(self._model) or at not in (server.round - 1, server.round):
            raise ValueError(
                f"{path} is of round {at + 1} with the arrays {shapes_of(model)}, and the server "
                f"has released {server.round} rounds for {shapes_of(self._model)}: put back its "
                "own newest file"
            )
        self._model = model
        mean = server.last_release
        if at == server.round or mean is None:
            return as_record(model)
        arrays = self._step(at, mean)
        self._model = floats(arrays)
        return arrays

    def _step(self, t: int, mean: Sequence[np.ndarray]) -> ArrayRecord:
        """What the wrapped strategy makes of round t's release, as one reply of weight 1."""
        moved = {
            name: (array + change).astype(array.dtype)
            for (name, array), change in zip(self._model.items(), mean, strict=True)
        }
        weight = MetricRecord({getattr(self.strategy, "weighted_by_key", "num-examples"): 1.0})
        key = getattr(self.strategy, "arrayrecord_key", "arrays")
        reply = Message(
            RecordDict({key: as_record(moved), "metrics": weight}), 0, MessageType.TRAIN
        )
        arrays, _ = self.strategy.aggregate_train(t + 1, [reply])
        return as_record(self._model) if arrays is None else arrays

    def _epsilons(self) -> str:
        """Epsilon so far and of the whole plan, as a line of the log."""
        plan, t = self.plan, self._server.round if self._server else 0
        n = plan.participation.rounds
        whole = f"epsilon {plan.epsilon:.4g} in all {n} rounds, delta {plan.delta:g}"
        if not 0 < t < n:
            return whole
        try:
            so_far = stopped_after(plan, t).epsilon
        except ValueError:  # a plan whose first rounds have no guarantee of their own
            return f"{whole}, stated for all rounds together"
        return f"epsilon {so_far:.4g} after {t} rounds, if no output decides to end here; {whole}"

    def _log_round(self, t: int, came: int, dropped: Mapping[str, int]) -> None:
        lost = ", ".join(f"{number} {why}" for why, number in dropped.items() if number)
        log.info(
            "fedmf: round %d of %d: %d updates%s; %s",
            t + 1,
            self.plan.participation.rounds,
            came,
            f" (dropped: {lost})" if lost else "",
            self._epsilons(),
        )
        if not came:
            log.warning("fedmf: no update came, so that round %d moves by noise alone", t + 1)

    def _say(self, text: str) -> None:
        """Warns of something once."""
        if text not in self._said:
            self._said.add(text)
            log.warning("fedmf: %s", text)


def _record_of(metrics: dict[str, Any] | None) -> MetricRecord | None:
    """Private metrics as Flower has them: numbers, the deviation of "loss" as "loss_stddev"."""
    if metrics is None:
        return None
    deviations = {f"{name}_stddev": value for name, value in metrics["stddev"].items()}
    said = metrics | deviations
    return MetricRecord({name: said[name] for name in said if isinstance(said[name], float)})
