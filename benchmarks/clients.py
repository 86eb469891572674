"""The clients of the benchmarks of training: next-word models on sentences of full length, networks
on images, and a table.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

MODELS: dict[str, dict[str, int]] = {
    "full": {"vocabulary_size": 10_000, "embedding_size": 96, "lstm_size": 670},
    "demo": {"vocabulary_size": 300, "embedding_size": 24, "lstm_size": 48},
    "lstm": {"vocabulary_size": 1000, "embedding_size": 32, "lstm_size": 64},  # 92,172 parameters
}
SENTENCES = {"full": 64, "demo": 16, "lstm": 50}
BATCH = {"full": 16, "demo": 16, "lstm": 10}
LENGTH = 20
# Parameters: 62, 56,714, 1,199,882 and 550,570.
EXAMPLES = ("logistic", "cnn", "emnist", "cifar10")
_SHIFT = 2.7  # Mandelbrot's, for English


def sentences(model: str, count: int, seed: int) -> np.ndarray:
    """Sentences of one client, int32 (count, length + 1): words as frequent as in English (Zipf),
    behind the mark of the beginning.
    """
    from fedmf.tasks.stackoverflow import preprocessing

    size = MODELS[model]["vocabulary_size"]
    frequency = 1 / (np.arange(1, size + 1) + _SHIFT)
    rng = np.random.default_rng(seed)
    words = 1 + rng.choice(size, (count, LENGTH + 1), p=frequency / frequency.sum()).astype(
        np.int32
    )
    words[:, 0] = preprocessing.SpecialIds(size).begin
    return words


def random_sentences(
    model: str, clients: int, *, count: int | None = None, keras_lstm: bool = False
) -> Any:
    """The task: `count` sentences a client; with Keras's own LSTM layer if so chosen."""
    from fedmf import federated
    from fedmf.tasks.stackoverflow import model as next_word
    from fedmf.tasks.stackoverflow import preprocessing
    from fedmf.tasks.stackoverflow.compiled import compiled_epoch
    from fedmf.tasks.stackoverflow.lstm import with_keras_lstm

    sizes: dict[str, Any] = dict(MODELS[model])

    def build_model(seed: int) -> Any:
        built = next_word.build_model(seed, form="plain", **sizes)
        return with_keras_lstm(built) if keras_lstm else built

    def examples(name: str) -> tuple[np.ndarray, np.ndarray]:
        words = sentences(model, count or SENTENCES[model], sum(name.encode()))
        return words[:, :-1], words[:, 1:]

    return federated.Task(
        name="random sentences",
        client_ids=[str(i) for i in range(clients)],
        client_examples=examples,
        evaluation_examples=examples,
        build_model=build_model,
        loss=next_word.make_loss("published"),
        metrics=lambda: next_word.make_metrics(
            "published", preprocessing.SpecialIds(sizes["vocabulary_size"])
        ),
        batch_size=BATCH[model],
        compiled_epoch=compiled_epoch(
            form="plain", **sizes, loss="published", batch_size=BATCH[model]
        ),
    )


def random_examples(model: str, clients: int) -> Any:
    """The task: features or images from a normal distribution, and labels that say nothing."""
    import tensorflow as tf

    from fedmf import federated
    from fedmf.tasks.cifar10.task import build_model as cifar10_model
    from fedmf.tasks.emnist.task import build_model as emnist_model

    def logistic(seed: int) -> Any:
        kernel = tf.keras.initializers.GlorotUniform(seed=seed)
        return tf.keras.Sequential(
            [tf.keras.layers.Dense(2, kernel_initializer=kernel, input_shape=(30,))]
        )

    wide = model == "emnist"
    count, batch_size, classes = (100, 20, 10) if wide else (50, 10, 10)
    shape: tuple[int, ...] = (28, 28, 1)
    build_model: Callable[[int], Any] = functools.partial(
        emnist_model, classes=10, kind="cnn" if wide else "small"
    )
    if model == "logistic":
        build_model, classes, shape = logistic, 2, (30,)
    elif model == "cifar10":
        build_model, count, batch_size, shape = cifar10_model, 1, 1, (32, 32, 3)

    @functools.cache
    def examples(name: str) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(sum(name.encode()))
        return rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(0, classes, count)

    return federated.Task(
        name=model,
        client_ids=[str(i) for i in range(clients)],
        client_examples=examples,
        evaluation_examples=examples,
        build_model=build_model,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
        batch_size=batch_size,
    )
