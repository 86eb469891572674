"""Federated EMNIST: the stand-in, its way through both loaders, refusals, and that there is
something to learn.
"""

import shutil
import sqlite3

import numpy as np
import pytest

from fedmf.tasks.emnist import EmnistOptions, data, write_synthetic
from fedmf.tasks.example_proto import decode_example, encode_example

TENSORFLOW = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def digits_file(tmp_path_factory):
    """12 writers of digits, under the name of TFF's own file so that its load_data finds it."""
    path = tmp_path_factory.mktemp("cache") / data.FILE_NAME
    return write_synthetic(path, clients=12, examples_per_client=60, progress=False)


@pytest.fixture(scope="module")
def letters_file(tmp_path_factory):
    """4 writers of all characters."""
    path = tmp_path_factory.mktemp("letters") / "all.sqlite"
    return write_synthetic(path, clients=4, only_digits=False, progress=False)


def pooled(path, split, classes=10):
    """All images of a split."""
    file = data.open_file(path)
    parts = [
        data.client_examples(file, split, name, classes=classes)
        for name in file.client_sizes(split)
    ]
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


def test_what_is_written_is_read(digits_file):
    file = data.open_file(digits_file)
    assert file.synthetic
    for split, share in (("digits_only_train", 0.89), ("digits_only_test", 0.11)):
        sizes = file.client_sizes(split)
        assert len(sizes) == 12
        for client, size in sizes.items():
            x, y = data.client_examples(file, split, client, classes=10)
            assert x.shape == (size, 28, 28, 1)
            assert y.shape == (size,)
            assert (x.dtype, y.dtype) == (np.float32, np.int32)
        assert sum(sizes.values()) == pytest.approx(12 * 60 * share, rel=0.3)
    x, y = pooled(digits_file, "digits_only_train")
    assert set(y) == set(range(10))
    assert x.min() == 0  # ink
    assert x.max() == 1  # paper
    assert x.mean() > 0.7
    np.testing.assert_array_equal(
        np.round(255 * x) / 255, x.astype(np.float64).round(12).astype(np.float32)
    )
    np.testing.assert_array_equal(data.client_examples(file, "digits_only_train", "f0003_03", classes=10, limit=2)[0],
                                  data.client_examples(file, "digits_only_train", "f0003_03", classes=10)[0][:2])  # fmt: skip


def test_letters_stand_beside_the_digits_alone(letters_file):
    _, labels = pooled(letters_file, "all_train", 62)
    assert labels.max() > 35
    assert 0.3 < (labels < 10).mean() < 0.7
    _, digits = pooled(letters_file, "digits_only_train")
    assert len(digits) == (labels < 10).sum()


def test_writers_differ_and_do_not_depend_on_how_many_there_are(digits_file, tmp_path):
    few = write_synthetic(tmp_path / "few", clients=2, examples_per_client=60, progress=False)
    other = write_synthetic(
        tmp_path / "other", clients=2, examples_per_client=60, seed=1, progress=False
    )
    files = [data.open_file(path) for path in (digits_file, few, other)]
    for client in ("f0000_00", "f0001_01"):
        first, same, seed = (file.records("digits_only_train", client) for file in files)
        assert first == same != seed
    assert len({file.version for file in files}) == 3
    copy = shutil.copy(few, tmp_path / "copy")
    assert data.open_file(copy).version == files[1].version
    execute(
        copy,
        "UPDATE examples SET client_id = 'other' WHERE rowid = (SELECT MAX(rowid) FROM examples)",
    )
    assert data.open_file(copy).version != files[1].version


def test_an_example_survives_the_round_trip():
    pixels = np.random.default_rng(0).random((28, 28), np.float32)
    record = encode_example({"pixels": pixels, "label": 7, "name": b"x"})
    decoded = decode_example(record)
    np.testing.assert_array_equal(decoded["pixels"], pixels.ravel())
    assert (decoded["label"], decoded["name"]) == (7, b"x")


@TENSORFLOW
def test_tff_reads_the_same(digits_file):
    from fedmf.federated.tff import tff

    loaded = tff.simulation.datasets.emnist.load_data(
        only_digits=True, cache_dir=str(digits_file.parent)
    )
    file = data.open_file(digits_file)
    for split, theirs in zip(("digits_only_train", "digits_only_test"), loaded, strict=True):
        assert theirs.client_ids == list(file.client_sizes(split))
        for client in theirs.client_ids[:3]:
            x, y = data.client_examples(file, split, client, classes=10)
            examples = list(theirs.create_tf_dataset_for_client(client).as_numpy_iterator())
            np.testing.assert_array_equal(
                np.stack([example["pixels"] for example in examples]), x[..., 0]
            )
            np.testing.assert_array_equal([example["label"] for example in examples], y)


@TENSORFLOW
def test_tensorflow_writes_the_same_records():
    import tensorflow as tf

    pixels = np.random.default_rng(0).random(784, np.float32)
    feature = {
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[3])),
        "pixels": tf.train.Feature(float_list=tf.train.FloatList(value=pixels)),
    }
    theirs = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString(
        deterministic=True
    )
    assert theirs == encode_example({"label": 3, "pixels": pixels})


def test_nothing_is_downloaded(tmp_path, monkeypatch, digits_file):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"\.tff/emnist_all\.sqlite.*fedmf data synth --task emnist"
    ):
        data.open_file()
    assert not list(tmp_path.iterdir())
    (tmp_path / ".tff").mkdir()
    shutil.copy(digits_file, tmp_path / ".tff")
    assert len(data.open_file().client_sizes("digits_only_train")) == 12


def test_a_split_that_is_not_there_is_named(digits_file):
    with pytest.raises(
        ValueError,
        match=r"sqlite has no split 'all_train' \(but digits_only_test, digits_only_train\)",
    ):
        data.client_sizes(data.open_file(digits_file), "all_train")


def execute(path, *statements):
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"hello, this is no database"), "is not a SQLite file"),
        (lambda path: path.write_bytes(path.read_bytes()[:10]), "is truncated"),
        (lambda path: path.write_bytes(path.read_bytes()[:20_000]), "is truncated"),
        (lambda path: path.write_bytes(path.read_bytes()[:100] + b"\xff" * (path.stat().st_size - 100)), "cannot be read"),
        (lambda path: execute(path, "PRAGMA journal_mode=WAL"), "write-ahead mode"),
        (lambda path: path.with_name(f"{path.name}-wal").write_bytes(b"x"), "write-ahead mode"),
        (lambda path: execute(path, "DROP TABLE examples"), "'examples'"),
        (lambda path: execute(path, "ALTER TABLE client_metadata RENAME COLUMN num_examples TO n"), "'num_examples'"),
    ],
)  # fmt: skip
def test_damaged_files(digits_file, tmp_path, damage, words):
    path = tmp_path / "file.sqlite"
    shutil.copy(digits_file, path)
    damage(path)
    with pytest.raises(ValueError, match=words) as caught:
        data.open_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (b"\xff", "is not a serialized tf.train.Example"),
        ("text", "holds a str"),
        (encode_example({"pixels": np.ones(9), "label": 1}), "28 x 28"),
        (encode_example({"label": 1}), "28 x 28"),
        (encode_example({"pixels": np.ones(784), "label": 10}), "label 10 is not in 0..9"),
        (encode_example({"pixels": np.ones(784)}), "label None"),
    ],
)
def test_records_of_another_kind(digits_file, tmp_path, record, words):
    path = tmp_path / "file.sqlite"
    shutil.copy(digits_file, path)
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE examples SET serialized_example_proto = ? WHERE client_id = 'f0001_01'",
            (record,),
        )
    with pytest.raises(ValueError, match=words) as caught:
        data.client_examples(data.open_file(path), "digits_only_train", "f0001_01", classes=10)
    assert str(path) in str(caught.value)


def test_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="is a folder"):
        data.open_file(tmp_path)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"only_digits": 1}, TypeError, "only_digits=1 is a int, not a bool"),
        ({"model": "large"}, ValueError, "model='large' is unknown: choose one of cnn, small"),
        ({"batch_size": 0}, ValueError, "batch_size=0 must be at least 1"),
        ({"max_clients": 0}, ValueError, "max_clients=0 must be at least 1"),
        ({"data": 3}, TypeError, "data=3 is a int, not a str"),
        ({"batch_size": None}, TypeError, "batch_size=None"),
    ],
)
def test_options_are_checked(changes, error, message):
    with pytest.raises(error, match=message):
        EmnistOptions(**changes)


@pytest.mark.parametrize(
    "changes", [{"clients": 0}, {"examples_per_client": 9}, {"seed": -1}]
)  # fmt: skip
def test_bad_arguments_leave_no_file(tmp_path, changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        write_synthetic(tmp_path / "file", progress=False, **changes)
    assert not list(tmp_path.iterdir())


@TENSORFLOW
@pytest.mark.parametrize(
    ("kind", "classes", "size"),
    [("cnn", 62, 1_206_590), ("cnn", 10, 1_199_882), ("small", 10, 56_714)],
)
def test_the_networks(kind, classes, size):
    from fedmf.tasks.emnist.model import build_model

    first, again, other = (build_model(seed, classes=classes, kind=kind) for seed in (5, 5, 6))
    assert first.count_params() == size
    for left, right, third in zip(
        *(model.get_weights() for model in (first, again, other)), strict=True
    ):
        np.testing.assert_array_equal(left, right)
        assert left.ndim == 1 or not np.array_equal(left, third)


@TENSORFLOW
def test_the_published_network_is_tff_s_without_dropout():
    """The same layers and, up to the softmax, the same outputs."""
    import tensorflow as tf
    from tensorflow_federated.python.simulation.baselines.emnist import emnist_models

    from fedmf.tasks.emnist.model import build_model

    ours, theirs = (
        build_model(0, classes=62),
        emnist_models.create_conv_dropout_model(only_digits=False),
    )
    theirs.set_weights(ours.get_weights())
    x = np.random.default_rng(0).random((3, 28, 28, 1), np.float32)
    np.testing.assert_allclose(tf.nn.softmax(ours(x)), theirs(x, training=False), rtol=1e-5)


@TENSORFLOW
def test_there_is_something_to_learn(tmp_path):
    import tensorflow as tf

    from fedmf.tasks.emnist.model import build_model

    path = write_synthetic(tmp_path / "file", clients=40, progress=False)
    model = build_model(0, classes=10, kind="small")
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.05), loss, ["accuracy"])
    tf.keras.utils.set_random_seed(0)
    model.fit(*pooled(path, "digits_only_train"), batch_size=20, epochs=2, verbose=0)
    assert model.evaluate(*pooled(path, "digits_only_test"), verbose=0)[1] > 0.6


@TENSORFLOW
def test_the_task(digits_file):
    from fedmf.tasks.emnist import EmnistOptions, emnist

    task = emnist(
        EmnistOptions(data=str(digits_file), model="small", max_clients=10, max_examples=30)
    )
    assert len(task.client_ids) == 10
    assert task.headline == "accuracy"
    assert "stand-in" in task.description
    x, y = task.examples_of(task.client_ids[0])
    assert x.shape == (30, 28, 28, 1)
    assert y.dtype == np.int32
    assert task.build_model(0)(x).shape == (30, 10)
    halves = [task.split(name)[0] for name in ("validation", "test")]
    everything, _ = pooled(digits_file, "digits_only_test")
    assert sorted(image.tobytes() for half in halves for image in half) == sorted(
        i.tobytes() for i in everything
    )
    assert min(map(len, halves)) > len(everything) / 4
