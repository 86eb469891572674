"""A linear model in numpy, whose training is easy to repeat by hand."""

import numpy as np

import fedmf
from fedmf import training

CLIENTS, EXAMPLES, FEATURES = 20, 8, 3
rng = np.random.default_rng(0)
X = rng.normal(size=(CLIENTS * EXAMPLES, FEATURES))
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=len(X))
OWNERS = np.arange(len(X)) // EXAMPLES


def initial_weights(seed):
    return [np.random.default_rng(seed).normal(size=FEATURES), np.zeros(1)]


def client_update(weights, epochs, settings):
    """SGD on half the mean squared error."""
    slopes, offset = weights[0].copy(), weights[1].copy()
    loss = 0.0
    for x, y in settings.batches(epochs):
        residuals = x @ slopes + offset - y
        loss += np.sum(residuals**2) / 2
        slopes -= settings.learning_rate * residuals @ x / len(y)
        offset -= settings.learning_rate * residuals.mean()
    return [slopes - weights[0], offset - weights[1]], loss


def evaluate(weights, examples):
    residuals = examples[0] @ weights[0] + weights[1] - examples[1]
    return {"loss": np.mean(residuals**2) / 2, "share within 1": np.mean(np.abs(residuals) < 1)}


def learner(**functions):
    own = {
        "initial_weights": initial_weights,
        "client_update": client_update,
        "evaluate": evaluate,
    }
    return training.FunctionLearner(**(own | functions))


def linear_task(**changes):
    """With these attributes, or functions of the learner, changed."""
    names = ("initial_weights", "client_update", "evaluate")
    functions = {name: changes.pop(name) for name in names if name in changes}
    attributes = {
        "name": "linear", "x": X, "y": Y, "client_ids": OWNERS, "batch_size": 3,
        "validation": (X[:40], Y[:40]), "test": (X[40:80], Y[40:80]),
        "learner": learner(**functions),
    }  # fmt: skip
    return training.Task.from_arrays(**(attributes | changes))


def config(**changes):
    values = {
        "rounds": 6, "cohort_size": 4, "min_sep": 2, "family": "banded", "noise_multiplier": 0.3,
        "client_learning_rate": 0.1, "server_learning_rate": 1.0, "clip_norm": 0.5,
        "evaluate_every": 2, "seed": 3,
    }  # fmt: skip
    return fedmf.TrainConfig(**(values | changes))


def train(folder, settings=None, task=None, **options):
    """Without a bar; with a noise seed, unless it goes on."""
    seed = None if options.get("resume") else 9
    options = {"noise_seed": seed, "progress": False} | options
    return training.train(task or linear_task(), settings or config(), folder=folder, **options)
