"""Global switches of TensorFlow are refused in one sentence, or have no effect."""

import pytest
import tensorflow as tf

from fedmf.federated.tensorflow_import import check_eager, keras3_note
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("scope", "match"),
    [
        (lambda: tf.Graph().as_default(), "needs eager execution.* default graph"),
        (lambda: tf.distribute.OneDeviceStrategy("/CPU:0").scope(), "scope of a tf.distribute"),
    ],
)
def test_open_graphs_and_distribution_strategies_are_refused(scope, match):
    with scope(), refusal(match, RuntimeError):
        check_eager()
    check_eager()


def test_objects_of_keras_2_have_no_note():
    for thing in (tf.keras.losses.MeanSquaredError(), tf.keras.losses.mse, tf.keras.Model, None):
        assert keras3_note(thing) == ""
