"""Successive halving: at fixed rounds the worse half of the settings stops (Jamieson and Talwalkar
2016, in one bracket).
"""

import math
import pathlib
from collections.abc import Mapping

import numpy as np

from fedmf.reports.groups import validation_curve
from fedmf.reports.labels import TUNED, differing
from fedmf.reports.text import smaller_is_better
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run
from fedmf.sweeps.runs import run_folder

_SHARES = (0.25, 0.5)  # of the rounds, after which settings are compared


def rungs(config: TrainConfig) -> list[int]:
    """Rounds after which settings are compared, each after a validation and before the last round.

    >>> rungs(TrainConfig(rounds=100, min_sep=10, epsilon=8.0, evaluate_every=20))
    [40, 60]
    """
    every = config.evaluate_every
    found = {math.ceil(share * config.rounds / every) * every for share in _SHARES}
    return sorted(rung for rung in found if rung < config.rounds)


def kept(out: pathlib.Path, configs: Mapping[str, TrainConfig], rung: int) -> list[str]:
    """The runs that go on after `rung` rounds: of everything compared the better half of the
    settings of the tuned fields, rounded up.

    A setting is judged by the mean over its seeds of the headline metric on the validation set
    after that round. A run that has none, because it failed, is the worst.
    """
    names = [name for name in differing(list(configs.values())) if name not in ("data", "seed")]
    settings: dict[tuple[object, ...], dict[tuple[object, ...], list[str]]] = {}
    for run, config in configs.items():
        values = config.flat()
        compared = tuple(values.get(name) for name in names if name not in TUNED)
        tuned = tuple(values.get(name) for name in names if name in TUNED)
        settings.setdefault(compared, {}).setdefault(tuned, []).append(run)
    going_on = []
    for tried in settings.values():
        order = sorted(
            tried.values(),
            key=lambda runs: -float(np.mean([_score(out, run, rung) for run in runs])),
        )
        going_on += [run for runs in order[: -(-len(order) // 2)] for run in runs]
    return [run for run in configs if run in going_on]


def _score(out: pathlib.Path, name: str, rung: int) -> float:
    """The larger the better, also of an error."""
    folder = run_folder(out, name)
    if not (folder / "config.json").exists():
        return -math.inf
    run = Run.load(folder)
    rounds, values = validation_curve(run)
    at_rung = values[rounds == rung]
    if not len(at_rung) or not math.isfinite(at_rung[-1]):
        return -math.inf
    return float(
        -at_rung[-1] if smaller_is_better(run.plan["task"]["headline_metric"]) else at_rung[-1]
    )
