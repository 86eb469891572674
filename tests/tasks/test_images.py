"""EMNIST and CIFAR-10 alike: their networks, and that nothing is downloaded. What they learn is in
test_tasks_doc.py.
"""

import importlib
import shutil

import numpy as np
import pytest

from fedmf.tasks import cifar10, emnist

TENSORFLOW = pytest.mark.tensorflow


def part_of(task, name):
    return importlib.import_module(f"{task.__name__}.{name}")


@TENSORFLOW
@pytest.mark.parametrize(
    ("task", "options", "size"),
    [
        (emnist, {"kind": "cnn", "classes": 62}, 1_206_590),
        (emnist, {"kind": "cnn", "classes": 10}, 1_199_882),
        (emnist, {"kind": "small", "classes": 10}, 56_714),
        (cifar10, {"kind": "vgg"}, 550_570),
        (cifar10, {"kind": "small"}, 38_570),
    ],
)
def test_the_networks(task, options, size):
    build_model = part_of(task, "task").build_model
    first, again, other = (build_model(seed, **options) for seed in (5, 5, 6))
    assert first.count_params() == size
    for left, right, third in zip(
        *(model.get_weights() for model in (first, again, other)), strict=True
    ):
        np.testing.assert_array_equal(left, right)
        assert left.ndim == 1 or not np.array_equal(left, third)


@pytest.mark.parametrize(
    ("task", "place", "sizes"),
    [
        (emnist, ".tff/emnist_all.sqlite", {"clients": 2}),
        (
            cifar10,
            ".keras/datasets/cifar-10-batches-py.tar.gz",
            {"examples": 10, "test_examples": 10},
        ),
    ],
)
def test_nothing_is_downloaded(tmp_path, monkeypatch, task, place, sizes):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    data, name = part_of(task, "data"), task.__name__.rpartition(".")[2]
    read = getattr(data, "open_file", None) or data.load_images
    with pytest.raises(FileNotFoundError) as caught:
        read()
    assert str(home / place) in str(caught.value)
    assert f"fedmf data synth --task {name}" in str(caught.value)
    assert not list(home.iterdir())
    (home / place).parent.mkdir(parents=True)
    shutil.copy(task.write_synthetic(tmp_path / "file", progress=False, **sizes), home / place)
    assert read().synthetic
