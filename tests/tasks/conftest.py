"""A small synthetic corpus that the tests of the tasks share."""

import pathlib
import re
import shlex
import shutil

import pytest

from fedmf.tasks.stackoverflow import write_synthetic_corpus


def commands_of(page, *, before=None, after=None):
    """The words of each command of fedmf that a page of docs prints, or one side of a heading."""
    text = (pathlib.Path(__file__).parents[2] / "docs" / page).read_text()
    text = text if before is None else text.partition(before)[0]
    text = text if after is None else text.partition(after)[2]
    return [
        shlex.split(line)[1:]
        for block in re.findall(r"```sh\n(.*?)```", text, re.S)
        for line in block.replace("\\\n", " ").splitlines()
    ]


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory):
    """40 train, 4 held-out and 24 test users, under the name of TFF's own file so that its
    load_data finds it.
    """
    path = tmp_path_factory.mktemp("cache") / "stackoverflow.sqlite"
    return write_synthetic_corpus(
        path, clients=40, seed=7, sentences_per_client=30, vocabulary_size=400, progress=False
    )


@pytest.fixture
def corpus_copy(corpus_file, tmp_path):
    """A copy to damage or to change."""
    return pathlib.Path(shutil.copy(corpus_file, tmp_path / "copy.sqlite"))
