"""The model, its losses and metrics against numpy, and the LSTM layer against Keras's."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from fedmf.tasks.stackoverflow import model  # noqa: E402
from fedmf.tasks.stackoverflow.lstm import with_keras_lstm  # noqa: E402
from fedmf.tasks.stackoverflow.preprocessing import SpecialIds  # noqa: E402

SMALL = {"vocabulary_size": 7, "sequence_length": 5, "embedding_size": 3, "lstm_size": 4}


@pytest.fixture
def batch():
    """Returns four sentences of at most five words over V = 7; the last one only pads the batch."""
    rng = np.random.default_rng(0)
    # pad 0, words 1..7, out-of-vocabulary 8, begin 9, end 10
    labels = np.array(
        [[3, 1, 8, 10, 0], [2, 2, 5, 7, 6], [8, 8, 1, 1, 10], [4, 10, 0, 0, 0]], np.int32
    )
    logits = rng.normal(size=(4, 5, 11)).astype(np.float32)
    for row, column in ((0, 0), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2), (2, 3), (2, 4), (3, 0)):
        # This word is predicted correctly, the others by chance.
        logits[row, column, labels[row, column]] = 9.0
    return labels, logits, np.array([1, 1, 1, 0], np.float32)


def cross_entropy(labels, logits):
    logits = logits.astype(np.float64)
    return (
        np.log(np.exp(logits).sum(-1))
        - np.take_along_axis(logits, labels[..., None].astype(int), -1)[..., 0]
    )


def test_the_model_has_the_published_size():
    built = model.build_model(0)
    assert built.count_params() == 4_050_748
    assert [tuple(weight.shape) for weight in built.trainable_variables] == [
        (10_004, 96), (96, 2_680), (670, 2_680), (2_680,), (670, 96), (96,), (96, 10_004),
        (10_004,),
    ]  # fmt: skip
    assert built.output_shape == (None, 20, 10_004)
    assert not built.non_trainable_variables


def test_losses_match_numpy(batch):
    labels, logits, weights = batch
    entropy = cross_entropy(labels, logits)[:3]
    for kind, expected in (("published", entropy), ("masked", entropy[labels[:3] != 0])):
        loss = model.make_loss(kind)
        assert float(loss(labels, logits, weights)) == pytest.approx(expected.mean(), rel=1e-6)
        assert float(loss(labels, logits, np.zeros(4, np.float32))) == 0.0


@pytest.mark.parametrize("kind", model.LOSSES)
def test_metrics_match_numpy(kind, batch):
    labels, logits, _ = batch
    metric_by_name = {metric.name: metric for metric in model.make_metrics(kind, SpecialIds(7))}
    for start in (0, 1):  # over two batches
        for metric in metric_by_name.values():
            metric.update_state(*(batch_array[start:3:2] for batch_array in batch[:2]))
    is_right = (logits.argmax(-1) == labels)[:3]
    kept_labels = labels[:3]
    expected = {
        "accuracy": ~np.isin(kept_labels, [0, 8, 10]),
        "accuracy_no_pad_no_oov": ~np.isin(kept_labels, [0, 8]),
        "accuracy_no_pad": kept_labels != 0,
    }
    for name, mask in expected.items():
        assert float(metric_by_name[name].result()) == pytest.approx(
            is_right[mask].mean(), rel=1e-12
        )
    assert [mask.sum() for mask in expected.values()] == [9, 11, 14]
    loss = float(model.make_loss(kind)(*batch))
    assert float(metric_by_name["loss"].result()) == pytest.approx(loss, rel=1e-6)


def keras_alone(weights):
    """Returns the published model of google-research/federated in plain Keras, with these
    weights.
    """
    layers = tf.keras.layers
    keras_model = tf.keras.Sequential(
        [
            layers.Embedding(11, 3, mask_zero=True, input_length=5),
            layers.LSTM(4, return_sequences=True),
            layers.Dense(3),
            layers.Dense(11),
        ]
    )
    keras_model.set_weights(weights)
    return keras_model


@pytest.mark.slow
def test_the_published_form_equals_the_published_model_in_keras():
    published_model = model.build_model(3, **SMALL, form="published")
    rng = np.random.default_rng(0)
    published_model.set_weights(
        [rng.normal(size=weight.shape) for weight in published_model.get_weights()]
    )
    keras_model = keras_alone(published_model.get_weights())
    default_model = model.build_model(3, **SMALL)
    default_model.set_weights(published_model.get_weights())
    words = np.array([[9, 3, 1, 10, 0], [9, 2, 2, 5, 7], [9, 10, 0, 0, 0], [0] * 5], np.int32)
    labels = np.pad(words[:, 1:], [(0, 0), (0, 1)])
    results = []
    for tested_model in (published_model, keras_model, default_model):
        with tf.GradientTape() as tape:
            logits = tested_model(words)
            loss = model.make_loss("published")(labels, logits, np.ones(4, np.float32))
        gradients = tape.gradient(loss, tested_model.trainable_variables)
        results.append([logits, loss, *map(tf.convert_to_tensor, gradients)])
    for fedmf_array, keras_array in zip(*results[:2], strict=True):
        assert_allclose(fedmf_array, keras_array, rtol=1e-5, atol=1e-6)
    assert_allclose(results[0][0][:2, :4], results[2][0][:2, :4], rtol=1e-5, atol=1e-6)
    # Negative control: the default model continues after the padding.
    assert abs(float(results[0][1] - results[2][1])) > 1e-3
    assert_allclose(with_keras_lstm(published_model)(words), results[0][0], rtol=1e-5, atol=1e-6)


def test_the_published_initializers_have_the_stated_deviations():
    """Deviations are within 2% of those of He's and Glorot's normal initializers; uniform ones end
    elsewhere.

    The relative standard error of the fewest draws, 60,000, is 0.3%: one seed in 1e11 is further
    off.
    """
    sizes = {"vocabulary_size": 400, "embedding_size": 200, "lstm_size": 300}
    weights = model.build_model(0, sequence_length=3, **sizes, form="published").get_weights()
    embedding, kernel, recurrent, _, projection, _, logits, _ = weights
    for drawn_weights, variance in (
        (kernel, 2 / 200),
        (projection, 2 / (300 + 200)),
        (logits, 2 / (200 + 404)),
    ):
        assert drawn_weights.std() == pytest.approx(np.sqrt(variance), rel=0.02)
        # Normal draws are truncated at two of their own deviations, 2.27 of the remaining ones.
        assert np.abs(drawn_weights).max() > 2.2 * drawn_weights.std()
    assert_allclose(recurrent @ recurrent.T, np.eye(300), atol=1e-5)
    assert np.abs(embedding).max() <= 0.05
