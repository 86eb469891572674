"""One Toeplitz or BLT mechanism for runs whose length and participation are not known yet: the one
with the least worst regret.
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
    """A mechanism for several possible runs.

    Attributes:
      mechanism: for the longest of them; cut, with `for_rounds`, it is that of the others.
      fitted_for: the run that it was fitted for.
      regrets: error over the least that any candidate has, minus 1, for each possible run: what it
        costs not to have known it.
    """

    mechanism: Mechanism
    fitted_for: Participation
    regrets: tuple[float, ...]

    @property
    def worst_regret(self) -> float:
        """The largest of `regrets`."""
        return max(self.regrets)


def fit_range(
    participations: Sequence[Participation],
    family: str = "blt",
    *,
    workload: Callable[[int], Workload] = prefix_sum,
    objective: str = "max",
    options: Mapping[str, Any] | None = None,
) -> RangeFit:
    """Fits a mechanism for each possible run, tries each on all of them, and returns the one whose
    worst regret is the least.

    Args:
      participations: the possible runs: any rounds, separations and limits.
      family: "blt" or "toeplitz", whose recurrences go on for any number of rounds.
      workload: of so many rounds.
      objective: what is fitted and compared: "max", the largest error, or "mean".
      options: of `fedmf.fit`, by name.

    Raises:
      TypeError, ValueError: another family, no run, or what `fedmf.fit` refuses.

    >>> runs = [Participation(rounds=n, schema="min_sep", min_sep=8) for n in (16, 64)]
    >>> found = fit_range(runs, options={"buffers": 2})
    >>> found.mechanism.rounds, 0.0 <= found.worst_regret < 0.1
    (64, True)
    """
    checks.one_of("family", family, ("blt", "toeplitz"))
    if not participations:
        raise ValueError("participations is empty: name at least one possible run")
    measure = {"max": max_error, "mean": rmse}[
        checks.one_of("objective", objective, ("max", "mean"))
    ]
    fits = [
        fit(workload(p.rounds), p, family=family, objective=objective, **(options or {}))
        for p in participations
    ]
    errors = np.array(
        [
            [measure(for_rounds(m, p.rounds), workload(p.rounds), p) for p in participations]
            for m in fits
        ]
    )
    regrets = errors / errors.min(axis=0) - 1.0
    best = int(regrets.max(axis=1).argmin())
    longest = max(p.rounds for p in participations)
    return RangeFit(
        mechanism=for_rounds(fits[best], longest),
        fitted_for=participations[best],
        regrets=tuple(regrets[best].tolist()),
    )


def for_rounds(mechanism: Mechanism, rounds: int) -> Mechanism:
    """The Toeplitz or BLT mechanism of as many rounds with the same coefficients: fewer, or more of
    the recurrence or of zeros.
    """
    if mechanism.rounds == rounds:
        return mechanism
    reason = f"fitted for {mechanism.rounds} rounds and used for {rounds}"
    if isinstance(mechanism, BLTMechanism):
        return dataclasses.replace(
            mechanism, rounds=rounds, certificate=None, certificate_reason=reason
        )
    assert isinstance(mechanism, ToeplitzMechanism)
    numbers = {name: getattr(mechanism, name) for name in ("coefficients", "noising_window")}
    cut = {name: None if column is None else column[:rounds] for name, column in numbers.items()}
    return ToeplitzMechanism(rounds=rounds, certificate_reason=reason, **cut)
