"""A small synthetic corpus that the tests of the tasks share."""

import pathlib
import shutil

import pytest

from fedmf.tasks.stackoverflow import write_synthetic_corpus


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory):
    """Writes a corpus of 40 train, 4 held-out and 24 test users, with the name that TFF's load_data
    expects.
    """
    path = tmp_path_factory.mktemp("cache") / "stackoverflow.sqlite"
    return write_synthetic_corpus(
        path, clients=40, seed=7, sentences_per_client=30, vocabulary_size=400, progress=False
    )


@pytest.fixture
def corpus_copy(corpus_file, tmp_path):
    """Copies the corpus, so that a test may damage or change it."""
    return pathlib.Path(shutil.copy(corpus_file, tmp_path / "copy.sqlite"))
