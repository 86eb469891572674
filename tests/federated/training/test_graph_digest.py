"""The digest of what a task trains: the same in every process, and another for everything that
trains otherwise.
"""

import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from fedmf.federated.model_check import check_model
from tests.conftest import TFF
from tests.federated.run_small import config
from tests.federated.small_task import CLASSES, LENGTH, small_task

TFF_TASKS = {}
if TFF:
    from tests.federated.tff.test_tff_models import TASKS as TFF_TASKS

layers = tf.keras.layers


class Scores(tf.keras.Model):
    """A subclassed model, with a lookup table and an assertion, whose message names nodes."""

    def __init__(self, words="abc"):
        super().__init__()
        keys = tf.constant(sorted(words))
        self.table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, tf.range(len(words), dtype=tf.int64)), -1
        )
        self.embedding, self.dense = layers.Embedding(CLASSES, 4), layers.Dense(CLASSES)

    def call(self, x):
        tf.debugging.assert_less(tf.reduce_max(x), CLASSES)
        shift = tf.cast(self.table.lookup(tf.constant(["b"])), tf.float32)
        return self.dense(self.embedding(x)) + shift


def subclassed(words="abc"):
    def build(seed):
        tf.keras.utils.set_random_seed(seed)
        model = Scores(words)
        model(tf.zeros([1, LENGTH], tf.int32))
        return model

    return small_task(build_model=build)


def stacked(layer, more=0):
    def build(seed):
        tf.keras.utils.set_random_seed(seed + more)
        first = layers.Embedding(CLASSES, 4, input_length=LENGTH)
        return tf.keras.Sequential([first, layer(), layers.Dense(CLASSES)])

    return small_task(build_model=build)


def with_loss(loss):
    return small_task(loss=loss)


def weighted(scale):
    """A loss of a tensor that is too large to be a constant of the graph."""
    table = tf.fill([300], scale)
    return lambda y, logits, real: table[0] * tf.reduce_mean(logits)


def of_table(value):
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, [0.0, 0.0])
    table.insert(tf.constant([1], tf.int64), tf.constant([[value, 1.0]]))
    return lambda y, logits, real: (
        tf.reduce_mean(table.lookup(tf.constant([1], tf.int64))) * tf.reduce_mean(logits)
    )


def bounded(operation):
    return lambda y, logits, real: tf.reduce_mean(operation(logits, 0.0))


def regularised(strength):
    return lambda: layers.Dense(4, kernel_regularizer=tf.keras.regularizers.L2(strength))


def in_a_loop(factor):
    return lambda: layers.Lambda(lambda x: tf.map_fn(lambda row: factor * row, x))


# What trains, and in each group otherwise than the rest of it.
TASKS = {
    "small": small_task,
    "weighted 1": lambda: with_loss(weighted(1.0)),
    "weighted 2": lambda: with_loss(weighted(2.0)),
    "table of rows": lambda: with_loss(of_table(2.0)),
    "other rows": lambda: with_loss(of_table(3.0)),
    "another operation": lambda: with_loss(bounded(tf.maximum)),
    "and another": lambda: with_loss(bounded(tf.minimum)),
    "l2 .1": lambda: stacked(regularised(0.1)),
    "l2 .2": lambda: stacked(regularised(0.2)),
    "frozen": lambda: stacked(lambda: layers.Dense(4, trainable=False)),
    "frozen, other values": lambda: stacked(lambda: layers.Dense(4, trainable=False), 1),
    "loop of 2": lambda: stacked(in_a_loop(2.0)),
    "loop of 3": lambda: stacked(in_a_loop(3.0)),
    "subclassed": subclassed,
    "other words": lambda: subclassed("bcd"),
    **TFF_TASKS,
}


def digests(names):
    return {name: check_model(TASKS[name](), config()) for name in names}


# Large tensors, weights that are not trained, layers of one's own
FEW = ("small", "weighted 1", "weighted 2", "frozen", "frozen, other values")
FEW += ("subclassed", "other words")


@pytest.fixture(scope="module")
def few():
    return digests(FEW)


@pytest.mark.slow
def test_what_trains_otherwise_has_another_digest(few):
    others = digests([name for name in TASKS if name not in FEW])
    assert len({found["model"] for found in (few | others).values()}) == len(TASKS)


def test_what_few_train_otherwise_has_another_digest(few):
    assert len({found["model"] for found in few.values()}) == len(FEW)


def test_the_execution_does_not_matter(few):
    assert check_model(small_task(), config("tff")) == few["small"]


def test_what_it_starts_from_has_its_own(few):
    other = check_model(small_task(), config(seed=4))
    assert other["model"] == few["small"]["model"]
    assert other["initial_weights"] != few["small"]["initial_weights"]


@pytest.mark.slow
def test_another_process_with_other_counters_and_another_hash_seed_has_the_same(few):
    program = (
        "import json, tensorflow as tf\n"
        "for _ in range(3): tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(1,))])\n"
        "from tests.federated.training.test_graph_digest import FEW, digests\n"
        "print(json.dumps(digests(FEW[::-1])))"
    )
    options = {"env": os.environ | {"PYTHONHASHSEED": "7"}, "capture_output": True, "text": True}
    out = subprocess.run([sys.executable, "-c", program], check=True, **options)
    assert json.loads(out.stdout.splitlines()[-1]) == few
