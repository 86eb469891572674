"""Commands that succeed, and the files and messages of commands that are interrupted."""

import inspect
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import click
import pytest

from fedmf.tasks.cifar10.data import load_images
from tests.cli.program import SEED, TABLE, TRAIN, fedmf, printed_by, refused
from tests.cli.test_errors import commands
from tests.tasks.data_files import execute


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_every_command_has_an_example_and_json(command):
    assert "\b\nExample:\n  fedmf " in inspect.cleandoc(command.help)
    flags = [
        flag for parameter in command.get_params(click.Context(command)) for flag in parameter.opts
    ]
    # A script for a shell is not printed as JSON.
    assert ("--json" in flags) == (command.name != "completion")


def test_help_imports_nothing_slow():
    code = (
        "import sys; sys.argv = ['fedmf', '--help']\nfrom fedmf.cli import main\ntry: main()\n"
        "except SystemExit: pass\n"
        "slow = set('scipy.optimize tensorflow dp_accounting matplotlib jinja2'.split())\n"
        "print('SLOW', sorted(slow & set(sys.modules)))"
    )
    finished_process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Usage: fedmf" in finished_process.stdout
    assert "SLOW []" in finished_process.stdout


def test_data_info_describes_a_corpus_of_data_synth(corpus_file):
    assert "train" in printed_by(f"data info {corpus_file}")["splits"]
    printed_text = fedmf(f"data info {corpus_file}").stdout
    assert "12" in printed_text
    assert not set(printed_text) & set("{}[]'")


def test_data_synth_writes_the_synthetic_substitute_of_a_task(tmp_path):
    path = tmp_path / "shapes.tar.gz"
    synth = f"data synth --task cifar10 --examples 30 --test-examples 10 --out {path} --quiet"
    assert printed_by(f"{synth} --seed 1") == {"task": "cifar10", "file": str(path)}
    images = load_images(path)
    assert (len(images.x), len(images.x_test)) == (30, 10)


def test_calibrate_meets_the_target_with_a_fitted_mechanism(tmp_path, identity_file):
    path = tmp_path / "banded.npz"
    fit_values = printed_by(f"fit --rounds 32 --min-sep 8 --out {path}")
    calibrate = f"calibrate {path} --rounds 32 --min-sep 8"
    plan = printed_by(f"{calibrate} --epsilon 2 --cohort-size 40")
    assert plan["noise_multiplier"] == pytest.approx(2.23048, abs=1e-4)  # banded paper, Table 4
    error = fit_values["rmse"] * plan["noise_multiplier"]
    assert plan["effective_rmse"] == pytest.approx(error / 40)
    scheme = "--sampling poisson --population 400 --cohort-size 4 --rdp"
    sampled_values = printed_by(f"calibrate {identity_file} --rounds 12 --epsilon 8 {scheme}")
    assert sampled_values["epsilon"] <= 8 < sampled_values["sampling"]["unamplified_epsilon"]
    assert sampled_values["rdp_epsilon"] > 0
    none = fedmf(f"{calibrate} --noise-multiplier 0").stdout
    assert re.findall(r"^(\w+) +infinite", none, re.M) == ["epsilon", "rho"]
    assert "# Privacy statement" in fedmf(f"{calibrate} --epsilon 2 --statement").stdout
    explain = f"plan noise {path} --parameters 100000000"
    assert "Noise for 100,000,000 parameters, the choice first" in fedmf(explain).stdout
    strategies = printed_by(f"{explain} --noise-memory 1")["noise_strategies"]
    assert {strategy["name"] for strategy in strategies} == {"recurrent", "regenerated"}


@pytest.mark.tensorflow
def test_a_trained_run_is_audited_and_reported(trained_run, tmp_path):
    folder, printed_text = trained_run
    assert json.loads(printed_text)["epsilon"] <= 8
    audit = printed_by(f"audit {folder}")
    assert audit["min_separation_observed"] >= 2
    assert audit["epsilon_achieved"] <= audit["epsilon_planned"] <= 8
    report = fedmf(f"report {folder} --out {tmp_path}/report").stdout.strip()
    assert "<html" in pathlib.Path(report).read_text()


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["-x", "--", "two words", "ü", "two\nlines"])
def test_a_run_folder_may_have_any_name(name, trained_run, tmp_path, monkeypatch):
    shutil.copytree(trained_run[0], tmp_path / name)
    monkeypatch.chdir(tmp_path)
    in_quotes = shlex.quote(f"./{name}")
    assert fedmf(f"audit {in_quotes}").stdout == fedmf("audit --", pathlib.Path(name)).stdout
    fedmf(f"report {in_quotes} --csv", pathlib.Path("-x.csv"))
    assert (tmp_path / "-x.csv").exists()
    if name == "-x":  # No option has that name.
        fedmf("audit", pathlib.Path(name))


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_none_on_the_command_line_replaces_a_number(command, tmp_path, monkeypatch):
    """The option `--zeroing-norm none` turns zeroing off (multi-epoch paper, App. F.3), also if a
    config file sets a norm.
    """
    import fedmf.runs.config

    read_values = []

    def from_mapping(values, source):
        read_values.append(values)
        raise ValueError("enough")

    monkeypatch.setattr(fedmf.runs.config.TrainConfig, "from_mapping", from_mapping)
    (tmp_path / "c.toml").write_text("zeroing_norm = 50.0\nepsilon = 2.0\n")
    (tmp_path / "c.yaml").write_text("rounds: 4")
    vary = "--vary seed=1,2" if command == "sweep" else ""
    words = f"{command} --out {tmp_path}/out --config {tmp_path}/c.toml --min-sep 2 {vary}"
    words += " --noise-seed 1"
    refused(f"{words} --config {tmp_path}/c.yaml", ".toml nor .json")
    refused(words, "enough")
    refused(f"{words} --zeroing-norm none", "enough")
    refused(f"{words} --zeroing-norm 7", "enough")
    assert [values["zeroing_norm"] for values in read_values] == [50.0, None, 7.0]
    assert all("rounds" not in values for values in read_values)


@pytest.mark.tensorflow
def test_a_run_that_cannot_begin_is_one_sentence_and_leaves_nothing(corpus_file, tmp_path):
    (tmp_path / "text").write_bytes(b"not a database\n" * 100)
    train = f"train --out {tmp_path}/run {TRAIN} --data"
    refused(f"{train} {tmp_path}/text", "text is not a SQLite file")
    refused(f"{train} {tmp_path}/absent", "absent", "data synth")
    refused(f"{train} {corpus_file} --cohort-size 7", "cohorts of 7", "lower --cohort-size")
    refused(f"train --out {tmp_path} --resume", "holds no run")
    assert os.listdir(tmp_path) == ["text"]


@pytest.mark.tensorflow
def test_data_may_move_before_a_resume_but_not_change(run_folder, corpus_file, tmp_path):
    resume = f"train --out {run_folder} --resume --quiet --data"
    renamed = tmp_path / "renamed.sqlite"
    renamed.write_bytes(corpus_file.read_bytes())
    refused(f"{resume} {tmp_path}/absent", "there is no file", "--data FILE")
    fedmf(f"{resume} {renamed}")
    execute(
        renamed,
        "UPDATE examples SET serialized_example_proto = (SELECT serialized_example_proto FROM "
        "examples LIMIT 1) WHERE rowid = (SELECT max(rowid) FROM examples WHERE split_name = "
        "'train')",
    )
    assert renamed.stat().st_size == corpus_file.stat().st_size
    line = refused(f"{resume} {renamed}", "on other data", "data_version=")
    assert "description" not in line


@pytest.mark.tensorflow
@pytest.mark.usefixtures("clients_in_turn")
def test_rounds_without_enough_clients_warn_once(tmp_path):
    options = "-o clients=12 --availability independent:0.2 --epsilon 8 --noise-seed 1"
    error_text = fedmf(f"train --out {tmp_path}/run {TABLE} {options}").stderr
    assert len(re.findall("fedmf: warning: round .* more such rounds\\)\n", error_text)) == 1


@pytest.mark.tensorflow
@pytest.mark.slow
def test_ctrl_c_ends_a_run_and_says_how_to_resume_it(tmp_path):
    train = f"train --task regression --out {tmp_path}/run --cohort-size 4 --min-sep 2 --epsilon 8"
    train += f" --family identity --rounds 3000 {SEED}"
    command = [sys.executable, "-m", "fedmf", *train.split()]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)  # SIGTERM counts as Ctrl-C, with another exit status.
    _, error_text = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "--resume" in error_text
    assert "Traceback" not in error_text
    assert len(list((tmp_path / "run" / "private" / "journal").iterdir())) == 1
