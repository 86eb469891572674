"""Next-word model of the published StackOverflow experiments, its two losses, and its metrics.

At full size: Embedding(10004, 96), LSTM(670), Dense(96), Dense(10004), with biases and untied,
4,050,748 parameters in 8 tensors.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from fedmf import checks
from fedmf.tasks.stackoverflow.lstm import UnrolledLSTM
from fedmf.tasks.stackoverflow.options import LOSSES, MODELS
from fedmf.tasks.stackoverflow.preprocessing import SpecialIds


def build_model(
    seed: int,
    *,
    vocabulary_size: int = 10_000,
    sequence_length: int = 20,
    embedding_size: int = 96,
    lstm_size: int = 670,
    form: str = "plain",
) -> Any:
    """Builds an untrained tf.keras.Model from word ids to the logits of the next words.

    Inputs are int32 (batch, sequence_length), outputs float32 (batch, sequence_length, V + 4). The
    same seed gives the same weights, whatever else the process has drawn. The LSTM is Keras's with
    a cheaper backward pass (`lstm`).

    The form "plain" has Keras's default initializers, and no mask: the state also passes over the
    padding behind the words. "published" is the model of google-research/federated
    (utils/models/stackoverflow_models.py), which the papers' code trains: LSTM kernel He-normal,
    dense layers Glorot-normal, and an embedding that masks padding, behind which the LSTM's output
    stays as it is.

    Args:
      seed: draws the initial weights.
      vocabulary_size: V; the model has V + 4 classes.
      sequence_length: words in, and predictions out.
      embedding_size: width of the embedding and of the projection.
      lstm_size: width of the LSTM layer.
      form: "plain" or "published".
    """
    is_published = checks.one_of("form", form, MODELS) == "published"
    num_classes = SpecialIds(vocabulary_size).classes
    layer_seeds = iter(np.random.SeedSequence(seed).generate_state(5).astype(np.int64).tolist())
    initializers = tf.keras.initializers
    layers = tf.keras.layers
    inputs = tf.keras.Input((sequence_length,), dtype=tf.int32, name="words")
    gate_initializer = initializers.GlorotUniform
    dense_initializer = initializers.GlorotUniform
    if is_published:
        gate_initializer = initializers.HeNormal
        dense_initializer = initializers.GlorotNormal
    embedding_initializer = initializers.RandomUniform(-0.05, 0.05, seed=next(layer_seeds))
    hidden_tensor = layers.Embedding(
        num_classes,
        embedding_size,
        embeddings_initializer=embedding_initializer,
        mask_zero=is_published,
        name="embedding",
    )(inputs)
    hidden_tensor = UnrolledLSTM(
        lstm_size,
        return_sequences=True,
        kernel_initializer=gate_initializer(seed=next(layer_seeds)),
        recurrent_initializer=initializers.Orthogonal(seed=next(layer_seeds)),
        name="lstm",
    )(hidden_tensor)
    for name, width in (("projection", embedding_size), ("logits", num_classes)):
        kernel_initializer = dense_initializer(seed=next(layer_seeds))
        hidden_tensor = layers.Dense(width, kernel_initializer=kernel_initializer, name=name)(
            hidden_tensor
        )
    return tf.keras.Model(inputs, hidden_tensor, name="next_word")


def _loss_weights(kind: str, labels: Any, example_weights: Any) -> Any:
    """Returns the weight of each position in the mean loss, float32 of shape (batch, length)."""
    # tf.not_equal is used, because `labels != 0` compares two Python objects in TFF's graphs, so
    # that every position would count as a word.
    is_word = tf.cast(tf.not_equal(labels, 0), tf.float32)
    position_weights = tf.ones_like(is_word) if kind == "published" else is_word
    return position_weights * example_weights[:, None]


def make_loss(kind: str) -> Callable[[Any, Any, Any], Any]:
    """Returns the loss function that a client minimises, a mean cross-entropy.

    The loss takes labels, logits and example weights, and returns a scalar, 0 for a batch without
    weight.

    Args:
      kind: "published" averages over all positions, padding included, as TFF's Keras wrapper did in
        the published experiments because it drops the mask. The model then also learns to predict
        padding after the end, and a client of short sentences takes smaller steps on words.
        "masked" averages over the positions whose label is not padding.
    """
    checks.one_of("loss", kind, LOSSES)

    def loss(labels: Any, logits: Any, example_weights: Any) -> Any:
        """Computes the weighted mean cross-entropy over all positions."""
        token_weights = _loss_weights(kind, labels, example_weights)
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.math.divide_no_nan(
            tf.reduce_sum(token_weights * cross_entropy), tf.reduce_sum(token_weights)
        )

    return loss


class _Accuracy(tf.keras.metrics.Mean):
    """Fraction of correct predictions among the positions whose label is not excluded.

    The prediction is the largest of all vocabulary_size + 4 logits.
    """

    def __init__(self, name: str, excluded_labels: tuple[int, ...]) -> None:
        super().__init__(name, tf.float64)
        self._excluded_labels = excluded_labels

    def update_state(self, labels: Any, logits: Any, sample_weight: Any = None) -> Any:
        """Adds labels of shape (batch, length) and logits of shape (batch, length, classes)."""
        predictions = tf.argmax(logits, axis=-1, output_type=labels.dtype)
        is_correct = tf.equal(predictions, labels)
        is_counted = tf.reduce_all(
            [tf.not_equal(labels, label) for label in self._excluded_labels], axis=0
        )
        return super().update_state(
            tf.cast(is_correct, tf.float64), tf.cast(is_counted, tf.float64)
        )


class _Loss(tf.keras.metrics.Mean):
    """Mean loss over the positions that count in the training loss."""

    def __init__(self, kind: str) -> None:
        super().__init__("loss", tf.float64)
        self._kind = kind

    def update_state(self, labels: Any, logits: Any, sample_weight: Any = None) -> Any:
        """Adds labels of shape (batch, length) and logits of shape (batch, length, classes)."""
        # TensorFlow's own cross-entropy would also compute a gradient, which takes as much memory
        # as the logits.
        cross_entropy = tf.reduce_logsumexp(logits, axis=-1) - tf.gather(
            logits, labels, batch_dims=2
        )
        return super().update_state(
            cross_entropy, _loss_weights(self._kind, labels, tf.ones(tf.shape(labels)[:1]))
        )


def make_metrics(kind: str, ids: SpecialIds) -> list[tf.keras.metrics.Metric]:
    """Returns Keras metrics of labels (batch, length) and logits (batch, length, classes).

    "accuracy" leaves out padding, out-of-vocabulary and end, as the papers report it; beside it are
    "accuracy_no_pad_no_oov", "accuracy_no_pad" and "loss".

    Args:
      kind: the loss reported as "loss", see `make_loss`.
      ids: the special labels.
    """
    return [
        _Accuracy("accuracy", (ids.pad, ids.out_of_vocabulary, ids.end)),
        _Accuracy("accuracy_no_pad_no_oov", (ids.pad, ids.out_of_vocabulary)),
        _Accuracy("accuracy_no_pad", (ids.pad,)),
        _Loss(kind),
    ]
