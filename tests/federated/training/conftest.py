"""What tests of runs share."""

import warnings

import pytest

from tests.federated.small_runs import train


@pytest.fixture(autouse=True, scope="module")
def _traced_once(clients_in_turn: None) -> None:
    """How clients train is the subject of tests/federated/execution alone."""


@pytest.fixture(scope="module")
def whole(_traced_once, tmp_path_factory):
    """A run of the small task in one go. Read only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*zeroed")
        return train(tmp_path_factory.mktemp("whole") / "first")
