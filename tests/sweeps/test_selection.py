"""Private selections: one guarantee, and no trace of the trials that were not selected."""

import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import types

import pytest

import fedmf
from fedmf import federated
from fedmf.mechanisms import IdentityMechanism
from fedmf.reports import write_report
from fedmf.server import journal
from fedmf.sweeps import draws, first_rounds, job, selection
from fedmf.sweeps import run as driver
from fedmf.sweeps.grid import Range
from fedmf.sweeps.run import SweepOptions
from fedmf.sweeps.selection import run_selection
from fedmf.sweeps.selection_space import CommonFacts, SelectionSpace, TaskFacts
from fedmf.training import run_setup
from tests.cli.program import fedmf as program
from tests.refusals import refusal
from tests.sweeps import programs

FIXED = {
    "rounds": 4, "min_sep": 2, "cohort_size": 4, "family": "identity",
    "noise_multiplier": 1.0, "evaluate_every": 2, "task": "tests.sweeps.selected_task:task",
    "mean_trials": 4.0,
}  # fmt: skip
CHANGED = "the data, packages or mechanism files of the selection in .* changed while its trials"
RATES = {"server_learning_rate": [0.1, 0.3], "clip_norm": Range(0.5, 2.0)}
# This secret draws five trials.
SECRET = 2


@pytest.fixture
def in_this_process(monkeypatch):
    monkeypatch.setattr(job, "Job", programs.Here)
    monkeypatch.setattr(driver, "_POLL_SECONDS", 0)
    # Journals hold a random token, by which two processes are told apart.
    monkeypatch.setattr(journal, "secrets", types.SimpleNamespace(token_hex=lambda n: "0" * 2 * n))
    # The secret of a selection is the number that a test passes as its noise seed.
    monkeypatch.setattr(draws, "selection_secret", lambda noise_seed, salt, procedure: noise_seed)
    # Figures take most of the time of a small selection.
    monkeypatch.setattr(selection, "write_report", lambda runs, folder, title: folder)


def space_of(*, varied=RATES, **changes):
    return SelectionSpace(fixed=FIXED | changes, varied=varied)


def select(out, *, space=None, noise_seed=SECRET, **options):
    options = SweepOptions(noise_seed=noise_seed, **options)
    return run_selection(out, space or space_of(), options)


def contents(folder):
    """Returns the bytes of each file in a folder, without those of the report, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "report" not in path.parts
    }


def with_trials(monkeypatch, count):
    """Makes all selections draw this number of trials."""
    monkeypatch.setattr(draws, "num_trials", lambda noise_secret, trials: count)


@pytest.mark.usefixtures("in_this_process")
def test_the_finished_folder_has_no_trace_of_other_trials(tmp_path, monkeypatch):
    """Its bytes are the same if fewer trials were drawn among which the same one is the best."""
    scored_runs = []

    def score_of(run):
        scored_runs.append(run)
        return selection_score(run)

    selection_score = selection.trial_score
    monkeypatch.setattr(selection, "trial_score", score_of)
    with_trials(monkeypatch, 5)
    out_path = tmp_path / "five" / "selection"
    begin_time = time.time()
    result = select(out_path)
    assert result["model"] == str(out_path / "selected")
    assert len(scored_runs) == 5
    selected_run = fedmf.Run.load(out_path / "selected")
    scores = [selection_score_of(run) for run in scored_runs]
    selected_index = max(range(5), key=scores.__getitem__)
    assert selected_run.result == scored_runs[selected_index].result
    other_runs = [run for run in scored_runs if run.result != selected_run.result]
    assert len(other_runs) == 4
    # Two trials never share their noise or their cohorts.
    assert len({run.config.seed for run in scored_runs}) == 5
    finished_files = contents(out_path)
    tops = {path.partition("/")[0] for path in finished_files}
    assert tops == {"selection.json", "selected"}
    everything = b"\0".join(finished_files.values())
    for run in other_runs:
        index = scored_runs.index(run)
        assert str(run.config.seed).encode() not in everything
        assert str(draws.TrialSeeds.of(SECRET, index).noise).encode() not in everything
        assert run.result["sha256"]["model.npz"].encode() not in everything
    # Nothing was written, changed or named at another time than the end.
    times = {os.stat(path).st_mtime for path in (out_path / "selected").rglob("*")}
    assert len(times) == 1
    assert min(times) > begin_time
    assert time.strftime("%Y-%m-%d").encode() not in everything
    with_trials(monkeypatch, selected_index + 1)
    fewer_path = tmp_path / "fewer" / "selection"
    select(fewer_path)
    assert contents(fewer_path) == finished_files


def selection_score_of(run):
    """Returns the score of a finished trial whose folder may be deleted."""
    return -run.result["validation"]["loss"]


@pytest.mark.usefixtures("in_this_process")
def test_all_descriptions_state_the_guarantee_of_the_selection(tmp_path, monkeypatch):
    with_trials(monkeypatch, 1)
    monkeypatch.setattr(selection, "write_report", write_report)
    space = space_of(noise_multiplier=None, epsilon=8.0)
    result = select(tmp_path / "out", space=space)
    folder = tmp_path / "out" / "selected"
    run = fedmf.Run.load(folder)
    single = fedmf.PlanConfig(rounds=4, min_sep=2, family="identity", epsilon=8.0).plan()
    assert run.plan["noise_multiplier"] > single.noise_multiplier
    trial = fedmf.PlanConfig(
        rounds=4, min_sep=2, family="identity", noise_multiplier=run.plan["noise_multiplier"]
    )
    trial_epsilon = trial.plan().epsilon
    assert trial_epsilon < 7 < run.plan["epsilon"] <= 8 == math.ceil(result["epsilon"])
    assert run.plan["selection"]["quantiles"]["percentile_99"] > 10
    audit = fedmf.audit_run(folder)
    assert audit.planned.selection == fedmf.TrialCount(mean_trials=4.0)
    assert audit.epsilon == audit.planned.epsilon == run.plan["epsilon"]
    assert run.result["achieved"]["epsilon"] == run.plan["epsilon"]
    assert "seconds" not in run.result
    assert "date" not in run.result
    risk = fedmf.attack_risk(audit.planned)
    assert risk.advantage > fedmf.attack_risk(trial.plan()).advantage
    report_text = pathlib.Path(result["report"]).read_text()
    statement_text = (folder / "final_statement.md").read_text()
    assert statement_text == audit.statement()
    for text in (report_text, statement_text, (folder / "statement.md").read_text()):
        flat_text = " ".join(text.split())
        assert "random number of trials" in flat_text
        assert f"{trial_epsilon:.3g}" not in flat_text
    assert "The score is minus the validation loss" in " ".join(statement_text.split())
    task_name = FIXED["task"]
    printed = program("evaluate", folder, "--quiet", "--task", task_name).stdout
    assert "random number of trials" in printed


class Killed(BaseException):
    """The end of a process at some point, in place of kill -9."""


@pytest.mark.usefixtures("in_this_process")
def test_a_selection_that_is_killed_anywhere_ends_with_the_same_folder(tmp_path, monkeypatch):
    with_trials(monkeypatch, 3)
    expected_path = tmp_path / "expected" / "selection"
    select(expected_path)
    expected_files = contents(expected_path)
    facts = CommonFacts.of([fedmf.Run.load(expected_path / "selected")])
    monkeypatch.setattr(first_rounds, "train_first_rounds", lambda *arguments: (60.0, facts))
    out_path = tmp_path / "killed" / "selection"
    num_draws = 0
    steps = {"passed": 0, "limit": 0}

    def step(function):
        """Returns the function, which kills the process before or after one of its calls."""

        def stepped(*args, **kwargs):
            for call in (lambda: None, lambda: function(*args, **kwargs)):
                steps["passed"] += 1
                if steps["passed"] > steps["limit"]:
                    raise Killed
                result = call()
            return result

        return stepped

    def count_draw(noise_secret, trials):
        nonlocal num_draws
        num_draws += 1
        return 3

    monkeypatch.setattr(draws, "num_trials", count_draw)
    for name in ("write_exclusively", "write_atomically", "prepare", "state", "sync_names"):
        monkeypatch.setattr(selection, name, step(getattr(selection, name)))
    monkeypatch.setattr(os, "rename", step(os.rename))
    monkeypatch.setattr(shutil, "copytree", step(shutil.copytree))
    monkeypatch.setattr(selection, "trial_score", step(selection.trial_score))
    monkeypatch.setattr(programs.Here, "begin", step(programs.Here.begin))
    monkeypatch.setattr(shutil, "rmtree", step(shutil.rmtree))
    num_kills = 0
    while True:
        steps["passed"] = 0
        try:
            select(out_path)
        except Killed:
            # The next attempt goes one step farther than this one.
            num_kills += 1
            steps["limit"] += 1
            assert num_kills < 200
            continue
        break
    assert num_kills > 20
    assert num_draws >= 1
    assert contents(out_path) == expected_files


# Each process has the same secret, in place of one with new random bits.
PROGRAM = """
import sys
from fedmf.cli import main
from fedmf.sweeps import draws
draws.selection_secret = lambda noise_seed, salt, procedure: noise_seed
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_kill_9_within_a_trial_and_between_trials_changes_nothing(tmp_path):
    command = [
        *"sweep --private-selection --yes --mean-trials 4 --epsilon 8 --rounds 40".split(),
        *"--min-sep 2 --cohort-size 4 --family identity --evaluate-every 20 --noise-seed 2".split(),
        *"--vary server-learning-rate=0.1,0.3".split(),
        *("--task", FIXED["task"], "--quiet", "--out"),
    ]

    def begin(out):
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *command, str(out)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    expected_path = tmp_path / "expected" / "selection"
    assert begin(expected_path).wait() == 0
    out_path = tmp_path / "killed" / "selection"
    moments = (
        "private/runs/0/selected/private/rounds.jsonl",
        "private/runs/0/selected/result.json",
    )
    for moment in moments:
        process = begin(out_path)
        while not (out_path / moment).exists():
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process = begin(out_path)
    assert process.wait() == 0
    # Journals hold random tokens of their processes.
    files, expected_files = (
        {path: text for path, text in contents(folder).items() if "journal" not in path}
        for folder in (out_path, expected_path)
    )
    assert files == expected_files


class Trials(programs.Here):
    """Trials in this process, some of which fail.

    Attributes:
      begun: names of the trials in the order in which they began; None for the first rounds.
      fails: (name of a trial or None, number of times it has begun) -> whether it fails.
    """

    def __init__(self, program):
        pass

    @classmethod
    def install(cls, monkeypatch, fails):
        trials = type("InstalledTrials", (cls,), {"begun": [], "fails": staticmethod(fails)})
        monkeypatch.setattr(job, "Job", trials)
        return trials

    def begin(self, arguments, log):
        folder = pathlib.Path(arguments[arguments.index("--out") + 1])
        name = folder.parent.name if folder.name == "selected" else None
        self.begun.append(name)
        if self.fails(name, self.begun.count(name)):
            pathlib.Path(log).write_text("fedmf: error: no memory\n")
            self._status = 1
            return
        super().begin(arguments, log)


@pytest.mark.usefixtures("in_this_process")
def test_trials_that_fail_twice_are_worst_and_nothing_says_how_many_there_are(
    tmp_path, monkeypatch
):
    with_trials(monkeypatch, 3)
    Trials.install(monkeypatch, lambda name, times: name in ("0", "1"))
    out_path = tmp_path / "two" / "selection"
    select(out_path)
    selected_seed = fedmf.Run.load(out_path / "selected").config.seed
    assert selected_seed == draws.TrialSeeds.of(SECRET, 2).public

    trials = Trials.install(monkeypatch, lambda name, times: name is not None)
    all_path = tmp_path / "all"
    with refusal("released no model, because no trial ended with a model") as caught:
        select(all_path)
    assert "3" not in str(caught.value).replace(str(all_path), "")
    assert [path.name for path in all_path.iterdir()] == ["selection.json"]
    num_begun = len(trials.begun)
    with refusal("to draw again would break its guarantee"):
        select(all_path)
    assert len(trials.begun) == num_begun


@pytest.mark.usefixtures("in_this_process")
def test_a_machine_that_can_train_no_longer_cuts_no_selection_short(tmp_path, monkeypatch):
    """Else the number of trials that count would depend on when a disk was full."""
    with_trials(monkeypatch, 3)
    expected_path = tmp_path / "expected" / "selection"
    select(expected_path)
    out_path = tmp_path / "out" / "selection"
    is_broken = [False]

    def fails(name, times):
        is_broken[0] |= name == "1" and times == 1
        return is_broken[0]

    Trials.install(monkeypatch, fails)
    for _ in range(2):
        with refusal("the first rounds of a trial cannot be trained.*no trial counts as failed"):
            select(out_path)
    assert not (out_path / "selected").exists()
    # A trial that a signal has ended once is trained again, and so is one whose data could not be
    # read before it began.
    trials = Trials.install(monkeypatch, lambda name, times: name == "2" and times == 1)
    sweep_config = selection.sweep_config

    def configured(fixed, chosen):
        if fixed["seed"] == draws.TrialSeeds.of(SECRET, 1).public and "2" not in trials.begun:
            raise ValueError("the data cannot be read")
        return sweep_config(fixed, chosen)

    monkeypatch.setattr(selection, "sweep_config", configured)
    select(out_path)
    assert trials.begun == [None, "2", None, "1", "2"]
    assert contents(out_path) == contents(expected_path)


@pytest.mark.usefixtures("in_this_process")
def test_a_second_failure_counts_only_if_trials_can_be_trained_after_it(tmp_path, monkeypatch):
    """Else a disk that is full again while trials are repeated would cut the selection short."""
    with_trials(monkeypatch, 3)
    is_broken = [False]

    def fails(name, times):
        is_broken[0] |= name == "1" and times == 2
        return is_broken[0] or name in ("1", "2")

    trials = Trials.install(monkeypatch, fails)
    with refusal("the first rounds of a trial cannot be trained.*no trial counts as failed"):
        select(tmp_path)
    assert trials.begun == [None, "0", "1", "2", None, "1", None]
    assert not (tmp_path / "private" / "failed").exists()


@pytest.mark.usefixtures("in_this_process")
def test_trials_that_lack_memory_for_several_at_a_time_do_not_fail(tmp_path, monkeypatch):
    """Else `jobs` would decide which trials count."""
    with_trials(monkeypatch, 3)
    monkeypatch.setattr(selection, "trial_score", lambda run: float(run.path.parent.name))
    expected_path = tmp_path / "expected" / "selection"
    select(expected_path)
    num_under_way = [0]
    trials = Trials.install(monkeypatch, lambda name, times: num_under_way[0] > 1)
    begin, status = trials.begin, trials.status

    def begin_beside_others(self, arguments, log):
        num_under_way[0] += 1
        begin(self, arguments, log)

    def end(self):
        num_under_way[0] -= 1
        return status(self)

    monkeypatch.setattr(trials, "begin", begin_beside_others)
    monkeypatch.setattr(trials, "status", end)
    out_path = tmp_path / "out" / "selection"
    select(out_path, jobs=3)
    assert trials.begun == [None, "0", "1", "2", None, "1", "2"]
    assert contents(out_path) == contents(expected_path)


@pytest.mark.usefixtures("in_this_process")
def test_each_trial_has_a_process_of_its_own(tmp_path, monkeypatch):
    """Else variables of a task could make trials depend on each other."""
    with_trials(monkeypatch, 3)
    trials = Trials.install(monkeypatch, lambda name, times: False)
    programs_of = {}
    begin = Trials.begin

    def begin_in_process(self, arguments, log):
        begin(self, arguments, log)
        programs_of[trials.begun[-1]] = self

    monkeypatch.setattr(trials, "begin", begin_in_process)
    # This process has not ended, and could train another trial.
    monkeypatch.setattr(trials, "process", types.SimpleNamespace(poll=lambda: None))
    select(tmp_path)
    assert programs_of.keys() == {None, "0", "1", "2"}
    assert len(set(map(id, programs_of.values()))) == 4


@pytest.mark.usefixtures("in_this_process")
def test_a_full_disk_does_not_tell_how_many_trials_there_are(tmp_path, monkeypatch):
    with_trials(monkeypatch, 2)

    def fill_disk(self, name):
        raise OSError(28, "No space left on device", str(self._failure_file(name)))

    Trials.install(monkeypatch, lambda name, times: name == "1")
    with monkeypatch.context() as patch:
        patch.setattr(selection._Selection, "_mark_failed", fill_disk)
        with refusal("No space left on device.: no trial counts as failed") as caught:
            select(tmp_path)
    assert "failed/1" not in str(caught.value)
    shutil.rmtree(tmp_path / "private" / "runs" / "0" / "selected" / "private")
    (tmp_path / "private" / "runs" / "0" / "selected" / "plan.json").write_text("{")
    with refusal("folder of a trial in .*/private is damaged"):
        select(tmp_path)


@pytest.mark.usefixtures("in_this_process")
def test_an_unfinished_trial_goes_on_in_no_other_folder(tmp_path, monkeypatch):
    with_trials(monkeypatch, 1)

    def interrupt(self, arguments, log):
        is_trial = not any("first_rounds" in argument for argument in arguments)
        train(self, [*arguments, *(["--stop-after", "2"] if is_trial else [])], log)
        if is_trial:
            raise KeyboardInterrupt

    train = programs.Here.begin
    monkeypatch.setattr(programs.Here, "begin", interrupt)
    with pytest.raises(driver.StoppedSweep):
        select(tmp_path / "out")
    copy = tmp_path / "selected"
    shutil.copytree(tmp_path / "out" / "private" / "runs" / "0" / "selected", copy)
    line = f"train --quiet --resume --out {copy}"
    assert "leave it out for a single run" in program(line, status=2).stderr


@pytest.mark.usefixtures("in_this_process")
def test_a_poisson_draw_of_0_releases_nothing_and_is_not_repeated(tmp_path):
    space = space_of(mean_trials=1.0, trial_distribution="poisson")
    secret = next(s for s in range(100) if draws.num_trials(s, space.trials) == 0)
    for noise_seed in (secret, secret, "os"):
        with refusal("the drawn number of trials is 0, which has probability 0.37"):
            select(tmp_path, space=space, noise_seed=noise_seed)


@pytest.mark.usefixtures("in_this_process")
def test_a_selection_is_neither_cut_short_nor_extended_nor_drawn_again(tmp_path, monkeypatch):
    with_trials(monkeypatch, 2)
    out_path = tmp_path / "out"
    train = programs.Here.begin

    def interrupt(self, arguments, log):
        if not any("first_rounds" in argument for argument in arguments):
            raise KeyboardInterrupt
        train(self, arguments, log)

    monkeypatch.setattr(programs.Here, "begin", interrupt)
    with pytest.raises(driver.StoppedSweep, match="the trials are stopped and saved"):
        select(out_path)
    draw_file = out_path / "private" / "draw.json"
    assert draw_file.stat().st_mode & 0o777 == 0o600
    assert draw_file.parent.stat().st_mode & 0o777 == 0o700
    with refusal("mean_trials=9.0 .it was begun with 4.0.*neither cut short nor extended"):
        select(out_path, space=space_of(mean_trials=9.0))
    with refusal("holds another selection, with server_learning_rate"):
        select(out_path, space=space_of(varied=RATES | {"server_learning_rate": [0.1]}))
    with refusal("noise_seed. is not the one of the selection"):
        select(out_path, noise_seed=SECRET + 1)
    content = draw_file.read_text()
    with refusal("a private selection, whose guarantee other runs would add to"):
        driver.train_all(out_path, {}, SweepOptions(noise_seed="os"))
    draw_file.unlink()
    with refusal("cannot be resumed, and to draw again would break its guarantee"):
        select(out_path)
    draw_file.write_text(content)
    monkeypatch.setattr(programs.Here, "begin", train)
    select(out_path, noise_seed="os")
    assert (out_path / "selected" / "model.npz").exists()


@pytest.mark.usefixtures("in_this_process")
def test_an_ended_selection_answers_its_own_command_alone(tmp_path, monkeypatch):
    with_trials(monkeypatch, 1)
    result = select(tmp_path)
    assert select(tmp_path) == result
    with refusal("holds another selection, with mean_trials=9.0"):
        select(tmp_path, space=space_of(mean_trials=9.0))


@pytest.mark.usefixtures("in_this_process")
def test_a_selection_whose_data_changed_releases_nothing(tmp_path, monkeypatch):
    with_trials(monkeypatch, 2)
    facts_of = TaskFacts.of
    for number, change in enumerate(({"validation_clients": "unknown"}, {"data_version": "2"})):

        def changed_facts(run, change=change):
            facts = facts_of(run)
            return facts._replace(**change) if run.path.parent.name == "1" else facts

        monkeypatch.setattr(TaskFacts, "of", changed_facts)
        out_path = tmp_path / str(number)
        with refusal(CHANGED):
            select(out_path)
        assert not (out_path / "selected").exists()


@pytest.mark.usefixtures("in_this_process")
def test_a_selection_whose_packages_changed_releases_nothing(tmp_path, monkeypatch):
    """Else plan.json of the selected trial would tell when it was trained."""
    with_trials(monkeypatch, 2)
    versions = run_setup.installed_versions() | {"numpy": "0.1"}

    def update_packages(name, times):
        if name == "1":
            monkeypatch.setattr(run_setup, "installed_versions", lambda: versions)
        return False

    Trials.install(monkeypatch, update_packages)
    with refusal(CHANGED):
        select(tmp_path)
    assert not (tmp_path / "selected").exists()


@pytest.mark.usefixtures("in_this_process")
def test_a_selection_whose_mechanism_file_changed_releases_nothing(tmp_path, monkeypatch):
    """Else plan.json of the selected trial would tell when it was trained."""
    with_trials(monkeypatch, 2)
    mechanism_path = tmp_path / "mechanism.npz"
    banded_config = fedmf.PlanConfig(
        rounds=4, min_sep=2, family="banded", bands=2, noise_multiplier=1.0
    )
    banded_config.plan().mechanism.save(mechanism_path)

    def replace_file(name, times):
        if name == "1":
            IdentityMechanism(rounds=4).save(mechanism_path)
        return False

    Trials.install(monkeypatch, replace_file)
    fixed = FIXED | {"family": "file", "mechanism": str(mechanism_path)}
    with refusal(CHANGED):
        select(tmp_path / "out", space=SelectionSpace(fixed=fixed, varied=RATES))
    assert not (tmp_path / "out" / "selected").exists()


@pytest.mark.usefixtures("in_this_process")
def test_trials_of_a_resumed_selection_are_trained_as_the_earlier_ones(tmp_path, monkeypatch):
    """Else the selected folder would tell when it was trained, and so the index of its trial."""
    with_trials(monkeypatch, 1)

    def interrupt(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(selection._Selection, "_failed_names", interrupt)
        with pytest.raises(KeyboardInterrupt):
            select(tmp_path)
    draw_file = tmp_path / "private" / "draw.json"
    content = draw_file.read_text()
    for part, changed_name, changed_value, words in (
        ("common", "versions", {"numpy": "0.1"}, "other packages, numpy"),
        ("common", "programs", [{"loss": "other"}], "another program, where "),
        ("common", "task", TaskFacts("linear", 20, "", "2", "others"), "another client_ids"),
        ("procedure", "data", "a.sqlite", "with data=None .it was begun with 'a.sqlite'"),
    ):
        record = json.loads(content)
        record[part][changed_name] = changed_value
        draw_file.write_text(json.dumps(record))
        with refusal(words):
            select(tmp_path)
        draw_file.write_text(content)
    select(tmp_path)


@pytest.mark.usefixtures("in_this_process")
def test_settings_with_different_clients_are_refused(tmp_path):
    task = "tests.sweeps.selected_task:few"
    for values in ([10, 20], Range(10, 20)):
        space = space_of(task=task, varied={"task_option.clients": values})
        with refusal("the settings have different clients or data"):
            select(tmp_path, space=space)


def test_nothing_is_drawn_without_a_yes(tmp_path, monkeypatch):
    facts = TaskFacts("linear", 20, "", "1", "others")
    common = CommonFacts(task=facts, programs=[], versions={})
    monkeypatch.setattr(first_rounds, "train_first_rounds", lambda *arguments: (60.0, common))
    varied = "--vary server-learning-rate=0.1,0.3"
    line = (
        f"sweep --private-selection --mean-trials 10 --trial-shape 0 {varied} --epsilon 8 "
        f"--rounds 4 --min-sep 2 --cohort-size 4 --family identity --task {FIXED['task']} "
        f"--noise-seed os --out {tmp_path / 'out'}"
    )
    process = program(line, status=1)
    for text in ("median: at most 4", "90%: at most 26", "99%: at most 81", "about 1 h 21 min"):
        assert text in process.stderr
    assert "epsilon 8 at delta 1e-06, of the selected model" in process.stderr
    assert not (tmp_path / "out" / "private" / "draw.json").exists()
    assert not (tmp_path / "out" / "selection.json").exists()


@pytest.mark.usefixtures("in_this_process")
def test_a_task_that_does_not_declare_its_validation_clients_needs_private_metrics(tmp_path):
    undeclared = "tests.sweeps.selected_task:undeclared"
    with refusal("does not declare that no training client is in its validation split"):
        select(tmp_path / "a", space=space_of(task=undeclared))
    assert not list((tmp_path / "a" / "private").iterdir())
    out_path = tmp_path / "b"
    select(out_path, space=space_of(task=undeclared, private_metrics=0.2, mean_trials=1.0))
    statement_text = (out_path / "selected" / "final_statement.md").read_text()
    assert "The score is minus the last private loss" in " ".join(statement_text.split())


@pytest.mark.parametrize(
    ("changes", "varied", "words"),
    [
        ({}, {"rounds": [4, 8], "sampling": ["poisson"], "population": [20]}, "differ in rounds"),
        ({"sampling": "poisson", "population": 20}, {"cohort_size": [2, 4]}, "in cohort_size"),
        ({}, {"delta": [1e-6, 1e-5]}, "delta cannot vary in a search"),
        ({}, {"private_metrics": [0.0, 0.1]}, "whose scores cannot be compared"),
        ({}, {"claimed_cohort": [None, 400]}, "claimed_cohort cannot vary"),
        ({"claimed_cohort": 400}, {"cohort_size": [4, 8]}, "differ in cohort_size"),
        ({}, {"initial_model": [None, "a.keras"]}, "initial_model cannot vary"),
        ({}, {"task": ["a", "b"]}, "task cannot vary in a private selection"),
        ({}, {"seed": [0, 1]}, "seed cannot vary"),
        ({"seed": 3}, RATES, "each of whose trials draws its own"),
        ({"mean_trials": None}, RATES, "mean_trials. is missing"),
        ({"canaries": 4}, RATES, "canaries=4 needs a single run"),
        ({"stop_at_epsilon": 4.0}, RATES, "stop_at_epsilon=4.0 needs a single run"),
        ({"execution": "tff"}, RATES, "execution=tff needs a single run"),
        (
            {"noise_multiplier": None, "advantage": 0.1},
            RATES,
            "whose noise follows from an epsilon",
        ),
    ],
)
def test_settings_without_one_guarantee_are_refused(changes, varied, words):
    if "sampling" in changes or "sampling" in varied:
        changes = changes | {"min_sep": None}
    fixed = {name: value for name, value in (FIXED | changes).items() if name not in varied}
    with refusal(words):
        SelectionSpace(fixed=fixed, varied=varied)


def test_options_that_contradict_private_selection_are_refused(tmp_path):
    base = (
        f"sweep --out {tmp_path / 'out'} --vary server-learning-rate=0.1,0.3 --epsilon 8 "
        "--rounds 4 --min-sep 2 --cohort-size 4 --family identity --noise-seed os "
    )
    for options, words in (
        ("--private-selection --halving", "--halving cannot be given with --private-selection"),
        ("--private-selection --search optuna --trials 4", "--search cannot be given"),
        ("--mean-trials 4", "--mean-trials belongs to --private-selection"),
        ("--yes", "--yes belongs to --private-selection"),
    ):
        assert words in program(f"{base} {options}", status=2).stderr
    line = base.replace("sweep", "train").replace("--vary server-learning-rate=0.1,0.3", "")
    assert "which `fedmf sweep --private-selection` runs" in (
        program(f"{line} --mean-trials 4 --task {FIXED['task']}", status=2).stderr
    )
    assert not (tmp_path / "out").exists()


def test_servers_refuse_plans_of_trials():
    plan = fedmf.PlanConfig(
        rounds=4, min_sep=2, family="identity", epsilon=8.0, mean_trials=4.0
    ).plan()
    with refusal("states the guarantee of a private selection"):
        fedmf.Server(plan, shapes=[(3,)], clients_per_round=2, noise_seed="os")
    with refusal("states the guarantee of a private selection"):
        federated.dp_aggregator(plan, clients_per_round=2, noise_seed="os")
