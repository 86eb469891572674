"""Verdicts of exact items: each clause changes its verdict if the numbers that it reads change."""

import collections
import functools
import itertools
import sys
import warnings

import numpy as np
import pytest

from fedmf.experiments.papers import (
    ITEMS,
    Request,
)
from tests.experiments.test_items import MADE, each

FACTORS = (-1.0, 0.0, 0.3, 0.9, 1.1, 3.0, 1e3)


def judge_of(name):
    """Returns the module of an item's judge, and the judge's name in it."""
    make = ITEMS[name].make
    while isinstance(make, functools.partial):
        make = make.func
    return sys.modules[make.__module__], f"judge_{make.__name__.lstrip('_')}"


def variants(value):
    """Yields changed copies of a judge's input: numbers are scaled, series reversed and flattened,
    printed numbers differ in their last digit, and entries of a mapping are exchanged.
    """
    if isinstance(value, bool | collections.abc.Callable | None):
        return
    if isinstance(value, str):
        if value.lstrip("≤-").replace(".", "").replace("e", "").isdigit():
            mantissa, _, exponent = value.partition("e")
            yield f"{mantissa}9" + f"e{exponent}" * bool(exponent)
    elif isinstance(value, np.ndarray):
        yield from (value * factor for factor in FACTORS)
        yield from (value[::-1], np.flip(value, axis=-1), np.full_like(value, value.flat[0]))
        for place in (0, -1):
            spike = value.astype(np.float64)
            spike[place] = 10.0 * spike[place] + 1.0
            yield spike
    elif isinstance(value, collections.abc.Mapping):
        for key in value:
            yield from ({**value, key: entry} for entry in variants(value[key]))
        for a, b in itertools.combinations(value, 2):
            yield {**value, a: value[b], b: value[a]}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for field in value._fields:
            yield from (value._replace(**{field: x}) for x in variants(getattr(value, field)))
    elif isinstance(value, list | tuple):
        for i in range(len(value)):
            for entry in variants(value[i]):
                yield [*value[:i], entry, *value[i + 1 :]]
        if len(value) > 1:
            yield [value[1], value[0], *value[2:]]
            yield [value[1], *value[1:]]
            yield [value[0]] * len(value)
            yield value[:-1]
    else:
        yield from (value * factor for factor in FACTORS)
        yield value + 1


def verdicts_of_variants(judge, inputs):
    """Yields the verdict of each clause for each change of one input."""
    for key in inputs:
        for value in variants(inputs[key]):
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                try:
                    yield [clause.verdict for clause in judge(**{**inputs, key: value})]
                except (ValueError, ArithmeticError, LookupError, TypeError):
                    continue


def never_changed(judge, inputs):
    """Returns the judged clauses whose verdict is the same for all changes of the inputs."""
    clauses = judge(**inputs)
    seen = [{clause.verdict} for clause in clauses]
    for verdicts in verdicts_of_variants(judge, inputs):
        for verdict, of_clause in zip(verdicts, seen, strict=False):
            of_clause.add(verdict)
    return [
        clause.text
        for clause, of_clause in zip(clauses, seen, strict=True)
        if clause.verdict != "not judged" and len(of_clause) == 1
    ]


@pytest.mark.parametrize("name", each(MADE))
def test_every_clause_can_turn(name, tmp_path, monkeypatch, quick):
    module, judge_name = judge_of(name)
    judge = getattr(module, judge_name)
    inputs = {}

    def spy(**arguments):
        inputs.update(arguments)
        return judge(**arguments)

    monkeypatch.setattr(module, judge_name, spy)
    outcome = ITEMS[name].make(Request(folder=tmp_path, scale="tiny"))
    assert outcome.clauses
    assert never_changed(judge, inputs) == []
