"""Three small models with tasks, and runs of them."""

import numpy as np
import torch

import fedmf
from fedmf import pytorch

SIZES = (7, 3, 5, 1, 8, 4, 6, 2)
OWNERS = np.repeat(np.arange(len(SIZES)), SIZES)


def accuracy(outputs, labels):
    """Returns whether each example is classified as labelled; for words, the fraction of them."""
    is_right = (outputs.argmax(1) == labels).float()
    return is_right.reshape(len(labels), -1).mean(1)


def perceptron():
    """Returns a network with an in-place activation."""
    return torch.nn.Sequential(
        torch.nn.Linear(4, 16), torch.nn.ReLU(inplace=True), torch.nn.Linear(16, 3)
    )


class Convolutions(torch.nn.Module):
    """A network with two convolutions, group normalisation and pooling."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3, padding=1),
            torch.nn.GroupNorm(2, 4),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(4, 6, 3),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(24, 3),
        )

    def forward(self, x):
        return self.layers(x)


class Words(torch.nn.Module):
    """An LSTM over words that shares the words' vectors with its output layer."""

    def __init__(self):
        super().__init__()
        self.vectors = torch.nn.Embedding(16, 16)
        self.lstm = torch.nn.LSTM(16, 16, batch_first=True)
        self.output = torch.nn.Linear(16, 16)
        self.output.weight = self.vectors.weight

    def forward(self, x):
        hidden, _ = self.lstm(self.vectors(x))
        return self.output(hidden).transpose(1, 2)


def examples_of(model, rng):
    """Returns random inputs and labels for a model, by default four numbers in three classes."""
    count = len(OWNERS)
    if model is Words:
        words = rng.integers(0, 16, (count, 6))
        return words[:, :-1], words[:, 1:]
    shape = (1, 8, 8) if model is Convolutions else (4,)
    return rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(0, 3, count)


MODELS = {"perceptron": perceptron, "convolutions": Convolutions, "words": Words}


def task(model=perceptron, **changes):
    """Returns a task of a model, with some attributes replaced."""
    x, y = examples_of(model, np.random.default_rng(5))
    attributes = {
        "name": "small", "x": x, "y": y, "client_ids": OWNERS, "batch_size": 3, "model": model,
        "validation": (x[:9], y[:9]), "test": (x[9:20], y[9:20]),
        "loss": torch.nn.functional.cross_entropy, "metrics": {"accuracy": accuracy},
    }  # fmt: skip
    return pytorch.Task.from_arrays(**(attributes | changes))


def config(**changes):
    """Returns the config of a short run, with some fields replaced."""
    values = {
        "rounds": 3, "cohort_size": 4, "min_sep": 2, "family": "banded", "noise_multiplier": 0.3,
        "client_learning_rate": 0.1, "server_learning_rate": 1.0, "clip_norm": 0.5, "seed": 3,
    }  # fmt: skip
    return fedmf.TrainConfig(**(values | changes))


def train(folder, settings=None, small_task=None, **options):
    """Trains without a progress bar, and with a fixed noise seed unless the run is resumed."""
    noise_seed = None if options.get("resume") else 9
    options = {"noise_seed": noise_seed, "progress": False} | options
    return pytorch.train(small_task or task(), settings or config(), folder=folder, **options)
