"""A logistic model in plain numpy, from data to the privacy statement. No TensorFlow.

python examples/numpy_logistic.py
"""

import numpy as np

import fedmf
from fedmf import reports, training

rng = np.random.default_rng(0)
x, truth = rng.normal(size=(6000, 4)), np.array([2.0, -1.0, 0.5, -3.0])
y = (x @ truth + rng.logistic(size=6000) > 0).astype(float)


def client_update(weights, epochs, settings):
    w, loss = weights[0].copy(), 0.0
    for features, labels in settings.batches(epochs):
        margins = (2 * labels - 1) * (features @ w)
        loss += np.logaddexp(0, -margins).sum()
        slopes = (1 - 2 * labels) / (1 + np.exp(margins))
        w -= settings.learning_rate * slopes @ features / len(labels)
    return [w - weights[0]], loss


def evaluate(weights, examples):
    margins = (2 * examples[1] - 1) * (examples[0] @ weights[0])
    return {"accuracy": np.mean(margins > 0), "loss": np.logaddexp(0, -margins).mean()}


functions = {"client_update": client_update, "evaluate": evaluate}
learner = training.FunctionLearner(initial_weights=lambda seed: [np.zeros(4)], **functions)
data = {"x": x[600:], "y": y[600:], "client_ids": np.arange(5400) // 10, "batch_size": 5}
splits = {"validation": (x[:300], y[:300]), "test": (x[300:600], y[300:600])}
task = training.Task.from_arrays(name="logistic", learner=learner, **data, **splits)
config = fedmf.TrainConfig(rounds=40, cohort_size=54, min_sep=10, epsilon=8.0, clip_norm=0.5)
run = fedmf.train(task, config, folder="logistic", noise_seed="os", progress=False)
reports.write_report([run], "logistic_report", title="A logistic model")
print(f"test accuracy {run.result['test']['accuracy']:.3f}, {fedmf.audit_run(run).epsilon:.2f}")
