"""The clauses of the trained items: each is reproduced by runs that keep to it, and has another
verdict if one line, or the spread over seeds, is changed.
"""

import dataclasses
import types

import numpy as np
import pytest

from fedmf.experiments.papers import (
    ITEMS,
    accuracy,
    cifar,
    clause,
    comparisons,
    stackoverflow_epochs,
)
from tests.experiments.made_up_runs import made_up_scores

TRAINED = [name for name, item in ITEMS.items() if item.study is not None]
# Clauses that scale small cannot compute, by item.
NOT_JUDGED = {
    "denisov-table-4": 5,  # a client rate for each of four lines, and the printed settings
    "multi-epoch-table-2": 1,  # the clip of the paper's code
    "multi-epoch-table-4": 1,  # the printed accuracies
    "multi-epoch-table-5": 1,
    "banded-figure-5": 1,  # a company's data
    "banded-figure-10": 1,  # the epsilon at which two lines cross
}


def of_accuracy(change):
    """A change of a run's accuracies, of its loss and of its number of zeroed updates."""

    def changed(run):
        rows = [
            row
            | {
                "zeroed": change(run, row["zeroed"] / 1e6) * 1e6,
                "validation": {
                    "accuracy": change(run, row["validation"]["accuracy"]),
                    "loss": 10 - change(run, 10 - row["validation"]["loss"]),
                },
            }
            for row in run.metrics
        ]
        result = {
            split: {"accuracy": change(run, values["accuracy"])} if values else {}
            for split, values in run.result.items()
            if split != "seconds"
        }
        return types.SimpleNamespace(**vars(run) | {"metrics": rows, "result": result})

    return changed


CHANGES = {
    "worst": of_accuracy(lambda run, value: 0.0),
    "best": of_accuracy(lambda run, value: 1.0),
    "reversed": of_accuracy(lambda run, value: 1 - value),
    "diverged": lambda run: types.SimpleNamespace(
        **vars(run)
        | {
            "metrics": [
                row | {"validation": row["validation"] | {"loss": row["round"]}}
                for row in run.metrics
            ]
        }
    ),
}


def whole_range(values):
    """An interval for figures that takes no time: from the smallest value to the largest."""
    return sum(values) / len(values), min(values), max(values)


def with_change(score, change):
    """A score whose runs are changed."""
    return dataclasses.replace(
        score, runs=tuple(map(change, score.runs)), tried=tuple(map(change, score.tried))
    )


@pytest.mark.parametrize("name", TRAINED)
def test_every_clause_follows_from_its_own_lines(name, tmp_path, monkeypatch):
    for module in (accuracy, stackoverflow_epochs):
        monkeypatch.setattr(module, "bootstrap_interval", whole_range)
    scores, judge = made_up_scores(monkeypatch, name, tmp_path, repeats=2)
    before = judge(scores)
    assert len({part.text for part in before}) == len(before)
    judged = {part.text for part in before if part.verdict != "not judged"}
    assert {part.text for part in before if part.verdict == "reproduced"} == judged, [
        part for part in before if part.verdict not in ("reproduced", "not judged")
    ]
    assert len(before) - len(judged) == NOT_JUDGED.get(name, 0)
    unchanged = set(judged)
    for change in CHANGES.values():
        for i, score in enumerate(scores):
            if unchanged:
                after = judge([*scores[:i], with_change(score, change), *scores[i + 1 :]])
                others = {part.text for part in after if part.verdict != "reproduced"} & judged
                # An order of two lines depends on no third one, and on no other epsilon.
                orders = [text for text in others if "is more accurate than" in text]
                assert all(score.line in text for text in orders)
                unchanged -= others
    everything = judge([with_change(score, CHANGES["diverged"]) for score in scores])
    unchanged -= {part.text for part in everything if part.verdict != "reproduced"}
    if name == "multi-epoch-figure-7":
        monkeypatch.setattr(cifar, "losses", lambda *_: {1: 1.0, 7: 2.0, 70: 3.0})
        unchanged -= {part.text for part in judge(scores) if part.verdict == "contradicted"}
    assert not unchanged


@pytest.mark.parametrize("name", ["denisov-figure-2", "multi-epoch-figure-12", "banded-figure-12"])
def test_a_wide_spread_over_seeds_leaves_clauses_inconclusive(name, tmp_path, monkeypatch):
    scores, judge = made_up_scores(monkeypatch, name, tmp_path)
    lines = list(dict.fromkeys(score.line for score in scores))

    def spread(run, value):
        """Adds to one seed as much as it takes from another, by line and rate."""
        sign = (0, 1, -1, 0)[run.config.seed - 1000]
        return value + sign * (1 + index) * (1 + run.config.server_learning_rate)

    wide = []
    for score in scores:
        index = lines.index(score.line)
        wide.append(with_change(score, of_accuracy(spread)))
    assert {part.verdict for part in judge(wide)} == {"inconclusive"}


def test_one_seed_is_not_judged(tmp_path, monkeypatch):
    scores, judge = made_up_scores(monkeypatch, "denisov-figure-2", tmp_path, repeats=1)
    assert {part.verdict for part in judge(scores)} == {"not judged"}


def test_a_line_matches_the_best_if_it_loses_at_most_a_quarter_of_the_lead():
    def score(line, *test):
        return types.SimpleNamespace(
            line=line, target=2.0, epsilon=2.0, test=np.array(test), runs=()
        )

    def verdicts(*test):
        scores = [score("best", 0.5, 0.6), score("worst", 0.1, 0.2), score("line", *test)]
        parts = comparisons.match_at_every_epsilon(scores, "line", "best", "worst")
        return [part.verdict for part in parts]

    assert verdicts(0.41, 0.51) == ["reproduced", "reproduced"]
    assert verdicts(0.39, 0.49) == ["reproduced", "contradicted"]
    assert verdicts(0.39, 0.50) == ["reproduced", "inconclusive"]


def test_equal_values_for_all_seeds_decide_nothing():
    part = comparisons.judge("It is more.", [0.0, 0.0, 0.0])
    assert part.verdict == "inconclusive"
    assert clause.worst([part]) == "inconclusive"
