"""The journal of a run: whatever a crash, a power failure or somebody else does to the folder, a
committed round is read again as it was committed, and no other is.
"""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from fedmf.files import lock
from fedmf.runs.folder import RunFolder
from fedmf.runs.rounds import CommittedRound, RunRounds
from fedmf.server.journal import Journal
from tests.refusals import refusal
from tests.runs.test_folder import new_run

ROUNDS = 4
# What changes a folder goes through one of these.
CALLS = ("open", "fsync", "replace", "link", "unlink", "ftruncate")


@pytest.fixture
def folder(tmp_path):
    return new_run(tmp_path / "run")


def round_of(t, value=0.0):
    """The round of the clients t and t + 1, of which one reports in odd rounds."""
    selected = np.array([t, t + 1])
    return CommittedRound(
        t=t,
        clients=selected[: 2 - t % 2],
        selected=selected,
        numbers={"train_loss": 0.5 * t},
        private={"accuracy": value},
        canaries=np.array([1.0 / (t + 3), value]),
        release=[np.full(3, value + t, np.float32)],
        before=[np.full(3, t, np.float32), np.array(t)],
    )


def record_of(t):
    return {"round": t, "clients": 2 - t % 2, "train_loss": 0.5 * t}


def commit(rounds, t, value=0.0):
    rounds.commit(round_of(t, value))
    rounds.add_record(record_of(t))


def read(path):
    """What a resume finds in a folder."""
    folder = RunFolder.open(path)
    with folder.locked():
        folder.read_rounds()
        return folder.rounds.committed


def assert_holds(path, rounds):
    """The folder has so many rounds, bit for bit, and the readers' files follow from them."""
    committed = read(path)
    assert len(committed.rows) == rounds
    if rounds:
        newest, expected = CommittedRound.of(committed), round_of(rounds - 1)
        assert newest.row() == expected.row()
        for found, array in zip(newest.release, expected.release, strict=True):
            np.testing.assert_array_equal(found, array)
        for found, array in zip(newest.before, expected.before, strict=True):
            np.testing.assert_array_equal(found, array)
    for name, clients in (("participation.csv", "clients"), ("selected.csv", "selected")):
        pairs = [(t, c) for t in range(rounds) for c in getattr(round_of(t), clients)]
        if name == "participation.csv" or rounds > 1:
            text = (path / name).read_text()
            assert text == "round,client\n" + "".join(f"{t},{c}\n" for t, c in pairs)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [record_of(t) for t in range(len(lines))]
    assert len(lines) in (rounds, rounds - 1)


def test_every_prefix_of_the_writes_is_a_folder_of_whole_rounds(folder, tmp_path, monkeypatch):
    """As a kill leaves it: between any two changes of the folder."""
    snapshots: list[tuple[pathlib.Path, int]] = []
    seen: list[int] = []
    is_copying = False

    def snapshot_before(call):
        def wrapped(*args, **options):
            nonlocal is_copying
            if not is_copying:
                is_copying = True
                copy = tmp_path / f"copy {len(snapshots)}"
                shutil.copytree(folder.path, copy)
                snapshots.append((copy, len(seen)))
                is_copying = False
            return call(*args, **options)

        return wrapped

    with folder.locked(), monkeypatch.context() as patch:
        folder.read_rounds()
        for name in CALLS:
            patch.setattr(os, name, snapshot_before(getattr(os, name)))
        for t in range(ROUNDS):
            commit(folder.rounds, t)
            seen.append(t)
    assert len(snapshots) > 8 * ROUNDS
    for copy, num_seen in snapshots:
        rounds = len(read(copy).rows)
        assert rounds in (num_seen, num_seen + 1)  # what was shown is there
        assert_holds(copy, rounds)


class Disk:
    """What of a folder a power failure leaves: bytes and names that were synced."""

    def __init__(self, top):
        self._top = pathlib.Path(top)
        self._content, self._names = {}, {}
        for path in [self._top, *self._top.rglob("*")]:
            self.sync(path)

    def sync(self, path):
        if path.is_dir():
            self._names[path] = {name: os.stat(path / name).st_ino for name in os.listdir(path)}
        else:
            self._content[path.stat().st_ino] = path.read_bytes()

    def write(self, target):
        for folder, names in self._names.items():
            there = target / folder.relative_to(self._top)
            there.mkdir(parents=True, exist_ok=True)
            for name, number in names.items():
                if number in self._content:
                    (there / name).write_bytes(self._content[number])


def test_a_power_failure_takes_back_no_round_that_was_shown(folder, tmp_path, monkeypatch):
    disk, fsync = Disk(folder.path), os.fsync

    def synced(descriptor):
        fsync(descriptor)
        disk.sync(pathlib.Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    with folder.locked():
        folder.read_rounds()
        monkeypatch.setattr(os, "fsync", synced)
        for t in range(ROUNDS):
            commit(folder.rounds, t)
            disk.write(tmp_path / f"left {t}")
    for t in range(ROUNDS):
        assert_holds(tmp_path / f"left {t}", t + 1)


def test_of_two_processes_without_locks_one_commits_the_round(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Journal, "check_place", lambda journal: None)  # each has a lock elsewhere
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()
    mine, theirs = (RunRounds(folder.path, lock(place)) for place in places)
    mine.read()
    theirs.read()
    commit(theirs, 0)
    for t in (1, 2):
        with refusal("gone on with elsewhere: nothing was released"):
            commit(mine, 0, value=9.0)
        commit(theirs, t)
    assert [row["private"] for row in read(folder.path).rows] == [{"accuracy": 0.0}] * 3


@pytest.mark.parametrize(
    "name", ["config.json", "plan.json", "mechanism.npz", "private/noise_seed"]
)
def test_an_edit_of_a_running_run_is_refused_at_the_next_round(folder, name):
    path = folder.path / name
    with folder.locked():
        folder.read_rounds()
        commit(folder.rounds, 0)
        own = path.read_bytes()
        path.write_bytes(own + b" ")
        with refusal(f"{name} of the run's folder .* changed while it was in use"):
            commit(folder.rounds, 1)
        path.write_bytes(own)
        commit(folder.rounds, 1)
    assert_holds(folder.path, 2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("private/rounds.jsonl", "rounds.jsonl is damaged or not of this run"),
        ("participation.csv", "participation.csv has other rows"),
        ("selected.csv", "selected.csv has other rows"),
        ("metrics.jsonl", "metrics.jsonl has other rows"),
    ],
)
def test_an_edit_of_a_stopped_run_is_refused_and_a_lost_end_written_again(folder, name, said):
    with folder.locked():
        folder.read_rounds()
        for t in range(ROUNDS):
            commit(folder.rounds, t)
    path = folder.path / name
    own = path.read_bytes()
    path.write_bytes(own.replace(b"1", b"2", 1))
    with refusal(said):
        read(folder.path)
    path.write_bytes(own[:-5])
    if name.startswith("private"):  # the end is the newest row, which the journal has as well
        assert_holds(folder.path, ROUNDS)
        path.write_bytes(own[: len(own) // 2])
        with refusal(said):
            read(folder.path)
    else:
        assert_holds(folder.path, ROUNDS)


def test_a_journal_from_a_backup_is_refused(folder, tmp_path):
    with folder.locked():
        folder.read_rounds()
        commit(folder.rounds, 0)
        shutil.copytree(folder.path / "private", tmp_path / "backup")
        commit(folder.rounds, 1)
        commit(folder.rounds, 2)
    shutil.rmtree(folder.path / "private")
    shutil.copytree(tmp_path / "backup", folder.path / "private")
    for name in ("participation.csv", "metrics.jsonl"):
        for _ in range(2):
            with refusal(f"{name} has round [12], .* put back from a backup"):
                read(folder.path)
        (folder.path / name).unlink()


def test_a_row_that_was_edited_is_computed_again(folder):
    with folder.locked():
        folder.read_rounds()
        commit(folder.rounds, 0)
    path = folder.path / "metrics.jsonl"
    own = path.read_text()
    for edited in (own.replace("0.0", "9.5"), '{"round": 0}\n'):
        path.write_text(edited)
        assert "record" not in read(folder.path).rows[0]


def test_without_room_a_round_is_committed_once(folder, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    with folder.locked():
        folder.read_rounds()
        for name in ("fsync", "link"):
            with monkeypatch.context() as patch:
                patch.setattr(os, name, full)
                with pytest.raises(OSError, match="No space left"):
                    folder.rounds.commit(round_of(0))
        commit(folder.rounds, 0)
    assert_holds(folder.path, 1)
