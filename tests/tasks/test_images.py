"""The networks of EMNIST and CIFAR-10. What they learn is in test_tasks_doc.py."""

import importlib

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("task", "options", "size"),
    [
        ("emnist", {"kind": "cnn", "classes": 62}, 1_206_590),
        ("emnist", {"kind": "cnn", "classes": 10}, 1_199_882),
        ("emnist", {"kind": "small", "classes": 10}, 56_714),
        ("cifar10", {"kind": "vgg"}, 550_570),
        ("cifar10", {"kind": "small"}, 38_570),
    ],
)
def test_the_networks(task, options, size):
    build_model = importlib.import_module(f"fedmf.tasks.{task}.task").build_model
    first, again, other = (build_model(seed, **options) for seed in (5, 5, 6))
    assert first.count_params() == size
    for left, right, third in zip(
        *(model.get_weights() for model in (first, again, other)), strict=True
    ):
        np.testing.assert_array_equal(left, right)
        assert left.ndim == 1 or not np.array_equal(left, third)
