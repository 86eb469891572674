"""Client work on a GPU, computed here on the processor: sums have the bits of the threads' sums,
and are moved once a round.
"""

import functools

import numpy as np
import pytest
import torch

from fedmf.pytorch.client_training import client_setup
from fedmf.pytorch.client_training.on_device import ClientsOnDevice
from fedmf.training.execution import in_process
from tests.pytorch import small_models
from tests.pytorch.test_client_work import clients_of, sums_of, work_of


@pytest.fixture
def on_device(monkeypatch):
    """Returns a function that lets clients train as on a GPU."""

    def make_work(make, threads, **options):
        return ClientsOnDevice(make, device=torch.device("cpu"), **options)

    return functools.partial(monkeypatch.setattr, client_setup, "ClientsInThreads", make_work)


@pytest.fixture
def moved_tensors(monkeypatch):
    """Returns a list of the tensors that are moved to the processor."""
    tensors = []
    move = torch.Tensor.cpu

    def recorded_move(tensor):
        tensors.append(tensor)
        return move(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", recorded_move)
    return tensors


def test_a_sum_has_the_bits_of_threads_and_is_moved_once(kind, on_device, moved_tensors):
    task = small_models.task()
    settings = small_models.config()
    clients = clients_of(task, settings)
    work, sent = work_of(task, settings)
    expected = sums_of(work, sent, clients)
    on_device()
    work, _ = work_of(task, settings)
    moved_tensors.clear()
    assert sums_of(work, sent, clients) == expected
    assert [tensor.shape for tensor in moved_tensors] == [array.shape for array in sent.weights]
    assert "one client at a time" in work.explain() or "stacked" in work.explain()


def test_a_round_has_one_group_whose_sum_is_moved_once(tmp_path, monkeypatch, on_device):
    """With groups of two clients, threads sum twice a round."""
    checked_sizes = []
    check = in_process.check_group_sums

    def recorded_check(group_sums, sizes, **options):
        checked_sizes.append(sizes)
        return check(group_sums, sizes, **options)

    monkeypatch.setattr(in_process, "group_size", lambda *sizes: 2)
    monkeypatch.setattr(in_process, "check_group_sums", recorded_check)
    in_threads = small_models.train(tmp_path / "threads")
    assert checked_sizes == [[2, 2]] * 3
    on_device()
    checked_sizes.clear()
    run = small_models.train(tmp_path / "device")
    assert checked_sizes == [[4]] * 3
    for weight, weight_of_threads in zip(run.weights, in_threads.weights, strict=True):
        np.testing.assert_allclose(weight, weight_of_threads, rtol=1e-6, atol=1e-7)
