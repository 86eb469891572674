"""Fixtures of several modules."""

import pytest

from fedmf.pytorch.client_training import client_setup


@pytest.fixture(params=["stacked", "one a thread"])
def kind(request, monkeypatch):
    """Sets each kind of client work."""
    if request.param == "one a thread":
        monkeypatch.setattr(client_setup, "SMALL_MODEL", 0)
    return request.param
