"""The papers' tables: rows that take seconds.

`make tables` computes all of them, with the same functions and figures.
"""

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
from fedmf.experiments import paper_tables, sign_constraints, tuning_figures
from fedmf.experiments.papers import Request, tables
from fedmf.experiments.table_cells import Cell

ROOT = pathlib.Path(__file__).parents[2]


QUICK = {"banded-2", "banded-4", "banded-k1", "multi-epoch-6", "slides"}  # below three seconds


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in paper_tables.TABLES
    ],
)
def test_quick_rows_agree_or_differ_for_a_known_reason(name, tmp_path):
    found = tables.compared(name, Request(folder=tmp_path, scale="tiny"))
    assert found.holds, found.verdict
    for row, column, printed, ours, said in found.rows:
        known = (name, row, column) in figures.KNOWN_DIFFERENCES
        assert said.startswith("differs") == known, (
            f"{row}, {column}: printed {printed}, ours {ours}"
        )


@pytest.mark.parametrize(
    ("value", "printed", "expected"),
    [
        (5.7738e6, "5.8e6", True),
        (5.74e6, "5.8e6", False),
        (5.86e6, "5.8e6", False),
        (0.325, "0.32", True),  # in the middle
        (0.3251, "0.32", False),
        (-0.0314, "-0.031", True),
        (0.0314, "-0.031", False),
        (-1e-11, "0.000", True),
        (float("nan"), "1.0", False),
        (float("-inf"), "≤1.0", False),
    ],
)
def test_agreement_is_that_of_printed_digits(value, printed, expected):
    assert figures.agrees(value, printed) == expected


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
    held = {"signed": np.zeros((6, 6), bool), "pairs": same, "all": np.ones((6, 6), bool)}[
        constraints
    ]
    assert X[held].min(initial=0.0) >= -1e-9
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=3))).T
    scalar = max(np.linalg.norm(C[:, c::2] @ signs, axis=0).max() for c in (0, 1))
    assert scalar == pytest.approx(1.0, rel=1e-12)


def test_known_differences_are_of_known_rows():
    rows = {
        "denisov-2": {f"{row.rounds} rounds" for row in figures.DENISOV_TABLE_2},
        "multi-epoch-1": {row.label for row in figures.MULTI_EPOCH_TABLE_1},
        "banded-2": {row.label for row in figures.BANDED_TABLE_2},
        "banded-4": {
            f"{row.mechanism}, epsilon {row.epsilon:g}" for row in tuning_figures.BANDED_TABLE_4
        },
        "banded-bands": {f"epsilon {epsilon:g}" for epsilon in tuning_figures.EPSILONS},
        "banded-k1": {f"rho {rho}" for rho in tuning_figures.BANDED_K_1},
        "multi-epoch-3": {
            f"{column}, epsilon {epsilon}"
            for column, table in (
                ("MF", tuning_figures.MULTI_EPOCH_TABLE_3),
                ("DP-SGD", tuning_figures.MULTI_EPOCH_TABLE_3_DP_SGD),
                ("GD", tuning_figures.MULTI_EPOCH_TABLE_3_GD),
            )
            for epsilon in table.values()
        },
    }
    assert all(
        row in rows[table] and reason
        for (table, row, _), reason in figures.KNOWN_DIFFERENCES.items()
    )


def test_a_wrong_figure_is_found_out(monkeypatch, capsys):
    right = figures.DENISOV_TABLE_2[0]
    monkeypatch.setattr(figures, "DENISOV_TABLE_2", (right._replace(honaker="74.5"),))
    assert paper_tables.main(["--quick", "denisov-2"]) == 1
    assert "differs, smaller: see docs/fidelity (not explained)" in capsys.readouterr().out
    monkeypatch.setattr(figures, "DENISOV_TABLE_2", (right,))
    assert paper_tables.main(["--quick", "denisov-2"]) == 0
    assert capsys.readouterr().out.count(" ok ") == 3
    # A difference that is declared and does not exist is an error as well.
    monkeypatch.setitem(
        figures.KNOWN_DIFFERENCES, ("denisov-2", "256 rounds", "Honaker"), "declared only"
    )
    assert paper_tables.main(["--quick", "denisov-2"]) == 1


def test_a_figure_that_is_as_good_by_the_tables_rule_is_said_to_be():
    cell = Cell("epsilon 1", "k = 1", "16", 32, nearly="the printed has 0.20% more rmse")
    assert cell.agrees
    assert not cell.as_printed
    assert cell.verdict("banded-3") == "nearly: the printed has 0.20% more rmse"
    strict = cell._replace(nearly="")
    assert not strict.agrees
    assert strict.verdict("banded-3") == "differs, larger: see docs/fidelity (not explained)"


def test_unknown_tables_are_refused(capsys):
    with pytest.raises(SystemExit) as stopped:
        paper_tables.main(["denisov-3"])
    assert stopped.value.code == 2
    assert (
        "unknown table denisov-3: choose from denisov-2, multi-epoch-1" in capsys.readouterr().err
    )


def test_ctrl_c_is_answered_in_a_line():
    # A heading, then minutes of work
    command = [
        sys.executable,
        "-m",
        "fedmf.experiments.paper_tables",
        "banded-2",
    ]
    environment = os.environ | {"FEDMF_CACHE": "", "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, env=environment, **pipes) as process:
        process.stdout.readline()
        assert process.stdout.readline().startswith("banded-2: ")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.rstrip().endswith(
        "stopped; fits that ended are in the cache and are not repeated"
    )
    assert "Traceback" not in errors
