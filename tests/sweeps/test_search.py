"""Searches of a sweep: the trials that they ask for, and the same trials after a restart."""

import contextlib
import dataclasses
import json
import math
import shutil
import sys

import pytest

import fedmf
from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.sweeps import folder as sweep_folder
from fedmf.sweeps import grid, results, search
from fedmf.sweeps import run as sweep
from fedmf.sweeps.grid import Range, sweep_configs
from fedmf.sweeps.run import SweepOptions
from fedmf.sweeps.search import Space
from fedmf.sweeps.total_budget import TotalBudget
from tests.cli.program import fedmf as program
from tests.cli.program import printed_by, refused
from tests.refusals import refusal
from tests.runs.test_folder import new_run

pytest.importorskip("optuna")

FIXED = {"rounds": 4, "min_sep": 2, "cohort_size": 2, "family": "identity", "epsilon": 8.0}
RATES = {"server_learning_rate": Range(0.01, 10.0)}


class Instant:
    """A substitute for the processes of a sweep, which trains the oldest run when it is asked what
    is finished.

    A model of a rate above 5 diverges; a run with clip norm 3 fails, and one with 4 never begins.
    """

    def __init__(self, out, begun):
        self._out = out
        self._begun = begun
        self._waiting = []

    def begin(self, name):
        self._begun.append(name)
        self._waiting.append(name)

    def under_way(self):
        return len(self._waiting)

    def finished(self):
        name = self._waiting.pop(0)
        return [(name, self._status(name, sweep.run_folder(self._out, name)))]

    def _status(self, name, folder):
        config = json.loads((self._out / "logs" / f"{name}.json").read_text())
        (self._out / "logs" / f"{name}.txt").write_text("fedmf: error: no\n")
        if config["clip_norm"] == 4:
            return 2
        shutil.copytree(self._out.parent / "template", folder, dirs_exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        rate = config["server_learning_rate"]
        rows = [{"round": t} for t in range(4)]
        if config["private_metrics"]:
            private_row = {"clients": 4, "accuracy": rate / 4, "stddev": {"clients": 1.0}}
            rows = [{**row, "private": private_row} for row in rows]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if config["clip_norm"] == 3:
            return 1
        accuracy = math.nan if rate > 5 else 1 - math.log10(rate / 0.5) ** 2 / 4
        result = {"validation": {"accuracy": accuracy}, "test": {}, "seconds": 1.0}
        result["achieved"] = {"epsilon": 8.0}
        (folder / "result.json").write_text(json.dumps(result))
        return 0

    def stop(self):
        pass

    def end(self):
        pass


@pytest.fixture
def take_begun_names(monkeypatch, tmp_path):
    """Replaces training, and returns a function that lists and forgets the names of begun runs in
    order.
    """
    config = fedmf.TrainConfig(**FIXED)
    new_run(tmp_path / "template", config, task={"headline_metric": "accuracy"}, rmse=1.0)
    names = []

    @contextlib.contextmanager
    def runs(self, out, more):
        yield Instant(out, names)

    monkeypatch.setattr(SweepOptions, "runs", runs)
    monkeypatch.setattr(sweep, "_POLL_SECONDS", 0)

    def begun():
        begun_names = names[:]
        names.clear()
        return begun_names

    return begun


@pytest.fixture
def out_folder(tmp_path):
    return tmp_path / "out"


def space(varied=RATES, **changes):
    fixed = {name: value for name, value in (FIXED | changes).items() if name not in varied}
    return Space(fixed=fixed, varied=varied)


def run_search(out, trials, varied=RATES, *, jobs=1, **changes):
    return search.train_trials(
        out, space(varied, **changes), trials, SweepOptions(noise_seed="os", jobs=jobs)
    )


def random_trials(asked, trials):
    """Returns the first trials that a search asks for; they are random, since none has a score."""
    earlier_trials = {}
    for _ in range(trials):
        name, earlier_trials[name] = search.next_trial(asked, earlier_trials)
    return earlier_trials


def test_a_stopped_search_resumes_with_the_same_trials(take_begun_names, tmp_path):
    assert run_search(tmp_path / "whole", 16) == {}
    all_names = take_begun_names()
    assert len(set(all_names)) == 16
    stopped_folder = tmp_path / "parts"
    for trials in (1, 7, 16):
        run_search(stopped_folder, trials)
    assert take_begun_names() == all_names
    # A run whose end was lost is trained first, and is no other trial.
    for name in all_names[12:]:
        shutil.rmtree(stopped_folder / "runs" / name)
        (stopped_folder / "logs" / f"{name}.txt").unlink()
    (stopped_folder / "runs" / all_names[11] / "result.json").unlink()
    run_search(stopped_folder, 16)
    assert take_begun_names() == all_names[11:]
    run_search(stopped_folder, 10)
    assert take_begun_names() == []


def test_the_next_trial_depends_on_the_scores_of_earlier_trials(take_begun_names, tmp_path):
    """The search asks for another trial if the first trials have their accuracies in another
    order.
    """
    earlier_trials = {
        name: dataclasses.replace(trial, score=-abs(math.log10(i + 1) - 0.5))
        for i, (name, trial) in enumerate(random_trials(space(), 14).items())
    }
    next_trial = search.next_trial(space(), earlier_trials)
    assert search.next_trial(space(), dict(reversed(earlier_trials.items()))) == next_trial
    scores = sorted(trial.score for trial in earlier_trials.values())
    names = sorted(
        earlier_trials, key=lambda name: earlier_trials[name].chosen["server_learning_rate"]
    )

    def suggested(order):
        sorted_by_rate = {
            name: dataclasses.replace(earlier_trials[name], score=score)
            for name, score in zip(names, order, strict=True)
        }
        return search.next_trial(space(), sorted_by_rate)[1].chosen["server_learning_rate"]

    # The best at the small end, and at the large one
    assert suggested(scores[::-1]) < suggested(scores)


def test_lists_ranges_and_options_of_some_families_are_searched(take_begun_names, out_folder):
    varied_values = {
        "bands": Range(1, 4),
        "family": ["none", "banded", "tree"],
        "server_momentum": Range(0.0, 0.9),
        "zeroing_norm": [None, 100.0],
        "task_option.lstm_size": ["8", "16"],
    }
    assert run_search(out_folder, 14, varied_values, jobs=2) == {}
    configs = {
        name: trial.config
        for name, trial in search.trials_in(out_folder, space(varied_values)).items()
    }
    assert len(configs) == len(set(configs.values())) == 14
    assert {config.family for config in configs.values()} == {"none", "banded", "tree"}
    assert {config.zeroing_norm for config in configs.values()} == {None, 100.0}
    for name, config in configs.items():
        assert ("bands" in name) == (config.family == "banded")
        assert config.family != "banded" or config.bands in (1, 2, 3, 4)
        assert 0 <= config.server_momentum <= 0.9
        assert (config.family == "none") == (config.epsilon is None)


def test_numbers_are_short_inside_their_range_and_logarithmic_where_it_is_positive():
    varied_values = {"server_learning_rate": Range(1e-4, 1.0), "server_momentum": Range(0.0, 0.9)}
    first_trials = random_trials(space(varied_values), 9)
    for setting_text in ",".join(first_trials).split(","):
        assert len(setting_text.partition("=")[2]) <= len("0.0001234")
    rates = sorted(trial.chosen["server_learning_rate"] for trial in first_trials.values())
    assert 1e-4 <= rates[0] < rates[-1] <= 1
    assert rates[4] < 0.2  # the median: of uniform ones below that with probability 0.02
    narrow = space({"server_learning_rate": Range(0.123401, 0.123402)})
    [(_, trial)] = random_trials(narrow, 1).items()
    assert 0.123401 <= trial.chosen["server_learning_rate"] <= 0.123402


def test_existing_runs_count_as_trials(take_begun_names, out_folder):
    varied_values = {"server_learning_rate": [0.5, 2.0], "clip_norm": [1.0, 0.1]}
    sweep.train_all(out_folder, sweep_configs(FIXED, varied_values), SweepOptions(noise_seed="os"))
    take_begun_names()
    # Two of the four runs have the clip norm of the search; the others do not count.
    run_search(out_folder, 3, clip_norm=0.1)
    assert len(take_begun_names()) == 1
    assert len(search.trials_in(out_folder, space(clip_norm=0.1))) == 3
    # Another range leaves out runs outside it.
    narrow = {"server_learning_rate": Range(1.0, 10.0)}
    assert "server_learning_rate=0.5,clip_norm=0.1" not in search.trials_in(
        out_folder, space(narrow, clip_norm=0.1)
    )
    # The search ends if there is no other setting.
    assert run_search(out_folder, 9, {"server_learning_rate": [0.5, 2.0]}, clip_norm=0.1) == {}
    assert take_begun_names() == []
    with refusal("holds a run with rounds=4, and this sweep has rounds=8"):
        run_search(out_folder, 3, rounds=8)


def test_a_search_of_other_ranges_gets_no_further_share_of_a_budget(take_begun_names, out_folder):
    budget = TotalBudget(epsilon=8.0, delta=1e-6, num_runs=2)
    budget.reserve(out_folder, {})
    share = budget.share(is_sampled=True)
    run_search(out_folder, 2, **share)
    with refusal("would have 3 runs, and total_epsilon=8.0 was divided among 2"):
        run_search(out_folder, 2, {"server_learning_rate": Range(20.0, 30.0)}, **share)
    assert len(take_begun_names()) == 2


def test_failed_runs_count_as_trials_and_the_search_continues(take_begun_names, out_folder):
    varied_values = {**RATES, "clip_norm": [1.0, 3.0]}
    failures = run_search(out_folder, 6, varied_values)
    failed = {name for name in take_begun_names() if "clip_norm=3" in name}
    assert set(failures) == failed
    assert 0 < len(failed) < 6
    assert {failure.status for failure in failures.values()} == {1}
    assert set(run_search(out_folder, 6, varied_values)) == failed  # It is tried again.
    assert set(take_begun_names()) == failed


def test_inputs_that_no_run_accepts_end_the_search(take_begun_names, tmp_path, out_folder):
    failures = run_search(out_folder, 6, clip_norm=4.0)
    assert [failure.status for failure in failures.values()] == [2]
    assert len(take_begun_names()) == 1
    # If other runs have begun, only this trial fails.
    run_search(tmp_path / "other", 1)
    failures = run_search(tmp_path / "other", 8, {**RATES, "clip_norm": [1.0, 4.0]})
    begun_names = take_begun_names()
    assert len(begun_names) == 8
    assert set(failures) == {name for name in begun_names if "clip_norm=4" in name} != set()


def test_fields_that_contradict_each_other_are_not_tried(monkeypatch):
    sweep_config = grid.sweep_config

    def refusing(fixed, chosen):
        if 0.02 < chosen["server_learning_rate"] < 1:
            raise ValueError
        return sweep_config(fixed, chosen)

    rates = space()
    monkeypatch.setattr(grid, "sweep_config", refusing)
    first_trials = random_trials(rates, 8)  # 0.4 ** 8 = 7e-4 of all seeds would have met none
    assert len(first_trials) == 8
    for trial in first_trials.values():
        assert not 0.02 < trial.chosen["server_learning_rate"] < 1


def test_the_guarantee_counts_every_trial(take_begun_names, out_folder):
    """Failed trials count too: n Gaussian runs with noise multiplier s compose to one with s /
    sqrt(n).
    """
    run_search(out_folder, 7, {**RATES, "clip_norm": [1.0, 3.0]})
    all_runs = sweep_folder.begun_runs((out_folder / "runs").iterdir())
    assert len(all_runs) == 7
    assert any(run.result is None for run in all_runs)
    sigma = fedmf.TrainConfig(**FIXED).plan().noise_multiplier
    epsilon = gaussian_epsilon(sigma / math.sqrt(7), all_runs[0].plan["delta"])
    assert f"epsilon {math.ceil(epsilon * 100) / 100:.2f}" in results.together(all_runs)


def test_private_metrics_decide_if_runs_have_them(take_begun_names, out_folder):
    run_search(out_folder, 1, private_metrics=0.1)
    run = fedmf.Run.load(out_folder / "runs" / take_begun_names()[0])
    # 4 clients a round, each 0.25 * rate away from one half
    assert results.score_of(run) == pytest.approx(0.25 * run.config.server_learning_rate)


@pytest.mark.parametrize(
    ("varied", "words"),
    [
        ({**RATES, "seed": [0, 1]}, "seed cannot vary in a search"),
        ({"epsilon": [2.0, 8.0]}, "epsilon cannot vary in a search"),
        ({"server_learning_rate": Range(-1.0, 1.0)}, "server_learning_rate=-1.0 must be positive"),
    ],
)
def test_fields_that_cannot_be_searched_are_refused(varied, words):
    with refusal(words):
        space(varied)


def test_the_sweep_command_refuses_options_that_contradict_each_other(tmp_path):
    command = f"sweep --out {tmp_path}/s --epsilon 8 --rounds 4 --min-sep 2 --noise-seed os"
    rates = "--vary server-learning-rate=0.1:2"
    refused(f"{command} {rates}", "--vary server_learning_rate names a range", "--search optuna")
    refused(f"{command} {rates} --search optuna", "--trials is missing")
    refused(f"{command} --vary server-learning-rate=1,2 --trials 3", "--trials 3", "--search")
    refused(f"{command} {rates} --search optuna --trials 3 --halving", "--halving")
    refused(f"{command} {rates} --search random --trials 3", "--search", "optuna")
    states = printed_by(f"{command} {rates} --search optuna --trials 3 --dry-run")
    assert states == {"trials to ask for": 3}


def test_without_optuna_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        ImportError, match=r"search=optuna needs Optuna.*pip install 'fedmf\[search"
    ):
        run_search(tmp_path, 1)


def test_the_sweep_command_reports_the_best_trial(take_begun_names, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "write_report_of_best", lambda runs, folder, **options: folder)
    out_path = tmp_path / "sweep"
    command = (
        f"sweep --out {out_path} --vary server-learning-rate=0.1:2 --search optuna --trials 3 "
        "--family identity --epsilon 8 --rounds 4 --cohort-size 2 --min-sep 2 --noise-seed os "
        "--quiet"
    )
    result = printed_by(command)
    assert "The 3 private runs together: epsilon" in result["together"]
    assert "The search went by validations" in result["together"]
    accuracy = {
        path.name: fedmf.Run.load(path).result["validation"]["accuracy"]
        for path in (out_path / "runs").iterdir()
    }
    best = max(accuracy, key=accuracy.__getitem__)
    expected = {"trials": 3, "by": "validation accuracy", "best": best, "value": accuracy[best]}
    assert result["search"] == expected
    assert (out_path / "figure.png").exists()
    text = program(command).stdout
    first_line = text.splitlines()[0]
    assert first_line.startswith(f"best of 3 trials by validation accuracy: {best} (")
    assert first_line.endswith("; one seed: not ranked)")
