"""Permissions of the files of runs, sweeps and reports, under any umask."""

import os
import stat

import pytest

from fedmf import federated
from fedmf.sweeps import run as sweep
from tests.federated.run_small import config
from tests.federated.small_task import small_task

# Files that describe the run and not its clients; the guarantee covers the model.
OPEN = {"config.json", "plan.json", "statement.md", "mechanism.npz", "model.npz", "first.json"}


@pytest.mark.tensorflow
@pytest.mark.usefixtures("clients_in_turn")
@pytest.mark.slow
def test_files_of_runs_and_sweeps_are_readable_by_their_owner_alone(tmp_path):
    settings = config(rounds=2)
    old_umask = os.umask(0)
    try:
        folder = tmp_path / "new" / "sweep" / "runs" / "first"
        federated.train(
            small_task(), settings, folder=folder, noise_seed="os", progress=False,
            callbacks=[federated.TensorBoard()],
        )  # fmt: skip
        sweep.run_sweep(folder.parents[1], {"first": settings}, sweep.SweepOptions(noise_seed="os"))
    finally:
        os.umask(old_umask)
    mode_by_path = {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "new", *(tmp_path / "new").rglob("*"))
    }
    assert {mode for path, mode in mode_by_path.items() if path.is_dir()} == {0o700}
    open_to_all = {
        path.name for path, mode in mode_by_path.items() if path.is_file() and mode & 0o077
    }
    assert open_to_all <= OPEN, open_to_all - OPEN
    assert not any(mode & 0o022 for mode in mode_by_path.values())  # nobody else may write
    file_names = {path.name for path in mode_by_path}
    assert file_names >= set(
        "report.html validation.png results.csv identity.json metrics.jsonl".split()
    )
    assert any(name.startswith("events") for name in file_names)
