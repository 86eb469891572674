"""Runs of PyTorch models on a Ray cluster of this machine."""

import numpy as np
import pytest
import torch

from fedmf.training.execution import in_process
from tests.pytorch import small_models


def test_a_run_on_a_cluster_has_the_bits_of_one_in_this_process(tmp_path, monkeypatch):
    """The functions of the task have no name by which a worker could import them."""
    pytest.importorskip("ray")
    monkeypatch.setattr(in_process, "group_size", lambda *sizes: 2)
    task = small_models.task(
        model=lambda: torch.nn.Sequential(small_models.perceptron(), torch.nn.Tanh()),
        loss=lambda outputs, labels: torch.nn.functional.cross_entropy(outputs, labels),
    )
    run = small_models.train(tmp_path / "process", small_task=task)
    cluster_run = small_models.train(
        tmp_path / "cluster", small_task=task, cluster="local", threads=2
    )
    np.testing.assert_equal(cluster_run.weights, run.weights)
    metrics = (run.path / "metrics.jsonl").read_bytes()
    assert (cluster_run.path / "metrics.jsonl").read_bytes() == metrics
