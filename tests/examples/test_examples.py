"""Every program of examples/ runs, and what it prints is what it is about."""

import math
import os
import pathlib
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
# Program -> words that it prints, and files that it writes.
SHOWN = {
    "dp_fedavg_against_bandmf": ("BandMF", "dp_fedavg_against_bandmf.png"),
    "tff_pipeline": ("achieved", None),
    "own_keras_model": ("test accuracy", None),
    "tff_client_data": ("test accuracy", None),
    "cifar10_example_level": ("for one image", None),
    "adaptive_clipping": ("and scaled Adam  epsilon 8", None),
    "cluster_sweep": ("identity", "cluster_sweep/results.csv"),
    "clients_for_epsilon": ("At epsilon 2", None),
    "choose_bands": ("epsilon 8", "choose_bands.png"),
    "flower_accuracy": ("27 times less", "flower_accuracy.png"),
    "audit_own_log": ("observed: 15 rounds apart", "audit_statement.md"),
    "check_statement": ("The statement is true.", "statement.json"),
}
MAX_SECONDS, MAX_LINES = 60, 80


def run(name, folder, *arguments):
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    environment = os.environ | {"MPLBACKEND": "agg"}
    options = {"cwd": folder, "env": environment, "capture_output": True, "text": True}
    return subprocess.run(command, timeout=5 * MAX_SECONDS, **options)


def test_every_program_is_listed_and_short():
    programs = {path.stem: path.read_text() for path in EXAMPLES.glob("*.py")}
    assert set(programs) == set(SHOWN)
    listed = re.findall(r"^\| \[(\w+)\.py\]\(\1\.py\)", (EXAMPLES / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted(programs)
    assert {
        name: len(text.splitlines())
        for name, text in programs.items()
        if text.count("\n") >= MAX_LINES
    } == {}


def test_the_table_says_who_needs_tensorflow():
    for name, needs in re.findall(
        r"^\| \[(\w+)\.py\].*?\| (yes|no) \|", (EXAMPLES / "README.md").read_text(), re.M
    ):
        text = (EXAMPLES / f"{name}.py").read_text()
        assert ("No TensorFlow." in text) == (needs == "no")
        imports = re.search(r"import tensorflow|import federated|fedmf\.cli", text)
        assert bool(imports) == (needs == "yes"), name


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.cluster] * name.startswith("cluster"))
        for name in SHOWN
        if name != "flower_accuracy"  # has a test of its own
    ],
)
def test_program(name, tmp_path, monkeypatch, capfd):
    """In this process, which has imported TensorFlow; a cluster begins with one of its own."""
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "cache"))  # which users have: fits are kept
    if name.startswith("cluster"):
        done = run(name, tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        printed = done.stdout
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name])
        monkeypatch.setattr(sys, "path", [str(EXAMPLES), *filter(None, sys.path)])
        monkeypatch.setattr(
            sys, "exit", lambda status: pytest.fail(f"{status}") if status else None
        )
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        printed = capfd.readouterr().out
    words, file = SHOWN[name]
    assert words in printed
    assert file is None or (tmp_path / file).exists()


@pytest.mark.slow
def test_the_figure_beside_flower_has_the_errors_computed_apart_from_fedmf(tmp_path):
    """Root mean square of the running sum's error in clip norms: 200 rounds, epsilon 8, delta 1e-5.

    With independent noise by hand: k participations need the noise multiplier of one (Balle and
    Wang 2018, Thm. 8) times the root of k, and the variance of the sum grows by it each round.
    """

    def excess(mu, epsilon=8.0, delta=1e-5):
        cdf = scipy.stats.norm.cdf
        return cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * cdf(-mu / 2 - epsilon / mu) - delta

    single = 1 / scipy.optimize.brentq(excess, 0.1, 10, xtol=1e-12)
    by_hand = [f"{single * math.sqrt(k * 201 / 2):.2f}" for k in (200, 4)]
    done = run("flower_accuracy", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.findall(r"^.{36} +[\d.]+ +([\d.]+)$", done.stdout, re.M)
    words, file = SHOWN["flower_accuracy"]
    assert words in done.stdout
    assert (tmp_path / file).exists()
    assert found == [*by_hand, "3.38", "3.16"]
    assert found[0] == "85.10"


@pytest.mark.slow
def test_a_false_statement_is_found(tmp_path):
    run("check_statement", tmp_path)
    path = tmp_path / "statement.json"
    said = path.read_text()
    stddev = re.search(r'"stddev": ([\d.]+)', said)
    path.write_text(said.replace(stddev[0], f'"stddev": {0.99 * float(stddev[1])}'))
    done = run("check_statement", tmp_path, "statement.json", "mechanism.npz")
    assert done.returncode == 1
    assert "NOT TRUE" in done.stdout
