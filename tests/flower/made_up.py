"""A synthetic grid: nodes are functions of a message, and no process is started."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedmf
from fedmf.flower import MatrixFactorizationDP, tell_partition

ROUNDS = 6
APART = 3
COHORT = 4
MODEL = {"weights": (3, 2), "bias": (2,)}


def plan(rounds=ROUNDS, min_sep=APART, noise_multiplier=0.7, **options):
    config = fedmf.PlanConfig(
        rounds=rounds,
        min_sep=min_sep,
        family="banded",
        bands=min_sep,
        noise_multiplier=noise_multiplier,
        delta=1e-5,
        **options,
    )
    return config.plan()


def record(arrays):
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def arrays_of(message):
    [array_record] = message.content.array_records.values()
    return {name: array.numpy() for name, array in array_record.items()}


def initial(dtype=np.float32):
    return record({name: np.ones(shape, dtype) for name, shape in MODEL.items()})


def answer(message, arrays, **metrics):
    """Returns the reply with these arrays, by default of one example."""
    metric_record = MetricRecord({"num-examples": 1} | metrics)
    return Message(
        RecordDict({"arrays": record(arrays), "metrics": metric_record}), reply_to=message
    )


def pull_of(node):
    """Returns the vector towards which a node's training moves the model."""
    return np.random.default_rng([node, 5]).normal(size=8).astype(np.float32)


def trained(node, arrays):
    """Returns the model after a node's training: one step towards its pull."""
    flat = np.concatenate([array.ravel() for array in arrays.values()])
    step = (0.3 * (pull_of(node) - flat)).astype(np.float32)
    leaf_steps = np.split(step, np.cumsum([array.size for array in arrays.values()])[:-1])
    return {
        name: array + leaf_step.reshape(array.shape)
        for (name, array), leaf_step in zip(arrays.items(), leaf_steps, strict=True)
    }


def honest(message):
    return [answer(message, trained(message.metadata.dst_node_id, arrays_of(message)))]


def failing(message):
    return [Message(Error(1, "out of memory"), reply_to=message)]


class Grid:
    """The methods of a grid that strategies call.

    Args:
      nodes: ids, or a function that gives them.
      behave: node -> function of a message that gives its replies; honest ones otherwise.
      partition_of: node -> what it tells of itself; None where it knows no such query.
    """

    def __init__(self, nodes, behave=None, partition_of=None):
        self._nodes = nodes
        self._behave = behave or {}
        self._partition_of = partition_of
        self.asked = []  # the nodes of each training round
        self.sent = []  # the arrays of each training round

    def get_node_ids(self):
        nodes = self._nodes() if callable(self._nodes) else self._nodes
        return list(nodes)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        kind = messages[0].metadata.message_type if messages else None
        if kind == "query.partition":
            return [self._query(message) for message in messages]
        if kind == "train":
            self.asked.append(sorted(message.metadata.dst_node_id for message in messages))
            self.sent.append(arrays_of(messages[0]))
        return [
            reply
            for message in messages
            for reply in self._behave.get(message.metadata.dst_node_id, honest)(message)
        ]

    def _query(self, message):
        node = message.metadata.dst_node_id
        if self._partition_of is None:
            return failing(message)[0]
        app = ClientApp()
        tell_partition(app)
        config = {"partition-id": self._partition_of(node)}
        return app(message, Context(1, node, config, RecordDict(), {}))


def wrapped(
    folder=None, strategy=None, given=None, *, seed=7, clients_per_round=COHORT, population=None
):
    return MatrixFactorizationDP(
        strategy or FedAvg(fraction_evaluate=0.0),
        given or plan(),
        clients_per_round=clients_per_round,
        noise_seed=seed,
        folder=folder,
        population=population,
        zeroing_norm=1e6,
    )


class Odd(FedAvg):
    """A strategy whose next model is `change` of the average."""

    def __init__(self, change):
        super().__init__(fraction_evaluate=0.0)
        self.change = change

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        return record(self.change({name: array.numpy() for name, array in arrays.items()})), metrics


def flat(arrays):
    return np.concatenate([array.numpy().ravel() for array in arrays.values()])


def assert_arrays(arrays, model):
    """Checks that models are equal to the bit, and of the same dtypes."""
    for name, expected in model.items():
        actual = arrays[name] if isinstance(arrays, dict) else arrays[name].numpy()
        np.testing.assert_array_equal(actual, expected)
        assert actual.dtype == expected.dtype


def expected(given, asked, behave=trained, seed=7):
    """Returns the models after each round of FedAvg on the cohorts `asked`, from a Server alone."""
    server = fedmf.Server(
        given,
        shapes=list(MODEL.values()),
        clients_per_round=COHORT,
        noise_seed=seed,
        zeroing_norm=1e6,
    )
    model = {name: np.ones(shape, np.float32) for name, shape in MODEL.items()}
    models = []
    for nodes in asked:
        for node in nodes:
            next_model = behave(node, model)
            server.add([next_model[n].astype(np.float64) - model[n] for n in model], client=node)
        model = {
            name: model[name] + mean for name, mean in zip(model, server.release(), strict=True)
        }
        models.append(model)
    return models
