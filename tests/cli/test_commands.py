"""The command line as users and scripts see it: exit status, one sentence, nothing lost."""

import contextlib
import io
import json
import os
import pathlib
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from fedmf.cli import main

ROOT = pathlib.Path(__file__).parents[2]
SMALL = (
    "--rounds 4 --cohort-size 4 --min-sep 2 --vocabulary-size 60 --embedding-size 8 --lstm-size 8 --max-sentences 8 "
    "--validation-sentences 50 --test-sentences 50 --checkpoint-every 2 --evaluate-every 2 --quiet"
).split()
TRAIN = [*SMALL, "--epsilon", "8", "--noise-seed", "5"]


def fedmf(*arguments, status=0, fresh=False):
    """Runs the command line: here, or in a process of its own, as a user starts it."""
    words = [str(argument) for argument in arguments]
    if fresh:
        environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
        command = [sys.executable, "-c", "from fedmf.cli import main; main()", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    else:
        out, err, code = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(words)
            except SystemExit as stop:
                code = int(stop.code or 0)
        done = subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
    assert done.returncode == status, (arguments, done.stdout, done.stderr)
    return done


def refused(*arguments, status=2, words=(), fresh=False):
    """Runs, expects one sentence on standard error that holds all words, and returns it."""
    done = fedmf(*arguments, status=status, fresh=fresh)
    lines = done.stderr.strip().splitlines()
    assert "Traceback" not in done.stderr
    assert len(lines) == 1 or lines[0].startswith("Usage:"), done.stderr
    for word in words:
        assert word in done.stderr, (word, done.stderr)
    return done.stderr


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "corpus.sqlite"
    fedmf("data", "synth", "--clients", 12, "--sentences-per-client", 12, "--out", path, "--quiet")
    return path


@pytest.fixture(scope="module")
def finished_run(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "first"
    done = fedmf("train", "--data", corpus, "--out", folder, *TRAIN, "--json")
    return folder, json.loads(done.stdout)


COMMANDS = [
    [],
    ["data"],
    ["data", "synth"],
    ["data", "info"],
    ["fit"],
    ["calibrate"],
    ["train"],
    ["report"],
    ["audit"],
    ["demo"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c) or "fedmf")
def test_help_has_an_example(command):
    text = fedmf(*command, "--help").stdout
    assert "Usage: fedmf" in text
    if command != ["data"]:
        assert "Example:\n" in text


def test_help_imports_nothing_slow():
    # What keeps `fedmf --help` under a second; the second itself is measured by hand, clocks in tests lie.
    code = (
        "import sys; sys.argv = ['fedmf', '--help']\nfrom fedmf.cli import main\ntry: main()\nexcept SystemExit: pass\n"
        "slow = {'tensorflow', 'tensorflow_federated', 'scipy.optimize', 'dp_accounting', 'matplotlib', 'jinja2'}\n"
        "print('SLOW', sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "SLOW []" in done.stdout


def test_data_synth_and_info(corpus):
    described = json.loads(fedmf("data", "info", corpus, "--json").stdout)
    assert "train" in json.dumps(described)
    shown = fedmf("data", "info", corpus).stdout
    assert "12" in shown
    assert not set(shown) & set("{}[]'")
    assert max(map(len, shown.splitlines())) < 200
    refused("data", "synth", "--clients", 3, "--out", corpus, words=["corpus.sqlite", "overwrite"])
    refused("data", "synth", "--clients", 0, "--out", corpus.parent / "x.sqlite", words=["clients=0"])


def test_calibrate_explains_the_noise(tmp_path):
    path = tmp_path / "b.npz"
    fedmf("fit", "--rounds", 32, "--min-sep", 8, "--family", "banded", "--out", path)
    arguments = ("calibrate", path, "--rounds", 32, "--min-sep", 8, "--epsilon", 2, "--explain", "--parameters", 10**8)
    text = fedmf(*arguments).stdout
    assert "Noise for 100,000,000 parameters, the choice first" in text
    assert "7 rows carry what the future needs of the past" in text
    ways = json.loads(fedmf(*arguments, "--json", "--noise-memory", 1).stdout)["noise_strategies"]
    assert {way["name"] for way in ways} == {"recurrent", "regenerated"}
    assert ways[0]["disk"] > 0
    assert "noise_memory=0.0 must be gigabytes" in fedmf(*arguments, "--noise-memory", 0, status=2).stderr


def test_fit_and_calibrate(tmp_path):
    path = tmp_path / "banded.npz"
    fitted = json.loads(fedmf("fit", "--rounds", 32, "--min-sep", 8, "--out", path, "--json").stdout)
    assert fitted["bands"] == 8
    assert fitted["certified_gap"] < 1e-3
    assert fitted["sensitivity"] == pytest.approx(2.0)
    plan = json.loads(fedmf("calibrate", path, "--rounds", 32, "--min-sep", 8, "--epsilon", 2, "--json").stdout)
    assert plan["noise_multiplier"] == pytest.approx(2.23048, abs=1e-4)  # banded paper, Table 4
    back = fedmf("calibrate", path, "--rounds", 32, "--min-sep", 8, "--noise-multiplier", 2.23048).stdout
    assert "epsilon" in back
    none = fedmf("calibrate", path, "--rounds", 32, "--min-sep", 8, "--noise-multiplier", 0).stdout.splitlines()
    assert [line.split()[1] for line in none if line.startswith(("epsilon", "rho"))] == ["infinite", "infinite"]
    assert (
        "# Privacy statement"
        in fedmf("calibrate", path, "--rounds", 32, "--min-sep", 8, "--epsilon", 2, "--statement").stdout
    )
    momentum = fedmf("fit", "--rounds", 16, "--min-sep", 4, "--workload", "momentum_sgd", "--out", tmp_path / "m.npz")
    assert "banded" in momentum.stdout
    tree = fedmf(
        "fit", "--rounds", 16, "--min-sep", 4, "--family", "tree", "--decoder", "online", "--out", tmp_path / "t.npz"
    )
    assert "upper bound" in tree.stdout


@pytest.mark.tensorflow
def test_train_audit_report(finished_run, tmp_path):
    folder, shown = finished_run
    assert shown["epsilon"] <= 8
    audit = json.loads(fedmf("audit", folder, "--json").stdout)
    assert audit["min_separation_observed"] >= 2
    assert audit["epsilon_achieved"] <= audit["epsilon_planned"] <= 8
    assert "epsilon_achieved" in fedmf("audit", folder).stdout
    report = fedmf("report", folder, "--out", tmp_path / "report").stdout.strip()
    assert "<html" in pathlib.Path(report).read_text()


@pytest.mark.tensorflow
def test_train_from_a_config_file_with_flags_on_top_and_resume(corpus, finished_run, tmp_path):
    folder, _ = finished_run
    values = json.loads((folder / "config.json").read_text())
    values["rounds"] = 8
    (tmp_path / "config.json").write_text(json.dumps(values))
    fedmf(
        "train",
        "--config",
        tmp_path / "config.json",
        "--rounds",
        4,
        "--out",
        tmp_path / "run",
        "--noise-seed",
        5,
        "--quiet",
    )
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    # A finished run resumed says the same again.
    fedmf("train", "--out", tmp_path / "run", "--resume", "--quiet")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    refused(
        "train",
        "--out",
        tmp_path / "run",
        "--resume",
        "--clip-norm",
        2,
        "--quiet",
        words=["clip_norm=2.0", "1.0"],
    )
    refused(
        "train",
        "--data",
        corpus,
        "--out",
        tmp_path / "run",
        *TRAIN,
        words=["already holds a run", "--resume"],
    )


FIT = ["fit", "--rounds", "8", "--out", "x.npz"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*FIT, "--min-sep", "2", "--family", "fourier"], ["fourier", "banded"]),
        ([*FIT, "--min-sep", "2", "--schema", "sometimes"], ["sometimes", "min_sep"]),
        ([*FIT, "--min-sep", "0"], ["min_sep=0"]),
        ([*FIT, "--min-sep", "9"], ["min_sep=9"]),
        ([*FIT], ["min_sep=None"]),
        ([*FIT, "--min-sep", "2", "--bands", "9"], ["bands=9"]),
        ([*FIT, "--min-sep", "2", "--bands", "0"], ["bands=0"]),
        ([*FIT, "--min-sep", "2", "--max-participations", "5"], ["max_participations=5", "4"]),
        ([*FIT, "--min-sep", "2", "--family", "tree", "--bands", "2"], ["bands=2", "family='tree'", "decoder"]),
        (["fit", "--rounds", "0", "--min-sep", "1", "--out", "x.npz"], ["rounds=0"]),
        (["fit", "--rounds", "8", "--min-sep", "2", "--out", "x.png", "--show"], ["out='x.png'", "does not end in .npz"]),
        (["fit", "--rounds", "8", "--min-sep", "2", "--out", "absent/x.npz"], ["absent/x.npz", "folder that does not exist"]),
        ([*FIT, "--min-sep", "2", "--stamp-decoder", "restarted"], ["stamp_decoder='restarted'", "give --stamps"]),
        (["data", "synth", "--clients", "4", "--words", "258", "--out", "x.sqlite"], ["words=258", "use 259 or more"]),
        (["train", "--out", "r", *SMALL, "--epsilon", "8", "--noise-seed", "²"], ["'²' must be a non-negative whole number"]),
        (["train", "--out", "r", *SMALL, "--epsilon", "8", "--noise-seed", "1" * 5000], ["at most 4000 digits"]),
        (["train", "--out", "r", *SMALL, "--epsilon", "8", "--noise-seed", "1", "--config", "."], ["is not a file"]),
        (["fit", "--rounds", "many", "--out", "x.npz"], ["many"]),
        (["nonsense"], ["nonsense"]),
        (["train", "--out", "r", *SMALL, "--epsilon", "8"], ["noise_seed", "--noise-seed"]),
        (["train", "--out", "r", *SMALL, "--epsilon", "8", "--noise-seed", "-3"], ["-3"]),
        (["train", "--out", "r", *SMALL, "--epsilon", "8", "--noise-seed", "1", "--resume"], ["noise_seed"]),
        (["train", "--out", "r", *TRAIN, "--noise-multiplier", "1"], ["epsilon=8", "noise_multiplier=1", "give one"]),
        (["train", "--out", "r", *SMALL, "--noise-seed", "1"], ["privacy target"]),
        (["train", "--out", "r", *TRAIN, "--family", "none"], ["family=none"]),
        (["train", "--out", "r", *TRAIN, "--config", "absent.toml"], ["absent.toml"]),
        *[
            (["train", "--out", "r", *SMALL, "--noise-seed", "1", "--epsilon", "8", f"--{name}", value], [name.replace("-", "_"), value])
            for name in ("delta", "clip-norm", "server-learning-rate")
            for value in ("0", "-1", "nan", "inf")
        ],
        *[(["train", "--out", "r", *SMALL, "--noise-seed", "1", "--epsilon", v], ["epsilon", v]) for v in ("0", "-1", "nan", "inf")],
        (["train", "--out", "r", *TRAIN, "--delta", "1"], ["delta=1"]),
        (["train", "--out", "r", *TRAIN, "--lstm-size", "0"], ["lstm_size=0"]),
        (["train", "--out", "r", *TRAIN, "--claimed-cohort", "4"], ["claimed"]),
    ],
    ids=lambda value: " ".join(value)[-60:],
)  # fmt: skip
def test_bad_arguments_are_one_sentence_and_status_2(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(*arguments, words=words)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_none_is_a_value_where_the_default_is_a_number(command, tmp_path, monkeypatch):
    """No zeroing, as in the multi-epoch paper, App. F.3; a limit of a config file gives way to it."""
    import fedmf.runs.config

    made = []

    def config_from_mapping(values, source):
        made.append(values)
        raise ValueError("enough")

    monkeypatch.setattr(fedmf.runs.config, "config_from_mapping", config_from_mapping)
    monkeypatch.setattr("fedmf.experiments.sweep_grid.config_from_mapping", config_from_mapping)
    (tmp_path / "c.toml").write_text("zeroing_norm = 50.0\nepsilon = 2.0\n")
    vary = ["--vary", "seed=1,2"] if command == "sweep" else []
    words = [command, "--out", str(tmp_path / "out"), "--config", str(tmp_path / "c.toml"), "--noise-seed", "1", *vary]
    refused(*words, words=["enough"])
    refused(*words, "--zeroing-norm", "none", words=["enough"])
    refused(*words, "--zeroing-norm", "7", words=["enough"])
    assert [values["zeroing_norm"] for values in made] == [50.0, None, 7.0]
    assert all("rounds" not in values for values in made)
    refused(*words, "--zeroing-norm", "nothing", words=["zeroing-norm"])


def test_bad_config_files_name_the_file(tmp_path):
    (tmp_path / "c.yaml").write_text("rounds: 4")
    refused(
        "train", "--config", tmp_path / "c.yaml", "--out", "r", "--noise-seed", 1, words=["c.yaml", ".toml nor .json"]
    )
    for text, words in (("rounds = 'many'", ["rounds"]), ("[", ["TOML"]), ("speed = 3", ["speed"])):
        (tmp_path / "c.toml").write_text(text)
        refused(
            "train",
            "--config",
            tmp_path / "c.toml",
            "--out",
            tmp_path / "r",
            "--noise-seed",
            1,
            words=["c.toml", *words],
        )


@pytest.mark.tensorflow
def test_bad_data_files_are_one_sentence_and_status_2(corpus, tmp_path):
    whole = corpus.read_bytes()
    bad = {"truncated": whole[: len(whole) // 2], "empty": b"", "text": b"not a database at all\n" * 100}
    for name, content in bad.items():
        path = tmp_path / f"{name}.sqlite"
        path.write_bytes(content)
        refused("train", "--data", path, "--out", tmp_path / "run", *TRAIN, words=[path.name])
        refused("data", "info", path, words=[path.name])
        assert path.read_bytes() == content
    refused(
        "train",
        "--data",
        tmp_path / "absent",
        "--out",
        tmp_path / "run",
        *TRAIN,
        words=["absent", "data synth"],
    )
    refused("data", "info", tmp_path / "absent", words=["absent", "data synth"])
    assert not (tmp_path / "run").exists()


@pytest.mark.tensorflow
def test_noise_beyond_float32_is_refused_before_there_is_a_folder(corpus, tmp_path):
    words = ["clip_norm=1e+300", "beyond the range of float32"]
    command = ["train", "--data", corpus, "--out", tmp_path / "run", *TRAIN, "--clip-norm", "1e300"]
    refused(*command, words=words)
    assert not (tmp_path / "run").exists()
    fedmf("fit", "--rounds", 4, "--min-sep", 2, "--out", tmp_path / "m.npz")
    plan = ["calibrate", tmp_path / "m.npz", "--rounds", 4, "--min-sep", 2, "--epsilon", 8]
    refused(*plan, "--clip-norm", "1e300", words=words)


@pytest.mark.tensorflow
def test_data_may_move_before_a_resume(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(corpus.parent)
    fedmf("train", "--data", corpus.name, "--out", tmp_path / "run", *TRAIN, "--quiet")
    monkeypatch.chdir(tmp_path)
    refused("train", "--out", "run", "--resume", "--quiet", words=["no StackOverflow data at", "--data FILE"])
    fedmf("train", "--out", "run", "--resume", "--data", corpus, "--quiet")
    renamed = tmp_path / "renamed.sqlite"
    renamed.write_bytes(corpus.read_bytes())
    fedmf("train", "--out", "run", "--resume", "--data", renamed, "--quiet")
    # But not change: one sentence of one client, and nothing else.
    other = tmp_path / corpus.name
    other.write_bytes(corpus.read_bytes())
    with contextlib.closing(sqlite3.connect(other)) as connection, connection:
        (row,) = connection.execute("SELECT max(rowid) FROM examples WHERE split_name = 'train'").fetchone()
        connection.execute(
            "UPDATE examples SET serialized_example_proto = (SELECT serialized_example_proto FROM examples LIMIT 1) WHERE rowid = ?",
            [row],
        )
    assert other.stat().st_size == corpus.stat().st_size
    said = refused(
        "train", "--out", "run", "--resume", "--data", other, "--quiet", words=["on other data", "data_version="]
    )
    assert "description" not in said
    assert "headline_metric" not in said


@pytest.mark.tensorflow
def test_rounds_without_enough_clients_are_said_once(corpus, tmp_path):
    done = fedmf(
        "train", "--data", corpus, "--out", tmp_path / "run", *TRAIN, "--availability", "independent:0.2", "--quiet"
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("fedmf: warning: round ")
    assert line.endswith("more such rounds)")


def test_unwritable_output_fails_before_training(corpus, tmp_path):
    (tmp_path / "file").write_text("precious")
    refused(
        "train",
        "--data",
        corpus,
        "--out",
        tmp_path / "file" / "run",
        *TRAIN,
        words=["cannot write to folder"],
    )
    refused("fit", "--rounds", 4, "--min-sep", 2, "--out", tmp_path / "file" / "m.npz", words=["m.npz"])
    assert (tmp_path / "file").read_text() == "precious"


def test_debug_shows_the_traceback(tmp_path):
    assert "Traceback" in fedmf("--debug", "audit", tmp_path, status=2).stderr
    assert "Traceback" in fedmf("audit", tmp_path, "--debug", status=2).stderr
    refused("audit", tmp_path, words=["holds no run"])
    refused("report", tmp_path, "--out", tmp_path / "report", words=["holds no run"])


@pytest.mark.tensorflow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_saves_and_says_how_to_go_on(corpus, tmp_path, number, status):
    command = [sys.executable, "-c", "from fedmf.cli import main; main()", "train", "--data", str(corpus)]
    command += ["--out", str(tmp_path / "run"), *TRAIN, "--rounds", "300", "--checkpoint-every", "300"]
    command.remove("--quiet")
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        metrics = tmp_path / "run" / "metrics.jsonl"
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and (not metrics.exists() or metrics.read_text().count("\n") < 3):
            time.sleep(0.2)
        process.send_signal(number)
        # It answers in hundredths of a second; five are what a busy machine may need.
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and "stopping: saving round" not in (tmp_path / "log").read_text():
            time.sleep(0.05)
        assert "stopping: saving round" in (tmp_path / "log").read_text()
        assert process.wait(timeout=60) == status
    text = (tmp_path / "log").read_text()
    assert "stopping: saving round" in text
    assert "--resume" in text
    assert "Traceback" not in text
    assert len(list((tmp_path / "run" / "checkpoints").glob("*.ckpt"))) == 1
