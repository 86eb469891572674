"""The next-word model of the published StackOverflow experiments, its two losses, and the metrics.

At its full size: Embedding(10004, 96), LSTM(670), Dense(96), Dense(10004), with biases and untied, 4,050,748 parameters
in 8 tensors.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

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
    """An untrained next-word model.

    Args:
      seed: draws the initial weights; the same seed gives the same weights whatever else the process has drawn.
      vocabulary_size: V; the model has V + 4 classes.
      sequence_length: words in, and predictions out.
      embedding_size: width of the embedding and of the projection.
      lstm_size: width of the LSTM layer.

    Returns:
      A tf.keras.Model from (batch, sequence_length) int32 to logits (batch, sequence_length, V + 4) float32. The
      initializers are Keras's own defaults with seeds, the LSTM is Keras's with a cheaper backward pass (`lstm`); the
      embedding does not mask, so the state runs over padding, and padding is behind the words.
    """
    import tensorflow as tf

    from fedmf.tasks.stackoverflow.lstm import UnrolledLSTM

    classes = SpecialIds(vocabulary_size).classes
    seeds = iter(np.random.SeedSequence(seed).generate_state(5).astype(np.int64).tolist())
    initializers = tf.keras.initializers
    inputs = tf.keras.Input((sequence_length,), dtype=tf.int32, name="words")
    hidden = tf.keras.layers.Embedding(
        classes,
        embedding_size,
        embeddings_initializer=initializers.RandomUniform(-0.05, 0.05, seed=next(seeds)),
        name="embedding",
    )(inputs)
    hidden = UnrolledLSTM(
        lstm_size,
        return_sequences=True,
        kernel_initializer=initializers.GlorotUniform(seed=next(seeds)),
        recurrent_initializer=initializers.Orthogonal(seed=next(seeds)),
        name="lstm",
    )(hidden)
    hidden = tf.keras.layers.Dense(
        embedding_size, kernel_initializer=initializers.GlorotUniform(seed=next(seeds)), name="projection"
    )(hidden)
    logits = tf.keras.layers.Dense(
        classes, kernel_initializer=initializers.GlorotUniform(seed=next(seeds)), name="logits"
    )(hidden)
    return tf.keras.Model(inputs, logits, name="next_word")


def _cross_entropy(labels: Any, logits: Any) -> Any:
    import tensorflow as tf

    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def _loss_weights(kind: str, labels: Any, example_weights: Any) -> Any:
    """float32 (batch, length): what each position counts in the mean."""
    import tensorflow as tf

    # Not `labels != 0`: in the graphs that TFF builds, that compares two objects, and every position counts.
    words = tf.cast(tf.not_equal(labels, 0), tf.float32)
    positions = tf.ones_like(words) if kind == "published" else words
    return positions * example_weights[:, None]


def make_loss(kind: str) -> Callable[[Any, Any, Any], Any]:
    """The mean cross-entropy that a client minimises.

    Args:
      kind: "published" averages over all positions, padding included, as TFF's Keras wrapper did in the published
        experiments because it drops the mask; the model then also learns to predict padding after the end, and a client
        of short sentences takes smaller steps on words. "masked" averages over the positions whose label is not
        padding.

    Returns:
      (labels, logits, example_weights) -> scalar float32; 0 for a batch without weight.

    Raises:
      ValueError: another kind.
    """
    if kind not in LOSSES:
        raise ValueError(
            f"loss={kind!r} must be 'published' (the mean over all positions) or 'masked' (words and ends only)"
        )

    def loss(labels: Any, logits: Any, example_weights: Any) -> Any:
        import tensorflow as tf

        weights = _loss_weights(kind, labels, example_weights)
        return tf.math.divide_no_nan(tf.reduce_sum(weights * _cross_entropy(labels, logits)), tf.reduce_sum(weights))

    return loss


def make_metrics(kind: str, ids: SpecialIds) -> Callable[[Any, Any, Any], dict[str, tuple[Any, Any]]]:
    """Metrics as (numerator, denominator), which add up over batches.

    Args:
      kind: the loss reported as "loss", see `make_loss`.
      ids: which labels are special.

    Returns:
      (labels, logits, example_weights) -> {"accuracy": without padding, out-of-vocabulary and end, the one that the
      papers report; "accuracy_no_pad_no_oov"; "accuracy_no_pad"; "loss"}. A prediction is the largest of all V + 4
      logits.
    """
    make_loss(kind)

    def metrics(labels: Any, logits: Any, example_weights: Any) -> dict[str, tuple[Any, Any]]:
        import tensorflow as tf

        right = tf.cast(tf.equal(tf.argmax(logits, axis=-1, output_type=labels.dtype), labels), tf.float32)
        result = {}
        masked: tuple[tuple[str, tuple[int, ...]], ...] = (
            ("accuracy", (ids.pad, ids.out_of_vocabulary, ids.end)),
            ("accuracy_no_pad_no_oov", (ids.pad, ids.out_of_vocabulary)),
            ("accuracy_no_pad", (ids.pad,)),
        )
        for name, hidden in masked:
            weights = tf.ones_like(right) * example_weights[:, None]
            for label in hidden:
                weights *= tf.cast(tf.not_equal(labels, label), tf.float32)
            result[name] = (tf.reduce_sum(weights * right), tf.reduce_sum(weights))
        weights = _loss_weights(kind, labels, example_weights)
        # TensorFlow's cross-entropy would make its gradient too, as large as the logits.
        cross_entropy = tf.reduce_logsumexp(logits, axis=-1) - tf.gather(logits, labels, batch_dims=2)
        result["loss"] = (tf.reduce_sum(weights * cross_entropy), tf.reduce_sum(weights))
        return result

    return metrics
