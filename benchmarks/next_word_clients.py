"""The clients of `benchmarks.simulation`: sentences of full length, and how many operations an epoch over them takes."""

import dataclasses
from typing import Any

import numpy as np

MODELS: dict[str, dict[str, int]] = {
    "full": {},
    "demo": {"vocabulary_size": 300, "embedding_size": 24, "lstm_size": 48},
}
SENTENCES = {"full": 64, "demo": 16}
LAWS = ("zipf", "uniform")
LENGTH, BATCH = 20, 16
_SHIFT = 2.7  # Mandelbrot's, for English


def sizes_of(model: str) -> dict[str, int]:
    """As `build_model` takes them."""
    return {"vocabulary_size": 10_000, "embedding_size": 96, "lstm_size": 670} | MODELS[model]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Positions:
    """Of one client: positions of its sentences, those that another word follows, and words to project.

    A framework computes each. What sentences of a batch have in common, from their beginning on, need be computed only once, and so does
    the projection of a word.
    """

    all: float
    followed: float
    words: float


def every_position(model: str) -> Positions:
    """The state before the first word is zero: no product is needed for it."""
    each = SENTENCES[model] * LENGTH
    return Positions(all=each, followed=each * (LENGTH - 1) / LENGTH, words=each)


def distinct_positions(x: np.ndarray) -> Positions:
    """Of sentences (count, length), int, in batches in their order."""
    batches = [x[first : first + BATCH] for first in range(0, len(x), BATCH)]
    beginnings = [[len(np.unique(batch[:, :t], axis=0)) for t in range(1, x.shape[1] + 1)] for batch in batches]
    return Positions(
        all=sum(map(sum, beginnings)),
        followed=sum(sum(batch[:-1]) for batch in beginnings),
        words=sum(len(np.unique(batch)) for batch in batches),
    )


def operations(model: str, positions: Positions) -> float:
    """Of the products that one client needs: forward, gradients of inputs and of weights."""
    words, width, units = (sizes_of(model)[name] for name in ("vocabulary_size", "embedding_size", "lstm_size"))
    forward = (
        positions.words * width * 4 * units
        + positions.followed * units * 4 * units
        + positions.all * (units * width + width * (words + 4))
    )
    return 2.0 * 3 * forward


def sentences(model: str, law: str, seed: int) -> np.ndarray:
    """Of one client, int32 (sentences, length + 1), all of full length; see the head of simulation.py."""
    from fedmf.tasks.stackoverflow import preprocessing

    rng, size = np.random.default_rng(seed), sizes_of(model)["vocabulary_size"]
    shape = (SENTENCES[model], LENGTH + 1)
    if law == "uniform":
        return rng.integers(1, size + 1, shape, dtype=np.int32)
    frequency = 1 / (np.arange(1, size + 1) + _SHIFT)
    words = 1 + rng.choice(size, shape, p=frequency / frequency.sum()).astype(np.int32)
    words[:, 0] = preprocessing.SpecialIds(size).begin
    return words


def with_keras_lstm(model: Any) -> Any:
    """The same model, of the same weights, with Keras's own LSTM layer in place of ours."""
    import tensorflow as tf

    def own(layer: Any) -> Any:
        kind = tf.keras.layers.LSTM if isinstance(layer, tf.keras.layers.LSTM) else type(layer)
        return kind.from_config(layer.get_config())

    copy = tf.keras.models.clone_model(model, clone_function=own)
    copy.set_weights(model.get_weights())
    return copy


def random_sentences(model: str, clients: int, law: str, *, keras_lstm: bool = False) -> Any:
    """The task, with such sentences; with Keras's own LSTM layer if asked for."""
    from fedmf import federated
    from fedmf.tasks.stackoverflow import compiled, preprocessing
    from fedmf.tasks.stackoverflow import model as next_word

    sizes = sizes_of(model)

    def build_model(seed: int) -> Any:
        built = next_word.build_model(seed, **sizes)
        return with_keras_lstm(built) if keras_lstm else built

    def examples(name: str) -> tuple[np.ndarray, np.ndarray]:
        words = sentences(model, law, sum(name.encode()))
        return words[:, :-1], words[:, 1:]

    return federated.Task(
        name="random sentences",
        description="the papers' model" if model == "full" else "the demo's model",
        client_ids=[str(i) for i in range(clients)],
        client_examples=examples,
        evaluation_examples=examples,
        build_model=build_model,
        loss=next_word.make_loss("published"),
        metrics=next_word.make_metrics("published", preprocessing.SpecialIds(sizes["vocabulary_size"])),
        headline_metric="accuracy",
        batch_size=BATCH,
        local_epoch=compiled.compiled_epoch(**sizes, loss="published", batch_size=BATCH),
    )
