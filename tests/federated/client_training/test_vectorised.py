"""Vectorised clients have no influence on one another's updates, whatever their data."""

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.client_training import vectorised
from fedmf.federated.client_training.stateless_model import dense_rows
from tests.federated.client_training.conftest import work_of
from tests.federated.run_small import config
from tests.federated.small_task import task_of_arrays

layers = tf.keras.layers

# Clients of two examples of small whole numbers. A column names their segment: that of the second
# client is -1, which tf.math.unsorted_segment_sum drops.
COHORT = [
    [(np.array([[segment, a, b, 3], [segment, 3, 1, 4]], np.float32), np.array([0, 1], np.int64))]
    for segment, a, b in ((1, 0, 5), (-1, 7, 0), (0, 1, 2))
]


class Segments(layers.Layer):
    """A layer of sums by segment, with as many segments as examples."""

    def call(self, x):
        return tf.math.unsorted_segment_sum(x, tf.cast(x[:, 0], tf.int32), 2)


class Embedded(layers.Layer):
    """A layer that looks up rows of a table, whose gradient has only those rows."""

    def build(self, shape):
        self.table = self.add_weight("table", shape=(8, 3))

    def call(self, x):
        return tf.reshape(tf.gather(self.table, tf.cast(tf.abs(x), tf.int32)), [-1, 12])


class OwnGradient(layers.Layer):
    """A layer with a custom gradient.

    The rank of one weight's gradient is known only when it runs; the other weight's gradient is a
    weight.
    """

    def build(self, shape):
        self.w, self.v = (self.add_weight(name, shape=(4, 3)) for name in "wv")

    def call(self, x):
        @tf.custom_gradient
        def product(x, w, v):
            def gradient(upstream):
                shape = tf.unstack(tf.shape(w)[: tf.rank(w)], 2)
                by_w = tf.reshape(tf.matmul(x, upstream, transpose_a=True), tf.stack(shape))
                by_w = tf.raw_ops.PlaceholderWithDefault(input=by_w, shape=None)
                return upstream @ tf.transpose(w), by_w, w

            return x @ w, gradient

        return product(x, tf.convert_to_tensor(self.w), tf.convert_to_tensor(self.v))


class Branching(layers.Layer):
    """A layer with a branch that depends on a client's data."""

    def build(self, shape):
        self.w = self.add_weight("w", shape=(4, 3))

    def call(self, x):
        scaled = tf.cond(tf.reduce_max(x) > 6.0, lambda: x / 7.0, lambda: tf.exp(-x))
        return scaled @ self.w


def rolled():
    return layers.Lambda(lambda x: tf.roll(x, 1, axis=-1))


@pytest.fixture
def together_and_alone(sums_of):
    """Returns layer -> (sum of a cohort's updates, sum of the updates of each client alone)."""

    def of(layer, **settings):
        def model():
            return tf.keras.Sequential([tf.keras.Input((4,)), layer(), layers.Dense(2)])

        task = task_of_arrays(*COHORT[0][0], model, batch_size=2)

        def summed(small, cohorts):
            sums = sums_of(task, config(**settings), small)
            return sum(
                np.concatenate([np.ravel(leaf) for leaf in sums(cohort).values])
                for cohort in cohorts
            )

        return summed(10_000, [COHORT]), summed(0, [[client] for client in COHORT])

    return of


@pytest.mark.parametrize(
    ("layer", "is_vectorised"),
    [
        (Embedded, True),
        *(
            pytest.param(kind, False, marks=pytest.mark.slow)
            for kind in (Segments, Branching, rolled)
        ),
    ],
)
def test_the_sum_of_a_cohort_is_the_sum_of_single_clients(
    layer, is_vectorised, together_and_alone, vectorized_map_calls
):
    np.testing.assert_allclose(*together_and_alone(layer), atol=1e-5)
    assert bool(vectorized_map_calls) is is_vectorised


@pytest.mark.slow
def test_custom_gradients_are_vectorised(together_and_alone, vectorized_map_calls):
    settings = {"client_optimizer": "adam", "client_epochs": 2, "client_learning_rate": 0.1}
    np.testing.assert_allclose(*together_and_alone(OwnGradient, **settings), atol=1e-5)
    assert vectorized_map_calls


@pytest.mark.slow
def test_a_model_without_a_kernel_on_this_processor_trains_one_by_one(
    together_and_alone, monkeypatch
):
    """The gradient of a grouped convolution is such a model: it can be traced, and fails when it
    runs.
    """

    def missing(*_):
        return tf.raw_ops.Conv2DBackpropFilter(
            input=tf.zeros([1, 2, 2, 2]), filter_sizes=[1], out_backprop=tf.zeros([1, 2, 2, 2]),
            strides=[1, 1, 1, 1], padding="SAME",
        ), tf.constant(0.0)  # fmt: skip

    monkeypatch.setattr(vectorised.VectorisedClients, "_train_in_steps", missing)
    np.testing.assert_allclose(*together_and_alone(lambda: layers.Dense(3)), atol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(rolled, marks=pytest.mark.slow),
        pytest.param(
            Segments,
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(
                    tf.__version__ >= "2.15", reason="newer ones drop a negative segment"
                ),
            ],
        ),
    ],
)
def test_without_the_check_clients_would_mix(layer, together_and_alone, monkeypatch):
    """Negative control: TensorFlow's own vectorised forms mix clients."""
    monkeypatch.setattr(vectorised, "check_clients_stay_separate", lambda function: None)
    monkeypatch.setattr(vectorised, "check_independent", lambda *_: None)
    sum_together, sum_alone = together_and_alone(layer)
    assert np.abs(sum_together - sum_alone).max() > 0.1


def test_rows_with_an_index_out_of_range_are_dropped():
    def dense(index):
        return dense_rows(tf.IndexedSlices(tf.ones([3]), index, tf.constant([2])))

    index = tf.constant([[0, 1, 1], [-1, 2, 0], [0, 0, 0]])
    np.testing.assert_array_equal(tf.vectorized_map(dense, index), [[1, 2], [1, 0], [3, 0]])


def chaotic_task(first_layer=None, batch_size=4):
    """Returns a task whose local training amplifies a difference in the last bit."""

    def model():
        hidden_layers = [layers.Dense(60, "relu"), layers.Dense(30, "relu")]
        if first_layer is not None:
            hidden_layers.insert(0, layers.Lambda(first_layer))
        return tf.keras.Sequential([tf.keras.Input((5,)), *hidden_layers, layers.Dense(5)])

    rng = np.random.default_rng(1)
    x = rng.normal(size=(8, 5)).astype(np.float32)
    return task_of_arrays(x, rng.integers(0, 5, 8), model, batch_size=batch_size)


def random_client(seed, num_examples, num_epochs):
    rng = np.random.default_rng(seed)
    examples = (
        rng.normal(size=(num_examples, 5)).astype(np.float32),
        rng.integers(0, 5, num_examples),
    )
    return [examples] * num_epochs


def flat(clipped_sum):
    return np.concatenate([np.ravel(leaf) for leaf in clipped_sum.values])


@pytest.mark.parametrize("num_examples", [2, 4, 30])
def test_a_client_moves_no_update_of_others(num_examples, sums_of, vectorized_map_calls):
    """Others have the same bits with the client and without it, and in other slots."""
    settings = config(client_learning_rate=0.7, cohort_size=8)
    sums = sums_of(chaotic_task(), settings, 10_000)
    other_clients = [random_client(100 + i, 12 + i, 20) for i in range(7)]
    client = random_client(7, num_examples, 20)
    sums_without = flat(sums(other_clients))
    sum_alone = flat(sums([client]))
    for position in (0, 3, 7):
        cohort = [*other_clients[:position], client, *other_clients[position:]]
        # Sums in float64 differ by the order of their terms.
        np.testing.assert_allclose(flat(sums(cohort)) - sums_without, sum_alone, rtol=0, atol=1e-14)
    assert vectorized_map_calls


@pytest.mark.parametrize("first_layer", [None, tf.math.log1p])
def test_a_model_that_rounds_by_the_place_in_a_call_trains_one_by_one(monkeypatch, first_layer):
    """Also if its loss is finite for positive examples alone."""
    traced_gradients = vectorised.VectorisedClients._traced_gradients

    def with_other_last_slot(self, sent):
        """Returns gradients of which the last slot's differ in the last bit."""
        gradients_of_slots = traced_gradients(self, sent)

        def gradients(*arguments):
            losses, stacked = gradients_of_slots(*arguments)
            return losses, [with_other_last_entry(leaf.numpy()) for leaf in stacked]

        return gradients

    def with_other_last_entry(leaf):
        return np.concatenate([leaf[:-1], np.nextafter(leaf[-1:], np.float32(9))])

    monkeypatch.setattr(vectorised.VectorisedClients, "_traced_gradients", with_other_last_slot)
    assert "rounded by its place" in work_of(chaotic_task(first_layer), config()).explain()


def test_a_client_of_several_examples_moves_no_update_of_clients_of_one(
    sums_of, vectorized_map_calls
):
    """Only clients of one example are vectorised if the model is not small."""
    sums = sums_of(chaotic_task(batch_size=1), config(cohort_size=8), 0)
    other_clients = [random_client(100 + i, 1, 1) for i in range(7)]
    client = random_client(7, 2, 1)
    difference = flat(sums([*other_clients[:3], client, *other_clients[3:]])) - flat(
        sums(other_clients)
    )
    np.testing.assert_allclose(difference, flat(sums([client])), rtol=0, atol=1e-14)
    assert vectorized_map_calls
