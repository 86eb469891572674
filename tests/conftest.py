"""What all tests share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    """TFF's worker holds the pipe that pytest's output goes to; without this a finished test run looks like a hanging one."""
    yield
    import sys

    if "fedmf.federated.workers" in sys.modules:
        sys.modules["fedmf.federated.workers"].end_workers()
