"""Fits for runs whose length and participation are not known in advance. They choose the Toeplitz
or BLT mechanism with the smallest worst-case regret over several possible runs.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.blt import BLTMechanism
from fedmf.mechanisms.error import max_error, rmse
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.toeplitz import ToeplitzMechanism
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload, prefix_sum


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RangeFit:
    """A mechanism that was chosen for several possible runs, with its regret in each of them.

    Attributes:
      mechanism: the mechanism for the longest of the runs; `for_rounds` cuts it for the others.
      fitted_for: the run that it was fitted for.
      regrets: for each possible run, the error relative to the smallest error of any candidate,
        minus 1: the cost of not having known the run.
    """

    mechanism: Mechanism
    fitted_for: Participation
    regrets: tuple[float, ...]

    @property
    def worst_regret(self) -> float:
        """The largest regret of the mechanism over all possible runs."""
        return max(self.regrets)


def fit_range(
    participations: Sequence[Participation],
    family: str = "blt",
    *,
    workload: Callable[[int], Workload] = prefix_sum,
    objective: str = "max",
    options: Mapping[str, Any] | None = None,
) -> RangeFit:
    """Fits a mechanism to each possible run, evaluates all mechanisms on all runs, and returns the
    one with the smallest worst-case regret.

    Args:
      participations: the possible runs, with any rounds, separations and limits.
      family: "blt" or "toeplitz", whose recurrences continue for any number of rounds.
      workload: a function that returns the workload of so many rounds.
      objective: the error to minimise and to compare: "max", the largest, or "mean".
      options: further options of `fedmf.fit`, by name.

    Raises:
      TypeError, ValueError: the family is another one, there is no run, or `fedmf.fit` refuses.

    >>> runs = [Participation(rounds=n, schema="min_sep", min_sep=8) for n in (16, 64)]
    >>> range_fit = fit_range(runs, options={"buffers": 2})
    >>> range_fit.mechanism.rounds, 0.0 <= range_fit.worst_regret < 0.1
    (64, True)
    """
    checks.one_of("family", family, ("blt", "toeplitz"))
    if not participations:
        raise ValueError("participations is empty: name at least one possible run")
    checks.one_of("objective", objective, ("max", "mean"))
    measure_error = {"max": max_error, "mean": rmse}[objective]
    candidate_mechanisms = [
        fit(workload(p.rounds), p, family=family, objective=objective, **(options or {}))
        for p in participations
    ]
    error_by_candidate = np.empty((len(candidate_mechanisms), len(participations)))
    for i, candidate in enumerate(candidate_mechanisms):
        for j, p in enumerate(participations):
            error_by_candidate[i, j] = measure_error(
                for_rounds(candidate, p.rounds), workload(p.rounds), p
            )
    regret_by_candidate = error_by_candidate / error_by_candidate.min(axis=0) - 1.0
    best_index = int(regret_by_candidate.max(axis=1).argmin())
    max_rounds = max(p.rounds for p in participations)
    return RangeFit(
        mechanism=for_rounds(candidate_mechanisms[best_index], max_rounds),
        fitted_for=participations[best_index],
        regrets=tuple(regret_by_candidate[best_index].tolist()),
    )


def for_rounds(mechanism: Mechanism, rounds: int) -> Mechanism:
    """Returns a Toeplitz or BLT mechanism with the same coefficients and `rounds` rounds. If these
    are fewer, the coefficients are cut off; if more, a BLT continues its recurrence, and a Toeplitz
    mechanism continues with zeros.
    """
    if mechanism.rounds == rounds:
        return mechanism
    certificate_reason = f"fitted for {mechanism.rounds} rounds and used for {rounds}"
    if isinstance(mechanism, BLTMechanism):
        return dataclasses.replace(
            mechanism, rounds=rounds, certificate=None, certificate_reason=certificate_reason
        )
    assert isinstance(mechanism, ToeplitzMechanism)
    coefficient_columns = {
        name: getattr(mechanism, name) for name in ("coefficients", "noising_window")
    }
    cut_columns = {
        name: column[:rounds] for name, column in coefficient_columns.items() if column is not None
    }
    return ToeplitzMechanism(rounds=rounds, certificate_reason=certificate_reason, **cut_columns)
