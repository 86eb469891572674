"""What tests of training share."""

from collections.abc import Iterator

import pytest


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
