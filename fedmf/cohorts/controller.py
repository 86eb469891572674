"""The participation controller: hands out cohorts that cannot break the `Participation` a guarantee
rests on.
"""

import copy
import dataclasses
import math
import reprlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.audits.guarantee import Audit, audit_ledger
from fedmf.cohorts.availability import Always, Availability
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.cohorts.draws import Pool
from fedmf.mechanisms.budget import Budget
from fedmf.participation.history import TimerHistory
from fedmf.participation.ledger import ParticipationLedger
from fedmf.participation.schema import Participation
from fedmf.participation.separation import check_separation
from fedmf.privacy.plan import Plan
from fedmf.privacy.sampling import Sampling
from fedmf.privacy.sampling.draws import Draws, EpochOrder, draw_generator

# The arrays of one byte or more a client, tens of gigabytes.
_MOST_CLIENTS = 10**10
_ROUND_HINT = "ask for a round of the run, from 0 on"


class PoolRanDryWarning(UserWarning):
    """Fewer clients than the cohort size were eligible and available; those take part."""


class ParticipationController:
    """Draws cohorts from the clients that are eligible and available.

    A device remembers the round of its last participation and checks in when t - last >= min_sep,
    at most max_participations times (banded paper, Sec. 6 and App. K: the timer on the device).
    Schema fixed_epoch instead goes through one random order of the population, min_sep groups of
    cohort_size clients, the same order every epoch (multi-epoch paper, Sec. 2: (k, b)). With
    `sampling` the scheme draws, and the participation is what must hold whatever it draws.

    A round costs work in proportion to the cohort as long as a fair share of the clients may come.
    Memory is a few bytes a client: the round of its last participation, their number, and its place
    where there is an order.

    Args:
      participation: the schema to enforce; for a participation budget the `fedmf.Budget`, which
        knows the encoder.
      population: number of clients, indices 0 .. population - 1.
      cohort_size: clients a round; their expected number where a sampling scheme
        draws them independently.
      seed: of the draw; recorded, independent of the noise seed. With `sampling` it is as secret as
        the noise seed: amplification holds only against those who do not know the sample.
      availability: a model of `fedmf.cohorts.availability`; None means always available. With
        sampling it needs a scheme of independent draws: clients that are away are not replaced.
      sampling: a scheme of `fedmf.privacy.sampling` with its partitions set, for a guarantee that
        is amplified by it.
      behavior: a simulation of devices that drop out, deviate, or come early.

    Raises:
      TypeError, ValueError: for arguments that cannot work, naming the number to change.

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
        participation: Participation | Budget,
        *,
        population: int,
        cohort_size: int,
        seed: int,
        availability: Availability | None = None,
        sampling: Sampling | None = None,
        behavior: DeviceBehavior | None = None,
    ) -> None:
        self._rule = participation
        if isinstance(participation, Budget):
            participation = participation.participation
        if not isinstance(participation, Participation):
            raise TypeError(
                f"participation={participation!r} must be a fedmf.Participation or a fedmf.Budget"
            )
        if self._rule is participation and participation.needs_encoder:
            raise TypeError(
                f"participation={participation} does not say with which encoder rounds are "
                "counted: pass the fedmf.Budget that it is of"
            )
        self.participation = participation
        self.population = checks.integer(
            "population", population, low=1, high=_MOST_CLIENTS, hint="use the number of clients"
        )
        self.cohort_size = checks.integer(
            "cohort_size", cohort_size, low=1, hint="use the number of clients a round"
        )
        self.seed = checks.integer("seed", seed, low=0, hint="use a non-negative whole number")
        self.availability = Always() if availability is None else availability
        if isinstance(availability, type) or not isinstance(self.availability, Availability):
            raise TypeError(
                f"availability={availability!r} must be None or a model of "
                "fedmf.cohorts.availability"
            )
        if behavior is not None and not isinstance(behavior, DeviceBehavior):
            raise TypeError(
                f"behavior={behavior!r} must be a fedmf.cohorts.devices.DeviceBehavior or None"
            )
        self.sampling = sampling
        self.behavior = behavior or DeviceBehavior()
        self._draws = self._order() if sampling is None else self._sampled(sampling)
        self._begin()

    def _begin(self) -> None:
        """The state before round 0."""
        self._count_anew()
        varies = self.sampling is not None and self.sampling.independent
        self.ledger = ParticipationLedger(cohort_size=None if varies else self.cohort_size)

    def _count_anew(self) -> None:
        """Nothing of the ledger is counted."""
        self._history = self._rule.new_history(self.population)
        self._counted = 0
        self._torn = False

    def _order(self) -> Draws | None:
        """The draws of a fixed order; None to draw from the pool of eligible clients."""
        self._refuse_impossible()
        p = self.participation
        if p.has_fixed_order:
            self._refuse_timers(f'schema="{p.schema}"')
            return EpochOrder(
                population=self.population,
                cohort_size=self.cohort_size,
                epoch=p.min_sep,
                seed=self.seed,
            )
        if self.behavior.timer_jitter and not isinstance(self._rule.new_history(1), TimerHistory):
            raise ValueError(
                f"timer_jitter={self.behavior.timer_jitter} has no timer that could fire early: "
                f"schema={p.schema!r} has none; leave it out, or use schema='min_sep'"
            )
        if self.behavior.timer_jitter >= p.min_sep:
            raise ValueError(
                f"timer_jitter={self.behavior.timer_jitter} leaves nothing of min_sep={p.min_sep}: "
                f"use at most {p.min_sep - 1}"
            )
        return None

    def _sampled(self, sampling: Any) -> Draws:
        if not isinstance(sampling, Sampling):
            raise TypeError(
                f"sampling={sampling!r} must be a scheme of fedmf.privacy.sampling, or None"
            )
        for name in ("population", "cohort_size"):
            if getattr(sampling, name) != getattr(self, name):
                raise ValueError(
                    f"{name}={getattr(self, name)} but the sampling has "
                    f"{name}={getattr(sampling, name)}: make them agree"
                )
        drawn = sampling.participation(self.participation.rounds)
        name = type(sampling).__name__
        if self.participation != drawn:
            raise ValueError(
                f"sampling={sampling} keeps to {drawn} and not to {self.participation}: use "
                f"sampling.participation({self.participation.rounds}) as the participation"
            )
        self._refuse_timers(f"sampling={name}(...)")
        if not sampling.independent and (
            not isinstance(self.availability, Always) or self.behavior.dropout > 0
        ):
            raise ValueError(
                f"{name} draws a fixed number whoever is available, and from fewer clients each "
                "would be likelier than its guarantee "
                "assumes: use CyclicPoisson, or leave out availability and dropout"
            )
        return sampling.draws(self.seed)

    def _refuse_timers(self, what: str) -> None:
        """Raises for simulated deviations from timers where the server draws."""
        if not self.behavior.timers_as_asked:
            raise ValueError(
                f"{what} leaves no choice to devices, so that {self.behavior} has nobody who could "
                "deviate or come early: "
                "leave out `noncompliant_fraction` and `timer_jitter`, or use schema=min_sep"
            )

    def _refuse_impossible(self) -> None:
        p = self.participation
        size = self.cohort_size
        b = self.participation.min_sep
        check_separation(
            b,
            population=self.population,
            cohort_size=size,
            rounds=p.rounds,
            name=p.separation_argument,
        )
        epochs = math.ceil(p.rounds / b)
        if p.has_fixed_order and p.max_participations < epochs:
            raise ValueError(
                f"max_participations={p.max_participations} ends the fixed order after round "
                f"{p.max_participations * b} of rounds={p.rounds}: use max_participations={epochs}"
            )
        if size * p.rounds > self.population * p.max_participations:
            most = self.population * p.max_participations // p.rounds
            ways_out = [f"lower `cohort_size` to at most {most},"] if most else []
            needed = math.ceil(size * p.rounds / self.population)
            ways_out.append(f"raise `max_participations` to {needed}")
            raise ValueError(
                f"max_participations={p.max_participations} of {self.population} clients cannot "
                f"fill rounds={p.rounds} with cohort_size={size}: "
                f"{' or '.join(ways_out)}"
            )

    def resume_from(self, ledger: ParticipationLedger) -> None:
        """Takes over the rounds that have already happened, before the first draw of this
        controller; all of them, or none.

        Args:
          ledger: of the run that goes on.

        Raises:
          TypeError: no ledger.
          ValueError: rounds that this controller cannot have drawn, or it has drawn
            some of its own.
        """
        if not isinstance(ledger, ParticipationLedger):
            raise TypeError(
                f"ledger={reprlib.repr(ledger)} must be a fedmf.ParticipationLedger: "
                "ParticipationLedger.load reads one"
            )
        if len(self.ledger):
            raise ValueError(
                f"the controller has drawn {len(self.ledger)} rounds of its "
                "own: go on from a new one"
            )
        trial = copy.copy(self)
        trial._begin()
        trial._take_over(ledger)  # refuses before anything of this controller changes
        self._take_over(ledger)

    def restore(self, cohorts: Sequence[np.ndarray], selections: Sequence[np.ndarray]) -> None:
        """Takes over rounds of a journal, which this controller drew.

        Args:
          cohorts: the clients that took part, of each round.
          selections: those that were selected.
        """
        is_noncompliant = None
        if self.behavior.noncompliant_fraction:
            is_noncompliant = self.behavior.noncompliant
        self.ledger.restore(cohorts, selections, is_noncompliant)
        for t, selected in enumerate(selections):
            self._history.record(t, selected)
        self._counted = len(selections)

    def _take_over(self, ledger: ParticipationLedger) -> None:
        for t in range(len(ledger)):
            wrong = self._impossible(t, ledger.selected(t))
            if wrong:
                raise ValueError(
                    f"ledger's round {t} {wrong}: the ledger belongs to another run, or the "
                    "guarantee was already broken: audit it with fedmf.audit_ledger"
                )
            # A sample follows from the seed. Clients that were drawn and did not come rest too, and
            # a ledger may not name them.
            selected = ledger.selected(t) if self.sampling is None else np.sort(self._sample(t))
            self._record(ledger.cohort(t), selected)
            self._catch_up()

    def _impossible(self, t: int, cohort: np.ndarray) -> str:
        """Why this controller cannot have selected the cohort in round t; empty if it can."""
        p = self.participation
        most = self.ledger.cohort_size
        if t >= p.rounds:
            return f"is beyond rounds={p.rounds}"
        if len(cohort) and cohort.max() >= self.population:
            return f"names client {cohort.max()}, outside 0..{self.population - 1}"
        if most is not None and len(cohort) > most:
            return f"has {len(cohort)} clients, cohort_size={most}"
        may = self._is_eligible(t, cohort)
        if self._draws is not None:
            may &= self._draws.can_draw(t, cohort)
        if may.all():
            return ""
        return (
            f"has client {cohort[~may][0]}, who may not take part then under {p} "
            f"with seed={self.seed}"
        )

    def _is_eligible(self, t: int, clients: np.ndarray | slice) -> np.ndarray:
        """Whether clients are eligible in round t, or ignore that they are not: bool (clients,)."""
        behavior = self.behavior
        if behavior.timers_as_asked:
            return self._rule.is_eligible(t, self._history, clients)
        if isinstance(clients, slice):
            clients = np.arange(clients.start, clients.stop)
        rounds_early: np.ndarray | int = 0
        if isinstance(self._history, TimerHistory):
            round_after = self._history.round_after[clients].astype(np.int64)
            rounds_early = behavior.rounds_early(clients, round_after)
        is_eligible = self._rule.is_eligible(t, self._history, clients, rounds_early=rounds_early)
        return is_eligible | behavior.noncompliant(clients)

    def _available(self, t: int, clients: np.ndarray) -> np.ndarray:
        there = np.asarray(self.availability.available(t, clients))
        if there.shape != clients.shape or there.dtype != bool:
            raise ValueError(
                f"availability gave {there.dtype} of shape {there.shape} for {len(clients)} "
                f"clients of round {t}: it must give a bool for each of them"
            )
        return there

    def eligible(self, t: int) -> np.ndarray:
        """Boolean mask (population,) of clients whose timer and limit allow round t and who are
        available, given the ledger so far.

        Asks every client, which `cohort` does only where few may come.

        Args:
          t: a round, from 0 on.
        """
        t = checks.integer("t", t, low=0, high=checks.MAX_ROUNDS, hint=_ROUND_HINT)
        self._catch_up()
        mask = np.zeros(self.population, bool)
        clients = np.flatnonzero(self._is_eligible(t, slice(0, self.population)))
        mask[clients] = self._available(t, clients)
        return mask

    def cohort(self, t: int) -> np.ndarray:
        """The clients of round t: int64, sorted, at most cohort_size unless a sampling scheme draws
        them independently.

        A pure function of (seed, t) and the ledger so far. Rounds are asked for in order; a round
        already handed out is answered again from the ledger.

        Args:
          t: a round, from 0 on.

        Raises:
          TypeError: t is not an int.
          ValueError: t is negative, beyond the next round, or beyond the last, where the plan is
            over.

        Warns:
          PoolRanDryWarning: fewer than cohort_size clients were eligible and available. The divisor
            of the mean stays the fixed cohort size, so the guarantee is untouched. Never with
            independent draws, whose cohorts vary in size.
        """
        t = checks.integer("t", t, low=0, hint=_ROUND_HINT)
        if t < len(self.ledger):
            return self.ledger.cohort(t)
        if t >= self.participation.rounds:
            raise ValueError(
                f"round t={t} is beyond the last, {self.participation.rounds - 1}: the plan of "
                f"rounds={self.participation.rounds} is over and has no more rounds; make a plan "
                "for more, with a guarantee of its own"
            )
        if t != len(self.ledger):
            raise ValueError(
                f"round t={t} cannot be drawn: the next round is {len(self.ledger)} of "
                f"{self.participation.rounds}; ask for rounds in order, each when it is due; to "
                "resume a run call controller.resume_from(ledger=...) first, with the ledger of "
                "the rounds before (ParticipationLedger.load reads one)"
            )
        self._catch_up()
        selected, cohort = self._drawn(t)
        if len(selected) < self.cohort_size and self.ledger.cohort_size is not None:
            warnings.warn(
                f"round {t}: only {len(selected)} of cohort_size={self.cohort_size} clients are "
                "eligible and available; "
                "the round goes on with those and the mean is still divided by the cohort size",
                PoolRanDryWarning,
                stacklevel=2,
            )
        if self.behavior.dropout:
            cohort = cohort[~self.behavior.dropped(t, cohort)]
        self._record(np.sort(cohort), np.sort(selected))
        return self.ledger.cohort(t)

    def _drawn(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """The clients that are selected for round t, and those of them that are available."""
        if self._draws is not None:
            drawn = self._sample(t)
            there = drawn[self._available(t, drawn)]
            # Nobody replaces clients of a sample that are away: a client's probability of taking
            # part may only fall.
            return (there if self.sampling is None else drawn), there
        pool = Pool(
            population=self.population,
            eligible=lambda clients: self._is_eligible(t, clients),
            available=lambda clients: self._available(t, clients),
        )
        drawn = pool.draw(draw_generator(self.seed, t), self.cohort_size)
        return drawn, drawn

    def _sample(self, t: int) -> np.ndarray:
        """Those of the round's draws whose timers and limits allow it, whoever is available."""
        assert self._draws is not None
        drawn = self._draws.clients(t)
        # Schemes with parts keep the separation alone; this guards against what was
        # recorded from outside.
        return drawn[self._is_eligible(t, drawn)]

    def _record(self, cohort: np.ndarray, selected: np.ndarray) -> None:
        self.ledger.append(
            cohort, selected=selected, noncompliant=selected[self.behavior.noncompliant(selected)]
        )

    def _catch_up(self) -> None:
        """Counts the rounds of the ledger that were not counted yet:
        draws depend on the ledger alone. What was interrupted is counted anew.
        """
        if self._torn:
            self._count_anew()
        self._torn = self._counted < len(self.ledger)
        while self._counted < len(self.ledger):
            # Selected clients have started their timers, even if nothing arrived.
            selected = self.ledger.selected(self._counted)
            self._history.record(self._counted, selected)
            self._counted += 1
        self._torn = False

    def audit(self, plan: Plan) -> Audit:
        """What the ledger says of the plan: observed separation and count, and the epsilon and rho
        they give.

        Args:
          plan: what the run was planned with.

        Raises:
          ValueError: the ledger is longer than the plan.
        """
        return dataclasses.replace(audit_ledger(self.ledger, plan), system="controller")
