"""Cost of choosing among several trials under one guarantee, as the noise that each trial needs,
without client sampling.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from fedmf import checks
from fedmf.privacy.gaussian import gaussian_noise_multiplier
from fedmf.privacy.selection_bounds import selection_noise_multiplier
from fedmf.privacy.trial_count import TrialCount

ONE_RUN = "one run"
SHARED = "the trials share epsilon"
GEOMETRIC = "private selection, geometric"
LOGARITHMIC = "private selection, logarithmic"
WAYS = (ONE_RUN, SHARED, GEOMETRIC, LOGARITHMIC)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuningCost:
    """Noise of each trial for one way to choose.

    Attributes:
      way: one of `WAYS`.
      trials: number of trials, in private selection its mean.
      epsilon: the guarantee of the chosen model.
      noise_multiplier: of each trial.
      noise_ratio: noise_multiplier divided by that of one run with the same guarantee.
    """

    way: str
    trials: int
    epsilon: float
    noise_multiplier: float
    noise_ratio: float


def tuning_cost(way: str, *, trials: int, epsilon: float, delta: float) -> TuningCost:
    """Computes the noise of each trial for one way to choose.

    Args:
      way: one of `WAYS`.
      trials: number of trials, at least 1; the mean in private selection.
      epsilon, delta: guarantee of the chosen model.

    >>> cost = tuning_cost(SHARED, trials=9, epsilon=8.0, delta=1e-6)
    >>> round(cost.noise_ratio, 6)
    3.0
    """
    checks.one_of("way", way, WAYS)
    trials = checks.integer("trials", trials, low=1, high=10_000, hint="use a number such as 10")
    single_multiplier = gaussian_noise_multiplier(epsilon, delta)
    noise_multiplier = single_multiplier
    if way == SHARED:
        noise_multiplier = math.sqrt(trials) * single_multiplier
    elif way != ONE_RUN:
        shape = 1.0 if way == GEOMETRIC else 0.0
        trial_count = TrialCount(mean_trials=trials, shape=shape)
        noise_multiplier = selection_noise_multiplier(epsilon, delta, trial_count)
    return TuningCost(
        way=way,
        trials=trials,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        noise_ratio=noise_multiplier / single_multiplier,
    )


def tuning_summary(trials: int, epsilons: Sequence[float], delta: float) -> dict[str, Any]:
    """Returns the noise of each way at several epsilons, and the curves of a picture, in plain JSON
    types.

    Args:
      trials: number of trials.
      epsilons: guarantees of the chosen model; the curves are for the first.
      delta: of all guarantees.

    Returns:
      {"trials", "rows": a dict for each epsilon and way, "curves": rows for other numbers of
      trials}.
    """
    rows = [
        dataclasses.asdict(tuning_cost(way, trials=trials, epsilon=epsilon, delta=delta))
        for epsilon in epsilons
        for way in WAYS
    ]
    numbers = sorted({1, 2, 5, 10, 20, 50, trials})
    curves = [
        dataclasses.asdict(tuning_cost(way, trials=number, epsilon=epsilons[0], delta=delta))
        for way in WAYS[1:]
        for number in numbers
    ]
    return {"trials": trials, "rows": rows, "curves": curves}
