"""The networks of the tasks. What they learn is in test_tasks_doc.py."""

import importlib

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow


NEXT_WORD = {"vocabulary_size": 7, "sequence_length": 5, "embedding_size": 3, "lstm_size": 4}


@pytest.mark.parametrize(
    ("task", "options", "size"),
    [
        ("emnist.task", {"kind": "cnn", "classes": 62}, 1_206_590),
        ("emnist.task", {"kind": "small", "classes": 10}, 56_714),
        ("cifar10.task", {"kind": "vgg"}, 550_570),
        ("cifar10.task", {"kind": "small"}, 38_570),
        ("stackoverflow.model", NEXT_WORD, 220),
    ],
)
def test_the_networks_have_their_published_sizes_and_follow_the_seed(task, options, size):
    build_model = importlib.import_module(f"fedmf.tasks.{task}").build_model
    first_model, equal_model, other_model = (build_model(seed, **options) for seed in (5, 5, 6))
    assert first_model.count_params() == size
    for first_weight, equal_weight, other_weight in zip(
        *(model.get_weights() for model in (first_model, equal_model, other_model)), strict=True
    ):
        np.testing.assert_array_equal(first_weight, equal_weight)
        assert first_weight.ndim == 1 or not np.array_equal(first_weight, other_weight)
    corners = [weight.flat[0] for weight in first_model.get_weights() if weight.ndim > 1]
    assert len(set(corners)) == len(corners)  # no two layers share a seed
