"""Optimizers of clients and server train the same model in fedmf's loop and in TFF's process."""

import dataclasses

import numpy as np
import pytest

from fedmf.training import vectorised_sizes
from fedmf.training.client_data import client_data
from fedmf.training.examples import count
from tests.federated.small_runs import (
    assert_close,
    assert_same_model,
    config,
    small_task,
    start_of,
    train,
)


@pytest.mark.slow
def test_fast_and_tff_train_the_same_model(tmp_path):
    """The runs have FedProx, several epochs, a limit on batches, and stateful optimizers.

    Each client begins with a new optimizer state, and the server keeps its own. The steps of all
    optimizers are in tests/federated/tff/test_optimizers.py, clients one by one in
    test_vectorised.py.
    """
    settings = {
        "rounds": 4, "client_optimizer": "adam", "client_learning_rate": 0.05, "client_epochs": 3,
        "client_batches": 4, "proximal_strength": 0.5, "server_optimizer": "yogi",
        "server_learning_rate": 0.1,
    }  # fmt: skip
    runs = [train(tmp_path / name, config(name, **settings)) for name in ("tff", "fast")]
    assert_same_model(runs, start_of(small_task()))
    assert len({(run.path / "participation.csv").read_bytes() for run in runs}) == 1


def test_epochs_are_orders_of_all_examples_up_to_the_limit():
    task = small_task()
    x = task.client_examples("client 9")[0]

    def of_client(t=0, **changes):
        return client_data(task, config(client_epochs=3, **changes), t, 9)

    clients = of_client(), of_client(1), of_client(seed=4)
    epochs = [epoch for client in clients for epoch in client.epochs]
    assert len({client.seed for client in clients}) == 3
    assert [sorted(map(tuple, epoch[0])) for epoch in epochs] == [sorted(map(tuple, x))] * 9
    assert len({epoch[0].tobytes() for epoch in epochs}) == 9
    # 9 examples in batches of 4: 3 batches an epoch.
    limited = of_client(client_batches=4).epochs
    assert [count(epoch) for epoch in limited] == [9, 4, 0]
    np.testing.assert_array_equal(limited[0][0], epochs[0][0])


def one_each(batch_size):
    """Returns a task of example-level privacy: clients of one example, which has a weight."""
    x, y = small_task().split("validation")
    return dataclasses.replace(
        small_task(),
        batch_size=batch_size,
        client_ids=[str(i) for i in range(40)],
        client_examples=lambda name: (x[int(name) : int(name) + 1], y[int(name) : int(name) + 1]),
        sample_weight=lambda name: np.full(1, int(name) / 2),
    )


@pytest.mark.slow
def test_vectorised_gradients_in_several_calls_equal_those_one_by_one(
    monkeypatch, sums_of, vectorized_map_calls
):
    num_parameters = sum(map(np.size, start_of(small_task())))
    monkeypatch.setattr(vectorised_sizes, "MAX_PRODUCTS", 16 * num_parameters)
    settings = config(proximal_strength=0.1, clip_norm=0.05)
    sums = []
    for batch_size in (1, 4):  # The model is not small; a batch of 4 has no single example.
        task = one_each(batch_size)
        cohort = [client_data(task, settings, 0, client) for client in range(40)]
        sums.append(sums_of(task, settings, 0)(cohort))
        # The check and training trace it, for batches of one.
        assert len(vectorized_map_calls) == 2
    vectorised_sum, one_by_one = sums
    assert_close(vectorised_sum.values, one_by_one.values, rtol=1e-5, atol=1e-7)
    assert int(vectorised_sum.clipped) == int(one_by_one.clipped) > 0
    assert vectorised_sum.loss_sum == pytest.approx(one_by_one.loss_sum, rel=1e-6)
    assert vectorised_sum.examples == one_by_one.examples == 40


@pytest.mark.slow
def test_a_model_that_cannot_be_built_in_a_graph_trains_one_by_one(sums_of, vectorized_map_calls):
    """In a graph tensors replace the variables, and tensors have no set_weights."""

    def build_model(seed):
        model = small_task().build_model(seed)
        model.set_weights([weight.copy() for weight in model.get_weights()])
        return model

    task = small_task()
    cohort = [client_data(task, config(), 0, client) for client in range(4)]
    records = []
    for some_task in (dataclasses.replace(task, build_model=build_model), task):
        assert not vectorized_map_calls
        records.append(sums_of(some_task, config(), 10_000)(cohort).values)
    assert vectorized_map_calls  # This is the negative control.
    assert_close(*records, rtol=1e-5, atol=1e-7)
