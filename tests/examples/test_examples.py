"""Every program of examples/ runs, and prints the results that it demonstrates."""

import math
import pathlib
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import fedmf

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
# Program -> words that it prints, and files that it writes.
SHOWN = {
    "dp_fedavg_against_bandmf": ("BandMF", "dp_fedavg_against_bandmf.png"),
    "tff_pipeline": ("achieved", "tff_pipeline/participation.jsonl"),
    "own_keras_model": ("test accuracy", None),
    "tff_client_data": ("test accuracy", None),
    "cifar10_example_level": ("for one image", None),
    "adaptive_clipping": ("and scaled Adam  epsilon 8", None),
    "cluster_sweep": ("identity", "cluster_sweep/results.csv"),
    "numpy_logistic": ("test accuracy", "logistic_report/report.html"),
    "own_pytorch_model": ("adapters: test accuracy", None),
    "clients_for_epsilon": ("At epsilon 2", None),
    "choose_bands": ("epsilon 8", "choose_bands.png"),
    "flower_pytorch": ("test accuracy", "flower_pytorch/participation.jsonl"),
    "flower_accuracy": ("3.8 times less again", "flower_accuracy.png"),
    "audit_own_log": ("observed: 15 rounds apart", "audit_statement.md"),
    "check_statement": ("Sensitivity and epsilon are confirmed", "statement.json"),
}
APART = {
    "cluster_sweep",
    "flower_accuracy",
    "check_statement",
    "numpy_logistic",
    "flower_pytorch",  # tests/flower/test_torch_models.py runs it.
    "own_pytorch_model",  # tests/pytorch/test_page.py runs it.
}
MAX_LINES = 80


@pytest.fixture
def run_example(tmp_path, monkeypatch, capfd):
    """Runs a program in this process, which has imported TensorFlow, and returns its exit status
    and output.
    """
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "cache"))  # Users have a cache of fits.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *filter(None, sys.path)])

    def run(name, *arguments):
        status = None
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        try:
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        except SystemExit as stop:
            status = stop.code
        return status, capfd.readouterr().out

    return run


def smaller(make, **sizes):
    """Returns the function with these arguments replaced wherever a call passes them."""
    return lambda *args, **options: make(
        *args, **options | {name: sizes[name] for name in options if name in sizes}
    )


def assert_shown(name, folder, status, printed):
    words, file = SHOWN[name]
    assert not status
    assert words in printed
    assert file is None or (folder / file).exists()


def test_every_program_is_listed_and_short():
    programs = {path.stem: path.read_text() for path in EXAMPLES.glob("*.py")}
    rows = re.findall(
        r"^\| \[(\w+)\.py\]\(\1\.py\).*?\| (yes|no)(?:, but PyTorch(?: and Flower)?)? \|",
        (EXAMPLES / "README.md").read_text(),
        re.M,
    )
    assert sorted(SHOWN) == sorted(programs) == sorted(name for name, _ in rows)
    for name, needs_tensorflow in rows:
        assert programs[name].count("\n") < MAX_LINES, name
        assert ("No TensorFlow." in programs[name]) == (needs_tensorflow == "no"), name
        imports = re.search(r"import tensorflow|import federated|fedmf\.cli", programs[name])
        assert bool(imports) == (needs_tensorflow == "yes"), name


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.usefixtures("clients_in_turn")
# The programs of APART have their own tests.
@pytest.mark.parametrize(
    "name",
    sorted({*SHOWN} - APART),
)
def test_program_prints_what_it_shows(name, tmp_path, run_example, monkeypatch):
    """Programs run with fewer rounds, clients and bands, unless they count the rounds."""
    if name != "tff_pipeline":
        fewer = smaller(fedmf.TrainConfig, rounds=6, cohort_size=8, min_sep=3, evaluate_every=3)
        monkeypatch.setattr(fedmf, "TrainConfig", fewer)
        monkeypatch.setattr(fedmf, "choose_bands", smaller(fedmf.choose_bands, bands=[64, 128]))
    assert_shown(name, tmp_path, *run_example(name))


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.cluster
def test_the_cluster_example_prints_what_it_shows(tmp_path):
    command = [sys.executable, str(EXAMPLES / "cluster_sweep.py")]
    finished_process = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert_shown("cluster_sweep", tmp_path, finished_process.returncode, finished_process.stdout)


@pytest.mark.slow
def test_the_figure_beside_flower_has_the_errors_computed_apart_from_fedmf(tmp_path, run_example):
    """Root mean square of the running sum's error in clip norms: 200 rounds, epsilon 8, delta 1e-5.

    With independent noise by hand: k participations need the noise multiplier of one (Balle and
    Wang 2018, Thm. 8) times the root of k, and the variance of the sum grows by it each round.
    """

    def excess(mu, epsilon=8.0, delta=1e-5):
        cdf = scipy.stats.norm.cdf
        return cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * cdf(-mu / 2 - epsilon / mu) - delta

    single = 1 / scipy.optimize.brentq(excess, 0.1, 10, xtol=1e-12)
    by_hand = [f"{single * math.sqrt(k * 201 / 2):.2f}" for k in (200, 4)]
    status, printed_text = run_example("flower_accuracy")
    assert_shown("flower_accuracy", tmp_path, status, printed_text)
    printed_errors = re.findall(r"^.{36} +[\d.]+ +([\d.]+)$", printed_text, re.M)
    assert printed_errors == [*by_hand, "3.38", "3.16"]
    assert printed_errors[0] == "85.10"


@pytest.mark.slow
def test_check_statement_refutes_a_false_statement(tmp_path, run_example):
    assert_shown("check_statement", tmp_path, *run_example("check_statement"))
    path = tmp_path / "statement.json"
    statement_text = path.read_text()
    stddev = re.search(r'"stddev": ([\d.]+)', statement_text)
    path.write_text(statement_text.replace(stddev[0], f'"stddev": {0.99 * float(stddev[1])}'))
    status, printed_text = run_example("check_statement", "statement.json", "mechanism.npz")
    assert status == 1
    assert "TOO STRONG" in printed_text
