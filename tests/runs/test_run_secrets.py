"""What of a run folder only its owner may read."""

import dataclasses
import os
import stat

import numpy as np
import pytest

from fedmf.files import write_atomically
from fedmf.participation.ledger import ParticipationLedger
from tests.runs.test_folder import checkpoint, new_run


@pytest.mark.parametrize("left_open", [False, True])
def test_who_took_part_is_as_secret_as_the_checkpoint(tmp_path, left_open):
    folder = new_run(tmp_path / "run")
    participation = [folder.path / "participation.csv", folder.path / "selected.csv"]
    if left_open:  # by an earlier version
        for path in participation:
            write_atomically(path, "round,client\n")
    ledger = ParticipationLedger(cohort_size=2)
    ledger.append(np.array([4]), selected=np.array([4, 5]))
    mask = os.umask(0)
    try:
        folder.save_checkpoint(dataclasses.replace(checkpoint(digest=folder.digest()), ledger=ledger, rounds_done=1))
    finally:
        os.umask(mask)
    assert [path.read_text() for path in participation] == ["round,client\n0,4\n", "round,client\n0,4\n0,5\n"]
    (saved,) = (folder.path / "checkpoints").iterdir()
    assert {stat.S_IMODE(path.stat().st_mode) for path in [saved, *participation]} == {0o600}
