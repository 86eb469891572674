"""Numbers in the text of a page are compared with computed ones, to the digits that are printed."""

import importlib.util
import pathlib

import pytest

from tests.refusals import refusal

_SPEC = importlib.util.spec_from_file_location(
    "printed", pathlib.Path(__file__).parents[2] / "docs" / "extensions" / "printed.py"
)
printed = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(printed)


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(printed, "DOCS", tmp_path)
    (tmp_path / "page.md").write_text(
        "The epsilon of\n4.39 and 1e-4, 5%. For two: 0.7465: so.\nTwice. Twice 3.\n"
    )
    return "page"


@pytest.mark.parametrize(
    ("phrase", "values"),
    [
        ("epsilon of {} and {}, {}%", [4.3945, 1.4e-4, 5.4]),
        ("two: {}: so", [0.74648]),
        ("Twice {}.", [3]),
    ],
)
def test_values_that_round_to_what_is_printed_pass(page, phrase, values):
    error = None
    try:
        printed.says(page, phrase, *values)
    except ValueError as raised_error:
        error = raised_error
    assert error is None


@pytest.mark.parametrize(
    ("phrase", "values"),
    [
        ("epsilon of {} and", [4.396]),
        ("epsilon of {} and", [4.384]),
        ("and {}, 5%", [1.6e-4]),
        ("two: {}: so", [0.0]),  # no part of a number is one
        ("epsilon of {}9 and", [4.3]),
        ("epsilons of {} and", [4.39]),
        ("Twice", []),
        ("epsilon of 4.39", []),
        ("epsilon of {} and {},", [4.39]),
    ],
)
def test_other_values_and_missing_phrases_fail(page, phrase, values):
    with refusal(r"page\.md|zip"):
        printed.says(page, phrase, *values)
