"""Fixtures of the tests of runs."""

import warnings

import pytest

from tests.federated.small_runs import train


@pytest.fixture(autouse=True, scope="module")
def _traced_once(clients_in_turn: None) -> None:
    """Trains clients one by one. Tests of client work are in tests/federated/client_training."""


@pytest.fixture(scope="module")
def whole_run(_traced_once, tmp_path_factory):
    """Trains an uninterrupted run of the small task, which tests only read."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*zeroed")
        return train(tmp_path_factory.mktemp("whole") / "first")
