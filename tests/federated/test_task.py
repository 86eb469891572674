"""Tasks of any examples: images, tables, dicts; what does not fit is one sentence before there is a
run folder.
"""

import dataclasses
import functools
import itertools
import re

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf import federated
from fedmf.federated import task as of_tasks
from fedmf.federated.examples import NotFinite, checked
from fedmf.federated.tff import tff
from fedmf.runs.folder import RunFolder
from tests.federated.run_small import config

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("clients_in_turn")]
layers = tf.keras.layers

# Nine clients of 1 to 9 examples.
OWNERS = np.repeat(np.arange(9), np.arange(1, 10))
RNG = np.random.default_rng(5)
PIXELS = RNG.integers(0, 256, (len(OWNERS), 6, 6, 1)).astype(np.uint8)
TABLE = {"age": RNG.uniform(size=(len(OWNERS), 1)), "city": RNG.integers(0, 5, len(OWNERS))}
LABELS = RNG.integers(0, 3, len(OWNERS))


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
    age, city = tf.keras.Input((1,), name="age"), tf.keras.Input((), dtype=tf.int64, name="city")
    joined = layers.Concatenate()([age, layers.Embedding(5, 2)(city)])
    return tf.keras.Model(
        {"age": age, "city": city}, layers.Dense(3, kernel_regularizer="l2")(joined)
    )


def task_of(x, model, **changes):
    split = tf.nest.map_structure(lambda array: array[::2], (x, LABELS))
    attributes = {
        "name": "own", "x": x, "y": LABELS, "client_ids": OWNERS, "validation": split,
        "test": split, "model": model, "batch_size": 4,
        "loss": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": lambda: [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")],
    }  # fmt: skip
    return federated.Task.from_arrays(**(attributes | changes))


@pytest.mark.parametrize(("x", "model"), [(PIXELS, cnn), (TABLE, wide)], ids=["images", "table"])
@pytest.mark.slow
def test_any_structure_of_arrays_trains_the_same_model_in_every_execution(tmp_path, x, model):
    runs = [
        federated.train(
            task_of(x, model),
            config(execution),
            folder=tmp_path / execution,
            noise_seed=1,
            progress=False,
        )
        for execution in ("fast", "tff")
    ]
    ours, theirs = (np.load(run.path / "model.npz") for run in runs)
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-4, atol=2e-5)
    assert runs[0].result["test"].keys() == {"accuracy", "loss"}


def test_clients_are_in_the_order_of_their_ids_and_examples_in_that_of_the_arrays():
    ids = np.array(["b", "a", "b", "c", "a"])
    x = np.arange(5.0)
    task = task_of(
        x, cnn, y=np.arange(5), client_ids=ids, validation=(x, np.arange(5)), test=(x, np.arange(5))
    )
    assert task.client_ids == ("a", "b", "c")
    assert [task.examples_of(name)[0].tolist() for name in "abc"] == [[1, 4], [0, 2], [3]]


def test_the_digest_of_the_contents_is_the_version_of_the_data():
    versions = {
        task_of(PIXELS, cnn).data_version,
        task_of(PIXELS, cnn, client_ids=OWNERS[::-1]).data_version,
        task_of(PIXELS, cnn, y=1 - LABELS).data_version,
        task_of({"x": PIXELS}, cnn).data_version,
        task_of(PIXELS.astype(np.float32), cnn).data_version,
    }
    assert len(versions) == 5
    assert task_of(PIXELS.copy(), cnn).data_version in versions


def test_a_resume_on_other_arrays_is_refused(tmp_path):
    federated.train(task_of(PIXELS, cnn), config(), folder=tmp_path, noise_seed=1, progress=False)
    with pytest.raises(ValueError, match="on other data: data_version="):
        federated.train(
            task_of(255 - PIXELS, cnn), config(), folder=tmp_path, resume=True, progress=False
        )


@pytest.mark.slow
def test_a_client_data_and_a_preprocessing_function(tmp_path):
    def mapped(dataset):
        return dataset.map(lambda e: (e["pixels"], e["label"]))

    clients = {
        str(i): {"pixels": PIXELS[i == OWNERS].astype(np.float32), "label": LABELS[i == OWNERS]}
        for i in range(9)
    }
    data = tff.simulation.datasets.TestClientData(clients)
    common = {
        name: getattr(task_of(PIXELS, cnn), name)
        for name in ("name", "loss", "metrics", "batch_size", "data_version")
    }
    task = federated.Task.from_client_data(
        train=data,
        validation=data,
        test=(PIXELS.astype(np.float32), LABELS),
        preprocess=mapped,
        model=cnn,
        **common,
    )
    folder = tmp_path / "run"
    run = federated.train(task, config(), folder=folder, noise_seed=1, progress=False)
    split = (PIXELS.astype(np.float32), LABELS)
    from_arrays = task_of(
        split[0], cnn, validation=split, test=split, data_version="same", description="same"
    )
    again = federated.train(
        from_arrays, config(), folder=tmp_path / "again", noise_seed=1, progress=False
    )
    for name, weight in np.load(folder / "model.npz").items():
        np.testing.assert_array_equal(weight, np.load(tmp_path / "again" / "model.npz")[name])
    assert run.result["validation"] == again.result["validation"]
    batched = dataclasses.replace(task, client_examples=lambda name: None)
    with pytest.raises(TypeError, match="client '0' of task 'own' are a NoneType: pass a pair"):
        batched.examples_of("0")
    with pytest.raises(TypeError, match="map to single examples .* not batched"):
        federated.Task.from_client_data(
            train=data,
            validation=data,
            test=data,
            preprocess=lambda d: mapped(d).batch(2),
            model=cnn,
            **common,
        ).examples_of("0")


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (("a", None), r"client_ids of task 'own'\[1\]=None is missing"),
        (("a", float("nan")), r"client_ids of task 'own'\[1\]=nan is missing"),
        (("a", ""), "has no visible character"),
        (("zo\u00e9", "zoe\u0301"), "which look alike"),
        ((1, "1"), "which look alike"),
        (("a", "a"), "more than once"),
    ],
)
def test_clients_are_known_and_told_apart(ids, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(task_of(PIXELS, cnn), client_ids=ids)


def two_outputs():
    return tf.keras.Sequential(
        [layers.Flatten(input_shape=(6, 6, 1)), layers.Dense(2), layers.Reshape((1, 2))]
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"y": LABELS[1:]},
            r"x and y have the shapes \(45, 6, 6, 1\) and \(44,\): the first axis must count",
        ),
        (
            {"client_ids": OWNERS[1:]},
            r"client_ids has the shape \(44,\) and x and y hold 45 examples",
        ),
        ({"client_ids": [*OWNERS[:-1], None]}, r"client_ids\[44\]=None is missing"),
        (
            {"client_ids": [*map(str, OWNERS[:-1]), float("nan")]},
            r"client_ids\[44\]=nan is missing",
        ),
        ({"client_ids": [*map(str, OWNERS[:-1]), f"{OWNERS[0]}\u200b"]}, "which look alike"),
        ({"validation": (PIXELS[:0], LABELS[:0])}, "the validation split of task 'own' is empty"),
        (
            {"test": (PIXELS[:4].astype(np.float32), LABELS[:4])},
            "the test split .*float32.* those of the validation split",
        ),
        ({"x": PIXELS.astype(object)}, "not all arrays of numbers"),
        (
            {"loss": lambda labels, outputs, weights: outputs},
            r"loss of task 'own' gives the shape \(None, 3\) where a scalar",
        ),
        (
            {"model": two_outputs},
            "model or loss of task 'own' fail on its validation split: make outputs and labels fit",
        ),
        ({"model": wide}, "model or loss of task 'own' do not take a batch"),
        ({"metrics": lambda: []}, "metrics of task 'own' gives no metric"),
        (
            {"headline_metric": "f1"},
            "headline_metric='f1' is unknown: choose one of accuracy, loss",
        ),
        ({"batch_size": 0}, "batch_size=0 .* use a positive whole number"),
        (
            {"y": LABELS.tolist()},
            r"the shapes \(45, 6, 6, 1\) and \(\): the first axis must count .* lists are "
            r"structures: make arrays",
        ),
        ({"x": np.array([b"a", b"b\0"], object)[LABELS % 2]}, "not all arrays of numbers or texts"),
        (
            {"x": np.where(OWNERS[:, None] == 7, np.inf, 1.0)},
            "x and y hold NaN .* in example 28, of client 7: clean",
        ),
        (
            {"model": cnn()},
            "the model of task 'own' is <keras.*Sequential.*: pass a function that builds one",
        ),
        (
            {"model": lambda: 1 // 0},
            "build_model of task 'own' raises ZeroDivisionError: integer division",
        ),
        ({"metrics": ["accuracy"]}, r"metrics of task 'own' is \['accuracy'\]: pass a function"),
        (
            {"metrics": lambda: ["accuracy"]},
            "metrics of task 'own' gives 'accuracy': give objects of tf.keras",
        ),
        (
            {"metrics": lambda: [tf.keras.metrics.AUC(name="m")] * 2},
            "metric 'm' of task 'own' is there twice",
        ),
        (
            {
                "y": (LABELS[:, None] == np.arange(3)).astype(np.float32),
                "validation": (PIXELS, (LABELS[:, None] == np.arange(3)).astype(np.float32)),
                "test": (PIXELS, (LABELS[:, None] == np.arange(3)).astype(np.float32)),
                "loss": tf.keras.losses.CategoricalCrossentropy(from_logits=True),
                "metrics": lambda: [tf.keras.metrics.F1Score(name="m")],
            },
            r"metric 'm' of task 'own' has a result of shape \(3,\): give one number",
        ),
        (
            {"metrics": lambda: [tf.keras.metrics.MeanSquaredError("m")]},
            "metric 'm' of task 'own' fails on its val",
        ),
        (
            {"x": TABLE | {"city": LABELS + 0.7}, "model": wide},
            r"are float64 where its model takes int64 \(city\), which",
        ),
        ({"loss": "mse"}, "loss of task 'own' is 'mse': pass a tf.keras.losses.Loss"),
    ],
)
def test_what_does_not_fit_is_one_sentence(tmp_path, changes, said):
    with pytest.raises((TypeError, ValueError), match=said):
        federated.train(
            task_of(changes.pop("x", PIXELS), changes.pop("model", cnn), **changes),
            config(),
            folder=tmp_path / "run",
            noise_seed=1,
            progress=False,
        )
    assert not (tmp_path / "run").exists()


def test_a_client_of_nan_is_zeroed_and_does_not_stop_the_run(tmp_path):
    x = PIXELS.astype(np.float32)
    task = task_of(x, cnn)
    read = task.client_examples
    some = ("0", "7")  # the first is looked at before the run

    def trained(name, replaced):
        task_of_some = dataclasses.replace(
            task, client_examples=lambda name: replaced(*read(name)) if name in some else read(name)
        )
        return task_of_some, functools.partial(
            federated.train,
            task_of_some,
            config(),
            folder=tmp_path / name,
            noise_seed=1,
            progress=False,
        )

    broken, train_broken = trained(
        "nan", lambda x, y: (np.where(x == x.flat[-1], np.nan, x).astype(x.dtype), y)
    )
    with pytest.raises(NotFinite, match="the examples of client '7' of task 'own' hold NaN"):
        broken.examples_of("7")
    with pytest.warns(UserWarning, match="hold NaN") as told:
        run = train_broken()
    said = [str(w.message) for w in told if "hold NaN" in str(w.message)]
    assert len(said) == 1
    assert re.fullmatch(
        r"round \d: the examples of client '[07]' of task 'own' hold NaN .*; "
        r"its update is zeroed.*",
        said[0],
    )
    _, train_empty = trained("empty", lambda x, y: (x[:0], y[:0]))
    empty = train_empty()
    for one, other in zip(run.weights, empty.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    zeroed = [row.pop("zeroed") for row in run.metrics]
    assert sum(zeroed) > 1
    assert [row | {"zeroed": 0} for row in run.metrics] == empty.metrics


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.complex64]
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_found_in_every_dtype(dtype, value):
    x = np.ones((3, 2), dtype)
    checked((x, np.zeros(3)), "client 'a'")
    x[1, 0] = value
    for examples in ((x, np.zeros(3)), ({"x": np.zeros(3)}, {"y": x})):
        with pytest.raises(
            NotFinite, match="client 'a' hold NaN or infinite values, first in example 1"
        ):
            checked(examples, "client 'a'")


@pytest.mark.parametrize(
    "x",
    [
        tf.ragged.constant([[1, 2], [3], [4]]),
        np.array([[1, 2], [3], [4]], object),
        np.array([np.ones(2), np.ones(1), np.ones(3)], object),
        tf.sparse.from_dense(np.eye(3)),
        itertools.count(),
    ],
)
def test_examples_of_several_lengths_are_refused_with_the_way_out(x):
    with pytest.raises(
        TypeError,
        match="examples of client 'a' are not all arrays .*; pad those of different lengths",
    ):
        checked((x, np.zeros(3)), "client 'a'")


def forever():
    while True:
        yield np.ones(4, np.float32), 0


@pytest.mark.parametrize(
    ("preprocess", "said"),
    [
        (lambda d: d.repeat(), "a dataset without an end"),
        (
            lambda d: d.flat_map(lambda x, y: tf.data.Dataset.from_tensors((x, y)).repeat()),
            "2048 examples .* and more",
        ),
        (
            lambda d: tf.data.Dataset.from_generator(
                forever, output_signature=(tf.TensorSpec([4]), tf.TensorSpec([], tf.int32))
            ),
            "2048 examples .* and more",
        ),
        (
            lambda d: d.map(lambda x, y: (tf.RaggedTensor.from_tensor(x[None]), y)),
            "of one shape, padded",
        ),
    ],
)
def test_datasets_without_an_end_or_a_shape(preprocess, said, monkeypatch):
    monkeypatch.setattr(of_tasks, "MOST_EXAMPLES", 1024)
    data = tff.simulation.datasets.TestClientData(
        {"a": {"x": np.ones((5, 4), np.float32), "y": np.zeros(5, np.int32)}}
    )
    common = {
        name: getattr(task_of(PIXELS, cnn), name)
        for name in ("name", "loss", "metrics", "batch_size")
    }

    def pairs(dataset):
        return preprocess(dataset.map(lambda e: (e["x"], e["y"])))

    task = federated.Task.from_client_data(
        train=data, validation=data, test=data, preprocess=pairs, model=cnn, **common
    )
    for read in (lambda: task.examples_of("a"), lambda: task.split("test")):
        with pytest.raises((TypeError, ValueError), match=f"preprocess gives .*{said}"):
            read()


def test_labels_outside_of_the_outputs_are_found_before_a_folder_exists(tmp_path):
    split = (PIXELS, LABELS + 3)
    with pytest.raises(
        ValueError, match="fail on its validation split: make outputs and labels fit .*label value"
    ):
        federated.train(
            task_of(PIXELS, cnn, validation=split), config(), folder=tmp_path / "run", noise_seed=1
        )
    assert not (tmp_path / "run").exists()


def test_an_error_of_the_users_function_says_whose_examples_it_read():
    broken = dataclasses.replace(task_of(PIXELS, cnn), client_examples=lambda name: {}[name])
    with pytest.raises(
        ValueError, match="reading the examples of client '7' of task 'own' raises KeyError: '7'"
    ):
        broken.examples_of("7")


@pytest.mark.slow
def test_a_client_s_examples_that_do_not_do_lose_no_round(tmp_path):
    task, rounds = task_of(PIXELS, cnn), []
    read = task.client_examples
    broken = dataclasses.replace(
        task, client_examples=lambda name: read(name) if len(rounds) < 3 else read(name)[0]
    )
    with pytest.raises(TypeError, match="pass a pair"):
        federated.train(
            broken,
            config(checkpoint_every=6),
            folder=tmp_path,
            noise_seed=1,
            progress=False,
            on_round=rounds.append,
        )
    whole = federated.train(task, config(), folder=tmp_path / "whole", noise_seed=1, progress=False)
    assert fedmf.Run.load(tmp_path).metrics == whole.metrics[:3]
    assert RunFolder(tmp_path).saved_rounds() == 3
    resumed = federated.train(
        task, config(checkpoint_every=6), folder=tmp_path, resume=True, progress=False
    )
    np.testing.assert_array_equal(resumed.weights[0], whole.weights[0])


@pytest.mark.parametrize("execution", ["fast", "tff"])
def test_labels_outside_of_the_outputs_in_a_round_name_the_client(tmp_path, execution):
    y = np.where(OWNERS == 7, 5, LABELS)
    split = (PIXELS, LABELS)
    task, said = (
        task_of(PIXELS, cnn, y=y, validation=split, test=split),
        "cannot train client '7' of task 'own': Received a label",
    )
    with pytest.raises(
        ValueError, match=rf"round . {said} value of 5 .* start a new run \(. rounds are saved in"
    ):
        federated.train(
            task, config(execution), folder=tmp_path / "run", noise_seed=1, progress=False
        )


def test_a_label_for_each_example_and_a_model_with_one_output(tmp_path):
    """Keras adds the axis that such labels lack.

    Without it a squared error of all pairs would be taken.
    """
    x, y = TABLE["age"].astype(np.float32), TABLE["age"][:, 0]

    def model():
        return tf.keras.Sequential([layers.Dense(1, kernel_initializer="zeros", input_shape=(1,))])

    runs = []
    for labels in (y, y[:, None]):
        changes = {
            "y": labels,
            "validation": (x, labels),
            "test": (x, labels),
            "loss": tf.keras.losses.MeanSquaredError(),
            "metrics": lambda: [tf.keras.metrics.MeanSquaredError("error")],
        }
        task = task_of(x, model, **changes)
        runs.append(
            federated.train(
                task, config(), folder=tmp_path / str(len(runs)), noise_seed=1, progress=False
            )
        )
    for one, other in zip(*(run.weights for run in runs), strict=True):
        np.testing.assert_array_equal(one, other)
    assert runs[0].result["test"] == pytest.approx(runs[1].result["test"])


def test_texts_of_any_kind_and_length_reach_the_model_whole(tmp_path):
    """As numpy, pandas and tf.data give them. The longest of each client is as long as it is."""
    words = np.array(["a", "much longer", "word"])

    def lookup():
        table = layers.StringLookup(vocabulary=words.tolist(), num_oov_indices=1)
        return tf.keras.Sequential(
            [tf.keras.Input((), dtype=tf.string), table, layers.Embedding(4, 3)]
        )

    weights = []
    for kind in (str, object, bytes):

        def examples(name, kind=kind):
            label = np.full(4, int(name) % 3)
            texts = [words[i].encode() if kind is bytes else str(words[i]) for i in label]
            return np.array(texts, object if kind is object else None), label

        task = dataclasses.replace(
            task_of(PIXELS, lookup),
            client_examples=examples,
            evaluation_examples=lambda split: (words, np.arange(3)),
        )
        folder = tmp_path / kind.__name__
        run = federated.train(
            task,
            config(family="none", noise_multiplier=None),
            folder=folder,
            noise_seed=1,
            progress=False,
        )
        weights.append(run.weights[0])
        unknown = task.build_model(3).get_weights()[0][0]
        np.testing.assert_array_equal(run.weights[0][0], unknown)  # no text was cut
    np.testing.assert_array_equal(weights[0], weights[1])
    np.testing.assert_array_equal(weights[0], weights[2])
