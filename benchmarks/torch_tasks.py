"""The tasks of the benchmarks of training in PyTorch, on the clients of `benchmarks.clients`."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.clients import BATCH, MODELS, SENTENCES, sentences
from benchmarks.torch_networks import NETWORKS
from fedmf import pytorch
from fedmf.tasks.stackoverflow import torch_model

# Examples of a client, and batch size.
_SIZES = {"logistic": (50, 10), "cnn": (50, 10), "emnist": (100, 20)}


def accuracy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Returns the fraction of right predictions of each example."""
    is_right = (outputs.argmax(-1) == labels).double()
    return is_right.reshape(len(labels), -1).mean(1)


def torch_task(model: str, clients: int, *, pytorch_lstm: bool = False) -> pytorch.Task:
    """Returns a task with random examples.

    Args:
      model: logistic, cnn, emnist, lstm or full, the published next-word model.
      clients: number of clients.
      pytorch_lstm: whether the next-word model has the LSTM layer of PyTorch.
    """
    is_next_word = model in MODELS
    examples_of = _next_word_examples if is_next_word else _random_examples
    build_network = pytorch_builder(model)
    if is_next_word and not pytorch_lstm:
        sizes: dict[str, Any] = dict(MODELS[model])
        build_network = functools.partial(torch_model.NextWord, **sizes)
    batch_size = BATCH[model] if is_next_word else _SIZES[model][1]
    loss = torch_model.mean_cross_entropy if is_next_word else torch.nn.functional.cross_entropy
    return pytorch.Task(
        name=model,
        client_ids=[str(i) for i in range(clients)],
        client_examples=functools.partial(examples_of, model),
        evaluation_examples=functools.partial(examples_of, model),
        build_model=build_network,
        loss=loss,
        metrics={"accuracy": accuracy},
        batch_size=batch_size,
    )


def pytorch_builder(model: str) -> Callable[[int], torch.nn.Module]:
    """Returns a function of a seed that builds a network of PyTorch's own layers."""

    def build(seed: int) -> torch.nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return NETWORKS[model]()

    return build


def _next_word_examples(model: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sentences of a client."""
    words = sentences(model, SENTENCES[model], sum(name.encode()))
    return words[:, :-1], words[:, 1:]


def _random_examples(model: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns images or features of a client, with random labels."""
    count, _ = _SIZES[model]
    rng = np.random.default_rng(sum(name.encode()))
    shape, classes = ((30,), 2) if model == "logistic" else ((1, 28, 28), 10)
    return rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(0, classes, count)
