"""A linear model in numpy, whose training tests repeat by hand."""

import numpy as np

import fedmf
from fedmf import training

CLIENTS = 20
EXAMPLES = 8
FEATURES = 3
rng = np.random.default_rng(0)
X = rng.normal(size=(CLIENTS * EXAMPLES, FEATURES))
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=len(X))
OWNERS = np.arange(len(X)) // EXAMPLES


def initial_weights(seed):
    """Returns random slopes and a zero offset."""
    return [np.random.default_rng(seed).normal(size=FEATURES), np.zeros(1)]


def client_update(weights, epochs, settings):
    """Trains by SGD on half the mean squared error."""
    slopes = weights[0].copy()
    offset = weights[1].copy()
    loss = 0.0
    for x, y in settings.batches(epochs):
        residuals = x @ slopes + offset - y
        loss += np.sum(residuals**2) / 2
        slopes -= settings.learning_rate * residuals @ x / len(y)
        offset -= settings.learning_rate * residuals.mean()
    return [slopes - weights[0], offset - weights[1]], loss


def evaluate(weights, examples):
    """Returns the loss and the share of predictions with an error below 1."""
    x, y = examples
    residuals = x @ weights[0] + weights[1] - y
    return {"loss": np.mean(residuals**2) / 2, "share within 1": np.mean(np.abs(residuals) < 1)}


def learner(**functions):
    """Returns the learner of the linear model, with some functions replaced."""
    all_functions = {
        "initial_weights": initial_weights,
        "client_update": client_update,
        "evaluate": evaluate,
    }
    return training.FunctionLearner(**(all_functions | functions))


def linear_task(**changes):
    """Returns the task, with some of its attributes or of its learner's functions replaced."""
    function_names = ("initial_weights", "client_update", "evaluate")
    functions = {name: changes.pop(name) for name in function_names if name in changes}
    attributes = {
        "name": "linear", "x": X, "y": Y, "client_ids": OWNERS, "batch_size": 3,
        "validation": (X[:40], Y[:40]), "test": (X[40:80], Y[40:80]),
        "learner": learner(**functions),
    }  # fmt: skip
    return training.Task.from_arrays(**(attributes | changes))


def config(**changes):
    """Returns the config of a short run, with some fields replaced."""
    values = {
        "rounds": 6, "cohort_size": 4, "min_sep": 2, "family": "banded", "noise_multiplier": 0.3,
        "client_learning_rate": 0.1, "server_learning_rate": 1.0, "clip_norm": 0.5,
        "evaluate_every": 2, "seed": 3,
    }  # fmt: skip
    return fedmf.TrainConfig(**(values | changes))


def train(folder, settings=None, task=None, **options):
    """Trains without a progress bar, and with a fixed noise seed unless the run is resumed."""
    noise_seed = None if options.get("resume") else 9
    options = {"noise_seed": noise_seed, "progress": False} | options
    return training.train(task or linear_task(), settings or config(), folder=folder, **options)
