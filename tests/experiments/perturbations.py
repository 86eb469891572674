"""Changes of the numbers that the judge of an exact item reads."""

import collections.abc
import contextlib
import functools
import itertools
import sys
import warnings

import numpy as np

from fedmf.experiments.papers import ITEMS
from fedmf.experiments.papers.cells import Cell

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
    elif isinstance(value, Cell):
        for ours in (value.ours * 3.0 + 1.0, value.ours * 0.3, value.theirs):
            yield value._replace(ours=ours, nearly="")
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


def clauses_of_variants(judge, inputs):
    """Yields the clauses for each change of one input that the judge can read."""
    for key in inputs:
        for value in variants(inputs[key]):
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                with contextlib.suppress(ValueError, ArithmeticError, LookupError, TypeError):
                    yield judge(**{**inputs, key: value})


def never_changed(judge, inputs):
    """Returns the judged clauses whose verdict is the same for all changes of the inputs."""
    clauses = judge(**inputs)
    changed_texts = set()
    for new_clauses in clauses_of_variants(judge, inputs):
        verdict_by_text = {clause.text: clause.verdict for clause in new_clauses}
        for i, clause in enumerate(clauses):
            new_verdict = verdict_by_text.get(clause.text, "gone")
            if new_verdict == "gone" and len(new_clauses) == len(clauses):
                new_verdict = new_clauses[i].verdict
            if new_verdict != clause.verdict:
                changed_texts.add(clause.text)
    judged = [clause.text for clause in clauses if clause.verdict != "not judged"]
    return [text for text in judged if text not in changed_texts]
