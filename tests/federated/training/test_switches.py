"""What a program switches for all of TensorFlow: refused in one sentence, or of no effect."""

import pytest
import tensorflow as tf

from fedmf.federated.tensorflow_import import check_eager, keras3_note
from tests.refusals import refusal


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        (lambda: tf.Graph().as_default(), "needs eager execution.* default graph"),
        (lambda: tf.distribute.OneDeviceStrategy("/CPU:0").scope(), "scope of a tf.distribute"),
    ],
)
def test_a_graph_and_a_strategy_are_refused(scope, words):
    with scope(), refusal(words, RuntimeError):
        check_eager()
    check_eager()


def test_what_is_of_keras_2_has_no_note():
    for thing in (tf.keras.losses.MeanSquaredError(), tf.keras.losses.mse, tf.keras.Model, None):
        assert keras3_note(thing) == ""
