"""Models that begin with an adapted lookup: its table is read in training, and never written."""

import numpy as np
import pytest
import tensorflow as tf

from tests.federated.small_runs import config, train
from tests.federated.small_task import task_of_arrays
from tests.refusals import refusal

WORDS = np.array(["red", "green", "blue", "mauve"])
LABELS = np.arange(8) % 3
INPUTS = {
    "StringLookup": WORDS[np.arange(8) % 4][:, None],
    "IntegerLookup": np.arange(10, 18)[:, None] % 4,
    "TextVectorization": np.array([f"{word} red" for word in WORDS] * 2),
}


def task_of(kind):
    """A task whose models begin with an adapted layer of this kind."""
    inputs = INPUTS[kind]

    def build_model():
        options = {"output_sequence_length": 2} if kind == "TextVectorization" else {}
        lookup = getattr(tf.keras.layers, kind)(**options)
        lookup.adapt(inputs)
        first = tf.keras.Input(inputs.shape[1:], dtype=tf.as_dtype(inputs.dtype))
        embedded = tf.keras.layers.Embedding(8, 2)(lookup(first))
        outputs = tf.keras.layers.Dense(3)(tf.keras.layers.Flatten()(embedded))
        return tf.keras.Model(first, outputs)

    return task_of_arrays(inputs, LABELS, build_model)


def settings_of(execution="fast", **options):
    return config(execution, rounds=1, min_sep=1, family="none", noise_multiplier=None, **options)


@pytest.mark.parametrize("kind", INPUTS)
def test_adapted_layers_are_trained(kind, tmp_path):
    task = task_of(kind)
    run = train(tmp_path / "run", settings_of(), task)
    initial = task.initial_weights(run.config.seed)
    assert any((a != b).any() for a, b in zip(run.weights, initial, strict=True))
    assert np.isfinite(run.evaluate("test")["loss"])


def test_tff_does_not_take_a_vocabulary(tmp_path):
    with refusal("not trained .a vocabulary., which execution='tff' does not take"):
        train(tmp_path / "run", settings_of("tff"), task_of("StringLookup"))
