"""Marks of the tests that import TensorFlow."""

import pathlib

import pytest

HERE = pathlib.Path(__file__).parent
PACKAGE = HERE.parents[1] / "fedmf" / "federated"  # These items are doctests of the package.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of this folder and the doctests of the package, which import TensorFlow."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in (HERE, PACKAGE)):
            item.add_marker(pytest.mark.tensorflow)
