"""The journal of a run. After crashes, power failures and edits of the folder, committed rounds are
read as they were committed, and no other rounds are read.
"""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from fedmf.files import lock
from fedmf.runs.folder import RunFolder
from fedmf.runs.rounds import CommittedRound
from fedmf.server import journal_folder
from fedmf.server.journal import Journal
from tests.refusals import refusal
from tests.runs.test_folder import new_run

ROUNDS = 4
# Functions of os through which all changes of a folder go.
OS_FUNCTIONS = ("open", "fsync", "replace", "link", "unlink", "ftruncate")


@pytest.fixture
def folder(tmp_path):
    return new_run(tmp_path / "run")


def round_of(t, value=0.0):
    """Returns a round of the clients t and t + 1, of which only t reports in odd rounds."""
    selected_clients = np.array([t, t + 1])
    return CommittedRound(
        t=t,
        clients=selected_clients[: 2 - t % 2],
        selected=selected_clients,
        statistics={"train_loss": 0.5 * t},
        private={"accuracy": value},
        canaries=np.array([1.0 / (t + 3), value]),
        release=[np.full(3, value + t, np.float32)],
        before=[np.full(3, t, np.float32), np.array(t)],
    )


def metrics_row_of(t):
    """Returns the row of round t in metrics.jsonl."""
    return {"round": t, "clients": 2 - t % 2, "train_loss": 0.5 * t}


def commit(folder, t, value=0.0):
    """Commits round t and writes its row of metrics."""
    folder.commit(round_of(t, value))
    folder.add_metrics_row(metrics_row_of(t))


def read(path):
    """Returns the committed rounds that a resume reads from a folder."""
    folder = RunFolder.open(path)
    with folder.locked():
        folder.read_rounds()
        return folder.committed


def assert_holds(path, num_rounds):
    """Checks that a folder has `num_rounds` rounds and the readable files that follow from them."""
    committed_rounds = read(path)
    assert len(committed_rounds.rows) == num_rounds
    if num_rounds:
        newest_round = CommittedRound.of(committed_rounds)
        expected = round_of(num_rounds - 1)
        assert newest_round.journal_row() == expected.journal_row()
        np.testing.assert_equal([*newest_round.release], expected.release)
        np.testing.assert_equal([*newest_round.before], expected.before)
    participation = "round,client\n"
    selections = "round,client\n"
    for t in range(num_rounds):
        participation += "".join(f"{t},{client}\n" for client in round_of(t).clients)
        selections += "".join(f"{t},{client}\n" for client in round_of(t).selected)
    assert (path / "participation.csv").read_text() == participation
    if num_rounds > 1:
        assert (path / "selected.csv").read_text() == selections
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert records == [metrics_row_of(t) for t in range(len(records))]
    assert len(records) in (num_rounds, num_rounds - 1)


def test_a_kill_between_any_two_writes_leaves_complete_rounds(folder, tmp_path, monkeypatch):
    snapshots: list[tuple[pathlib.Path, int]] = []
    shown_rounds: list[int] = []
    is_copying = False

    def snapshot_before(call):
        def wrapped(*args, **options):
            nonlocal is_copying
            if not is_copying:
                is_copying = True
                copy = tmp_path / f"copy {len(snapshots)}"
                shutil.copytree(folder.path, copy)
                snapshots.append((copy, len(shown_rounds)))
                is_copying = False
            return call(*args, **options)

        return wrapped

    with folder.locked(), monkeypatch.context() as patch:
        folder.read_rounds()
        for name in OS_FUNCTIONS:
            patch.setattr(os, name, snapshot_before(getattr(os, name)))
        for t in range(ROUNDS):
            commit(folder, t)
            shown_rounds.append(t)
    assert len(snapshots) > 8 * ROUNDS
    for copy, num_shown in snapshots:
        num_rounds = len(read(copy).rows)
        assert num_rounds in (num_shown, num_shown + 1)
        assert_holds(copy, num_rounds)


class Disk:
    """The state of a folder after a power failure: the contents and names that were synced."""

    def __init__(self, top):
        self._top = pathlib.Path(top)
        self._content_by_inode = {}
        self._inodes_by_folder = {}
        for path in [self._top, *self._top.rglob("*")]:
            self.sync(path)

    def sync(self, path):
        if path.is_dir():
            inode_by_name = {name: os.stat(path / name).st_ino for name in os.listdir(path)}
            self._inodes_by_folder[path] = inode_by_name
        else:
            self._content_by_inode[path.stat().st_ino] = path.read_bytes()

    def write(self, target):
        for folder, inode_by_name in self._inodes_by_folder.items():
            target_folder = target / folder.relative_to(self._top)
            target_folder.mkdir(parents=True, exist_ok=True)
            for name, inode in inode_by_name.items():
                if inode in self._content_by_inode:
                    (target_folder / name).write_bytes(self._content_by_inode[inode])


def test_rounds_that_were_shown_survive_a_power_failure(folder, tmp_path, monkeypatch):
    disk = Disk(folder.path)
    fsync = os.fsync

    def fsync_and_record(descriptor):
        fsync(descriptor)
        disk.sync(pathlib.Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    with folder.locked():
        folder.read_rounds()
        monkeypatch.setattr(os, "fsync", fsync_and_record)
        for t in range(ROUNDS):
            commit(folder, t)
            disk.write(tmp_path / f"after round {t}")
    for t in range(ROUNDS):
        assert_holds(tmp_path / f"after round {t}", t + 1)


def test_of_two_processes_without_locks_one_commits_a_round(folder, tmp_path, monkeypatch):
    # The two processes lock other folders, so that neither notices the other.
    monkeypatch.setattr(Journal, "check_place", lambda journal: None)
    lock_folders = [tmp_path / "first", tmp_path / "second"]
    for lock_folder in lock_folders:
        lock_folder.mkdir()
    locks = iter([lock(path) for path in lock_folders])
    monkeypatch.setattr(journal_folder, "lock", lambda path, **options: next(locks))
    first_folder = RunFolder.open(folder.path)
    second_folder = RunFolder.open(folder.path)
    with first_folder.locked(), second_folder.locked():
        first_folder.read_rounds()
        second_folder.read_rounds()
        commit(second_folder, 0)
        # Equal rows do not make the other process's file this one's: the releases may differ.
        with refusal("resumed elsewhere: nothing was released"):
            commit(first_folder, 0)
        for t in (1, 2):
            with refusal("resumed elsewhere: nothing was released"):
                commit(first_folder, 0, value=9.0)
            commit(second_folder, t)
    monkeypatch.undo()
    assert [row["private"] for row in read(folder.path).rows] == [{"accuracy": 0.0}] * 3


def test_a_file_that_is_removed_after_the_last_commit_is_not_called_unreleased(folder):
    with folder.locked():
        folder.read_rounds()
        commit(folder, 0)
        (folder.path / "participation.csv").unlink()
        with refusal("participation.csv .* was removed .* rounds are committed; resume it"):
            folder.write_json("result", {})
    assert_holds(folder.path, 1)


@pytest.mark.parametrize(
    "name", ["config.json", "plan.json", "mechanism.npz", "private/noise_seed"]
)
def test_commit_refuses_files_that_were_edited_during_the_run(folder, name):
    path = folder.path / name
    with folder.locked():
        folder.read_rounds()
        commit(folder, 0)
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        with refusal(f"{name} of the run's folder .* changed while it was in use"):
            commit(folder, 1)
        path.write_bytes(content)
        commit(folder, 1)
    assert_holds(folder.path, 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("private/rounds.jsonl", "rounds.jsonl is damaged or not of this run"),
        ("participation.csv", "participation.csv has other rows"),
        ("selected.csv", "selected.csv has other rows"),
        ("metrics.jsonl", "metrics.jsonl has other rows"),
    ],
)
def test_a_resume_refuses_edited_files_and_completes_truncated_ones(folder, name, message):
    with folder.locked():
        folder.read_rounds()
        for t in range(ROUNDS):
            commit(folder, t)
    path = folder.path / name
    content = path.read_bytes()
    path.write_bytes(content.replace(b"1", b"2", 1))
    with refusal(message):
        read(folder.path)
    path.write_bytes(content[:-5])
    assert_holds(folder.path, ROUNDS)
    if name.startswith("private"):
        # The newest row, at the end, is in the newest file of the journal too. Others are not.
        path.write_bytes(content[: len(content) // 2])
        with refusal(message):
            read(folder.path)


def test_a_resume_refuses_a_journal_from_a_backup(folder, tmp_path):
    with folder.locked():
        folder.read_rounds()
        commit(folder, 0)
        shutil.copytree(folder.path / "private", tmp_path / "backup")
        commit(folder, 1)
        commit(folder, 2)
    shutil.rmtree(folder.path / "private")
    shutil.copytree(tmp_path / "backup", folder.path / "private")
    for name in ("metrics.jsonl", "participation.csv"):
        for _ in range(2):
            with refusal(f"{name} has round [12] and the journal's .* put back from a backup"):
                read(folder.path)
        (folder.path / name).unlink()


def test_the_newest_row_of_metrics_is_read_from_the_journal_or_computed_again(folder):
    with folder.locked():
        folder.read_rounds()
        commit(folder, 0)
    metrics_path = folder.path / "metrics.jsonl"
    rows_path = folder.path / "private" / "rounds.jsonl"
    metrics_path.unlink()
    for _ in range(2):
        assert read(folder.path).rows[0]["metrics_row"] == metrics_row_of(0)
        assert json.loads(metrics_path.read_text()) == metrics_row_of(0)
    # A power failure may lose the end of rounds.jsonl, which is not synced before the next round.
    rows_path.write_bytes(rows_path.read_bytes()[:-3])
    assert "metrics_row" not in read(folder.path).rows[0]
    assert metrics_path.read_text() == ""


def test_a_round_that_failed_on_a_full_disk_can_be_committed(folder, monkeypatch):
    def raise_disk_full(*args):
        raise OSError(28, "No space left on device")

    with folder.locked():
        folder.read_rounds()
        for name in ("fsync", "link"):
            with monkeypatch.context() as patch:
                patch.setattr(os, name, raise_disk_full)
                with pytest.raises(OSError, match="No space left"):
                    folder.commit(round_of(0))
        commit(folder, 0)
    assert_holds(folder.path, 1)
