"""CIFAR-10: the synthetic archive, its readers, pickles that would run code, and the task."""

import io
import pickle
import tarfile

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from fedmf.tasks.cifar10 import data, write_synthetic
from tests.refusals import refusal

TENSORFLOW = pytest.mark.tensorflow


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Writes a synthetic archive of 100 training and 20 test images."""
    path = tmp_path_factory.mktemp("cifar10") / "shapes.tar.gz"
    return write_synthetic(path, examples=100, test_examples=20, progress=False)


def members(archive):
    with tarfile.open(archive) as packed:
        return {
            member.name: packed.extractfile(member).read() for member in packed if member.isfile()
        }


def repacked(path, contents):
    with tarfile.open(path, "w:gz") as packed:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return path


def changed_archive(archive, folder, name, content):
    """Writes a copy of the archive in which one file has another content."""
    return repacked(folder / "archive", members(archive) | {f"{data.FOLDER}/{name}": content})


def test_the_synthetic_archive_is_read_as_images_and_labels(archive):
    images = data.load_images(archive)
    assert images.x.shape == (100, 32, 32, 3)
    assert images.x_test.shape == (20, 32, 32, 3)
    assert images.x.dtype == np.uint8
    assert images.y.dtype == images.y_test.dtype == np.int32
    assert set(images.y) == set(range(10))
    assert images.label_names[2] == "square"
    scaled_images = data.scaled(images.x)
    assert scaled_images.dtype == np.float32
    assert (scaled_images.min(), scaled_images.max()) == (-1, 1)


def test_archives_are_equal_if_and_only_if_their_seeds_are(archive, tmp_path):
    equal_archive, other_archive = (
        write_synthetic(
            tmp_path / str(seed), examples=100, test_examples=20, seed=seed, progress=False
        )
        for seed in (0, 1)
    )
    assert equal_archive.read_bytes() == archive.read_bytes()
    versions = [data.load_images(path).version for path in (archive, equal_archive, other_archive)]
    assert versions[0] == versions[1] != versions[2]


@pytest.mark.parametrize("encoding", ["bytes", "latin1"])
def test_other_readers_unpickle_the_synthetic_archive(archive, encoding):
    """Readers of the real archive ask for bytes (Keras) or for text (torchvision)."""
    content = pickle.loads(members(archive)[f"{data.FOLDER}/data_batch_2"], encoding=encoding)
    if encoding == "bytes":
        content = {name.decode(): value for name, value in content.items()}
    assert sorted(content) == ["batch_label", "data", "filenames", "labels"]
    images = data.load_images(archive)
    rows = images.x[20:40].transpose(0, 3, 1, 2).reshape(20, 3072)
    assert_array_equal(content["data"], rows)
    assert content["labels"] == images.y[20:40].tolist()


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_that_numpy_pickled_are_read(archive, tmp_path, order):
    """numpy gives its arrays of bytes the same three names."""
    batch = pickle.loads(members(archive)[f"{data.FOLDER}/test_batch"], encoding="bytes")
    batch[b"data"] = np.asarray(batch[b"data"], order=order)
    path = changed_archive(archive, tmp_path, "test_batch", pickle.dumps(batch, 4))
    assert_array_equal(data.load_images(path).x_test, data.load_images(archive).x_test)


class _Evil:
    def __init__(self, call, *arguments):
        self.reduced = call, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "call",
    [
        (exec, "raise SystemExit('run')"),
        (getattr, dict, "clear"),
        (np.load, "x"),
        (np.frombuffer, b"x"),
    ],
    ids=lambda call: call[0].__name__,
)
def test_pickles_cannot_run_code(archive, tmp_path, call, protocol):
    evil = pickle.dumps({b"data": _Evil(*call)}, protocol)
    path = changed_archive(archive, tmp_path, "data_batch_3", evil)
    with refusal(r"data_batch_3 is not a pickle of images \(it asks for .*\): "):
        data.load_images(path)


def pickled_batch(**changes):
    content = {b"data": np.zeros((10, 3072), np.uint8), b"labels": [0] * 10}
    changed_entries = {name.encode(): value for name, value in changes.items()}
    return pickle.dumps(content | changed_entries, 4)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("data_batch_1", pickle.dumps([1]), "3,072 bytes an image"),
        (
            "data_batch_1",
            pickled_batch(data=np.zeros((10, 3071), np.uint8)),
            "3,072 bytes an image",
        ),
        ("data_batch_1", pickled_batch(labels=[0] * 9 + [10]), "one label in 0..9"),
        (
            "test_batch",
            pickle.dumps({b"data": np.zeros((2, 3072), np.float32)}, 4),
            "is not a pickle of images",
        ),
        ("batches.meta", pickled_batch(label_names=[b"cat"]), "no ten label names"),
    ],
)
def test_batches_of_other_content_are_refused(archive, tmp_path, name, content, words):
    path = changed_archive(archive, tmp_path, name, content)
    with refusal(words, naming=[path, name]):
        data.load_images(path)


def test_archives_of_other_content_are_refused(archive, tmp_path):
    path = tmp_path / "archive"

    def refused(words):
        with refusal(words, naming=[path]):
            data.load_images(path)

    path.write_bytes(archive.read_bytes()[:100_000])
    refused("no whole .tar.gz archive")
    repacked(path, {"cifar-100/train": b""})
    refused("has no batches.meta")
    repacked(path, {name: content for name, content in members(archive).items() if "4" not in name})
    refused("has no data_batch_4")


@TENSORFLOW
@pytest.mark.parametrize(
    ("validation", "sizes"), [("train", (90, 10, 20)), ("test", (100, 10, 10))]
)
def test_the_splits_of_the_task_are_disjoint_and_complete(archive, validation, sizes):
    from fedmf.tasks.cifar10 import Cifar10Options, cifar10

    options = {"data": str(archive), "model": "small", "validation": validation}
    task = cifar10(Cifar10Options(**options))
    images = data.load_images(archive)
    splits = [task.split(name) for name in ("validation", "test")]
    assert (len(task.client_ids), *(len(y) for _, y in splits)) == sizes
    clients = zip(*map(task.examples_of, task.client_ids), strict=True)
    x, y = map(np.concatenate, clients)
    assert_array_equal(x, data.scaled(images.x[: sizes[0]]))
    assert_array_equal(y, images.y[: sizes[0]])
    held_out_images = data.scaled(np.concatenate([images.x[sizes[0] :], images.x_test]))
    split_images = np.concatenate([x for x, _ in splits])
    assert sorted(map(np.ndarray.tobytes, split_images)) == sorted(
        map(np.ndarray.tobytes, held_out_images)
    )
