"""The benchmark of training with PyTorch, at toy size."""

import json

import click
import pytest
import torch

from benchmarks import pytorch


def test_all_parts_of_a_round_are_measured(capfd):
    pytorch.main.main(["--small", "--json"], standalone_mode=False)
    [measured] = json.loads(capfd.readouterr().out).values()
    [row] = measured["rounds"]
    assert min(row.values()) > 0
    assert row["clients"] + row["noise"] + row["commit"] < row["round"]
    assert "client" in measured["kind"]


def test_a_machine_without_a_gpu_is_told_in_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(click.UsageError, match="--device cuda needs a GPU"):
        pytorch.main.main(["--device", "cuda"], standalone_mode=False)
