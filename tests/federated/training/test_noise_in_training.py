"""The noise of a run: where its rows are kept, and what is said of it.

tests/server/test_rows.py has that every strategy makes the same rows, from any round on.
"""

import pytest

from tests.federated.small_runs import config, small_task, train
from tests.refusals import refusal

SETTINGS = config(min_sep=3)


@pytest.mark.slow
def test_rows_on_disk_are_told_and_leave_nothing(tmp_path, capsys):
    train(tmp_path / "quiet", SETTINGS, progress=True)
    printed = capsys.readouterr().err
    assert "noise:" not in printed
    assert all(part in printed for part in ("6/6", "clients/s=", "loss="))
    # One byte less than the arrays for blocks of one round: 2 * 3 rows to work on, 2 to keep.
    size = sum(weight.size for weight in small_task().initial_weights(3))
    options = {"noise_strategy": "recurrent", "noise_memory": 4 * 8 * size - 1}
    run = train(tmp_path / "run", SETTINGS, progress=True, **options)
    assert "in a private memory map" in capsys.readouterr().err
    left = {path.name for path in (run.path / "private").iterdir()}
    assert left == {"noise_seed", "identity.json"}


def test_impossible_strategies_are_refused_before_anything_is_written(tmp_path):
    with refusal("noise_strategy='recurrent' cannot make this noise"):
        train(tmp_path / "run", SETTINGS, noise_strategy="recurrent", noise_memory=1000)
    assert not (tmp_path / "run").exists()
