"""Models that begin with an adapted lookup layer, whose table training reads and never writes."""

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.keras_file import load_keras_file
from fedmf.runs.folder import RunFolder
from fedmf.training.initial_weights import starting_task
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


def task_of(kind, turned=False):
    """Returns a task whose models begin with an adapted layer of this kind.

    With `turned` the layer has the same words in another order.
    """
    inputs = INPUTS[kind]

    def build_model():
        options = {"output_sequence_length": 2} if kind == "TextVectorization" else {}
        lookup = getattr(tf.keras.layers, kind)(**options)
        lookup.adapt(inputs)
        if turned:
            lookup.set_vocabulary(lookup.get_vocabulary(include_special_tokens=False)[::-1])
        input_layer = tf.keras.Input(inputs.shape[1:], dtype=tf.as_dtype(inputs.dtype))
        embedded = tf.keras.layers.Embedding(8, 2)(lookup(input_layer))
        outputs = tf.keras.layers.Dense(3)(tf.keras.layers.Flatten()(embedded))
        return tf.keras.Model(input_layer, outputs)

    return task_of_arrays(inputs, LABELS, build_model)


def settings_of(execution="fast", **options):
    return config(execution, rounds=1, min_sep=1, family="none", noise_multiplier=None, **options)


@pytest.mark.parametrize("kind", INPUTS)
def test_adapted_layers_are_trained_and_exported_with_their_words(kind, tmp_path):
    task = task_of(kind)
    inputs = tf.constant(INPUTS[kind])
    run = train(tmp_path / "run", settings_of(), task)
    initial = task.initial_weights(run.config.seed)
    assert any(
        (a != initial_weight).any() for a, initial_weight in zip(run.weights, initial, strict=True)
    )
    assert np.isfinite(run.evaluate("test")["loss"])
    run.export(tmp_path / "model.keras")
    outputs = run.model()(inputs)
    exported = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(exported(inputs), outputs)
    # The words move with the weights to a model whose own words have another order.
    turned = task_of(kind, turned=True)
    for start in ("run", "model.keras"):
        settings = settings_of(initial_model=str(tmp_path / start))
        weights = starting_task(task, settings, None).build_model(0).get_weights()
        # A run writes the words before its first round, and reads them when it resumes.
        folder = RunFolder(tmp_path / f"from {start}")
        folder.path.mkdir()
        folder.write_weights("initial_model", weights)
        model = turned.starting_from(folder.initial_weights()).build_model(0)
        np.testing.assert_array_equal(model(inputs), outputs)
    # Negative control: the task's own words give other outputs.
    own_model = turned.build_model(0)
    for variable, weight in zip(own_model.trainable_variables, run.weights, strict=True):
        variable.assign(weight)
    assert (own_model(inputs) != outputs).numpy().any()


def test_a_keras_file_with_words_is_loaded(tmp_path):
    model = task_of("TextVectorization").build_model(1)
    model.save(tmp_path / "own.keras")
    loaded_model = load_keras_file(tmp_path / "own.keras")
    inputs = tf.constant(INPUTS["TextVectorization"])
    np.testing.assert_array_equal(loaded_model(inputs), model(inputs))


def test_a_vocabulary_is_refused_in_tff(tmp_path):
    with refusal("not trained .a vocabulary., which execution='tff' does not take"):
        train(tmp_path / "run", settings_of("tff"), task_of("StringLookup"))
