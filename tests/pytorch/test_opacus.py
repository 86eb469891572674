"""The clipped gradients of single examples are those of Opacus, where Opacus is installed."""

import copy

import numpy as np
import pytest
import torch

opacus = pytest.importorskip("opacus", reason="Opacus is in no environment of the Makefile")

from fedmf.server.messages import ClientParams  # noqa: E402
from fedmf.training.client_work import Broadcast  # noqa: E402
from fedmf.training.examples import ClientData  # noqa: E402
from fedmf.training.learner import Machine  # noqa: E402
from tests.pytorch import small_models  # noqa: E402

CLIP_NORM = 0.3


def opacus_sum(model, x, y):
    """Returns the sum of the clipped gradients of all examples, by Opacus."""
    module = opacus.GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
    optimizer = opacus.optimizers.DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=1.0), noise_multiplier=0.0,
        max_grad_norm=CLIP_NORM, expected_batch_size=1, loss_reduction="sum",
    )  # fmt: skip
    torch.nn.functional.cross_entropy(module(x), y, reduction="sum").backward()
    optimizer.clip_and_accumulate()
    return [parameter.summed_grad.numpy() for parameter in module.parameters()]


def perceptron():
    """Returns a network without operations in place, which Opacus does not take."""
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


@pytest.mark.parametrize("model", [perceptron, small_models.Convolutions])
def test_clients_of_one_example_are_clipped_as_opacus_clips_examples(model):
    task = small_models.task(model, batch_size=1)
    x, y = small_models.examples_of(model, np.random.default_rng(5))
    settings = small_models.config(client_learning_rate=1.0, cohort_size=8)
    work = task.learner.client_work(task.client_settings(settings), Machine(threads=1))
    params = ClientParams(clip_norm=CLIP_NORM, zeroing_norm=np.inf, scales=())
    clients = [ClientData([(x[i : i + 1], y[i : i + 1])]) for i in range(16)]
    [clipped_sum] = work.sums(Broadcast(task.initial_weights(3), params), [clients])
    assert clipped_sum.clipped > 0
    expected_sum = opacus_sum(task.build_model(3), torch.tensor(x[:16]), torch.tensor(y[:16]))
    flat_sum, flat_expected = (
        np.concatenate([np.ravel(array) for array in arrays])
        for arrays in (clipped_sum.values, expected_sum)
    )
    distance = np.linalg.norm(flat_sum - flat_expected) / np.linalg.norm(flat_expected)
    assert distance < 1e-5
