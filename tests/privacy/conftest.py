"""Simulations of privacy losses that take a second."""

import pytest

from fedmf.privacy import monte_carlo


@pytest.fixture
def quick(monkeypatch):
    """Small samples: bounds are as valid, and wider."""
    monkeypatch.setattr(monte_carlo, "_SEARCH_WORK", 1e6)
    monkeypatch.setattr(monte_carlo, "_PROOF_WORK", 1e7)
    monkeypatch.setattr(monte_carlo, "_MIN_SIZE", 2**14)
    for cached in (monte_carlo.simulated_epsilon, monte_carlo._search):
        cached.cache_clear()
    yield
    for cached in (monte_carlo.simulated_epsilon, monte_carlo._search):
        cached.cache_clear()
