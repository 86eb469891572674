"""A small synthetic corpus that the tests of the tasks share."""

import pathlib
import shutil

import pytest

from fedmf.tasks.stackoverflow import write_synthetic_corpus


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
