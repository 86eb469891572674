"""Models of Keras 3, which fedmf does not train, are refused in one sentence before training.

Keras 3 is there beside TensorFlow 2.16 and later, where tf.keras becomes either Keras when it is
first used.
"""

import os
import subprocess
import sys

import pytest

from tests.federated.small_runs import config, train
from tests.federated.small_task import small_task
from tests.refusals import refusal

keras = pytest.importorskip("keras")
if not keras.__version__.startswith("3."):
    pytest.skip("TensorFlow has Keras 2 of its own here", allow_module_level=True)

NAMED = r"Keras 3 .*Keras 2 \(the package tf-keras\): make it with tf.keras, after"


@pytest.mark.parametrize(
    ("begin", "variables"),
    [
        ("import tensorflow as tf; tf.keras.layers.Dense(1)", {}),
        ("", {"TF_USE_LEGACY_KERAS": "0"}),
    ],
    ids=["tf.keras used before fedmf", "switched off"],
)
def test_a_program_where_tf_keras_is_keras_3_is_refused_at_import(begin, variables):
    environment = {
        name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"
    }
    finished_process = subprocess.run(
        [sys.executable, "-c", f"{begin}\nfrom fedmf import federated"],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished_process.returncode == 1
    last_line = finished_process.stderr.splitlines()[-1]
    message = f"ImportError: tf.keras is Keras {keras.__version__} here, and fedmf trains models of"
    assert last_line.startswith(f"{message} Keras 2 (the package tf-keras): import fedmf.federated")
    assert last_line.endswith("TF_USE_LEGACY_KERAS=1 before Python starts")
    assert "Thread-" not in finished_process.stderr


def keras3_model(seed=0):
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(7)])


@pytest.mark.parametrize(
    "change",
    [
        {"build_model": keras3_model},
        {"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        {"loss": keras.losses.sparse_categorical_crossentropy},
        {"loss": keras.losses.SparseCategoricalCrossentropy},
        {"metrics": lambda: [keras.metrics.SparseCategoricalAccuracy("accuracy")]},
        {"metrics": lambda: [keras.metrics.SparseCategoricalAccuracy]},
    ],
    ids=["model", "loss", "loss function", "loss class", "metric", "metric class"],
)
def test_objects_of_keras_3_are_refused_before_training(change, tmp_path):
    """The task refuses them, or the first call that builds the model or the metrics."""
    (name,) = change
    with refusal(f"^{name} of task 'small' .*of {NAMED}", TypeError):
        train(tmp_path / "run", config(), small_task(**change))
    assert not (tmp_path / "run").exists()


def test_a_model_itself_in_place_of_a_function_is_refused():
    with refusal(NAMED, TypeError):
        small_task(build_model=keras3_model())


def with_a_layer_of_keras3(seed=0):
    import tensorflow as tf

    return tf.keras.Sequential([tf.keras.Input((5,)), keras.layers.Dense(7)])


def through_a_layer_of_keras3(seed=0):
    """Keras 2 takes the layer's function into the graph, and none of its weights."""
    import tensorflow as tf

    inputs = tf.keras.Input((5,))
    hidden_output = tf.keras.layers.Dense(3)(inputs)
    return tf.keras.Model(inputs, keras.layers.Dense(7)(hidden_output))


@pytest.mark.parametrize(
    ("build_model", "match"),
    [
        (with_a_layer_of_keras3, "takes a layer of"),
        (through_a_layer_of_keras3, "gives a model that computes with a variable of"),
    ],
)
def test_a_layer_of_keras_3_in_a_model_of_keras_2_is_refused(build_model, match, tmp_path):
    with refusal(f"^build_model of task 'small' {match} {NAMED}", TypeError):
        train(tmp_path / "run", config(), small_task(build_model=build_model))
    assert not (tmp_path / "run").exists()


def test_initial_weights_from_a_file_of_keras_3_are_refused(tmp_path):
    path = tmp_path / "keras3.keras"
    keras3_model().save(path)
    match = rf"initial_model=.*Keras {keras.__version__} has written it.*Keras 2 \(the package"
    with refusal(match):
        train(tmp_path / "run", config(initial_model=str(path)))
    assert not (tmp_path / "run").exists()
