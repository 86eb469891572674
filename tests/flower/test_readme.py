"""The Flower snippet of README.md trains a run on a synthetic grid."""

import pathlib
import re

from flwr.serverapp.strategy import FedAvg

import fedmf
from fedmf.flower import MatrixFactorizationDP
from tests.flower.made_up import Grid, initial

README = (pathlib.Path(__file__).parents[2] / "README.md").read_text()


def test_the_flower_snippet_trains_every_round(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [snippet] = re.findall(r"```python\n(strategy = .*?)```", README, re.S)
    [plan_line] = re.findall(r"^(plan = .*)$", README, re.M)
    grid = Grid(range(40), partition_of=lambda node: node)
    names = {
        "fedmf": fedmf,
        "FedAvg": lambda: FedAvg(fraction_evaluate=0.0),
        "MatrixFactorizationDP": MatrixFactorizationDP,
        "grid": grid,
        "initial_arrays": initial(),
    }
    exec(compile(f"{plan_line}\n{snippet}", "README.md", "exec"), names)
    assert len(grid.asked) == names["plan"].participation.rounds == 64
    assert (tmp_path / "flower" / "participation.jsonl").exists()
