"""The participation controller: hands out cohorts that cannot break the `Participation` a guarantee rests on."""

import math
import warnings
from collections.abc import Callable

import numpy as np

from fedmf import _checks
from fedmf.accounting import Plan
from fedmf.audit import Audit, audit_ledger
from fedmf.ledger import ParticipationLedger
from fedmf.participation import Participation

# Round -> boolean mask (population,): which clients check in at all. Must be a pure function of the round.
Availability = Callable[[int], np.ndarray]

_NEVER = np.iinfo(np.int32).min // 2


class PoolRanDryWarning(UserWarning):
    """Fewer clients than the cohort size were eligible and available; the round goes on with those."""


class ParticipationController:
    """Draws cohorts from the clients that are eligible and available.

    A device remembers the round of its last participation and checks in when t - last >= min_sep, at most max_participations
    times (banded paper, Sec. 6 and App. K: the timer on the device). Schema fixed_epoch instead goes through one random order
    of the population, min_sep groups of cohort_size clients, the same order every epoch (multi-epoch paper, Sec. 2: (k, b)).

    Args:
      participation: the schema to enforce.
      population: number of clients, indices 0 .. population - 1.
      cohort_size: clients a round.
      seed: of the draw; recorded, independent of the noise seed.
      availability: round -> boolean mask of shape (population,), pure; None means always available.
      ledger: the rounds that have already happened, to go on after a resume.

    Raises:
      TypeError, ValueError: for arguments that cannot work, naming the number to change, and for a ledger that this controller
        cannot have written.

    Example:
      >>> import fedmf
      >>> twice = fedmf.Participation(rounds=4, schema="min_sep", min_sep=2)
      >>> controller = ParticipationController(twice, population=6, cohort_size=3, seed=1)
      >>> cohorts = [controller.cohort(t).tolist() for t in range(4)]
      >>> sorted(cohorts[0] + cohorts[1]), controller.ledger.observed().min_separation
      ([0, 1, 2, 3, 4, 5], 2)
    """

    def __init__(
        self,
        participation: Participation,
        *,
        population: int,
        cohort_size: int,
        seed: int,
        availability: Availability | None = None,
        ledger: ParticipationLedger | None = None,
    ) -> None:
        if not isinstance(participation, Participation):
            raise TypeError(f"participation={participation!r} must be a fedmf.Participation")
        if availability is not None and not callable(availability):
            raise TypeError(
                f"availability={availability!r} must be None or a function of the round that returns a mask"
            )
        self.participation = participation
        self.population = _checks.integer("population", population, low=1, way_out="use the number of clients")
        self.cohort_size = _checks.integer(
            "cohort_size", cohort_size, low=1, way_out="use the number of clients a round"
        )
        self.seed = _checks.integer("seed", seed, low=0, way_out="use a non-negative whole number")
        self._availability = availability
        self._refuse_impossible()
        self._last = np.full(self.population, _NEVER, np.int32)
        self._count = np.zeros(self.population, np.int32)
        self._counted = 0
        self._order: np.ndarray | None = None
        self.ledger = ParticipationLedger(cohort_size=self.cohort_size)
        for t in range(len(ledger) if ledger is not None else 0):
            assert ledger is not None
            self._refuse_foreign(ledger.cohort(t))
            self.ledger.append(ledger.cohort(t))
            self._catch_up()

    def _refuse_impossible(self) -> None:
        p, size = self.participation, self.cohort_size
        if size > self.population:
            raise ValueError(
                f"cohort_size={size} is larger than population={self.population}: lower cohort_size to at most {self.population}"
            )
        b = p.min_sep
        if size * b > self.population:
            # Schema single has no min_sep of its own to change: there it is the number of rounds.
            name = "rounds" if p.schema == "single" else "min_sep"
            raise ValueError(
                f"cohort_size={size} * {name}={b} = {size * b} exceeds population={self.population}: "
                f"{_lower_cohort_size(self.population // b)}lower {name} to at most {self.population // size}, "
                f"or raise the population to {size * b}"
            )
        epochs = math.ceil(p.rounds / b)
        if p.schema == "fixed_epoch" and p.max_participations < epochs:
            raise ValueError(
                f"max_participations={p.max_participations} ends the fixed order after round {p.max_participations * b} of "
                f"rounds={p.rounds}: use max_participations={epochs}"
            )
        if size * p.rounds > self.population * p.max_participations:
            raise ValueError(
                f"max_participations={p.max_participations} of {self.population} clients cannot fill rounds={p.rounds} with "
                f"cohort_size={size}: {_lower_cohort_size(self.population * p.max_participations // p.rounds)}"
                f"or raise max_participations to {math.ceil(size * p.rounds / self.population)}"
            )

    def _refuse_foreign(self, cohort: np.ndarray) -> None:
        """Raises if this controller cannot have drawn `cohort` next: going on from there would break the participation."""
        t, p = len(self.ledger), self.participation
        another = (
            "the ledger belongs to another run, or the guarantee was already broken: audit it with fedmf.audit_ledger"
        )
        if t >= p.rounds:
            raise ValueError(f"ledger has a round {t} but the run has rounds={p.rounds}: {another}")
        if len(cohort) and cohort.max() >= self.population:
            raise ValueError(
                f"ledger's round {t} names client {cohort.max()}, outside 0..{self.population - 1}: {another}"
            )
        if len(cohort) > self.cohort_size:
            raise ValueError(f"ledger's round {t} has {len(cohort)} clients, cohort_size={self.cohort_size}: {another}")
        may = self._rested(t, cohort)
        if p.schema == "fixed_epoch":
            may &= np.isin(cohort, self._group(t))
        if not may.all():
            client = cohort[~may][0]
            raise ValueError(
                f"ledger's round {t} has client {client}, who may not take part then under {p} with seed={self.seed}: {another}"
            )

    def _rested(self, t: int, clients: np.ndarray | slice = slice(None)) -> np.ndarray:
        p = self.participation
        return (t - self._last[clients] >= p.min_sep) & (self._count[clients] < p.max_participations)

    def _group(self, t: int) -> np.ndarray:
        """Schema fixed_epoch: the clients whose turn it is in round t."""
        if self._order is None:
            self._order = np.random.default_rng(np.random.SeedSequence([self.seed, 0])).permutation(self.population)
        start = t % self.participation.min_sep * self.cohort_size
        return self._order[start : start + self.cohort_size]

    def eligible(self, t: int) -> np.ndarray:
        """Boolean mask (population,): who may take part in round t, given the ledger so far."""
        self._catch_up()
        mask = self._rested(t)
        if self._availability is not None:
            available = np.asarray(self._availability(t))
            if available.shape != (self.population,) or available.dtype != bool:
                raise ValueError(
                    f"availability({t}) gave {available.dtype} of shape {available.shape}: "
                    f"it must give a boolean mask of shape ({self.population},)"
                )
            mask &= available
        return mask

    def cohort(self, t: int) -> np.ndarray:
        """The clients of round t: int64, sorted, at most cohort_size; a pure function of (seed, t) and the ledger so far.

        Rounds are asked for in order; a round already handed out is answered again from the ledger.

        Raises:
          TypeError: t is not an int.
          ValueError: t is negative, beyond the next round, or beyond the last.

        Warns:
          PoolRanDryWarning: fewer than cohort_size clients were eligible and available. The divisor of the mean stays the fixed
            cohort size, so the guarantee is untouched.
        """
        t = _checks.integer("t", t, low=0, way_out="ask for a round of the run, from 0 on")
        if t < len(self.ledger):
            return self.ledger.cohort(t)
        if t != len(self.ledger) or t >= self.participation.rounds:
            raise ValueError(
                f"round t={t} cannot be drawn: the next round is {len(self.ledger)} of {self.participation.rounds}; "
                "ask for rounds in order, each once they are due"
            )
        mask = self.eligible(t)
        if self.participation.schema == "fixed_epoch":
            candidates = self._group(t)
            chosen = candidates[mask[candidates]]
        else:
            candidates = np.flatnonzero(mask)
            rng = np.random.default_rng(np.random.SeedSequence([self.seed, 1, t]))
            chosen = rng.choice(candidates, size=min(self.cohort_size, len(candidates)), replace=False)
        if len(chosen) < self.cohort_size:
            warnings.warn(
                f"round {t}: only {len(chosen)} of cohort_size={self.cohort_size} clients are eligible and available; "
                "the round goes on with those and the mean is still divided by the cohort size",
                PoolRanDryWarning,
                stacklevel=2,
            )
        self.ledger.append(np.sort(chosen))
        return self.ledger.cohort(t)

    def _catch_up(self) -> None:
        """Reads the rounds of the ledger that were not counted yet: what is drawn depends on the ledger and nothing else."""
        while self._counted < len(self.ledger):
            cohort = self.ledger.cohort(self._counted)
            self._last[cohort] = self._counted
            self._count[cohort] += 1
            self._counted += 1

    def audit(self, plan: Plan) -> Audit:
        """What the ledger says of the plan: observed separation and count, and the epsilon and rho they give."""
        return audit_ledger(self.ledger, plan)


def _lower_cohort_size(most: int) -> str:
    """The way out, where there is one: no cohort size below 1 helps."""
    return f"lower cohort_size to at most {most}, " if most >= 1 else ""
