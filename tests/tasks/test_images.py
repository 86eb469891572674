"""EMNIST and CIFAR-10 alike: their networks, that there is something to learn, and that nothing is
downloaded.
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


@TENSORFLOW
@pytest.mark.slow
@pytest.mark.parametrize(
    ("made_by", "options", "sizes", "epochs", "low"),
    [
        (emnist.emnist, emnist.EmnistOptions, {"clients": 40}, 2, 0.6),
        (cifar10.cifar10, cifar10.Cifar10Options, {"examples": 3000}, 3, 0.5),
    ],
    ids=["emnist", "cifar10"],
)
def test_there_is_something_to_learn(tmp_path, made_by, options, sizes, epochs, low):
    import tensorflow as tf

    write = {emnist.emnist: emnist, cifar10.cifar10: cifar10}[made_by].write_synthetic
    path = write(tmp_path / "file", progress=False, **sizes)
    task = made_by(options(data=str(path), model="small"))
    x, y = map(np.concatenate, zip(*map(task.examples_of, task.client_ids), strict=True))
    model = task.build_model(0)
    model.compile(tf.keras.optimizers.SGD(0.1), task.loss, task.metrics())
    tf.keras.utils.set_random_seed(0)
    model.fit(x, y, batch_size=50, epochs=epochs, verbose=0)
    assert low < model.evaluate(*task.split("test"), verbose=0, return_dict=True)["accuracy"] < 0.98


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
