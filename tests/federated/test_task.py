"""Tasks accept examples of any kind, and refuse in one sentence what does not fit.

The refusal comes before there is a run folder.
"""

import dataclasses
import itertools

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf import federated
from fedmf.federated import datasets
from fedmf.runs.folder import RunFolder
from fedmf.training.example_checks import check_examples
from fedmf.training.examples import NotFinite
from tests.federated.small_runs import config, train
from tests.federated.small_task import task_of_arrays
from tests.refusals import refusal

pytestmark = pytest.mark.usefixtures("clients_in_turn")
layers = tf.keras.layers
metrics = tf.keras.metrics

# Nine clients of 1 to 9 examples.
OWNERS = np.repeat(np.arange(9), np.arange(1, 10))
RNG = np.random.default_rng(5)
PIXELS = RNG.integers(0, 256, (len(OWNERS), 6, 6, 1)).astype(np.uint8)
TABLE = {"age": RNG.uniform(size=(len(OWNERS), 1)), "city": RNG.integers(0, 5, len(OWNERS))}
LABELS = RNG.integers(0, 3, len(OWNERS))
ONE_HOT = (LABELS[:, None] == np.arange(3)).astype(np.float32)


def cnn():
    return tf.keras.Sequential(
        [
            layers.Rescaling(1 / 255, input_shape=(6, 6, 1)),
            layers.Conv2D(4, 3),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )


def wide():
    age = tf.keras.Input((1,), name="age")
    city = tf.keras.Input((), dtype=tf.int64, name="city")
    joined = layers.Concatenate()([age, layers.Embedding(5, 2)(city)])
    return tf.keras.Model({"age": age, "city": city}, layers.Dense(3)(joined))


def task_of(x=PIXELS, y=LABELS, model=cnn, **changes):
    return task_of_arrays(x, y, model, **{"client_ids": OWNERS} | changes)


def examples_of(task, change, *clients):
    """Returns the task with other examples for some clients."""
    read_examples = task.client_examples
    return dataclasses.replace(
        task,
        client_examples=lambda name: (
            change(*read_examples(name)) if name in clients else read_examples(name)
        ),
    )


def test_clients_are_in_the_order_of_their_ids_and_examples_in_that_of_the_arrays():
    task = task_of(np.arange(5.0), np.arange(5), client_ids=np.array(["b", "a", "b", "c", "a"]))
    assert task.client_ids == ("a", "b", "c")
    assert [task.examples_of(name)[0].tolist() for name in "abc"] == [[1, 4], [0, 2], [3]]


def test_the_digest_of_the_contents_is_the_version_of_the_data():
    version, *other_versions = (
        task.data_version
        for task in (
            task_of(PIXELS.copy()),
            task_of(client_ids=OWNERS[::-1]),
            task_of(y=1 - LABELS),
            task_of({"x": PIXELS}),
            task_of(PIXELS.astype(np.float32)),
        )
    )
    assert len({version, *other_versions}) == 5
    assert version == task_of().data_version


def of_client_data(data, preprocess, **changes):
    values = {name: getattr(task_of(), name) for name in ("name", "loss", "metrics", "batch_size")}
    splits = {"train": data, "validation": data, "test": data}
    return federated.Task.from_client_data(
        preprocess=preprocess, model=cnn, **values | splits | changes
    )


def test_of_client_data_preprocesses_the_examples_of_a_client_data(tff):
    """tests/federated/client_training/test_sample_weights.py compares it with arrays."""

    def mapped(dataset):
        return dataset.map(lambda element: (element["pixels"], element["label"]))

    x = PIXELS.astype(np.float32)
    clients = {str(i): {"pixels": x[i == OWNERS], "label": LABELS[i == OWNERS]} for i in range(9)}
    data = tff.simulation.datasets.TestClientData(clients)
    actual, expected = (
        sorted(zip(map(bytes, x), y, strict=True))
        for x, y in (of_client_data(data, mapped).split("test"), (x, LABELS))
    )
    assert actual == expected
    with refusal("client '0' of task 'arrays' are a NoneType", TypeError):
        of_client_data(data, lambda d: None, validation=(x, LABELS)).examples_of("0")
    with refusal("single examples .* not batched", TypeError):
        of_client_data(data, lambda d: mapped(d).batch(2)).examples_of("0")


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        (("a", None), r"client_ids of task 'arrays'\[1\]=None"),
        (("a", "a"), "'a' more than once"),
    ],
)
def test_missing_and_equal_client_ids_are_refused(ids, match):
    """tests/test_identifiers.py has what looks alike."""
    with refusal(match):
        dataclasses.replace(task_of(), client_ids=ids)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"client_ids": OWNERS[1:]}, r"client_ids .*\(44,\) and x and y hold 45"),
        ({"client_ids": [*OWNERS[:-1], None]}, r"client_ids\[44\]=None"),
        ({"validation": (PIXELS[:0], LABELS[:0])}, "validation split of task 'arrays' is empty"),
        ({"test": (PIXELS.astype(np.float32), LABELS)}, "test split .*float32"),
        ({"loss": lambda labels, outputs, weights: outputs}, r"loss .*\(None, 3\) where a scalar"),
        ({"validation": (PIXELS, LABELS + 3)}, "validation split.*label value"),
        ({"model": wide}, "do not take a batch"),
        ({"metrics": lambda: []}, "metrics of task 'arrays' gives no metric"),
        ({"headline_metric": "f1"}, "headline_metric='f1'"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"y": LABELS.tolist()}, r"\(45, 6, 6, 1\) and \(\): .*lists are structures"),
        ({"x": np.array([b"a", b"b\0"], object)[LABELS % 2]}, "not all arrays of numbers or texts"),
        ({"x": np.where(OWNERS[:, None] == 7, np.inf, 1.0)}, "example 28, of client 7"),
        ({"model": cnn()}, "model is the model <(tf_)?keras"),
        ({"model": lambda: 1 // 0}, "build_model of task 'arrays' raises ZeroDivisionError"),
        ({"metrics": ["accuracy"]}, r"metrics=\['accuracy'\] is a list, not a function"),
        ({"metrics": lambda: ["accuracy"]}, "metrics of task 'arrays' gives 'accuracy'"),
        ({"metrics": lambda: [metrics.AUC(name="m")] * 2}, "metric 'm' .* twice"),
        (
            {
                "y": ONE_HOT,
                "loss": tf.keras.losses.CategoricalCrossentropy(from_logits=True),
                "metrics": lambda: [metrics.F1Score(name="m")],
            },
            r"metric 'm' .* shape \(3,\)",
        ),
        ({"metrics": lambda: [metrics.MeanSquaredError("m")]}, "metric 'm' .* fails on"),
        ({"x": TABLE | {"city": LABELS + 0.7}, "model": wide}, r"float64 .* int64 \(city\)"),
        ({"loss": "mse"}, "loss='mse' is a str, not a function"),
    ],
)
def test_attributes_that_do_not_fit_are_refused_in_one_sentence(tmp_path, changes, match):
    with refusal(match, (TypeError, ValueError)):
        train(tmp_path / "run", task=task_of(**changes))
    assert not (tmp_path / "run").exists()


def test_a_client_of_nan_is_zeroed_and_does_not_stop_the_run(tmp_path):
    def trained(name, change):
        # The first client is checked before the run.
        task = examples_of(task_of(PIXELS.astype(np.float32)), change, "0", "7")
        return train(tmp_path / name, task=task)

    with pytest.warns(
        UserWarning, match=r"^round \d: .* client '[07]' .* hold NaN"
    ) as caught_warnings:
        broken_run = trained("nan", lambda x, y: (np.full_like(x, np.nan), y))
    assert sum("hold NaN" in str(warning.message) for warning in caught_warnings) == 1
    empty = trained("empty", lambda x, y: (x[:0], y[:0]))
    np.testing.assert_equal(broken_run.weights, empty.weights)
    assert sum(row["zeroed"] for row in broken_run.metrics) > 1
    assert [row | {"zeroed": 0} for row in broken_run.metrics] == empty.metrics


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (np.float16, np.nan),
        (np.float64, np.inf),
        (ml_dtypes.bfloat16, np.nan),
        (ml_dtypes.float8_e5m2, np.inf),
        (np.complex64, np.nan),
    ],
)
def test_values_that_are_not_finite_are_detected_in_every_dtype(dtype, value):
    x = np.ones((3, 2), dtype)
    x[1, 0] = value
    for examples in ((x, np.zeros(3)), ({"x": np.zeros(3)}, {"y": x})):
        with pytest.raises(NotFinite, match="client 'a' hold NaN .*first in example 1"):
            check_examples(examples, "client 'a'")


@pytest.mark.parametrize(
    "x",
    [
        tf.ragged.constant([[1, 2], [3], [4]]),
        np.array([[1, 2], [3], [4]], object),
        itertools.count(),
    ],
)
def test_examples_of_several_lengths_are_refused_with_the_way_out(x):
    with refusal("examples of client 'a' are not all arrays .*; pad those", TypeError):
        check_examples((x, np.zeros(3)), "client 'a'")


@pytest.mark.parametrize(
    ("preprocess", "match"),
    [
        (lambda d: d.repeat(), "a dataset without an end"),
        (
            lambda d: d.flat_map(lambda x, y: tf.data.Dataset.from_tensors((x, y)).repeat()),
            "at least 2048 examples",
        ),
    ],
)
def test_datasets_without_an_end_are_refused(preprocess, match, monkeypatch):
    monkeypatch.setattr(datasets, "MAX_EXAMPLES", 1024)
    examples = np.ones((5, 4), np.float32), np.zeros(5, np.int32)
    endless = preprocess(tf.data.Dataset.from_tensor_slices(examples))
    with refusal(f"preprocess gives .*{match}"):
        datasets.read_examples(endless, "a")


def test_an_error_of_a_users_function_names_the_client():
    broken_task = dataclasses.replace(task_of(), client_examples=lambda name: {}[name])
    with refusal("client '7' of task 'arrays' raises KeyError: '7'"):
        broken_task.examples_of("7")


@pytest.mark.parametrize("execution", ["fast", pytest.param("tff", marks=pytest.mark.slow)])
def test_labels_outside_of_the_outputs_in_a_round_name_the_client(tmp_path, execution):
    """The rounds before the error are committed."""
    task = task_of(
        y=np.where(OWNERS == 7, 5, LABELS), validation=(PIXELS, LABELS), test=(PIXELS, LABELS)
    )
    match = "cannot train client '7' of task 'arrays': Received a label value of 5 .* rounds are"
    with refusal(f"round [1-5] {match} saved in"):
        train(tmp_path / "run", config(execution), task)
    rounds = len(fedmf.Run.load(tmp_path / "run").metrics)
    assert RunFolder(tmp_path / "run").committed_rounds() == rounds > 0


@pytest.mark.parametrize("texts", [["a", "much longer"], [b"a", b"much longer"]])
def test_texts_as_objects_become_texts_of_numpy(texts):
    """pandas and tf.data give such objects."""
    x, _ = check_examples((np.array(texts, object), np.zeros(2)), "client 'a'")
    assert x.dtype == np.array(texts).dtype


@pytest.mark.slow
def test_texts_of_any_length_reach_the_model_unchanged(tmp_path):
    """The dtype of each client is as long as its longest text."""
    texts = np.array(["a", "much longer", "word"])

    def lookup():
        table = layers.StringLookup(vocabulary=texts.tolist(), num_oov_indices=1)
        return tf.keras.Sequential(
            [tf.keras.Input((), dtype=tf.string), table, layers.Embedding(4, 3)]
        )

    def examples(name):
        label = np.full(4, int(name) % 3)
        return np.array([str(texts[i]) for i in label]), label

    task = dataclasses.replace(
        task_of(model=lookup),
        client_examples=examples,
        evaluation_examples=lambda split: (texts, np.arange(3)),
    )
    silent = config(rounds=2, family="none", noise_multiplier=None)
    [table] = train(tmp_path / "run", silent, task).weights
    start = task.build_model(3).get_weights()[0]
    # No text was cut: the first row belongs to unknown words.
    assert (table != start).any(axis=1).tolist() == [False, True, True, True]
