"""What tests of training share."""

import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All that is here imports TensorFlow."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.tensorflow)
