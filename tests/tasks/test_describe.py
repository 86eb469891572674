"""Data files of the tasks that ship: their default folders, and their description by content."""

import functools
import gzip
import json

import pytest

from fedmf.tasks import cifar10, emnist, stackoverflow
from fedmf.tasks.cifar10.data import load_images
from fedmf.tasks.describe import describe_file
from fedmf.tasks.emnist.data import open_file
from tests.refusals import refusal

TFF = ".tff"
KERAS = ".keras/datasets"
# Task -> function that writes the synthetic substitute, function that reads the file, default path.
TASKS = {
    "stackoverflow_nwp": (
        functools.partial(stackoverflow.write_synthetic_corpus, clients=3),
        stackoverflow.data.open_corpus,
        f"{TFF}/stackoverflow.sqlite",
    ),
    "emnist": (
        functools.partial(emnist.write_synthetic, clients=3, examples_per_client=40),
        open_file,
        f"{TFF}/emnist_all.sqlite",
    ),
    "cifar10": (
        functools.partial(cifar10.write_synthetic, examples=50, test_examples=20),
        load_images,
        f"{KERAS}/cifar-10-batches-py.tar.gz",
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_data_files_are_read_from_the_usual_folders_and_not_downloaded(task, tmp_path, monkeypatch):
    write, read, place = TASKS[task]
    place = tmp_path / place
    monkeypatch.setenv("HOME", str(tmp_path))
    with refusal(f"{place}.*fedmf data synth", FileNotFoundError):
        read(None)
    assert not list(tmp_path.iterdir())
    place.parent.mkdir(parents=True)
    write(place, progress=False)
    assert read(None).synthetic
    if task == "stackoverflow_nwp":  # Only `fedmf data info` uses this default.
        assert describe_file(None)["path"] == str(place)


@pytest.mark.parametrize("task", TASKS)
def test_synthetic_data_are_recognised_by_their_content(task, tmp_path):
    write, *_ = TASKS[task]
    # The file name says nothing.
    description = describe_file(write(tmp_path / "file", progress=False))
    assert json.loads(json.dumps(description)) == description
    assert description["task"] == task
    assert description["origin"].startswith("synthetic ")
    splits = description["splits"].values()
    if task == "cifar10":
        assert [sum(split["labels"].values()) for split in splits] == [50, 20]
    elif task == "emnist":
        for split in splits:
            assert split["writers"] == split["sample"]["writers"] == 3
            assert split["images"] == sum(split["sample"]["labels"].values()) > 0


def test_files_of_no_task_are_refused(tmp_path):
    text = tmp_path / "posts.csv"
    packed = tmp_path / "posts.gz"
    text.write_text("user,text\n")
    packed.write_bytes(gzip.compress(b"user,text\n"))
    with refusal(r"posts\.csv is no data file of a task that ships: .* `fedmf data import`"):
        describe_file(text)
    with refusal(r"posts\.gz is no whole \.tar\.gz archive"):
        describe_file(packed)
