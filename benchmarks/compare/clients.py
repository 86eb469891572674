"""Rounds of federated training on the same models and sizes, by fedmf, pfl and stock TFF, and what
Flower's simulation costs a client that trains nothing.
"""

import asyncio
import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.compare.sitting import RATE, Case, Side
from benchmarks.compare.worker import Work

CLIENTS = 20
_ROUNDS = 60  # more than a sitting has turns
# Examples of a client, batch size, and learning rate, as `benchmarks.clients` has them.
_SIZES = {
    "logistic": (50, 10),
    "cnn": (50, 10),
    "lstm": (50, 10),
    "emnist": (100, 20),
    "full": (64, 16),
}
_WORDS = {"lstm": 1000, "full": 10_000}


def simulated(kind: str, model: str, clients: int) -> Work:
    """A kind of round of `benchmarks.simulation`, which says what it costs."""
    from benchmarks import simulation

    # Both end with this process's group.
    stack = contextlib.ExitStack()
    options = ("--model", model, "--clients", clients, "--passes", _ROUNDS)
    child = stack.enter_context(simulation.children((kind,), *options))[kind]

    def work(_: dict[str, Any], stack: contextlib.ExitStack = stack) -> dict[str, Any]:
        print(file=child.stdin, flush=True)
        row = simulation.read(kind, child)
        return {"seconds": row["seconds"] / clients, "cpu": row["cpu"] / clients}

    return work


def in_turns(run: Callable[[Callable[[], None]], Any], clients: int) -> Work:
    """The work of one round, of a library that runs all rounds by itself.

    Args:
      run: makes all rounds, and calls what it gets after each, which returns when the next is to
        begin. The first call, before round 0, makes no round.
      clients: of a round.
    """
    begin: queue.Queue[None] = queue.Queue()
    ended: queue.Queue[BaseException | None] = queue.Queue()

    def pause() -> None:
        ended.put(None)
        begin.get()

    def all_rounds() -> None:
        try:
            run(pause)
        except BaseException as error:
            ended.put(error)

    def wait() -> None:
        error = ended.get()
        if error is not None:
            raise error

    threading.Thread(target=all_rounds, daemon=True).start()
    wait()

    def work(_: dict[str, Any]) -> dict[str, Any]:
        begin.put(None)
        wait()
        return {"units": clients}

    return work


def torch_rounds(model: str, clients: int, part: str, threads: int | None = None) -> Work:
    """Returns the work of fedmf's rounds with a PyTorch model.

    Args:
      model: of `benchmarks.torch_tasks`.
      clients: of a round.
      part: "clients" for the seconds of client work with clipping and sums, or "round".
      threads: of the round; None for one on each processor.
    """
    from benchmarks.pytorch import train_rounds
    from benchmarks.torch_tasks import torch_task

    last_seconds: dict[str, float] = {}
    task = torch_task(model, clients)

    def run(pause: Callable[[], None]) -> None:
        def on_seconds(seconds: dict[str, float]) -> None:
            last_seconds.update(seconds)
            pause()

        pause()
        train_rounds(task, clients, _ROUNDS, on_seconds, threads=threads)

    work = in_turns(run, clients)

    def part_of_round(told: dict[str, Any]) -> dict[str, Any]:
        work(told)
        return {"seconds": last_seconds[part] / clients, "units": clients}

    return part_of_round


def pfl_model(model: str) -> Any:
    """Returns a network of `benchmarks.torch_networks`, with the methods that pfl needs."""
    import torch

    from benchmarks.torch_networks import NETWORKS

    class Trained(torch.nn.Module):
        """A network with the methods that pfl needs."""

        def __init__(self) -> None:
            super().__init__()
            self.network = NETWORKS[model]()

        def loss(self, x: Any, y: Any, is_eval: bool = False) -> Any:
            logits = self.network(x)
            return torch.nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())

        def metrics(self, x: Any, y: Any, is_eval: bool = False) -> dict[str, Any]:
            return {}

    return Trained()


def pfl_rounds(model: str, clients: int, threads: int | None = None) -> Work:
    """pfl: FedAvg with its Gaussian mechanism, clients one after the other; by default with
    PyTorch's own number of threads.
    """
    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel
    from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism

    if threads is not None:
        torch.set_num_threads(threads)
    examples, batch = _SIZES[model]
    shape = {"logistic": (30,)}.get(model, (1, 28, 28))
    rng = np.random.default_rng(0)

    def dataset(name: str) -> Any:
        if model in _WORDS:
            words = torch.from_numpy(rng.integers(1, _WORDS[model] + 1, (examples, 21)))
            return Dataset([words[:, :-1], words[:, 1:]], user_id=name)
        x = torch.from_numpy(rng.normal(size=(examples, *shape)).astype(np.float32))
        classes = 2 if model == "logistic" else 10
        return Dataset([x, torch.from_numpy(rng.integers(0, classes, examples))], user_id=name)

    names = [str(i) for i in range(clients)]
    data = {name: dataset(name) for name in names}
    users = FederatedDataset(data.__getitem__, get_user_sampler("minimize_reuse", names))
    network = pfl_model(model)
    trained = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(1.0, 1e-6))

    def run(pause: Callable[[], None]) -> None:
        class Pause(TrainingProcessCallback):
            def after_central_iteration(
                self, aggregate_metrics: Any, model: Any, *, central_iteration: int
            ) -> tuple[bool, Any]:
                pause()
                return False, Metrics()

        asyncio.set_event_loop(asyncio.new_event_loop())  # a thread has none, and pfl asks for it
        pause()
        FederatedAveraging().run(
            algorithm_params=NNAlgorithmParams(
                central_num_iterations=_ROUNDS,
                evaluation_frequency=10 * _ROUNDS,
                train_cohort_size=clients,
                val_cohort_size=0,
            ),
            backend=SimulatedBackend(training_data=users, val_data=users, postprocessors=[noise]),
            model=trained,
            model_train_params=NNTrainHyperParams(
                local_num_epochs=1, local_learning_rate=1.0, local_batch_size=batch
            ),
            model_eval_params=NNEvalHyperParams(local_batch_size=None),
            callbacks=[Pause()],
        )

    return in_turns(run, clients)


def flower_rounds(size: int, clients: int) -> Work:
    """Flower's simulation: the server sends the model, a client sends it back, nothing is trained
    or averaged.
    """
    import numpy as np
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    client = ClientApp()

    @client.train()
    def back(message: Any, _context: Any) -> Any:
        return Message(message.content, reply_to=message)

    record = ArrayRecord({"model": Array(np.zeros(size, np.float32))})

    def run(pause: Callable[[], None]) -> None:
        server = ServerApp()

        @server.main()
        def rounds(grid: Any, _context: Any) -> None:
            while len(list(grid.get_node_ids())) < clients:
                time.sleep(0.05)
            pause()
            for _ in range(_ROUNDS):
                messages = [
                    Message(RecordDict({"arrays": record}), node, "train")
                    for node in grid.get_node_ids()
                ]
                replies = list(grid.send_and_receive(messages))
                if len(replies) < clients or any(reply.has_error() for reply in replies):
                    raise RuntimeError("a client of Flower's simulation did not answer")
                pause()

        run_simulation(
            server_app=server,
            client_app=client,
            num_supernodes=clients,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )

    return in_turns(run, clients)


_TOY = {"clients": 2}
_simulated = functools.partial(Side, function="clients:simulated", environment="fedmf", small=_TOY)
_torch = functools.partial(Side, function="clients:torch_rounds", environment="torch", small=_TOY)
_pfl = functools.partial(Side, function="clients:pfl_rounds", small=_TOY, distribution="pfl")
_client_case = functools.partial(
    Case, value=RATE, cost="CPU ms", passes=5, unsaid=2, fresh=False, digits=1
)


def _fedmf(model: str) -> Side:
    # The next-word model has its own client work; the others what any Keras model has.
    kind = "compiled" if model == "lstm" else "autodiff"
    return _simulated(label="fedmf", arguments={"kind": kind, "model": model, "clients": CLIENTS})


def _pfl_sides(model: str) -> tuple[Side, Side]:
    arguments = {"model": model, "clients": CLIENTS}
    return (
        _pfl(label="pfl", arguments=arguments),
        _pfl(label="pfl, one thread", arguments=arguments | {"threads": 1}),
    )


def _case(work: str, model: str) -> Case:
    arguments = {"model": model, "clients": CLIENTS}
    return _client_case(
        work=f"a client, {work}",
        sides=(
            _fedmf(model),
            *_pfl_sides(model),
            _simulated(
                label="TFF as it comes",
                arguments={"kind": "stock", **arguments},
                distribution="tensorflow-federated",
            ),
        ),
        lower=False,
    )


def _torch_case(work: str, model: str) -> Case:
    """Returns a case of client work and whole rounds with a PyTorch model; pfl commits nothing."""
    arguments = {"model": model, "clients": CLIENTS}
    return _client_case(
        work=f"a client in PyTorch, {work}",
        sides=(
            _torch(label="fedmf", arguments=arguments | {"part": "clients"}),
            _torch(label="fedmf, whole rounds", arguments=arguments | {"part": "round"}),
            *_pfl_sides(model),
        ),
        lower=False,
    )


def _flower(work: str, model: str, size: int) -> Case:
    return _client_case(
        work=f"Flower's overhead beside a whole client of fedmf's, {work}",
        sides=(
            _fedmf(model),
            Side(
                label="Flower, nothing trained",
                function="clients:flower_rounds",
                arguments={"size": size, "clients": CLIENTS},
                small=_TOY,
                environment="flower",
                distribution="flwr",
            ),
        ),
        lower=None,
    )


CASES = (
    _case("logistic regression, 62 parameters", "logistic"),
    _case("CNN, 56,714 parameters", "cnn"),
    _case("LSTM, 92,172 parameters", "lstm"),
    _case("EMNIST CNN, 1,199,882 parameters", "emnist"),
    _torch_case("CNN, 56,714 parameters", "cnn"),
    _torch_case("EMNIST CNN, 1,199,882 parameters", "emnist"),
    _torch_case("LSTM, 92,172 parameters", "lstm"),
    _torch_case("published LSTM, 4,050,748 parameters", "full"),
    _flower("62 numbers", "logistic", 62),
    _flower("1,199,882 numbers", "emnist", 1_199_882),
)
