"""Fixtures of the tests of the command line: a corpus, a trained run and a mechanism file."""

import shutil

import pytest

from tests.cli.program import TRAIN, fedmf


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory):
    """Writes a synthetic corpus of twelve clients."""
    path = tmp_path_factory.mktemp("data") / "corpus.sqlite"
    fedmf(f"data synth --clients 12 --sentences-per-client 12 --out {path} --quiet")
    return path


@pytest.fixture(scope="session")
def trained_run(corpus_file, tmp_path_factory):
    """Trains four rounds, and returns the run's folder, which tests only read, and the printed
    JSON.
    """
    folder = tmp_path_factory.mktemp("runs") / "first"
    return folder, fedmf(f"train --data {corpus_file} --out {folder} {TRAIN} --json").stdout


@pytest.fixture
def run_folder(trained_run, tmp_path):
    """Copies the folder of the trained run, so that a test may change it."""
    return shutil.copytree(trained_run[0], tmp_path / "run")


@pytest.fixture(scope="session")
def identity_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("mechanisms") / "identity.npz"
    fedmf(f"fit --rounds 12 --min-sep 4 --family identity --out {path}")
    return path
