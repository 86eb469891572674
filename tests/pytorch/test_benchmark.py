"""The benchmark of training with PyTorch, at toy size."""

import json

from benchmarks import pytorch


def test_all_parts_of_a_round_are_measured(capfd):
    pytorch.main.main(["--small", "--json"], standalone_mode=False)
    [measured] = json.loads(capfd.readouterr().out).values()
    [row] = measured["rounds"]
    assert min(row.values()) > 0
    assert row["clients"] + row["noise"] + row["commit"] < row["round"]
    assert "client" in measured["kind"]
