"""What tests of training share."""

import pathlib

import pytest

HERE = pathlib.Path(__file__).parent
# Their doctests
PACKAGES = [HERE.parents[1] / "fedmf" / name for name in ("federated", "training")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that is here, and the doctests of the packages, import TensorFlow."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in (HERE, *PACKAGES)):
            item.add_marker(pytest.mark.tensorflow)
