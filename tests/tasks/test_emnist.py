"""Federated EMNIST: the synthetic files, both loaders, refusals, and the task."""

import pathlib
import shutil

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedmf.tasks.emnist import data, write_synthetic
from fedmf.tasks.example_proto import encode_example
from tests.refusals import refusal
from tests.tasks.data_files import execute

TENSORFLOW = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def digits_file(tmp_path_factory):
    """Writes digits of 12 writers, with the file name that TFF's load_data expects."""
    path = tmp_path_factory.mktemp("cache") / data.FILE_NAME
    return write_synthetic(path, clients=12, examples_per_client=60, progress=False)


@pytest.fixture(scope="module")
def letters_file(tmp_path_factory):
    """Writes all characters of 4 writers."""
    path = tmp_path_factory.mktemp("letters") / "all.sqlite"
    return write_synthetic(path, clients=4, only_digits=False, progress=False)


def all_images(path, split, classes=10):
    """Returns all images and labels of a split."""
    file = data.open_file(path)
    parts = [
        data.client_examples(file, split, name, classes=classes)
        for name in file.client_sizes(split)
    ]
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


def test_the_synthetic_digits_are_read_as_images_and_labels(digits_file):
    file = data.open_file(digits_file)
    for split, share in (("digits_only_train", 0.89), ("digits_only_test", 0.11)):
        sizes = file.client_sizes(split)
        assert len(sizes) == 12
        assert sum(sizes.values()) == pytest.approx(12 * 60 * share, rel=0.3)
    first_images, _ = data.client_examples(file, split, "f0000_00", classes=10, limit=2)
    x, y = all_images(digits_file, split)
    assert_array_equal(first_images, x[:2])
    assert x.shape[1:] == (28, 28, 1)
    assert (x.dtype, y.dtype) == (np.float32, np.int32)
    assert set(y) == set(range(10))
    assert (x.min(), x.max()) == (0, 1)  # ink and paper
    assert x.mean() > 0.7
    with refusal(r"no split 'all_train' \(but digits_only_test"):
        data.client_sizes(file, "all_train")


def test_letters_are_in_the_splits_of_all_characters_alone(letters_file):
    _, labels = all_images(letters_file, "all_train", 62)
    assert labels.max() > 35
    assert 0.3 < (labels < 10).mean() < 0.7
    _, digits = all_images(letters_file, "digits_only_train")
    assert len(digits) == (labels < 10).sum()


def test_writers_differ_and_do_not_depend_on_their_number(digits_file, tmp_path):
    small_file, other_seed_file = (
        write_synthetic(
            tmp_path / str(seed), clients=2, examples_per_client=60, seed=seed, progress=False
        )
        for seed in (0, 1)
    )
    files = [data.open_file(path) for path in (digits_file, small_file, other_seed_file)]
    first_records, same_records, seed = (
        file.records("digits_only_train", "f0001_01") for file in files
    )
    assert first_records == same_records != seed
    versions = [file.version for file in files]
    execute(small_file, "UPDATE examples SET client_id = 'other' WHERE rowid = 1")
    assert len({*versions, data.open_file(small_file).version}) == 4


@TENSORFLOW
def test_tff_reads_the_same_examples(digits_file, tff):
    tff_splits = tff.simulation.datasets.emnist.load_data(
        only_digits=True, cache_dir=str(digits_file.parent)
    )
    file = data.open_file(digits_file)
    for split, tff_split in zip(("digits_only_train", "digits_only_test"), tff_splits, strict=True):
        assert tff_split.client_ids == list(file.client_sizes(split))
        client = tff_split.client_ids[1]
        x, y = data.client_examples(file, split, client, classes=10)
        examples = list(tff_split.create_tf_dataset_for_client(client).as_numpy_iterator())
        assert_array_equal(np.stack([example["pixels"] for example in examples]), x[..., 0])
        assert_array_equal([example["label"] for example in examples], y)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (b"\xff", "is not a serialized tf.train.Example"),
        ("text", "holds a str"),
        (encode_example({"pixels": np.ones(9), "label": 1}), "28 x 28"),
        (encode_example({"pixels": np.ones(784), "label": 10}), "label 10 is not in 0..9"),
        (encode_example({"pixels": np.ones(784)}), "label None"),
    ],
)
def test_records_of_other_content_are_refused(digits_file, tmp_path, record, words):
    copy = pathlib.Path(shutil.copy(digits_file, tmp_path / "file.sqlite"))
    execute(copy, "UPDATE examples SET serialized_example_proto = ?", record)
    with refusal(words, naming=[copy]):
        data.client_examples(data.open_file(copy), "digits_only_train", "f0001_01", classes=10)


@pytest.mark.parametrize("changes", [{"clients": 0}, {"examples_per_client": 9}, {"seed": -1}])
def test_bad_arguments_leave_no_file(tmp_path, changes):
    with refusal(next(iter(changes))):
        write_synthetic(tmp_path / "file", progress=False, **changes)
    assert not list(tmp_path.iterdir())


@TENSORFLOW
def test_the_published_network_is_tff_s_without_dropout(tff):
    """Both networks have the same layers and, before the softmax, the same outputs."""
    import tensorflow as tf
    from tensorflow_federated.python.simulation.baselines.emnist import emnist_models

    from fedmf.tasks.emnist.task import build_model

    fedmf_model = build_model(0, classes=62)
    tff_model = emnist_models.create_conv_dropout_model(only_digits=False)
    tff_model.set_weights(fedmf_model.get_weights())
    x = np.random.default_rng(0).random((3, 28, 28, 1), np.float32)
    assert_allclose(tf.nn.softmax(fedmf_model(x)), tff_model(x, training=False), rtol=1e-5)


@TENSORFLOW
def test_the_task_has_its_limits_and_halves_the_test_split(digits_file):
    from fedmf.tasks.emnist import EmnistOptions, emnist

    options = EmnistOptions(data=str(digits_file), model="small", max_clients=10, max_examples=30)
    task = emnist(options)
    assert len(task.client_ids) == 10
    assert "synthetic" in task.description
    assert len(task.examples_of(task.client_ids[0])[0]) == 30
    halves = [task.split(name)[0] for name in ("validation", "test")]
    test_images, _ = all_images(digits_file, "digits_only_test")
    split_images = np.concatenate(halves)
    assert sorted(map(np.ndarray.tobytes, split_images)) == sorted(
        map(np.ndarray.tobytes, test_images)
    )
    assert min(map(len, halves)) > len(test_images) / 4
