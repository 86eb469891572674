"""What tests of runs share."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _traced_once(clients_in_turn: None) -> None:
    """How clients train is the subject of tests/federated/execution alone."""
