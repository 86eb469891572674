import dataclasses
import errno
import json
import math
import os
import re
import stat

import numpy as np
import pytest

import fedmf
from fedmf import checks
from fedmf.files import write_atomically
from fedmf.mechanisms import TreeMechanism
from fedmf.runs import reading
from fedmf.runs.audit import plan_record
from fedmf.runs.folder import Run, RunFolder
from fedmf.runs.rounds import CommittedRound
from tests.refusals import refusal

CONFIG = fedmf.TrainConfig(rounds=8, min_sep=4, family="identity", epsilon=8.0)


def new_run(path, config=CONFIG, plan=None, **facts):
    """A run folder as training leaves it before round 0."""
    folder = RunFolder.create(path)
    plan = plan or config.plan()
    plan.mechanism.save(folder.path / "mechanism.npz")
    folder.write_json("plan", plan_record(config, plan) | facts)
    write_atomically(folder.path / "statement.md", fedmf.statement(plan))
    write_atomically(folder.path / "private" / "noise_seed", "17\n", mode=0o600)
    with folder.locked():
        folder.begin(config, {})
    return folder


@pytest.fixture
def folder(tmp_path):
    return new_run(tmp_path / "run")


def trained(folder, cohorts, records=None, selections=None):
    """Commits a round for each cohort, and writes as many records, by default all."""
    selections = selections or cohorts
    with folder.locked():
        folder.read_rounds()
        for t, (cohort, selected) in enumerate(zip(cohorts, selections, strict=True)):
            clients = np.array(cohort, np.int64)
            committed = CommittedRound(
                t=t, clients=clients, selected=np.array(selected, np.int64), numbers={},
                release=[np.full(3, t, np.float32)],
            )  # fmt: skip
            folder.rounds.commit(committed)
            if records is None or t < records:
                folder.rounds.add_record({"round": t, "clients": len(clients)})


def files(path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_who_took_part_is_written_after_each_commit_and_as_secret_as_the_journal(folder):
    before = os.umask(0)
    try:
        trained(folder, [[5, 1], [], [2]], selections=[[5, 1], [3], [2]])
    finally:
        os.umask(before)
    taken, selected = (folder.path / f"{name}.csv" for name in ("participation", "selected"))
    assert taken.read_text() == "round,client\n0,5\n0,1\n2,2\n"
    assert selected.read_text() == "round,client\n0,5\n0,1\n1,3\n2,2\n"
    private = folder.path / "private"
    secret = (taken, selected, private / "rounds.jsonl", *(private / "journal").iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_a_run_whose_mechanism_memory_cannot_hold_is_not_called_damaged(folder, monkeypatch):
    TreeMechanism(rounds=1000).save(folder.path / "mechanism.npz")
    monkeypatch.setattr(checks, "available_memory", lambda: 2**22)
    with refusal(r"mechanism.npz' cannot be used: .* of this tree .*: for so many"):
        Run.load(folder.path)


class TestRows:
    def write(self, folder, text, name="metrics"):
        (folder.path / f"{name}.jsonl").write_bytes(text.encode())

    def read(self, folder, name="metrics"):
        return (folder.path / f"{name}.jsonl").read_text()

    @pytest.mark.parametrize("line", ["{", "", '{"round": "2"}'])
    def test_damage_in_the_middle_is_not_a_gap(self, tmp_path, line, folder):
        self.write(folder, '{"round": 0}\n' + line + '\n{"round": 2}\n')
        before = files(tmp_path)
        with refusal(r"line 2 of .*metrics\.jsonl is damaged"):
            Run.load(folder.path)
        assert files(tmp_path) == before
        self.write(folder, "")
        self.write(folder, '{"round": 0}\n' + line + '\n{"round": 2}\n', "timings")
        # Nothing rests on the seconds of a round.
        assert [row["round"] for row in Run.load(folder.path).timings] == [0, 2]


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
            (True, "result.json"),
            (True, "private/journal/000008.npz"),
        ],
    )
    def test_what_would_be_lost(self, tmp_path, begun, name):
        """Notes of somebody's own, or the remains of a run."""
        path = tmp_path / "run"
        path.mkdir()
        if begun:
            (path / "private" / "journal").mkdir(parents=True)
        (path / name).write_text("mine")
        shown = name.removesuffix("/000008.npz")
        self.refused(path, f"has a {shown} and no config.json: a new run would overwrite it")

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
        names = "config.json plan.json mechanism.npz metrics.jsonl participation.csv statement.md"
        names = names.split()
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
    trained(folder, [[t] for t in range(CONFIG.rounds)])
    path = folder.path / name
    own = path.read_bytes()
    with folder.locked():
        folder.read_rounds()
        path.write_bytes(
            own.replace(b"0", b"3", 1) if name.startswith(("m", "pa")) else own + b"\n"
        )
        folder.write_json("result", {})
    with refusal(f"{name} changed after the run had finished, or while it went on"):
        fedmf.audit_run(folder.path)
    path.write_bytes(own)
    assert fedmf.audit_run(folder.path).observed.rounds == CONFIG.rounds


def test_numbers_that_are_not_finite_are_null_in_files_and_nan_when_read(folder):
    row = {"round": 0, "train_loss": math.nan, "validation": {"mae": math.inf, "loss": 2.0}}
    with folder.locked():
        folder.read_rounds()
        nobody = np.zeros(0, np.int64)
        folder.rounds.commit(CommittedRound(t=0, clients=nobody, selected=nobody, numbers={}))
        folder.rounds.add_record(row)
    folder.write_json("result", {"test": {"loss": -math.inf}, "achieved": {"epsilon": None}})
    texts = [(folder.path / name).read_text() for name in ("metrics.jsonl", "result.json")]
    for text in texts:
        json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
    [read] = reading.read_rows(folder.path / "metrics.jsonl")
    assert math.isnan(read["train_loss"])
    assert math.isnan(read["validation"]["mae"])
    assert read["validation"]["loss"] == 2.0
    result = reading.read_object(folder.path / "result.json")
    assert math.isnan(result["test"]["loss"])
    assert result["achieved"] == {"epsilon": None}
