"""The participation controller, which selects the clients of each round so that every client stays
within the participation limits of a plan.
"""

import copy
import dataclasses
import reprlib
import warnings
from collections.abc import Sequence

import numpy as np

from fedmf import checks
from fedmf.audits.audit import Audit
from fedmf.audits.guarantee import audit_ledger
from fedmf.cohorts.availability import Always, Availability
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.cohorts.draws import Pool, PoolRanDryWarning
from fedmf.cohorts.seeded_draws import fixed_order, scheme_draws
from fedmf.mechanisms.budget import Budget
from fedmf.participation.history import TimerHistory
from fedmf.participation.ledger import ParticipationLedger, checked_client_indices
from fedmf.participation.schema import Participation
from fedmf.privacy.plan import Plan
from fedmf.privacy.sampling import Sampling
from fedmf.privacy.sampling.randomness import SamplingRandomness

# Largest population. The controller holds a few bytes per client, which is tens of gigabytes for
# this many.
_MAX_POPULATION = 10**10
_ROUND_HINT = "ask for a round of the run, from 0 on"


class ParticipationController:
    """A controller that selects the cohort of each round from the clients that are eligible and
    available.

    A device remembers the round of its last participation and checks in when t - last >= min_sep,
    at most max_participations times (banded paper, Sec. 6 and App. K: the timer on the device).
    With schema fixed_epoch the server instead repeats one random order of the population in every
    epoch, in min_sep groups of cohort_size clients (multi-epoch paper, Sec. 2: (k, b)). With
    `sampling` the scheme samples the clients, and every sample satisfies the participation.

    The cost of a round is proportional to the cohort size, unless few clients are eligible. Memory
    is a few bytes per client: the round of its last participation, the number of its
    participations, and its position in a fixed order.

    Args:
      participation: the schema to enforce; for a participation budget the `fedmf.Budget`, which
        has the encoder.
      population: number of clients, with indices 0 .. population - 1.
      cohort_size: clients of a round; their expected number if a sampling scheme samples them
        independently.
      seed: seed of the sampling, recorded and independent of the noise seed. With `sampling` it is
        as secret as the noise seed: amplification holds only against those who do not know the
        sample.
      availability: a model of `fedmf.cohorts.availability`; None means always available. With
        `sampling` it needs a scheme that samples clients independently, since unavailable clients
        are not replaced.
      sampling: a scheme of `fedmf.privacy.sampling` with its partitions set, for a guarantee that
        is amplified by it.
      behavior: a simulation of devices that drop out, do not comply, or check in early.

    Raises:
      TypeError: an argument is not of its type, or a participation budget comes without its
        encoder (pass the `Budget`).
      ValueError: a number is out of its range; the population is too small for the cohorts that the
        participation allows; or sampling, availability and behavior cannot be combined.

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
                f"participation={participation} has no encoder, on which the allowed rounds "
                "depend: pass the fedmf.Budget that it is of"
            )
        self.participation = participation
        self.population = checks.integer(
            "population", population, low=1, high=_MAX_POPULATION, hint="use the number of clients"
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
        if sampling is None:
            self._draws = fixed_order(
                self._rule,
                population=self.population,
                cohort_size=self.cohort_size,
                seed=self.seed,
                behavior=self.behavior,
            )
        else:
            self._draws = scheme_draws(
                sampling,
                participation,
                population=self.population,
                cohort_size=self.cohort_size,
                seed=self.seed,
                availability=self.availability,
                behavior=self.behavior,
            )
        self._reset()

    def _reset(self) -> None:
        """Sets ledger and history to their state before round 0."""
        self._reset_history()
        has_varying_size = self.sampling is not None and self.sampling.independent
        ledger_cohort_size = None if has_varying_size else self.cohort_size
        self.ledger = ParticipationLedger(cohort_size=ledger_cohort_size)

    def _reset_history(self) -> None:
        """Empties the history of participations, which `_update_history` fills from the ledger."""
        self._history = self._rule.new_history(self.population)
        self._num_in_history = 0
        self._is_history_torn = False

    def resume_from(self, ledger: ParticipationLedger) -> None:
        """Resumes an interrupted run, so that the next cohort is for the round after the last one
        in the ledger.

        If the method raises an error, the controller is unchanged.

        Args:
          ledger: participation ledger of the run to resume.

        Raises:
          TypeError: `ledger` is not a ParticipationLedger.
          ValueError: this controller cannot have sampled a round of the ledger, or has already
            sampled rounds itself.
        """
        if not isinstance(ledger, ParticipationLedger):
            raise TypeError(
                f"ledger={reprlib.repr(ledger)} must be a fedmf.ParticipationLedger: "
                "ParticipationLedger.load reads one"
            )
        if len(self.ledger):
            raise ValueError(
                f"the controller has drawn {len(self.ledger)} rounds of its own: resume with a new "
                "controller"
            )
        # A copy of the controller replays the ledger first, so that this controller stays unchanged
        # if the ledger raises an error.
        controller_copy = copy.copy(self)
        controller_copy._reset()
        controller_copy._replay(ledger)
        self._replay(ledger)

    def restore(self, cohorts: Sequence[np.ndarray], selections: Sequence[np.ndarray]) -> None:
        """Restores the rounds that a journal recorded, without checking them again.

        Args:
          cohorts: clients that took part in each round.
          selections: clients that this controller had selected for each round.
        """
        is_noncompliant = None
        if self.behavior.noncompliant_fraction:
            is_noncompliant = self.behavior.noncompliant
        self.ledger.restore(cohorts, selections, is_noncompliant)
        for t, selected in enumerate(selections):
            self._history.record(t, selected)
        self._num_in_history = len(selections)

    def _replay(self, ledger: ParticipationLedger) -> None:
        """Adds the rounds of a ledger to this controller's own ledger and history. It raises
        ValueError at the first round that this controller cannot have sampled.
        """
        for t in range(len(ledger)):
            selection_fault = self._selection_fault(t, ledger.selected(t))
            if selection_fault:
                raise ValueError(
                    f"ledger's round {t} {selection_fault}: the ledger belongs to another run, or "
                    "the guarantee was already broken: audit it with fedmf.audit_ledger"
                )
            selected_clients = ledger.selected(t)
            if self.sampling is not None:
                # Clients that were sampled but did not take part are ineligible afterwards too, and
                # a ledger need not list them. So the sample is drawn again from the seed.
                selected_clients = np.sort(self._sample(t))
            self._record(ledger.cohort(t), selected_clients)
            self._update_history()

    def _selection_fault(self, t: int, selected: np.ndarray) -> str:
        """Returns the reason why this controller cannot have selected the clients in round t, or an
        empty text if it can.
        """
        participation = self.participation
        max_cohort_size = self.ledger.cohort_size
        if t >= participation.rounds:
            return f"is beyond rounds={participation.rounds}"
        if len(selected) and selected.max() >= self.population:
            return f"names client {selected.max()}, outside 0..{self.population - 1}"
        if max_cohort_size is not None and len(selected) > max_cohort_size:
            return f"has {len(selected)} clients, cohort_size={max_cohort_size}"
        is_possible = self._is_eligible(t, selected)
        if self._draws is not None:
            is_possible &= self._draws.can_draw(t, selected)
        if is_possible.all():
            return ""
        return (
            f"has client {selected[~is_possible][0]}, who may not take part then under "
            f"{participation} with seed={self.seed}"
        )

    def _is_eligible(self, t: int, clients: np.ndarray | slice) -> np.ndarray:
        """Returns whether each client may be selected for round t as far as its timer is concerned,
        as a bool array of shape (clients,).

        True for eligible clients, and for simulated clients that do not comply with their timer.
        """
        behavior = self.behavior
        if behavior.is_compliant:
            return self._rule.is_eligible(t, self._history, clients)
        if isinstance(clients, slice):
            clients = np.arange(clients.start, clients.stop)
        rounds_early: np.ndarray | int = 0
        if isinstance(self._history, TimerHistory):
            round_after = self._history.round_after[clients].astype(np.int64)
            rounds_early = behavior.rounds_early(clients, round_after)
        is_eligible = self._rule.is_eligible(t, self._history, clients, rounds_early=rounds_early)
        return is_eligible | behavior.noncompliant(clients)

    def _is_available(self, t: int, clients: np.ndarray) -> np.ndarray:
        """Returns the result of the availability model for round t, after checking that it is a
        bool array of shape (clients,).
        """
        is_available = np.asarray(self.availability.available(t, clients))
        if is_available.shape != clients.shape or is_available.dtype != bool:
            raise ValueError(
                f"availability returned {is_available.dtype} of shape {is_available.shape} for "
                f"{len(clients)} clients of round {t}: return a bool for each of them"
            )
        return is_available

    def eligible(self, t: int) -> np.ndarray:
        """Returns whether each client is eligible and available in round t, as a bool array of
        shape (population,).

        The result follows from the rounds in the ledger so far. It is computed for every client.

        Args:
          t: a round, from 0 on.
        """
        t = checks.integer("t", t, low=0, high=checks.MAX_ROUNDS, hint=_ROUND_HINT)
        self._update_history()
        is_selectable = np.zeros(self.population, bool)
        clients = np.flatnonzero(self._is_eligible(t, slice(0, self.population)))
        is_selectable[clients] = self._is_available(t, clients)
        return is_selectable

    def cohort(self, t: int) -> np.ndarray:
        """Samples the clients of round t and records them in the ledger.

        The cohort is a pure function of (seed, t) and the ledger so far. Rounds are sampled in
        order. For an earlier round, the method returns the cohort in the ledger.

        Args:
          t: a round, from 0 on.

        Returns:
          Client indices in increasing order, int64. There are cohort_size of them at most, except
          with independent sampling.

        Raises:
          TypeError: t is not an int.
          ValueError: t is negative, after the next round, or after the last round of the plan.

        Warns:
          PoolRanDryWarning: fewer than cohort_size clients were eligible and available. The mean is
            still divided by the cohort size, so that the guarantee holds. There is no warning with
            independent sampling, whose cohorts vary in size.
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
        self._update_history()
        selected, cohort = self._select(t)
        if len(selected) < self.cohort_size and self.ledger.cohort_size is not None:
            warnings.warn(
                f"round {t}: only {len(selected)} of cohort_size={self.cohort_size} clients are "
                "eligible and available; "
                "the round has only those, and the mean is still divided by the cohort size",
                PoolRanDryWarning,
                stacklevel=2,
            )
        if self.behavior.dropout:
            cohort = cohort[~self.behavior.dropped(t, cohort)]
        self._record(np.sort(cohort), np.sort(selected))
        return self.ledger.cohort(t)

    def record_cohort(self, t: int, clients: Sequence[int] | np.ndarray) -> np.ndarray:
        """Records the clients of the next round, which the caller has chosen in place of `cohort`.

        Args:
          t: the next round.
          clients: distinct client indices.

        Returns:
          The clients in increasing order, int64.

        Raises:
          TypeError: clients are not ints.
          ValueError: a client may not take part in round t, they are more than cohort_size, t is
            another round than the next, or a sampling scheme has to sample the clients.
        """
        t = checks.integer("t", t, low=0, hint=_ROUND_HINT)
        cohort = np.sort(checked_client_indices("clients", clients))
        if self.sampling is not None:
            raise ValueError(
                f"`clients` are given, and the plan is amplified by {self.sampling}, which has to "
                "sample them: leave `clients` out"
            )
        if t != len(self.ledger):
            raise ValueError(f"t={t} is not the next round, which is {len(self.ledger)}")
        self._update_history()
        selection_fault = self._selection_fault(t, cohort)
        if selection_fault:
            raise ValueError(
                f"clients: round {t} {selection_fault}; choose among the clients that "
                f"controller.eligible({t}) allows, or leave `clients` out"
            )
        self._record(cohort, cohort)
        return self.ledger.cohort(t)

    def _select(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns all clients that are selected for round t, and the available ones among them, as
        two arrays.
        """
        if self._draws is None:
            pool = Pool(
                population=self.population,
                eligible=lambda clients: self._is_eligible(t, clients),
                available=lambda clients: self._is_available(t, clients),
            )
            drawn_clients = pool.draw(SamplingRandomness(self.seed).of_round(t), self.cohort_size)
            return drawn_clients, drawn_clients
        sampled_clients = self._sample(t)
        available_clients = sampled_clients[self._is_available(t, sampled_clients)]
        if self.sampling is None:
            return available_clients, available_clients
        # Amplification assumes that a client takes part with the scheme's probability at most. So
        # unavailable clients of a sample are not replaced by others.
        return sampled_clients, available_clients

    def _sample(self, t: int) -> np.ndarray:
        """Samples round t from the scheme or the fixed order, and returns the sampled clients that
        are eligible, whether they are available or not.
        """
        assert self._draws is not None
        sampled_clients = self._draws.clients(t)
        # Samples of b-min-sep Poisson may contain ineligible clients. Samples of other schemes can
        # do so only if the run continues from a ledger that another program recorded.
        return sampled_clients[self._is_eligible(t, sampled_clients)]

    def _record(self, cohort: np.ndarray, selected: np.ndarray) -> None:
        """Appends a round to the ledger, with the selected clients that do not comply."""
        noncompliant = selected[self.behavior.noncompliant(selected)]
        self.ledger.append(cohort, selected=selected, noncompliant=noncompliant)

    def _update_history(self) -> None:
        """Adds to the history the rounds of the ledger that it does not have yet.

        An interrupted update may leave a round half recorded (a torn history). The next update then
        builds the history again from the ledger, because cohorts must depend on the ledger alone.
        """
        if self._is_history_torn:
            self._reset_history()
        self._is_history_torn = self._num_in_history < len(self.ledger)
        while self._num_in_history < len(self.ledger):
            # All selected clients are recorded, because the timer of a client starts even if its
            # update does not arrive.
            selected_clients = self.ledger.selected(self._num_in_history)
            self._history.record(self._num_in_history, selected_clients)
            self._num_in_history += 1
        self._is_history_torn = False

    def audit(self, plan: Plan) -> Audit:
        """Compares the participation in the ledger so far with a plan, and returns the guarantee
        that was achieved.

        Args:
          plan: the plan of the run.

        Raises:
          ValueError: the ledger is longer than the plan.
        """
        return dataclasses.replace(audit_ledger(self.ledger, plan), system="controller")
