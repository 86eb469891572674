import dataclasses
import errno
import json
import math
import os
import random
import re
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

import fedmf
from fedmf import checks
from fedmf.files import write_atomically
from fedmf.mechanisms import TreeMechanism
from fedmf.participation.ledger import ParticipationLedger
from fedmf.runs import reading
from fedmf.runs.audit import plan_record
from fedmf.runs.checkpoint import Checkpoint
from fedmf.runs.folder import Run, RunFolder
from tests.refusals import refusal
from tests.runs.test_checkpoint import checkpoint

CONFIG = fedmf.TrainConfig(rounds=8, min_sep=4, family="identity", epsilon=8.0)


def new_run(path, config=CONFIG, plan=None, **facts):
    """A run folder as training leaves it before round 0."""
    folder = RunFolder.create(path)
    plan = plan or config.plan()
    plan.mechanism.save(folder.path / "mechanism.npz")
    folder.write_json("plan", plan_record(config, plan) | facts)
    write_atomically(folder.path / "statement.md", fedmf.statement(plan))
    write_atomically(folder.path / "private" / "noise_seed", "17\n", mode=0o600)
    write_atomically(folder.path / "config.json", config.to_json())
    return folder


@pytest.fixture
def folder(tmp_path):
    return new_run(tmp_path / "run")


def save(folder, rounds_done=3):
    folder.save_checkpoint(checkpoint(rounds_done=rounds_done, digest=folder.digest()))


def files(path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_the_record_of_a_growing_ledger_is_that_of_all_its_rounds(folder):
    cohorts = [np.array([t, t + 9]) for t in range(6)]
    ledger = ParticipationLedger(cohort_size=2, cohorts=cohorts)
    other = ParticipationLedger(cohort_size=2, cohorts=[cohorts[3], [], cohorts[0], cohorts[1]])
    record = folder.path / "participation.csv"
    for written in (ledger.first(2), ledger.first(5), ledger, other, ledger.first(1)):
        folder.write_record(written)
        assert record.read_text() == written.to_csv()
        pairs = written.pairs().tolist()
        assert written.to_csv() == "round,client\n" + "".join(f"{t},{i}\n" for t, i in pairs)


def test_a_run_whose_mechanism_memory_cannot_hold_is_not_called_damaged(folder, monkeypatch):
    TreeMechanism(rounds=1000).save(folder.path / "mechanism.npz")
    monkeypatch.setattr(checks, "available_memory", lambda: 2**22)
    with refusal(r"mechanism.npz' cannot be used: .* of this tree .*: for so many"):
        Run.load(folder.path)


# Writes checkpoints and rows without pause; says "ready" once two are there.
_WRITER = """
import sys, numpy as np
from fedmf.runs.checkpoint import Checkpoint
from fedmf.runs.folder import RunFolder
from fedmf.participation.ledger import ParticipationLedger
from fedmf.runs import reading
folder = RunFolder.open(sys.argv[1])
digest, t = folder.digest(), int(sys.argv[2])
with folder.rows("metrics") as write:
    while True:
        write({"round": t, "padding": "x" * 3000})
        t += 1
        ledger = ParticipationLedger(cohort_size=1, cohorts=[np.array([i]) for i in range(t)])
        state = [np.full(200_000, t, np.float32), np.array(t)]
        folder.save_checkpoint(
            Checkpoint(rounds_done=t, config_digest=digest, state=state, ledger=ledger)
        )
        if t == int(sys.argv[2]) + 2:
            print("ready", flush=True)
"""


class TestKilled:
    @pytest.mark.slow
    def test_kill_9_at_random_moments(self, folder):
        pauses = random.Random(2)
        done = 0
        for _ in range(6):
            writer = subprocess.Popen(
                [sys.executable, "-c", _WRITER, folder.path, str(done)], stdout=subprocess.PIPE
            )
            try:
                assert writer.stdout.readline() == b"ready\n"
                time.sleep(pauses.uniform(0, 0.05))
            finally:
                writer.send_signal(signal.SIGKILL)
                writer.wait()
                writer.stdout.close()
            kept = sorted((folder.path / "checkpoints").glob("*.ckpt"))
            assert 2 <= len(kept) <= 3
            for path in kept:  # whichever is there is whole
                found = Checkpoint.read(path)
                assert int(path.stem[6:]) == found.rounds_done == len(found.ledger)
                assert (found.state[0] == found.rounds_done).all()
            newest = folder.load_checkpoint()
            assert newest.rounds_done >= done + 2
            done = newest.rounds_done
            # The record beside it belongs to this checkpoint or the next, and is never behind: a
            # resume would not write it again.
            text = (folder.path / "participation.csv").read_text()
            assert text.endswith("\n")
            assert text.count("\n") - 1 in (done, done + 1)
            folder.truncate_rows(done)
            rows = [
                json.loads(line)
                for line in (folder.path / "metrics.jsonl").read_text().splitlines()
            ]
            assert [row["round"] for row in rows] == list(range(done))
        # What the killed writers left half-written is swept up by the next checkpoint.
        litter = folder.path / "checkpoints" / ".round-000001.ckpt.0123456789abcdef.part"
        litter.write_bytes(b"half")
        save(folder, done + 1)
        assert len(list((folder.path / "checkpoints").iterdir())) == 2


class TestCheckpointsOfARun:
    def test_the_newest_two_are_kept(self, folder):
        assert folder.load_checkpoint() is None
        for rounds_done in (8, 9, 10, 999_999, 1_000_000):
            save(folder, rounds_done)
            assert folder.load_checkpoint().rounds_done == rounds_done
        names = sorted(path.name for path in (folder.path / "checkpoints").iterdir())
        assert names == ["round-1000000.ckpt", "round-999999.ckpt"]

    def test_who_took_part_is_as_secret_as_the_checkpoint(self, folder):
        before = os.umask(0)
        try:
            save(folder)
        finally:
            os.umask(before)
        taken, selected = (folder.path / f"{name}.csv" for name in ("participation", "selected"))
        assert taken.read_text() == "round,client\n0,5\n0,1\n2,2\n"
        assert selected.read_text() == "round,client\n0,5\n0,1\n0,7\n1,3\n2,2\n"
        saved = (taken, selected, *(folder.path / "checkpoints").iterdir())
        assert {stat.S_IMODE(path.stat().st_mode) for path in saved} == {0o600}
        assert stat.S_IMODE((folder.path / "private").stat().st_mode) == 0o700

    def test_rounds_before_a_crash_are_counted_and_never_guessed(self, folder):
        (folder.path / "metrics.jsonl").write_text('{"round": 0}\n{"round": 1}\n')
        for done in (1, 0):  # the second resume sees one row
            folder.truncate_rows(done)
            assert folder.rounds_ever_done() == folder.rounds_before_crashes() == 2
        (folder.path / "rounds_done").write_text("two")
        with refusal(r"rounds_done is damaged: it must hold a number"):
            folder.rounds_ever_done()

    @pytest.mark.parametrize("name", ["config.json", "plan.json", "private/noise_seed"])
    def test_of_another_run(self, tmp_path, name, folder):
        save(folder)
        path = folder.path / name
        path.write_bytes(path.read_bytes() + b" ")
        before = files(tmp_path)
        with refusal(r"round-000003\.ckpt belongs to another run.*move it out"):
            folder.load_checkpoint()
        assert files(tmp_path) == before

    def test_a_damaged_newest_names_the_way_back(self, folder):
        for rounds_done in (2, 4):
            save(folder, rounds_done)
        newest = folder.path / "checkpoints" / "round-000004.ckpt"
        newest.write_bytes(newest.read_bytes()[:-1])
        with refusal(r"round-000004\.ckpt is damaged.*delete this file to resume from the one"):
            folder.load_checkpoint()
        newest.unlink()
        assert folder.load_checkpoint().rounds_done == 2


class TestRows:
    def write(self, folder, text, name="metrics"):
        (folder.path / f"{name}.jsonl").write_bytes(text.encode())

    def read(self, folder, name="metrics"):
        return (folder.path / f"{name}.jsonl").read_text()

    def test_rows_to_be_done_again_and_half_lines_are_dropped(self, folder):
        whole = '{"round": 0}\n{"round": 1, "validation": {"accuracy": 0.25}}\n'
        lines = whole + '{"round": 2, "train_loss": 0.125}\n'
        for cut in range(len(lines) + 1):
            self.write(folder, lines[:cut])
            self.write(folder, lines[:cut], "timings")
            folder.truncate_rows(2)
            expected = whole if cut >= len(whole) - 1 else '{"round": 0}\n' if cut >= 12 else ""
            assert self.read(folder) == self.read(folder, "timings") == expected
            # What is appended next starts a line of its own.
            with folder.rows("metrics") as write:
                write({"round": 9})
            assert self.read(folder) == expected + '{"round": 9}\n'

    @pytest.mark.parametrize("line", ["{", "", '{"round": "2"}'])
    def test_damage_in_the_middle_is_not_a_gap(self, tmp_path, line, folder):
        self.write(folder, '{"round": 0}\n' + line + '\n{"round": 2}\n')
        before = files(tmp_path)
        for read in (lambda: folder.truncate_rows(2), lambda: Run.load(folder.path)):
            with refusal(r"line 2 of .*metrics\.jsonl is damaged"):
                read()
        assert files(tmp_path) == before


class TestCreate:
    def refused(self, path, words):
        before = files(path.parent)
        with refusal(words, naming=[path]):
            RunFolder.create(path)
        assert files(path.parent) == before

    def test_an_existing_run(self, folder):
        self.refused(folder.path, "already holds a run: resume it with resume=True, or name anoth")

    def test_an_empty_folder_or_one_of_a_start_that_failed(self, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "log.txt").write_text("mine")
        for _ in range(2):
            folder = RunFolder.create(tmp_path / "run")
            assert (folder.path / "private").is_dir()
            (folder.path / "plan.json").write_text("{}")
        assert (tmp_path / "run" / "log.txt").read_text() == "mine"

    @pytest.mark.parametrize(
        ("begun", "name"),
        [
            (False, "model.npz"),
            (False, "metrics.jsonl"),
            (False, "checkpoints/round-000008.ckpt"),
            (True, "result.json"),
            (True, "checkpoints/round-000008.ckpt"),
        ],
    )
    def test_what_would_be_lost(self, tmp_path, begun, name):
        """Notes of somebody's own, or the remains of a run."""
        path = tmp_path / "run"
        (path / "checkpoints").mkdir(parents=True)
        if begun:
            (path / "private").mkdir()
        (path / name).write_text("mine")
        self.refused(path, f"has a {name} and no config.json: a new run would overwrite it")

    def test_where_nothing_can_be_written(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("kept")
        for path in (tmp_path / "file", tmp_path / "file" / "run"):
            with refusal("cannot write to folder .*: name a folder you may write to"):
                RunFolder.create(path)

        # Also for root, whom no permission stops.
        def denied(*args, **kwargs):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(os, "open", denied)
        self.refused(tmp_path / "run", "Permission denied.*name a folder you may write to")


class TestLoad:
    def refused(self, path, *words):
        with refusal(re.escape(str(path)), naming=words):
            Run.load(path)

    def test_unfinished_and_finished(self, folder):
        (folder.path / "metrics.jsonl").write_text('{"round": 0, "train_loss": 2.5}\n{"rou')
        run = Run.load(folder.path)
        assert (run.config, run.result, run.timings) == (CONFIG, None, [])
        assert run.metrics == [{"round": 0, "train_loss": 2.5}]
        assert run.plan["epsilon"] == CONFIG.plan().epsilon
        assert run.statement == fedmf.statement(CONFIG.plan())
        np.testing.assert_array_equal(run.noising, np.eye(8))
        folder.write_json("result", {"test": {}})
        result = Run.load(str(folder.path)).result
        assert result["test"] == {}
        names = "config.json plan.json mechanism.npz metrics.jsonl statement.md".split()
        assert set(result["sha256"]) == set(names)

    def test_a_run_of_more_rounds_than_a_matrix_holds(self, tmp_path):
        long = new_run(tmp_path / "run", dataclasses.replace(CONFIG, rounds=50_000))
        assert Run.load(long.path).mechanism.rounds == 50_000

    def test_a_run_does_not_show_the_seed_of_its_noise(self, folder):
        secret = "987654321987654321"
        write_atomically(folder.path / "private" / "noise_seed", secret, mode=0o600)
        assert secret not in repr(Run.load(folder.path))

    def test_no_run_or_one_that_was_stopped_before_it_began(self, tmp_path):
        self.refused(tmp_path, "holds no run to resume or to read", "config.json")
        RunFolder.create(tmp_path)
        self.refused(tmp_path, "holds no run yet", "give its command again, without resume=True")
        RunFolder.create(tmp_path)  # as it says

    @pytest.mark.parametrize("name", ["plan.json", "mechanism.npz", "metrics.jsonl"])
    @pytest.mark.parametrize("content", [None, b"", b"[]", b"\xff\xfe", b"{}x\n{}"])
    def test_a_missing_or_damaged_file(self, folder, name, content):
        path = folder.path / name
        path.unlink() if content is None else path.write_bytes(content)
        if name == "metrics.jsonl" and b"\n" not in (content or b""):
            # A last line that was being written when the run was killed is no damage.
            assert Run.load(folder.path).metrics == []
        else:
            self.refused(
                folder.path, "incomplete or damaged", name, "run it again in another folder"
            )


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "plan.json",
        "mechanism.npz",
        "participation.csv",
        "metrics.jsonl",
        "statement.md",
    ],
)
def test_a_result_signs_no_file_that_was_edited_while_the_run_went_on(tmp_path, name):
    folder = new_run(tmp_path / "run")
    (folder.path / "config.json").unlink()
    folder.begin(CONFIG, {})
    with folder.rows("metrics") as write:
        for t in range(CONFIG.rounds):
            write({"round": t, "clients": 1})
    cohorts = [np.array([t]) for t in range(CONFIG.rounds)]
    folder.write_record(ParticipationLedger(cohort_size=1, cohorts=cohorts))
    path = folder.path / name
    own = path.read_bytes()
    path.write_bytes(own + (b'{"round": 8}\n' if name == "metrics.jsonl" else b"\n"))
    folder.write_json("result", {})
    with refusal(f"{name} changed after the run had finished, or while it went on"):
        fedmf.audit_run(folder.path)
    path.write_bytes(own)
    assert fedmf.audit_run(folder.path).observed.rounds == CONFIG.rounds


def test_numbers_that_are_not_finite_are_null_in_files_and_nan_when_read(tmp_path):
    folder = RunFolder(tmp_path)
    row = {"round": 0, "train_loss": math.nan, "validation": {"mae": math.inf, "loss": 2.0}}
    with folder.rows("metrics") as write:
        write(row)
    folder.write_json("result", {"test": {"loss": -math.inf}, "achieved": {"epsilon": None}})
    texts = [(tmp_path / name).read_text() for name in ("metrics.jsonl", "result.json")]
    for text in texts:
        json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
    [read] = reading.read_rows(tmp_path / "metrics.jsonl")
    assert math.isnan(read["train_loss"])
    assert math.isnan(read["validation"]["mae"])
    assert read["validation"]["loss"] == 2.0
    result = reading.read_object(tmp_path / "result.json")
    assert math.isnan(result["test"]["loss"])
    assert result["achieved"] == {"epsilon": None}
