"""The next-word model of the published StackOverflow experiments, its two losses, and the metrics.

At full size: Embedding(10004, 96), LSTM(670), Dense(96), Dense(10004), with biases and untied, 4,050,748 parameters in 8 tensors.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf import checks
from fedmf.tasks.stackoverflow.lstm import UnrolledLSTM
from fedmf.tasks.stackoverflow.preprocessing import SpecialIds

LOSSES = ("published", "masked")


def build_model(
    seed: int,
    *,
    vocabulary_size: int = 10_000,
    sequence_length: int = 20,
    embedding_size: int = 96,
    lstm_size: int = 670,
) -> Any:
    """An untrained tf.keras.Model from (batch, sequence_length) int32 to logits (batch, sequence_length, V + 4) float32.

    The initializers are Keras's defaults with seeds: the same seed gives the same weights whatever else the process has drawn. The LSTM is
    Keras's with a cheaper backward pass (`lstm`). The embedding does not mask: the state runs over padding, which is behind the words.

    Args:
      seed: draws the initial weights.
      vocabulary_size: V; the model has V + 4 classes.
      sequence_length: words in, and predictions out.
      embedding_size: width of the embedding and of the projection.
      lstm_size: width of the LSTM layer.
    """
    classes = SpecialIds(vocabulary_size).classes
    seeds = iter(np.random.SeedSequence(seed).generate_state(5).astype(np.int64).tolist())
    initializers, layers = tf.keras.initializers, tf.keras.layers
    inputs = tf.keras.Input((sequence_length,), dtype=tf.int32, name="words")
    uniform = initializers.RandomUniform(-0.05, 0.05, seed=next(seeds))
    hidden = layers.Embedding(classes, embedding_size, embeddings_initializer=uniform, name="embedding")(inputs)
    hidden = UnrolledLSTM(
        lstm_size,
        return_sequences=True,
        kernel_initializer=initializers.GlorotUniform(seed=next(seeds)),
        recurrent_initializer=initializers.Orthogonal(seed=next(seeds)),
        name="lstm",
    )(hidden)
    for name, width in (("projection", embedding_size), ("logits", classes)):
        hidden = layers.Dense(width, kernel_initializer=initializers.GlorotUniform(seed=next(seeds)), name=name)(hidden)
    return tf.keras.Model(inputs, hidden, name="next_word")


def _loss_weights(kind: str, labels: Any, example_weights: Any) -> Any:
    """float32 (batch, length): the weight of each position in the mean."""
    # Not `labels != 0`: in the graphs that TFF builds, that compares two objects, and every position counts.
    words = tf.cast(tf.not_equal(labels, 0), tf.float32)
    positions = tf.ones_like(words) if kind == "published" else words
    return positions * example_weights[:, None]


def make_loss(kind: str) -> Callable[[Any, Any, Any], Any]:
    """(labels, logits, example_weights) -> the mean cross-entropy that a client minimises, a scalar; 0 for a batch without weight.

    Args:
      kind: "published" averages over all positions, padding included, as TFF's Keras wrapper did in the published experiments because it
        drops the mask. The model then also learns to predict padding after the end, and a client of short sentences takes smaller
        steps on words. "masked" averages over the positions whose label is not padding.
    """
    checks.one_of("loss", kind, LOSSES)

    def loss(labels: Any, logits: Any, example_weights: Any) -> Any:
        weights = _loss_weights(kind, labels, example_weights)
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.math.divide_no_nan(tf.reduce_sum(weights * cross_entropy), tf.reduce_sum(weights))

    return loss


def make_metrics(kind: str, ids: SpecialIds) -> Callable[[Any, Any, Any], dict[str, tuple[Any, Any]]]:
    """(labels, logits, example_weights) -> metrics as (numerator, denominator), which add up over batches.

    "accuracy" leaves out padding, out-of-vocabulary and end, as the papers report it; beside it are "accuracy_no_pad_no_oov",
    "accuracy_no_pad" and "loss". A prediction is the largest of all V + 4 logits.

    Args:
      kind: the loss reported as "loss", see `make_loss`.
      ids: the special labels.
    """
    hidden = {
        "accuracy": (ids.pad, ids.out_of_vocabulary, ids.end),
        "accuracy_no_pad_no_oov": (ids.pad, ids.out_of_vocabulary),
        "accuracy_no_pad": (ids.pad,),
    }

    def metrics(labels: Any, logits: Any, example_weights: Any) -> dict[str, tuple[Any, Any]]:
        right = tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels), tf.float32)
        result = {}
        for name, special in hidden.items():
            weights = tf.ones_like(right) * example_weights[:, None]
            for label in special:
                weights *= tf.cast(tf.not_equal(labels, label), tf.float32)
            result[name] = (tf.reduce_sum(weights * right), tf.reduce_sum(weights))
        weights = _loss_weights(kind, labels, example_weights)
        # TensorFlow's cross-entropy would make its gradient too, as large as the logits.
        cross_entropy = tf.reduce_logsumexp(logits, axis=-1) - tf.gather(logits, labels, batch_dims=2)
        result["loss"] = (tf.reduce_sum(weights * cross_entropy), tf.reduce_sum(weights))
        return result

    return metrics
