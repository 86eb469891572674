"""The comparison with other libraries, whose environments CI does not have."""

import dataclasses
import importlib
import inspect
import math
import sys

import pytest
from click.testing import CliRunner

from benchmarks.compare import __main__ as compare
from benchmarks.compare import accounting, page, sitting
from benchmarks.compare.sitting import Case, Result, Side, Sitting

RANDOM = "random allocation, 1 of 8"
OURS, THEIRS = (
    Side(label=label, function="accounting:fedmf_allocation", environment="fedmf", distribution=of)
    for label, of in (("fedmf", "fedmf"), ("numpy", "numpy"))
)
CASE = Case(work="one", value="epsilon", sides=(OURS, THEIRS), passes=3)


def side_result_of(side=OURS, seconds=(1.0,), cpu=0.5, reason="", **values):
    answers = [{"seconds": turn_seconds, "cpu": cpu} | values for turn_seconds in seconds]
    return Result(side=side, version="1", answers=tuple(answers), reason=reason)


def test_fedmfs_side_is_measured_where_no_other_is_installed(tmp_path):
    page_path = tmp_path / "page.md"
    page_path.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    options = ["--small", "--case", RANDOM, "--environments", tmp_path, "--write", page_path]
    command_result = CliRunner().invoke(compare.main, [str(option) for option in options])
    assert command_result.exit_code == 0, command_result.output
    rows = [line.split(" | ") for line in page_path.read_text().splitlines() if RANDOM in line]
    libraries = ["opake-accounting", "PLD_accounting"]
    assert [row[1] for row in rows] == libraries * 2
    for row in rows[:2]:  # the table of results
        assert row[2].startswith("epsilon 4.2")  # as `random_allocation_epsilon` of one of 2 rounds
        assert row[3] == ".venv-compare is not there: make .venv-compare/.installed |"
    for row in rows[2:]:  # the table of costs
        assert row[2].endswith(" s")
        assert row[3:] == ["–", "– |"]
    first_text = page_path.read_text()
    assert "old" not in first_text
    assert (first_text[:7], first_text[-7:]) == ("before\n", "\nafter\n")


def test_every_side_names_a_function_that_takes_its_arguments():
    for case in compare.CASES:
        assert case.sides[0].label == "fedmf", case.work
        for side in case.sides:
            module, function = side.function.split(":")
            signature = inspect.signature(
                getattr(importlib.import_module(f"benchmarks.compare.{module}"), function)
            )
            signature.bind(**side.arguments)
            assert set(side.small) <= set(side.arguments) | set(signature.parameters), side


@pytest.mark.slow
def test_sides_take_turns_after_a_turn_that_is_not_counted(tmp_path):
    log_lines = []
    arguments = {"noise": 1.0, "positions": 2, "delta": 1e-3}
    sides = tuple(dataclasses.replace(side, arguments=arguments) for side in (OURS, THEIRS))
    for is_fresh in (True, False):
        case = dataclasses.replace(CASE, sides=sides, passes=2, unsaid=1, fresh=is_fresh)
        results = sitting.run(case, Sitting(root=tmp_path), log_lines.append)
        assert [len(side_result.answers) for side_result in results] == [2, 2]
        assert results[0].answers[0]["value"] == results[1].answers[0]["value"] > 0
    turns = [line.split(": ")[1] for line in log_lines[:6]]
    assert [turn.split(",")[0] for turn in turns] == "fedmf numpy numpy fedmf fedmf numpy".split()


@pytest.mark.parametrize(
    ("changes", "seconds", "reason"),
    [
        ({"function": "accounting:opake_allocation"}, 60, "ModuleNotFoundError: No module"),
        ({}, 1e-3, "no answer within 0 s"),
    ],
)
def test_a_side_that_does_not_answer_has_the_reason(tmp_path, changes, seconds, reason):
    arguments = {"noise": 1.0, "positions": 2, "delta": 1e-3}
    side = dataclasses.replace(THEIRS, **({"arguments": arguments} | changes))
    case = dataclasses.replace(CASE, sides=(OURS, side))
    sides = sitting.run(case, Sitting(root=tmp_path, seconds=seconds), lambda _: None)
    assert sides[1].reason.startswith(reason)
    assert not sides[1].answers
    assert page.row(case, side_result_of(value=1.0), sides[1])[3].startswith(reason)


def test_opake_runs_on_a_newer_python_from_the_same_packages(tmp_path):
    packages = tmp_path / ".venv-compare/lib/python3.11/site-packages"
    (tmp_path / ".venv-compare/bin").mkdir(parents=True)
    packages.mkdir(parents=True)
    (tmp_path / ".venv-compare/bin/python").touch()
    side = dataclasses.replace(THEIRS, environment="newer")
    command, added_environment = Sitting(root=tmp_path, newer=sys.executable).command(side)
    assert command[0] == sys.executable
    assert added_environment["PYTHONPATH"].endswith(str(packages))
    command, added_environment = Sitting(root=tmp_path).command(side)
    assert (command[0], added_environment) == (str(tmp_path / ".venv-compare/bin/python"), {})


def test_the_better_result_is_bold_whichever_library_it_is_of():
    fedmf_result = side_result_of(value=2.0, seconds=(4, 2, 4))
    library_result = side_result_of(THEIRS, (2, 1, 1), value=1.5)
    cells = page.row(CASE, fedmf_result, library_result)
    assert cells[2:] == [
        "epsilon 2.0000", "**epsilon 1.5000**", "4 s", "**1 s**", "0.5 (0.25 to 0.5)"
    ]  # fmt: skip
    higher = dataclasses.replace(CASE, lower=False, cost="CPU ms")
    cells = page.row(higher, fedmf_result, library_result)
    assert cells[2:5] == ["**epsilon 2.0000**", "epsilon 1.5000", "500 CPU ms"]
    rate = dataclasses.replace(CASE, value=sitting.RATE, lower=False, digits=1)
    assert page.row(rate, fedmf_result, library_result)[2:4] == [
        "clients/s 0.2",
        "**clients/s 1.0**",
    ]
    alike = page.row(
        CASE, side_result_of(value=1.0), side_result_of(THEIRS, value=1.0 + 1e-9, failure=1e-6)
    )
    assert alike[2:4] == ["epsilon 1.0000", "epsilon 1.0000 (wrong with a chance of 1e-6)"]


def test_a_page_without_the_marks_is_refused(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(page.BEGIN)
    with pytest.raises(ValueError, match="page=.*lacks the lines"):
        page.write(path, "text")
    assert path.read_text() == page.BEGIN


def test_all_libraries_get_the_same_encoder():
    """The Gram matrix that opake is given is that of fedmf's mechanism, at its scale."""
    from fedmf.privacy.sampling.bin_losses import bin_gram

    mechanism = accounting._toeplitz(12, 3)
    fedmf_gram = bin_gram(mechanism, 4) / mechanism.encoder()[0, 0] ** 2
    library_gram = accounting.bin_gram(12, 3, 4)
    assert math.dist(fedmf_gram.ravel(), library_gram) < 1e-12
