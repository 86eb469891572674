"""The papers' tables: rows that take seconds. `make tables` computes all of them, with the same functions and figures."""

import dataclasses
import itertools
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

import fedmf
from fedmf.experiments import paper_figures as figures
from fedmf.experiments import paper_tables, sign_constraints, table_cells, tuning_figures
from fedmf.mechanisms import fit as fitting

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize("name", paper_tables.TABLES)
def test_quick_rows_agree_or_differ_for_a_known_reason(name):
    cells = list(paper_tables.TABLES[name](quick=True))
    computed = [cell for cell in cells if cell.ours is not None and cell.printed]
    assert computed or name in ("banded-2", "banded-bands")  # minutes
    for cell in computed:
        known = (cell.table, cell.row, cell.column) in figures.KNOWN_DIFFERENCES
        assert cell.agrees != known, f"{cell.row}, {cell.column}: printed {cell.printed}, ours {cell.ours}"


@pytest.mark.parametrize(
    ("value", "printed", "expected"),
    [
        (5.7738e6, "5.8e6", True),
        (5.74e6, "5.8e6", False),
        (5.86e6, "5.8e6", False),
        (1.3649e6, "1.37e6", False),
        (1.3658e6, "1.37e6", True),
        (0.325, "0.32", True),  # in the middle
        (0.3251, "0.32", False),
        (-0.0314, "-0.031", True),
        (0.0314, "-0.031", False),
        (-1e-11, "0.000", True),
        (0.5, "≤1.15", True),
        (1.156, "≤1.15", False),
        (float("nan"), "1.0", False),
        (float("inf"), "≤1.0", False),
        (2.0, "2", True),
        (2.6, "2", False),
    ],
)
def test_agreement_is_that_of_printed_digits(value, printed, expected):
    assert figures.agrees(value, printed) == expected


def test_a_printed_figure_is_a_number():
    with pytest.raises(ValueError, match="printed='about 3' is no number"):
        figures.agrees(3.0, "about 3")


@pytest.mark.parametrize("constraints", ["pairs", "all", "signed"])
def test_sign_constraints_hold_and_pairs_are_the_certified_optimum(constraints):
    workload = fedmf.momentum_sgd(6, momentum=0.95)
    participation = fedmf.Participation(rounds=6, schema="fixed_epoch", min_sep=2)
    C = sign_constraints.constrained_encoder(workload.matrix, min_sep=2, constraints=constraints)
    X, loss = C.T @ C, np.linalg.norm(workload.matrix @ np.linalg.inv(C)) ** 2
    best = fedmf.fit(workload, participation, family="dense", tolerance=1e-8).certificate
    assert (loss / best.loss - 1) * {"signed": -1, "pairs": 0, "all": 1}[constraints] >= 0
    if constraints == "pairs":
        assert best.lower_bound * (1 - 1e-9) <= loss <= best.loss * (1 + 1e-7)
    same = np.subtract.outer(np.arange(6), np.arange(6)) % 2 == 0
    held = {"signed": np.zeros((6, 6), bool), "pairs": same, "all": np.ones((6, 6), bool)}[constraints]
    assert X[held].min(initial=0.0) >= -1e-9
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=3))).T
    scalar = max(np.linalg.norm(C[:, c::2] @ signs, axis=0).max() for c in (0, 1))
    assert scalar == pytest.approx(1.0, rel=1e-12)


def test_multi_epoch_table_1_has_all_its_lines():
    labels = [row.label for row in figures.MULTI_EPOCH_TABLE_1]
    assert len(labels) == len(set(labels)) == 29  # MF(k=1, n=100)x20 is printed twice, with the same figure
    assert {"(Online) Honaker(n=2000)", "MF(k=5, n=500)x4", "FFT Optimal Decoder(n=400)x5"} < set(labels)


def test_known_differences_are_of_known_tables():
    rows = {
        "denisov-2": {f"{row.rounds} rounds" for row in figures.DENISOV_TABLE_2},
        "multi-epoch-1": {row.label for row in figures.MULTI_EPOCH_TABLE_1},
        "banded-2": {row.label for row in figures.BANDED_TABLE_2},
        "banded-4": {f"{row.mechanism}, epsilon {row.epsilon:g}" for row in tuning_figures.BANDED_TABLE_4},
        "banded-bands": {f"epsilon {epsilon:g}" for epsilon in tuning_figures.EPSILONS},
        "banded-k1": {f"rho {rho}" for rho in tuning_figures.BANDED_K_1},
        "multi-epoch-3": {
            *(f"MF, epsilon {epsilon}" for epsilon in tuning_figures.MULTI_EPOCH_TABLE_3.values()),
            *(f"DP-SGD, epsilon {epsilon}" for epsilon in tuning_figures.MULTI_EPOCH_TABLE_3_DP_SGD.values()),
            *(f"GD, epsilon {epsilon}" for epsilon in tuning_figures.MULTI_EPOCH_TABLE_3_GD.values()),
        },
    }
    for (table, row, _), reason in figures.KNOWN_DIFFERENCES.items():
        assert row in rows[table]
        assert reason


def test_a_wrong_figure_is_found_out(monkeypatch, capsys):
    right = figures.DENISOV_TABLE_2[0]
    monkeypatch.setattr(figures, "DENISOV_TABLE_2", (dataclasses.replace(right, honaker="74.5"),))
    assert paper_tables.main(["--quick", "denisov-2"]) == 1
    assert "differs, smaller: see docs/fidelity (not explained)" in capsys.readouterr().out
    monkeypatch.setattr(figures, "DENISOV_TABLE_2", (right,))
    assert paper_tables.main(["--quick", "denisov-2"]) == 0
    printed = capsys.readouterr().out
    assert printed.count(" ok ") == 3
    # A difference that is declared and does not exist is an error as well.
    monkeypatch.setitem(figures.KNOWN_DIFFERENCES, ("denisov-2", "256 rounds", "Honaker"), "so they say")
    assert paper_tables.main(["--quick", "denisov-2"]) == 1


def test_a_figure_that_is_as_good_by_the_tables_rule_is_said_to_be():
    cell = table_cells.Cell(
        table="banded-3",
        row="epsilon 1",
        column="k = 1",
        printed="16",
        ours=32,
        nearly="the printed has 0.20% more rmse",
    )
    assert cell.agrees
    assert not cell.as_printed
    assert cell.verdict == "nearly: the printed has 0.20% more rmse"
    strict = dataclasses.replace(cell, nearly="")
    assert not strict.agrees
    assert strict.verdict == "differs, larger: see docs/fidelity (not explained)"


def test_a_family_that_is_missing_is_said_to_be(monkeypatch, capsys):
    monkeypatch.setattr(figures, "DENISOV_TABLE_2", figures.DENISOV_TABLE_2[:1])
    monkeypatch.delitem(fitting._FAMILIES, "low_rank")
    assert paper_tables.main(["denisov-2"]) == 0
    assert "family 'low_rank' is not there yet" in capsys.readouterr().out


def test_unknown_tables_are_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        paper_tables.main(["denisov-3"])
    assert stopped.value.code == 2
    assert "unknown table denisov-3: choose from denisov-2, multi-epoch-1" in capsys.readouterr().err


@pytest.mark.parametrize("driver", ["paper_tables", "band_figure"])
def test_ctrl_c_is_answered_in_a_line(driver, tmp_path):
    """With arguments that say something before minutes of work."""
    arguments = ["banded-2"] if driver == "paper_tables" else ["--out", str(tmp_path / "figure.png")]
    command = [sys.executable, "-m", f"fedmf.experiments.{driver}", *arguments]
    environment = os.environ | {"FEDMF_CACHE": "", "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        # A table's heading comes after an empty line.
        lines = (process.stdout, process.stdout) if driver == "paper_tables" else (process.stderr,)
        said = "".join(stream.readline() for stream in lines)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert said
    assert process.returncode == 130
    assert errors.rstrip().endswith("stopped; fits that ended are in the cache and are not repeated")
    assert "Traceback" not in errors
