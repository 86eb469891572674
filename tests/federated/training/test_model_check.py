"""Models that carry one client's data to another, or draw random numbers, are refused."""

import dataclasses
import functools

import pytest
import tensorflow as tf

from fedmf.federated.task import seeded
from tests.federated.small_runs import checked_fingerprint, config, train
from tests.federated.small_task import CLASSES, LENGTH, small_task
from tests.refusals import refusal

layers = tf.keras.layers


class Seen(layers.Layer):
    """A layer that adds a table of earlier inputs to the next ones."""

    def build(self, shape):
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def call(self, x):
        earlier_inputs = self.table.lookup(tf.constant([0], tf.int64))
        with tf.control_dependencies(
            [self.table.insert(tf.constant([0], tf.int64), [tf.reduce_sum(x)])]
        ):
            return tf.ensure_shape(x + earlier_inputs, x.shape)


class PartOfVariable(layers.Layer):
    """A layer that writes its inputs to a slice of a variable."""

    def build(self, shape):
        self.seen = tf.Variable(tf.zeros([shape[-1]]), trainable=False)

    def call(self, x):
        self.seen[1:].assign(self.seen[1:] + tf.reduce_sum(x, [0, 1])[1:])
        return x - self.seen


class Backwards(layers.Layer):
    """A layer that keeps gradients, and adds them to later ones."""

    def build(self, shape):
        self.seen = tf.Variable(tf.zeros([shape[-1]]), trainable=False)

    def call(self, x):
        @tf.custom_gradient
        def through(x):
            def gradient(upstream):
                self.seen.assign_add(tf.reduce_sum(upstream, [0, 1]))
                return upstream + self.seen

            return tf.identity(x), gradient

        return through(x)


class Staged(layers.Layer):
    """A layer that returns the batch before, by an operation that no pattern names."""

    def call(self, x):
        with tf.control_dependencies([tf.raw_ops.Stage(values=[x], shared_name="attack")]):
            (earlier_inputs,) = tf.raw_ops.Unstage(dtypes=[tf.float32], shared_name="attack")
        return tf.ensure_shape(earlier_inputs, x.shape)


def sampled(x):
    loss = tf.nn.sampled_softmax_loss(
        tf.ones([50, 4]), tf.ones([50]), tf.zeros([4, 1], tf.int64), x[:, 0], 5, 50
    )
    return x + tf.reduce_mean(loss)


def pooled(x):
    return (
        x
        + tf.nn.fractional_max_pool(x[..., None], [1.0, 1.2, 1.0, 1.0], pseudo_random=True)[0][
            :, :1, :, 0
        ]
    )


class FromGenerator(layers.Layer):
    """A layer of random numbers from a generator with a state."""

    def build(self, shape):
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, x):
        return x + self.generator.normal([4])


class FromInputs(layers.Layer):
    """A layer of random numbers that are a function of its inputs."""

    def call(self, x):
        seed = tf.cast(tf.bitcast(tf.stack([x[0, 0, 0], x[0, 0, 1]]), tf.int32), tf.int64)
        return x + tf.random.stateless_normal([4], seed)


def called_back(x):
    y = tf.numpy_function(lambda a: a, [x], tf.float32)
    y.set_shape(x.shape)
    return y


def task_with(*middle):
    """Returns the small task with layers between its embedding, of width 4, and its dense layer."""

    def build_model(seed):
        embedding_layer = layers.Embedding(CLASSES, 4, batch_input_shape=[4, LENGTH])
        return tf.keras.Sequential(
            [embedding_layer, *(layer() for layer in middle), layers.Dense(CLASSES)]
        )

    return small_task(build_model=build_model)


def refused(task, match, settings=None):
    with refusal(f"(?s){match}"):
        checked_fingerprint(task, settings or config())


def test_texts_as_labels_are_refused():
    x, y = small_task().split("validation")
    texts = dataclasses.replace(
        small_task(), evaluation_examples=lambda split: (x, y.astype(str)), data_version="texts"
    )
    with refusal("labels of task 'small' are texts, .* number them, .*np.unique", TypeError):
        checked_fingerprint(texts, config())


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        (layers.BatchNormalization, "writes a variable"),
        (lambda: layers.LSTM(4, return_sequences=True, stateful=True), "writes a variable"),
        (Seen, "writes a variable or a table"),
        (PartOfVariable, "writes a variable"),
        (Backwards, "writes a variable"),
        (Staged, "keeps a state or has an effect"),
        (lambda: layers.Lambda(sampled), "draws random numbers"),
        (lambda: layers.Lambda(pooled), "draws random numbers"),
        (lambda: layers.Dropout(0.5, seed=3), "draws random numbers"),
        (
            lambda: layers.LSTM(4, return_sequences=True, recurrent_dropout=0.5),
            "draws random numbers",
        ),
        (FromGenerator, "(draws random numbers|writes a variable)"),
        (lambda: layers.Lambda(called_back), "calls Python"),
    ],
)
def test_layers_that_keep_a_state_or_draw_numbers_are_refused(layer, match):
    refused(task_with(layer), f"build_model of task 'small' .* {match}.* in training")


def test_refusals_of_keras_layers_give_the_reason():
    """SpectralNormalization reads a tensor's value in Keras 2.14, and writes it later."""
    reason = "carr(y|ies) what it has seen of one client to the next"
    layer = functools.partial(layers.SpectralNormalization, layers.Dense(4))
    asks = "asks in Python for .*SpectralNormalization 'spectral_norm.*': Using a symbolic"
    refused(task_with(layer), f"({asks}|writes a variable).*{reason}")
    refused(task_with(layers.BatchNormalization), f"writes a variable .* in training .*{reason}")


@pytest.mark.parametrize(
    "middle",
    [
        (lambda: layers.LSTM(4, return_sequences=True), layers.LayerNormalization),
        (FromInputs,),
        (lambda: layers.Dropout(0.0),),
    ],
)
def test_pure_layers_are_accepted_in_both_executions(middle):
    """There is one more check for TFF's runtime."""
    checked_fingerprint(task_with(*middle), config("tff"))


def test_losses_that_draw_or_read_variables_are_refused():
    weight = tf.Variable(2.0)
    for loss, match in (
        (lambda y, logits, real: tf.reduce_mean(logits) + tf.random.uniform([]), "draws random"),
        # The learning phase may change between rounds.
        (lambda y, logits, real: weight * tf.reduce_mean(logits), "no weight of the model"),
    ):
        refused(small_task(loss=loss), match)


class OwnStep(tf.keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


def embedding(**options):
    return layers.Embedding(CLASSES, CLASSES, batch_input_shape=[4, LENGTH], **options)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: OwnStep([embedding()]), "a model with a train_step of its own"),
        (
            lambda: tf.keras.Sequential(
                [embedding(), layers.Dense(CLASSES, kernel_constraint="unit_norm")]
            ),
            "a model with constraints",
        ),
        (lambda: tf.keras.Sequential([layers.Dense(CLASSES)]), "a model without weights"),
        (lambda: tf.keras.Sequential([embedding(trainable=False)]), "which nothing is trained"),
    ],
    ids=["train_step", "constraint", "no weights", "nothing to train"],
)
def test_models_that_need_keras_fit_are_refused(build, match):
    refused(small_task(build_model=lambda seed: build()), f"gives .*{match}")


def test_frozen_weights_train_in_the_fast_execution_alone(tmp_path):
    frozen = task_with(
        lambda: layers.Dense(
            4, trainable=False, kernel_initializer=tf.keras.initializers.Identity()
        )
    )
    refused(frozen, r"not trained \(dense.*/kernel.*execution='tff'", config("tff"))
    assert train(tmp_path / "run", task=frozen).result is not None


def cast_to(dtype):
    return task_with(
        lambda: layers.Dense(4, dtype=dtype),
        lambda: layers.Lambda(lambda x: tf.cast(x, "float32")),
    )


class Complex(layers.Layer):
    """A layer with complex weights."""

    def build(self, shape):
        self.turn = self.add_weight("turn", shape=[4], dtype=tf.complex64, initializer="ones")

    def call(self, x):
        return x * tf.math.real(self.turn)


class Counted(layers.Layer):
    def build(self, shape):
        self.count = tf.Variable(1, trainable=True, name="count")

    def call(self, x):
        return x * tf.cast(self.count, tf.float32)


@pytest.mark.parametrize(
    ("task", "match"),
    [
        (cast_to("float64"), "dense.*/kernel:0 is float64"),
        (cast_to("bfloat16"), "dense.*/kernel:0 is bfloat16"),
        (cast_to("mixed_float16"), "dense.* computes in float16"),
        (task_with(Complex), "turn:0 is complex64"),
        (task_with(Counted), "count:0 is int32"),
    ],
)
def test_weights_that_are_not_float32_are_refused(task, match):
    refused(task, rf"build_model of task 'small' .* not all float32 \(.*{match}")


@pytest.mark.slow
def test_mixed_bfloat16_trains_the_same_model_in_both_executions(tmp_path):
    """Weights are float32; arithmetic is bfloat16, of 8 bits."""
    build_model = seeded(lambda: cast_to("mixed_bfloat16").build_model(0))
    task = small_task(build_model=build_model)
    runs = [train(tmp_path / name, config(name), task) for name in ("fast", "tff")]
    initial = build_model(3).get_weights()
    for weight, tff_weight, start in zip(*(run.weights for run in runs), initial, strict=True):
        assert abs(weight - start).max() > 0.02
        assert abs(weight - tff_weight).max() < 0.02 * abs(weight - start).max()
