"""The driver of `fedmf sweep`, with a small program in place of training, and once with real
training.
"""

import os
import shutil
import signal
import sys
import threading
import time

import pytest

import fedmf
from fedmf.sweeps import folder as sweep_folder
from fedmf.sweeps import job
from fedmf.sweeps import run as sweep
from fedmf.sweeps.grid import sweep_configs
from fedmf.sweeps.run import SweepOptions
from tests.cli.program import fedmf as program
from tests.cli.program import printed_by
from tests.refusals import refusal
from tests.runs.test_folder import commit_rounds, new_run
from tests.sweeps import programs

FIXED = {"rounds": 4, "min_sep": 2, "cohort_size": 2, "family": "identity", "epsilon": 8.0}
# A substitute for `fedmf train` that makes a round every tenth of a second, saved at once; --seed
# decides how it ends. It takes `serve` from its file, because importing fedmf takes a second.
TRAINS = """
import json, os, pathlib, signal, sys, time
sys.path.append(os.path.dirname(sys.argv[1]))
from job import serve

def main(arguments):
    def given(name): return arguments[arguments.index(name) + 1] if name in arguments else None
    folder = pathlib.Path(given("--out"))
    resumed = "--resume" in arguments
    file = folder / "config.json" if resumed else given("--config")
    config = json.loads(pathlib.Path(file).read_text())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "process.txt").write_text(str(os.getpid()))
    with (folder / "began.txt").open("a") as began:
        began.write(f"{time.time()} {' '.join(arguments)}\\n")
    seed = config["seed"]
    if seed == 2: sys.exit("fedmf: error: no such data")
    rows = folder / "metrics.jsonl"
    try:
        while not rows.exists() or rows.read_text().count("\\n") < config["rounds"]:
            time.sleep(0.1)
            with rows.open("a") as out: out.write("{}\\n")
            if seed == 9: signal.raise_signal(signal.SIGKILL)
    except KeyboardInterrupt:
        time.sleep(0.3)
        (folder / "saved").touch()
        sys.exit(130)
    (folder / "ended.txt").write_text(str(time.time()))
    (folder / "result.json").write_text("{}")

serve(main)
"""


@pytest.fixture
def set_program(monkeypatch):
    def program(text=TRAINS):
        monkeypatch.setattr(job, "PROGRAM", (sys.executable, "-c", text, job.__file__))

    program()
    monkeypatch.setattr(sweep, "_POLL_SECONDS", 0.02)
    return program


def grid(**varied):
    return sweep_configs(
        {name: value for name, value in FIXED.items() if name not in varied}, varied
    )


def train(out, configs, *, noise_seed="os", **training):
    return sweep.train_all(out, configs, SweepOptions(noise_seed=noise_seed, **training))


def read_note(out, name, file="began"):
    return (sweep.run_folder(out, name) / f"{file}.txt").read_text()


def test_as_many_runs_train_at_a_time_as_there_are_jobs(set_program, tmp_path):
    configs = grid(seed=[0, 1, 3, 4])
    assert train(tmp_path, configs, jobs=2) == {}
    assert [sweep_folder.state(tmp_path, name) for name in configs] == ["finished"] * 4
    spans = [
        (float(read_note(tmp_path, name).split()[0]), float(read_note(tmp_path, name, "ended")))
        for name in configs
    ]
    assert (
        max(
            sum(begin_time <= start_time < end_time for begin_time, end_time in spans)
            for start_time, _ in spans
        )
        == 2
    )
    logs = [sweep.log_file(tmp_path, name) for name in configs]
    assert {log.stat().st_mode & 0o077 for log in logs} == {0}  # warnings name training losses
    # One process trains several runs, one after the other.
    assert len({read_note(tmp_path, name, "process") for name in configs}) == 2


def test_finished_runs_are_not_repeated_and_unfinished_ones_are_resumed(set_program, tmp_path):
    configs = grid(seed=[0, 1])
    train(tmp_path, grid(seed=[0]), noise_seed=5)
    folder = sweep.run_folder(tmp_path, "seed=1")
    folder.mkdir()
    (folder / "config.json").write_text(configs["seed=1"].to_json())
    train(tmp_path, configs, noise_seed=5, threads=3)
    seeds = sorted((tmp_path / "private").iterdir())
    assert len(seeds) == len(configs)
    assert {file.stat().st_mode & 0o777 for file in seeds} == {0o600}
    first_log, second_log = (read_note(tmp_path, name) for name in configs)
    assert first_log.count("\n") == second_log.count("\n") == 1
    assert "--resume" not in first_log
    assert "--resume" in second_log
    assert "--noise-seed" not in second_log
    assert "--threads 3" in second_log


@pytest.mark.slow
def test_no_two_runs_share_noise_and_the_same_run_repeats_it(set_program, tmp_path):
    def seeds(out, noise_seed, **varied):
        train(out, grid(**varied), noise_seed=noise_seed, jobs=4)
        words = [read_note(out, name).partition("--noise-seed ")[2] for name in grid(**varied)]
        return [word.split()[0] for word in words]

    first_seeds = seeds(tmp_path / "a", 5, seed=[0, 1], epsilon=[2.0, 8.0])
    assert len(set(first_seeds)) == 4
    assert seeds(tmp_path / "b", 5, seed=[1], epsilon=[8.0]) == first_seeds[-1:]
    assert seeds(tmp_path / "c", 6, seed=[1], epsilon=[8.0]) != first_seeds[-1:]
    assert seeds(tmp_path / "d", "os", seed=[0, 1]) == ["os", "os"]


def test_a_run_that_dies_takes_no_other_with_it(set_program, tmp_path):
    failed = train(tmp_path, grid(seed=[9, 2, 0]))
    assert failed["seed=9"].status == 1
    assert "signal 9" in failed["seed=9"].reason
    assert failed["seed=2"] == sweep.Failure(status=1, reason="no such data")
    states = [sweep_folder.state(tmp_path, f"seed={seed}") for seed in (9, 0)]
    assert states == ["1 round done", "finished"]


def test_a_run_that_exists_under_another_name_is_not_trained_again(set_program, tmp_path):
    train(tmp_path, grid(epsilon=[8.0]))
    both_configs = grid(epsilon=[8.0], seed=[0, 1])
    names = ["epsilon=8", "epsilon=8,seed=1"]
    assert list(sweep_folder.in_folder(tmp_path, both_configs)) == names
    train(tmp_path, both_configs)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == names
    assert read_note(tmp_path, "epsilon=8").count("\n") == 1


def test_runs_that_differ_in_more_than_their_names_say_are_refused(set_program, tmp_path):
    train(tmp_path, grid(seed=[0]))
    for field, value in {"cohort_size": 3, "epsilon": 2.0}.items():
        with refusal(f"holds a run with {field}=.*, or vary {field}"):
            train(tmp_path, sweep_configs(FIXED | {field: value}, {"seed": [5]}))
    moved_configs = sweep_configs(FIXED | {"data": "elsewhere.sqlite"}, {"seed": [0]})
    assert sweep_folder.in_folder(tmp_path, moved_configs) == moved_configs
    # Settings in a name may differ, and so may options that one of the families lacks.
    for varied_values in ({"cohort_size": [3]}, {"family": ["banded"], "bands": [2]}):
        assert sweep_folder.in_folder(tmp_path, grid(**varied_values)) == grid(**varied_values)


def test_another_mechanism_in_a_file_of_the_same_name_is_refused(set_program, tmp_path):
    participation = fedmf.Participation(rounds=4, schema="min_sep", min_sep=2)
    file = tmp_path / "m.npz"
    fedmf.fit(fedmf.prefix_sum(4), participation, family="identity").save(file)
    both_configs = sweep_configs(
        FIXED | {"family": "file", "mechanism": str(file)}, {"seed": [0, 1]}
    )
    first_config = {"seed=0": both_configs["seed=0"]}
    out_path = tmp_path / "sweep"
    train(out_path, first_config)
    shutil.copy(file, sweep.run_folder(out_path, "seed=0") / "mechanism.npz")  # as a run does
    assert list(sweep_folder.in_folder(out_path, both_configs)) == ["seed=0", "seed=1"]
    fedmf.fit(fedmf.prefix_sum(4), participation, family="banded", bands=2).save(file)
    for configs in (both_configs, first_config):
        with refusal("is not the one that .*seed=0 was trained with"):
            sweep_folder.in_folder(out_path, configs)


def test_inputs_that_no_run_accepts_end_the_sweep(set_program, tmp_path):
    set_program(TRAINS.replace('sys.exit("fedmf: error: no such data")', "sys.exit(2)"))
    failed = train(tmp_path, grid(seed=[0, 2, 1]))
    assert {name: failure.status for name, failure in failed.items()} == {"seed=2": 2}
    assert sweep_folder.state(tmp_path, "seed=0") == "finished"
    assert sweep_folder.state(tmp_path, "seed=1") == "not begun"


def when(condition, action):
    """Calls the function from another thread as soon as the condition holds."""

    def watch():
        while not condition():
            time.sleep(0.02)
        action()

    threading.Thread(target=watch, daemon=True).start()


def test_ctrl_c_waits_until_every_run_has_saved(set_program, tmp_path):
    configs = grid(seed=[0, 1, 3], rounds=[1000])
    folders = [sweep.run_folder(tmp_path, name) for name in configs][:2]
    when(
        lambda: all((folder / "metrics.jsonl").exists() for folder in folders),
        lambda: os.kill(os.getpid(), signal.SIGINT),
    )
    with pytest.raises(sweep.StoppedSweep, match="2 runs are stopped and saved"):
        train(tmp_path, configs, jobs=2)
    assert all((folder / "saved").exists() for folder in folders)
    assert not sweep.run_folder(tmp_path, list(configs)[2]).exists()


def test_a_second_ctrl_c_leaves_no_process_training(set_program, tmp_path):
    set_program(TRAINS.replace("time.sleep(0.3)", "(folder / 'asked').touch(); time.sleep(1000)"))
    configs = grid(seed=[0], rounds=[1000])
    [folder] = [sweep.run_folder(tmp_path, name) for name in configs]

    def again():
        os.kill(os.getpid(), signal.SIGINT)
        when((folder / "asked").exists, lambda: os.kill(os.getpid(), signal.SIGINT))

    when((folder / "metrics.jsonl").exists, again)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, configs)
    rounds = (folder / "metrics.jsonl").read_bytes()
    time.sleep(0.5)
    assert (folder / "metrics.jsonl").read_bytes() == rounds
    assert not (folder / "saved").exists()


COMMAND = (
    "sweep --vary family=none,identity --vary server-learning-rate=0.5,1 --epsilon 8 --rounds 4 "
    "--cohort-size 4 --min-sep 2 --noise-seed os --task regression -o kind=logistic -o clients=12 "
    "--quiet"
)


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.usefixtures("clients_in_turn")
def test_the_sweep_command_trains_each_run_once_and_reports(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(job, "PROGRAM", programs.clients_in_turn())
    out_path = tmp_path / "sweep"
    command = f"{COMMAND} --out {out_path}"
    result = printed_by(f"{command} --jobs 2")
    assert [best["settings"] for best in result["best"]] == [2, 2]
    assert result["failed"] == {}
    assert "The 2 private runs together: epsilon" in result["together"]
    *_, last_run = runs = [fedmf.Run.load(path) for path in sorted((out_path / "runs").iterdir())]
    assert len({(run.path / "private" / "noise_seed").read_text() for run in runs}) == 4
    for name in ("figure.png", "report/report.html"):
        assert (out_path / name).stat().st_size > 10_000
    # Two processes trained two runs each. The last one alone has the same bits.
    seed = (last_run.path / "private" / "noise_seed").read_text().strip()
    repeat_options = f"--config {last_run.path}/config.json --out {tmp_path}/alone"
    program(f"train {repeat_options} --noise-seed {seed} --quiet")
    rows = [(path / "metrics.jsonl").read_bytes() for path in (tmp_path / "alone", last_run.path)]
    assert rows[0] == rows[1]
    # Nothing is trained again. Earlier runs in the folder count, also a killed one: it trained on
    # the same clients.
    monkeypatch.setattr(job, "Job", None)
    last_result = (last_run.path / "result.json").read_bytes()
    (last_run.path / "result.json").unlink()
    first_config = {run.path.name: run.config for run in runs[:1]}
    assert (
        sweep.run_sweep(out_path, first_config, SweepOptions(noise_seed="os"))["together"]
        == result["together"]
    )
    assert (out_path / "results.csv").read_text().count("\n") == 4
    (last_run.path / "result.json").write_bytes(last_result)
    # The bar has the rounds of the requested runs.
    capfd.readouterr()
    assert train(out_path, first_config, progress=True) == {}
    assert "sweep: 100%" in capfd.readouterr().err
    # This output is for people.
    text = program(f"{command} --smoothed-over 2").stdout
    assert "validation: the mean over the last 2 rounds" in text
    assert "smoothed_validation_accuracy" in (out_path / "results.csv").read_text()
    assert result["together"] in text


def test_a_run_with_a_committed_round_counts_as_begun_whatever_its_metric_rows(tmp_path):
    cut, never = (new_run(tmp_path / name, fedmf.TrainConfig(**FIXED)) for name in ("cut", "never"))
    commit_rounds(cut, [[0]], num_records=0)
    copied_folder = new_run(tmp_path / "copied", fedmf.TrainConfig(**FIXED))
    commit_rounds(copied_folder, [[0]])
    shutil.rmtree(copied_folder.path / "private")
    folders = [never.path, cut.path, copied_folder.path, tmp_path / "none"]
    assert [run.path for run in sweep_folder.begun_runs(folders)] == [cut.path, copied_folder.path]


def test_lists_in_a_config_file_are_varied(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text('family = ["none", "tree"]\nepsilon = [2.0, 8.0]\nrounds = 4\nmin_sep = 2\n')
    command = f"sweep --out {tmp_path}/s --config {file}"
    states = printed_by(f"{command} --dry-run")
    assert list(states) == ["family=none", "family=tree,epsilon=2", "family=tree,epsilon=8"]
    # The command line wins: over a list with one value, and over a value with several.
    states = printed_by(f"{command} --dry-run --epsilon 4 --vary rounds=4,8")
    assert list(states) == [
        f"family={family},rounds={rounds}" for family in ("none", "tree") for rounds in (4, 8)
    ]
