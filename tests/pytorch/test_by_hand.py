"""Runs without noise and clipping are federated averaging, written here in plain PyTorch."""

import copy

import numpy as np
import pytest
import torch

from fedmf.pytorch.client_training import client_setup
from fedmf.training.client_data import client_data
from tests.pytorch import small_models


def averaged_by_hand(model, rounds, optimizer, proximal=0.0):
    """Trains by federated averaging. `rounds` has a list of batches for each client and round."""
    for clients in rounds:
        trained = []
        for batches in clients:
            client_model = copy.deepcopy(model)
            steps = optimizer(client_model.parameters())
            for x, y in batches:
                steps.zero_grad()
                loss = torch.nn.functional.cross_entropy(client_model(x), y)
                for after, before in zip(
                    client_model.parameters(), model.parameters(), strict=True
                ):
                    loss = loss + proximal / 2 * ((after - before.detach()) ** 2).sum()
                loss.backward()
                steps.step()
            trained.append(client_model)
        with torch.no_grad():
            for parameters in zip(
                model.parameters(), *(m.parameters() for m in trained), strict=True
            ):
                parameters[0].copy_(torch.stack(parameters[1:]).mean(0))
    return list(model.parameters())


def batches_of(task, settings, t):
    """Returns the batches of all clients in round t, as tensors."""
    client_settings = task.client_settings(settings)
    return [
        [
            (torch.tensor(x), torch.tensor(y))
            for x, y in client_settings.batches(client_data(task, settings, t, client).epochs)
        ]
        for client in range(len(task.client_ids))
    ]


def without_privacy(**changes):
    """Returns a config in which all clients take part in each round, without noise."""
    values = {
        "cohort_size": 8, "min_sep": 1, "family": "identity", "noise_multiplier": 0.0,
        "clip_norm": 1e6, "client_epochs": 2, "client_momentum": 0.5, "server_momentum": 0.0,
        "warmup": 0.0, "cooldown": 0.0,
    }  # fmt: skip
    return small_models.config(**(values | changes))


def check_equal(task, settings, folder, optimizer, proximal=0.0):
    """Asserts that a run has the weights of federated averaging by hand."""
    run = small_models.train(folder, settings, task)
    rounds = [batches_of(task, settings, t) for t in range(settings.rounds)]
    initial_model = task.build_model(settings.seed)
    expected = averaged_by_hand(initial_model, rounds, optimizer, proximal)
    for actual, weight in zip(run.weights, expected, strict=True):
        np.testing.assert_allclose(actual, weight.detach().numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("is_stacked", [True, False])
@pytest.mark.parametrize("name", small_models.MODELS)
def test_a_run_is_federated_averaging(name, is_stacked, tmp_path, monkeypatch):
    if not is_stacked:
        monkeypatch.setattr(client_setup, "SMALL_MODEL", 0)
    task = small_models.task(small_models.MODELS[name])
    settings = without_privacy()
    check_equal(
        task, settings, tmp_path / "run", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5)
    )


@pytest.mark.parametrize("is_stacked", [True, False])
def test_fedprox_draws_clients_to_the_weights_of_the_round(is_stacked, tmp_path, monkeypatch):
    if not is_stacked:
        monkeypatch.setattr(client_setup, "SMALL_MODEL", 0)
    settings = without_privacy(proximal_strength=0.7, client_momentum=0.0)
    check_equal(
        small_models.task(), settings, tmp_path / "run",
        lambda p: torch.optim.SGD(p, lr=0.1), proximal=0.7,
    )  # fmt: skip


@pytest.mark.parametrize("is_stacked", [True, False])
def test_adam_of_clients_is_that_of_pytorch(is_stacked, tmp_path, monkeypatch):
    if not is_stacked:
        monkeypatch.setattr(client_setup, "SMALL_MODEL", 0)
    settings = without_privacy(
        client_optimizer="adam", client_momentum=0.0, client_learning_rate=0.01, rounds=1
    )
    task = small_models.task()
    # PyTorch corrects the second moment before it adds epsilon, and the published algorithm
    # afterwards; the two agree for an epsilon of 0 in all but gradients of 0.
    run = small_models.train(tmp_path / "run", settings, task)
    expected = averaged_by_hand(
        task.build_model(settings.seed),
        [batches_of(task, settings, 0)],
        lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-7),
    )
    movement = max(
        np.abs(a - b).max() for a, b in zip(run.weights, task.initial_weights(3), strict=True)
    )
    for actual, weight in zip(run.weights, expected, strict=True):
        np.testing.assert_allclose(actual, weight.detach().numpy(), rtol=0, atol=1e-2 * movement)
