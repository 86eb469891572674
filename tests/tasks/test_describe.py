"""`fedmf data info`: each task's file is told by its content and described,
anything else is one sentence.
"""

import gzip
import json

import pytest

from fedmf.tasks import cifar10, emnist
from fedmf.tasks.describe import describe_file


def test_emnist(tmp_path):
    path = tmp_path / "file"  # the name says nothing
    emnist.write_synthetic(
        path, clients=7, only_digits=False, examples_per_client=40, progress=False
    )
    found = json.loads(json.dumps(describe_file(path)))
    assert (found["task"], found["origin"]) == ("emnist", "synthetic stand-in")
    train = found["splits"]["all_train"]
    assert train["writers"] == train["sample"]["writers"] == 7
    assert train["images"] == sum(train["sample"]["labels"].values()) > 100
    assert len(train["sample"]["labels"]) == 62


def test_cifar10(tmp_path):
    path = tmp_path / "file"
    cifar10.write_synthetic(path, examples=50, test_examples=20, progress=False)
    found = json.loads(json.dumps(describe_file(path)))
    assert (found["task"], found["origin"]) == ("cifar10", "synthetic stand-in")
    assert [sum(part["labels"].values()) for part in found["splits"].values()] == [50, 20]


def test_stackoverflow(corpus_file):
    assert describe_file(corpus_file)["task"] == "stackoverflow_nwp"


def test_other_files(tmp_path):
    text, packed = tmp_path / "posts.csv", tmp_path / "posts.gz"
    text.write_text("user,text\n")
    packed.write_bytes(gzip.compress(b"user,text\n"))
    with pytest.raises(
        ValueError, match=r"posts\.csv is no data file of a task that ships: .* `fedmf data import`"
    ):
        describe_file(text)
    with pytest.raises(ValueError, match=r"posts\.gz is no whole \.tar\.gz archive"):
        describe_file(packed)
