"""Client work and server optimizers train the same model in our loop and in TFF's process."""

import dataclasses

import numpy as np
import pytest

from fedmf.federated.examples import count
from fedmf.federated.execution import side_by_side
from fedmf.federated.execution.client_data import client_epochs
from tests.federated.small_runs import (
    assert_close,
    assert_same_model,
    config,
    small_task,
    start_of,
    train,
)

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
    def trained(name, execution="fast"):
        settings = config(execution, rounds=4, **({"server_learning_rate": 0.1} | work))
        return train(tmp_path / name, settings)

    runs = [trained("tff", "tff"), trained("side by side")]
    monkeypatch.setattr(side_by_side, "SMALL_MODEL", 0)
    assert_same_model([*runs, trained("in turn")], start_of(small_task()))
    assert len({(run.path / "participation.csv").read_bytes() for run in runs}) == 1


def test_epochs_are_orders_of_all_examples_up_to_the_limit():
    task = small_task()
    x = task.client_examples("client 9")[0]

    def of_client(t=0, **changes):
        return client_epochs(task, config(client_epochs=3, **changes), t, 9)

    epochs = [epoch for made in (of_client(), of_client(1), of_client(seed=4)) for epoch in made]
    assert [sorted(map(tuple, epoch[0])) for epoch in epochs] == [sorted(map(tuple, x))] * 9
    assert len({epoch[0].tobytes() for epoch in epochs}) == 9
    # 9 examples in batches of 4: 3 batches an epoch.
    limited = of_client(client_batches=4)
    assert [count(epoch) for epoch in limited] == [9, 4, 0]
    np.testing.assert_array_equal(limited[0][0], epochs[0][0])


def products(examples):
    """Examples times parameters."""
    return examples * sum(map(np.size, start_of(small_task())))


def one_each(batch_size=1):
    """Example-level privacy: clients of one example."""
    x, y = small_task().split("validation")
    return dataclasses.replace(
        small_task(),
        batch_size=batch_size,
        client_ids=[str(i) for i in range(40)],
        client_examples=lambda name: (x[int(name) : int(name) + 1], y[int(name) : int(name) + 1]),
    )


def test_gradients_side_by_side_in_groups_of_two_are_those_in_turn(
    monkeypatch, sums_of, vectorised
):
    monkeypatch.setattr(side_by_side, "PRODUCTS", products(2))
    settings = config(proximal_strength=0.1, clip_norm=0.05)
    parts = []
    for batch_size in (1, 4):  # of a model that is not small; a batch of 4 has no single example
        task = one_each(batch_size)
        cohort = [client_epochs(task, settings, 0, client) for client in range(5)]
        parts.append(sums_of(task, settings, 0)(cohort))
        assert len(vectorised) == 1
    single, in_turn = parts
    assert_close(single.total.record, in_turn.total.record, rtol=1e-5, atol=1e-7)
    assert int(single.total.clipped) == int(in_turn.total.clipped) > 0
    assert single.loss == pytest.approx(in_turn.loss, rel=1e-6)
    assert single.examples == in_turn.examples == 5


@pytest.mark.slow
@pytest.mark.parametrize("examples", [2, 4])
def test_clients_of_one_example_train_side_by_side(examples, tmp_path, monkeypatch, vectorised):
    """Gradients in groups of two, and all at once, beside TFF's clients."""
    monkeypatch.setattr(side_by_side, "SMALL_MODEL", 0)
    start = start_of(small_task())
    monkeypatch.setattr(side_by_side, "PRODUCTS", products(examples))
    settings = {"proximal_strength": 0.1, "clip_norm": 0.05}
    runs = [
        train(tmp_path / name, config(name, **settings), one_each()) for name in ("fast", "tff")
    ]
    # A trace, in the fast execution; for several batches there would be two.
    assert len(vectorised) == 1
    assert_same_model(runs, start, least=1e-3)
    assert all(row["clip_fraction"] > 0 for row in runs[0].metrics)


@pytest.mark.slow
def test_a_model_that_cannot_be_built_in_a_graph_trains_in_turn(tmp_path, vectorised):
    """Tensors take the place of its variables, and have no set_weights."""

    def build_model(seed):
        model = small_task().build_model(seed)
        model.set_weights([weight.copy() for weight in model.get_weights()])
        return model

    eager = train(
        tmp_path / "eager", task=dataclasses.replace(small_task(), build_model=build_model)
    )
    assert not vectorised
    runs = [train(tmp_path / "graph"), eager]
    assert vectorised  # the control
    assert_same_model(runs, start_of(small_task()))
