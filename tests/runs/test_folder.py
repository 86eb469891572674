"""The folder of a run: what is refused, written and read."""

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
from fedmf.mechanisms import FFTMechanism
from fedmf.runs import reading
from fedmf.runs.folder import Run, RunFolder
from fedmf.runs.plan_record import plan_record
from fedmf.runs.rounds import CommittedRound
from tests.refusals import refusal

CONFIG = fedmf.TrainConfig(rounds=8, min_sep=4, family="identity", epsilon=8.0)


def new_run(path, config=CONFIG, plan=None, **facts):
    """Writes a run folder as `train` does before round 0, and returns it.

    Args:
      path: path of the folder.
      config: config of the run.
      plan: plan of the run; None for the config's.
      facts: other values of plan.json.
    """
    folder = RunFolder(path)
    plan = plan or config.plan()
    with folder.locked():
        folder.prepare()
        plan.mechanism.save(folder.path / "mechanism.npz")
        record = plan_record(config, plan) | facts
        folder.write_json("plan", record)
        write_atomically(folder.path / "statement.md", fedmf.statement(plan))
        folder.begin(config, record, {}, noise_seed=17)
    return folder


def prepared(path):
    """Returns a run folder as `train` leaves it if it is stopped before it writes a file."""
    folder = RunFolder(path)
    with folder.locked():
        folder.prepare()
    return folder


@pytest.fixture
def folder(tmp_path):
    return new_run(tmp_path / "run")


def commit_rounds(folder, cohorts, num_records=None, selections=None):
    """Commits a round for each cohort, and writes the records of the first `num_records` rounds.

    Args:
      folder: a run folder.
      cohorts: indices of the clients of each round.
      num_records: number of records; None for all.
      selections: indices of the selected clients of each round; None for the cohorts.
    """
    selections = selections or cohorts
    with folder.locked():
        folder.read_rounds()
        for t, (cohort, selected_clients) in enumerate(zip(cohorts, selections, strict=True)):
            clients = np.array(cohort, np.int64)
            committed_round = CommittedRound(
                t=t, clients=clients, selected=np.array(selected_clients, np.int64), statistics={},
                release=[np.full(3, t, np.float32)],
            )  # fmt: skip
            folder.commit(committed_round)
            if num_records is None or t < num_records:
                folder.add_metrics_row({"round": t, "clients": len(clients)})


def file_contents(path):
    """Returns the contents of all files below a folder by their paths."""
    return {
        file_path.relative_to(path): file_path.read_bytes()
        for file_path in path.rglob("*")
        if file_path.is_file()
    }


def test_participation_is_written_after_each_commit_for_its_owner_only(folder):
    previous_mask = os.umask(0)
    try:
        commit_rounds(folder, [[5, 1], [], [2]], selections=[[5, 1], [3], [2]])
    finally:
        os.umask(previous_mask)
    participation = folder.path / "participation.csv"
    selected_path = folder.path / "selected.csv"
    assert participation.read_text() == "round,client\n0,5\n0,1\n2,2\n"
    assert selected_path.read_text() == "round,client\n0,5\n0,1\n1,3\n2,2\n"
    private_folder = folder.path / "private"
    secret_files = (
        participation,
        selected_path,
        private_folder / "rounds.jsonl",
        *(private_folder / "journal").iterdir(),
    )
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret_files} == {0o600}
    assert stat.S_IMODE(private_folder.stat().st_mode) == 0o700


def test_load_does_not_call_a_run_damaged_whose_mechanism_exceeds_the_memory(folder, monkeypatch):
    FFTMechanism(rounds=3000).save(folder.path / "mechanism.npz")
    monkeypatch.setattr(checks, "available_memory", lambda: 2**22)
    with refusal(r"mechanism.npz' cannot be used: .* of this FFT mechanism .*: for so many"):
        Run.load(folder.path)


class TestRows:
    def write(self, folder, text, name="metrics"):
        (folder.path / f"{name}.jsonl").write_bytes(text.encode())

    def read(self, folder, name="metrics"):
        return (folder.path / f"{name}.jsonl").read_text()

    @pytest.mark.parametrize("line", ["{", "", '{"round": "2"}'])
    def test_load_refuses_a_damaged_line_of_metrics_and_skips_one_of_timings(
        self, tmp_path, line, folder
    ):
        self.write(folder, '{"round": 0}\n' + line + '\n{"round": 2}\n')
        contents = file_contents(tmp_path)
        with refusal(r"line 2 of .*metrics\.jsonl is damaged"):
            Run.load(folder.path)
        assert file_contents(tmp_path) == contents
        self.write(folder, "")
        self.write(folder, '{"round": 0}\n' + line + '\n{"round": 2}\n', "timings")
        assert [row["round"] for row in Run.load(folder.path).timings] == [0, 2]


class TestCreate:
    def assert_refused(self, path, words):
        contents = file_contents(path.parent)
        with refusal(words, naming=[path]):
            prepared(path)
        assert file_contents(path.parent) == contents

    def test_create_refuses_an_existing_run(self, folder):
        self.assert_refused(
            folder.path, "already holds a run: resume it with resume=True, or name anoth"
        )

    def test_create_accepts_a_folder_without_a_run_or_with_one_that_failed_before_round_0(
        self, tmp_path
    ):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "log.txt").write_text("mine")
        for _ in range(2):
            folder = prepared(tmp_path / "run")
            assert (folder.path / "private").is_dir()
            (folder.path / "plan.json").write_text("{}")
        assert (tmp_path / "run" / "log.txt").read_text() == "mine"

    @pytest.mark.parametrize(
        ("has_private_folder", "name"),
        [
            (False, "model.npz"),
            (False, "metrics.jsonl"),
            (True, "result.json"),
            (True, "private/journal/000008.npz"),
        ],
    )
    def test_create_refuses_a_folder_with_files_that_it_would_overwrite(
        self, tmp_path, has_private_folder, name
    ):
        path = tmp_path / "run"
        path.mkdir()
        if has_private_folder:
            (path / "private" / "journal").mkdir(parents=True)
        (path / name).write_text("mine")
        obstacle = name.removesuffix("/000008.npz")
        self.assert_refused(
            path, f"has a {obstacle} and no config.json: begin a run in a new folder, or empty"
        )

    def test_create_refuses_a_path_that_cannot_be_written_to(self, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("contents")
        for path in (tmp_path / "file", tmp_path / "file" / "run"):
            with refusal("cannot write to folder .*: name a folder you may write to"):
                prepared(path)

        # Permissions do not restrict root, so that the error is simulated.
        def denied(*args, **kwargs):
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(os, "open", denied)
        self.assert_refused(tmp_path / "run", "Permission denied.*name a folder you may write to")


class TestLoad:
    def assert_refused(self, path, *words):
        with refusal(re.escape(str(path)), naming=words):
            Run.load(path)

    def test_load_reads_unfinished_and_finished_runs(self, folder):
        (folder.path / "metrics.jsonl").write_text('{"round": 0, "train_loss": 2.5}\n{"rou')
        run = Run.load(folder.path)
        assert run.config == CONFIG
        assert run.result is None
        assert run.timings == []
        assert run.metrics == [{"round": 0, "train_loss": 2.5}]
        assert run.plan["epsilon"] == CONFIG.plan().epsilon
        assert run.statement == fedmf.statement(CONFIG.plan())
        np.testing.assert_array_equal(run.noising, np.eye(8))
        folder.write_json("result", {"test": {}})
        result = Run.load(str(folder.path)).result
        assert result["test"] == {}
        names = "config.json plan.json mechanism.npz metrics.jsonl participation.csv statement.md"
        assert set(result["sha256"]) == set(names.split())

    def test_load_reads_a_run_with_too_many_rounds_for_a_matrix(self, tmp_path):
        folder = new_run(tmp_path / "run", dataclasses.replace(CONFIG, rounds=50_000))
        assert Run.load(folder.path).mechanism.rounds == 50_000

    def test_load_returns_a_run_whose_repr_does_not_show_the_noise_seed(self, folder):
        seed_text = "987654321987654321"
        write_atomically(folder.path / "private" / "noise_seed", seed_text, mode=0o600)
        assert seed_text not in repr(Run.load(folder.path))

    def test_load_refuses_a_folder_without_a_run_or_with_one_stopped_before_round_0(self, tmp_path):
        self.assert_refused(tmp_path, "holds no run", "config.json")
        prepared(tmp_path)
        self.assert_refused(tmp_path, "holds no run yet", "run its command again, without resume")
        prepared(tmp_path)  # The way out of the message works.

    @pytest.mark.parametrize("name", ["plan.json", "mechanism.npz", "metrics.jsonl"])
    @pytest.mark.parametrize("content", [None, b"", b"[]", b"\xff\xfe", b"{}x\n{}"])
    def test_load_refuses_a_missing_or_damaged_file(self, folder, name, content):
        path = folder.path / name
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        if name == "metrics.jsonl" and b"\n" not in (content or b""):
            # A last line without a line break is no damage: the run was killed while it wrote it.
            assert Run.load(folder.path).metrics == []
        else:
            self.assert_refused(
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
def test_result_json_covers_no_file_that_was_edited_during_the_run(tmp_path, name):
    folder = new_run(tmp_path / "run")
    commit_rounds(folder, [[t] for t in range(CONFIG.rounds)])
    path = folder.path / name
    content = path.read_bytes()
    edited_content = content + b"\n"
    if name in ("mechanism.npz", "metrics.jsonl", "participation.csv"):
        edited_content = content.replace(b"0", b"3", 1)
    with folder.locked():
        folder.read_rounds()
        path.write_bytes(edited_content)
        folder.write_json("result", {})
    with refusal(f"{name} changed after the run had finished, or while it was trained"):
        fedmf.audit_run(folder.path)
    path.write_bytes(content)
    assert fedmf.audit_run(folder.path).observed.rounds == CONFIG.rounds


def test_numbers_that_are_not_finite_are_null_in_files_and_nan_when_read(folder):
    row = {"round": 0, "train_loss": math.nan, "validation": {"mae": math.inf, "loss": 2.0}}
    with folder.locked():
        folder.read_rounds()
        no_clients = np.zeros(0, np.int64)
        committed_round = CommittedRound(
            t=0, clients=no_clients, selected=no_clients, statistics={}
        )
        folder.commit(committed_round)
        folder.add_metrics_row(row)
    folder.write_json("result", {"test": {"loss": -math.inf}, "achieved": {"epsilon": None}})
    texts = [(folder.path / name).read_text() for name in ("metrics.jsonl", "result.json")]
    for text in texts:
        json.loads(text, parse_constant=lambda constant: pytest.fail(constant))
    [row_read] = reading.read_rows(folder.path / "metrics.jsonl")
    assert math.isnan(row_read["train_loss"])
    assert math.isnan(row_read["validation"]["mae"])
    assert row_read["validation"]["loss"] == 2.0
    result = reading.read_object(folder.path / "result.json")
    assert math.isnan(result["test"]["loss"])
    assert result["achieved"] == {"epsilon": None}


def edit_plan(path):
    """Writes another noise multiplier to plan.json, and returns the former content."""
    content = (path / "plan.json").read_text()
    plan = json.loads(content)
    plan["noise_multiplier"] *= 4
    (path / "plan.json").write_text(json.dumps(plan, indent=2) + "\n")
    return content


def test_an_edit_of_the_plan_before_the_journal_exists_is_not_signed(tmp_path):
    folder = RunFolder(tmp_path / "run")
    plan = CONFIG.plan()
    with folder.locked():
        folder.prepare()
        plan.mechanism.save(folder.path / "mechanism.npz")
        record = plan_record(CONFIG, plan)
        folder.write_json("plan", record)
        content = edit_plan(folder.path)
        folder.begin(CONFIG, record, {}, noise_seed=17)
    with refusal("plan.json changed since the run was begun"):
        folder.identity()
    (folder.path / "plan.json").write_text(content)
    folder.identity()


def test_a_plan_that_was_edited_while_it_was_read_and_put_back_is_refused(folder):
    content = edit_plan(folder.path)
    run = Run.load(folder.path)
    (folder.path / "plan.json").write_text(content)
    with folder.locked(), pytest.raises(ValueError, match=r"plan\.json"):
        folder.read_rounds(run)
    with folder.locked():
        folder.read_rounds(Run.load(folder.path))


def test_a_noise_seed_that_was_edited_while_it_was_read_and_put_back_is_refused(folder):
    with folder.locked(), pytest.raises(ValueError, match="noise_seed"):
        folder.read_rounds(noise_seed=18)
    with folder.locked():
        folder.read_rounds(noise_seed=17)
