"""What tests of training share."""

import pathlib
from collections.abc import Iterator

import pytest

HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that is here imports TensorFlow."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.tensorflow)


@pytest.fixture(scope="module")
def clients_in_turn() -> Iterator[None]:
    """Clients of small models train one after the other too, for tests whose subject
    is not their work.

    Tracing the clients side by side takes two thirds of a small run; tests/federated/execution has
    that both train the same model.
    """
    from fedmf.federated.execution import client_work

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_work, "SMALL_MODEL", 0)
        yield
