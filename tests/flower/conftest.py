"""Fixtures that all tests of the strategy use."""

import os

import pytest
from flwr.supercore.task_identity import TaskIdentity

# Nothing asks another machine; subprocesses inherit this.
os.environ.update(
    FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0"
)


@pytest.fixture(autouse=True)
def _in_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the ids that Flower gives to the process of a ServerApp, which makes messages."""
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
