"""Client work and server optimizers train the same model in our loop and in TFF's process."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from fedmf import federated
from fedmf.federated.examples import count
from fedmf.federated.execution import client_work
from fedmf.federated.training.loop import client_epochs
from fedmf.federated.training.optimizers import server_optimizer
from tests.federated.run_small import config
from tests.federated.small_task import small_task

pytestmark = pytest.mark.tensorflow

# Every optimizer on each side, FedProx, several epochs and a limit on batches.
WORK = [
    {
        "client_momentum": 0.5,
        "client_epochs": 2,
        "server_optimizer": "adam",
        "server_momentum": 0.9,
    },
    {
        "client_optimizer": "adam",
        "client_learning_rate": 0.05,
        "client_batches": 1,
        "server_optimizer": "yogi",
    },
    {"client_optimizer": "yogi", "client_learning_rate": 0.05, "server_optimizer": "adagrad"},
    {
        "client_optimizer": "adagrad",
        "client_epochs": 3,
        "client_batches": 4,
        "proximal_strength": 0.5,
    },
]


@pytest.mark.parametrize("work", WORK, ids=lambda work: " ".join(map(str, work.values())))
@pytest.mark.slow
def test_fast_and_tff_train_the_same_model(work, tmp_path, monkeypatch):
    def train(name, execution="fast"):
        settings = config(execution, rounds=4, **({"server_learning_rate": 0.1} | work))
        return federated.train(
            small_task(), settings, folder=tmp_path / name, noise_seed=1, progress=False
        )

    runs = [train("tff", "tff"), train("side by side")]
    monkeypatch.setattr(client_work, "SMALL_MODEL", 0)
    theirs, *ours = [*runs, train("in turn")]
    initial = [v.numpy() for v in small_task().build_model(3).trainable_variables]
    for run in ours:
        for a, b, start in zip(run.weights, theirs.weights, initial, strict=True):
            assert np.abs(a - start).max() > 0.02
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        for row, expected in zip(run.metrics, theirs.metrics, strict=True):
            assert row["examples"] == expected["examples"]
            assert row["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-4)


def test_the_groups_that_clients_train_in_change_no_bit(tmp_path, monkeypatch):
    weights = []
    monkeypatch.setattr(client_work, "SMALL_MODEL", 0)
    for products in (1, 2000, 10**8):
        monkeypatch.setattr(client_work, "GROUP_PRODUCTS", products)
        run = federated.train(
            small_task(),
            config(client_epochs=2),
            folder=tmp_path / str(products),
            noise_seed=1,
            progress=False,
        )
        weights.append([weight.tobytes() for _, weight in np.load(run.path / "model.npz").items()])
    assert weights[0] == weights[1] == weights[2]


def test_epochs_are_orders_of_all_examples_up_to_the_limit():
    task = small_task()
    x = task.client_examples("client 9")[0]
    epochs = client_epochs(task, config(client_epochs=3), 0, 9)
    assert [sorted(map(tuple, epoch[0])) for epoch in epochs] == [sorted(map(tuple, x))] * 3
    assert len({epoch[0].tobytes() for epoch in epochs}) == 3
    # 9 examples in batches of 4: 3 batches an epoch.
    limited = client_epochs(task, config(client_epochs=3, client_batches=4), 0, 9)
    assert [count(epoch) for epoch in limited] == [9, 4, 0]
    np.testing.assert_array_equal(limited[0][0], epochs[0][0])


def test_an_adaptive_server_follows_the_schedule_and_its_own_formula():
    """Adam of Kingma and Ba, Algorithm 1, with the rate of each round."""
    settings = config(
        server_optimizer="adam", server_momentum=0.5, server_epsilon=0.1, server_learning_rate=2.0
    )
    optimizer, rates = server_optimizer(settings), settings.server_schedule().learning_rates()
    assert len(set(rates)) > 1
    state, w = optimizer.initialize(tf.TensorSpec([1], tf.float32)), tf.constant([1.0])
    m = v = 0.0
    expected = 1.0
    for t, rate in enumerate(rates):
        gradient = float(t) - 1.5
        state, w = optimizer.next(state, w, tf.constant([gradient]))
        m, v = 0.5 * m + 0.5 * gradient, 0.999 * v + 0.001 * gradient**2
        step = rate * np.sqrt(1 - 0.999 ** (t + 1)) / (1 - 0.5 ** (t + 1))
        expected -= step * m / (np.sqrt(v) + 0.1)
    assert float(w[0]) == pytest.approx(expected, rel=1e-4)


def test_the_momentum_of_clients_belongs_to_sgd():
    with pytest.raises(
        ValueError, match="client_momentum=0.5 belongs to client_optimizer=sgd, not to adam"
    ):
        config(client_optimizer="adam", client_momentum=0.5)


@pytest.mark.parametrize("examples", [pytest.param(4, marks=pytest.mark.slow), 2])
def test_clients_of_one_example_train_side_by_side_the_same_model(examples, tmp_path, monkeypatch):
    """Example-level privacy: gradients in groups of two, and all at once, beside TFF's clients."""
    monkeypatch.setattr(client_work, "SMALL_MODEL", 0)
    parameters = sum(
        v.shape.num_elements() for v in small_task().build_model(3).trainable_variables
    )
    monkeypatch.setattr(client_work, "SIDE_BY_SIDE_PRODUCTS", examples * parameters)
    task = small_task()
    x, y = task.split("validation")
    one_each = dataclasses.replace(
        task,
        batch_size=1,
        client_ids=[str(i) for i in range(40)],
        client_examples=lambda name: (x[int(name) : int(name) + 1], y[int(name) : int(name) + 1]),
    )
    calls, vectorized_map = [], tf.vectorized_map

    @tf.autograph.experimental.do_not_convert
    def counted(function, elements):
        calls.append(function)
        return vectorized_map(function, elements)

    monkeypatch.setattr(tf, "vectorized_map", counted)
    runs = [
        federated.train(
            one_each,
            config(execution, proximal_strength=0.1, clip_norm=0.05),
            folder=tmp_path / execution,
            noise_seed=1,
            progress=False,
        )
        for execution in ("fast", "tff")
    ]
    assert len(calls) == 1  # a trace, in the fast execution; for several batches there would be two
    ours, theirs = (
        [weight for _, weight in np.load(run.path / "model.npz").items()] for run in runs
    )
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for row, expected in zip(runs[0].metrics, runs[1].metrics, strict=True):
        assert row["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-4)
        assert row["clip_fraction"] == expected["clip_fraction"] > 0


def test_a_model_that_cannot_be_built_in_a_graph_trains_in_turn(tmp_path, monkeypatch):
    """Tensors take the place of its variables, and have no set_weights."""
    in_turn, train_in_turn = [], client_work.AutodiffClients._train_in_turn

    @tf.autograph.experimental.do_not_convert
    def counted(self, *arguments):
        in_turn.append(self)
        return tf.autograph.to_graph(train_in_turn)(self, *arguments)

    monkeypatch.setattr(client_work.AutodiffClients, "_train_in_turn", counted)

    def build_model(seed):
        model = small_task().build_model(seed)
        model.set_weights([weight.copy() for weight in model.get_weights()])
        return model

    runs = []
    for task in (small_task(), dataclasses.replace(small_task(), build_model=build_model)):
        assert not in_turn
        folder = tmp_path / str(len(runs))
        runs.append(federated.train(task, config(), folder=folder, noise_seed=1, progress=False))
    assert in_turn
    for a, b in zip(*(run.weights for run in runs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
