"""Pictures of sweeps with fewer pixels: tests ask whether they are drawn, and of what."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _coarse_plots(coarse_plots):
    """Draws plots with fewer pixels."""
