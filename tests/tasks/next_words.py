"""Results of the next-word model in one framework, for a comparison with the other one.

The two frameworks are in different environments. `next_words.npz` has the results of Keras:

    .venv/bin/python -m tests.tasks.next_words --write tests/tasks/next_words.npz

The model of the published size is compared by hand:

    .venv/bin/python -m tests.tasks.next_words --full --write /tmp/full.npz
    .venv-torch/bin/python -m tests.tasks.next_words --full --compare /tmp/full.npz
"""

import argparse
import pathlib
import tempfile

import numpy as np

import fedmf
from fedmf.server.messages import ClientParams
from fedmf.tasks.stackoverflow.options import StackOverflowOptions
from fedmf.training.client_data import client_data
from fedmf.training.client_work import Broadcast
from fedmf.training.learner import Machine

KEPT = pathlib.Path(__file__).parent / "next_words.npz"
SMALL = {
    "vocabulary_size": 30, "embedding_size": 6, "lstm_size": 9, "sequence_length": 8,
    "batch_size": 3,
}  # fmt: skip
FULL = {"batch_size": 16}
FORMS = ("plain", "published")
CLIENTS = 12


def options_of(form, framework, *, is_full=False):
    """Returns the options of a task."""
    sizes = FULL if is_full else SMALL
    return StackOverflowOptions(model=form, framework=framework, **sizes)


def sentences(options, count, rng):
    """Returns inputs and labels of random sentences, most of which end in padding."""
    words = rng.integers(1, options.vocabulary_size + 4, (count, options.sequence_length + 1))
    lengths = rng.integers(2, options.sequence_length + 2, count)
    words[np.arange(words.shape[1]) >= lengths[:, np.newaxis]] = 0
    words = words.astype(np.int32)
    return words[:, :-1], words[:, 1:]


def weights_of(options):
    """Returns random weights, the eight arrays of the model in Keras's order."""
    classes = options.vocabulary_size + 4
    width, units = options.embedding_size, options.lstm_size
    shapes = [
        (classes, width), (width, 4 * units), (units, 4 * units), (4 * units,),
        (units, width), (width,), (width, classes), (classes,),
    ]  # fmt: skip
    rng = np.random.default_rng(1)
    return [(rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32) for shape in shapes]


def task_of(options):
    """Returns a task in memory, in the framework of the options."""
    rng = np.random.default_rng(2)
    counts = rng.integers(1, 3 * options.batch_size, CLIENTS)
    clients = {str(i): sentences(options, count, rng) for i, count in enumerate(counts)}
    evaluated = sentences(options, 2 * options.batch_size, rng)
    attributes = {
        "name": "next_words", "client_ids": [*clients], "client_examples": clients.__getitem__,
        "evaluation_examples": lambda split: evaluated, "batch_size": options.batch_size,
    }  # fmt: skip
    if options.framework == "torch":
        from fedmf.tasks.stackoverflow.torch_task import torch_task

        return torch_task(options, attributes)
    from fedmf.tasks.stackoverflow.keras_task import keras_task

    return keras_task(options, attributes)


def gradients_of(task, options, weights, x, y):
    """Returns the loss and the gradients of a batch."""
    model = task.build_model(0)
    if options.framework == "torch":
        import torch

        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.data.copy_(torch.tensor(weight))
        loss = task.loss(model(torch.tensor(x)), torch.tensor(y, dtype=torch.int64))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        return [loss.detach().numpy(), *(gradient.numpy() for gradient in gradients)]
    import tensorflow as tf

    model.set_weights(weights)
    with tf.GradientTape() as tape:
        loss = task.loss(tf.constant(y), model(x, training=True), tf.ones(len(x)))
    gradients = tape.gradient(loss, model.trainable_variables)
    dense = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
    return [loss.numpy(), *dense]


def config_of():
    """Returns the config of the run that is compared."""
    return fedmf.TrainConfig(
        rounds=5, cohort_size=6, min_sep=2, family="banded", noise_multiplier=0.3, seed=3,
        client_learning_rate=0.5, server_learning_rate=1.0, server_momentum=0.9, clip_norm=0.3,
    )  # fmt: skip


def results(form, framework, *, is_full=False):
    """Returns the flat gradient of a batch, the update of a client, and the movement of a run."""
    options = options_of(form, framework, is_full=is_full)
    task = task_of(options)
    weights = weights_of(options)
    batch = sentences(options, options.batch_size, np.random.default_rng(5))
    config = config_of()
    params = ClientParams(clip_norm=1e6, zeroing_norm=np.inf, scales=())
    work = task.learner.client_work(task.client_settings(config), Machine(threads=1))
    client = client_data(task, config, 0, 3)
    [client_sum] = work.sums(Broadcast(weights, params), [[client]])
    with tempfile.TemporaryDirectory() as folder:
        run = fedmf.train(
            task.starting_from(weights), config, folder=pathlib.Path(folder) / "run",
            noise_seed=7, progress=False,
        )  # fmt: skip
        moved = [after - before for after, before in zip(run.weights, weights, strict=True)]
        metrics = run.evaluate("test")
    return {
        f"{form} gradient": flat(gradients_of(task, options, weights, *batch)),
        f"{form} update": flat(client_sum.values),
        f"{form} movement": flat(moved),
        f"{form} metrics": np.array([metrics[name] for name in sorted(metrics)]),
    }


def flat(arrays):
    """Returns all entries of arrays as one vector."""
    return np.concatenate([np.ravel(array) for array in arrays]).astype(np.float32)


def distances(first, second):
    """Returns the relative L2 distance of each result."""
    return {
        name: float(np.linalg.norm(first[name] - second[name]) / np.linalg.norm(second[name]))
        for name in second
    }


def main():
    """Writes or compares the results of this environment's framework."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--compare", type=pathlib.Path)
    arguments = parser.parse_args()
    framework = "tensorflow" if arguments.write else "torch"
    found = {}
    for form in FORMS:
        found |= results(form, framework, is_full=arguments.full)
    if arguments.write:
        np.savez_compressed(arguments.write, **found)
    else:
        for name, distance in distances(found, np.load(arguments.compare)).items():
            print(f"{name}: {distance:.1e}")


if __name__ == "__main__":
    main()
