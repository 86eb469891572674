"""`fedmf data info`: each task's file is told by its content and described,
anything else is one sentence.
"""

import gzip
import json

import pytest

from fedmf.tasks import cifar10, emnist
from fedmf.tasks.describe import describe_file
from tests.refusals import refusal


def test_other_files(tmp_path):
    text, packed = tmp_path / "posts.csv", tmp_path / "posts.gz"
    text.write_text("user,text\n")
    packed.write_bytes(gzip.compress(b"user,text\n"))
    with refusal(r"posts\.csv is no data file of a task that ships: .* `fedmf data import`"):
        describe_file(text)
    with refusal(r"posts\.gz is no whole \.tar\.gz archive"):
        describe_file(packed)


@pytest.mark.parametrize(
    ("task", "sizes", "images"),
    [
        (emnist, {"clients": 3, "examples_per_client": 40}, None),
        (cifar10, {"examples": 50, "test_examples": 20}, [50, 20]),
    ],
    ids=["emnist", "cifar10"],
)
def test_images(tmp_path, task, sizes, images):
    path = task.write_synthetic(tmp_path / "file", progress=False, **sizes)  # the name says nothing
    found = json.loads(json.dumps(describe_file(path)))
    assert (found["task"], found["origin"]) == (
        task.__name__.rpartition(".")[2],
        "synthetic stand-in",
    )
    splits = found["splits"].values()
    if images:
        assert [sum(split["labels"].values()) for split in splits] == images
    else:
        for split in splits:
            assert split["writers"] == split["sample"]["writers"] == 3
            assert split["images"] == sum(split["sample"]["labels"].values()) > 0


def test_stackoverflow(corpus_file):
    assert describe_file(corpus_file)["task"] == "stackoverflow_nwp"
