"""The guarantee after the fact: what a plan's noise gives for the participation that was observed.

What a record of (client, round) can show is how often and how far apart clients took part, and with that the guarantee that does not
rest on chance. Whether clients were drawn at random, and who was drawn stayed secret, it cannot show: an amplified guarantee is repeated
as planned, together with what in the record speaks against its sampling scheme.
"""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf import checks
from fedmf.audits.log import ParticipationLog, read_log
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.participation.ledger import ParticipationLedger
from fedmf.participation.schema import Participation
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy import statement as _statement
from fedmf.privacy.plan import Plan
from fedmf.privacy.sampling import CyclicFixedSize, CyclicPoisson, CyclicShuffle

# The chance, at most, that a run that was sampled as planned is said to contradict its sampling.
FALSE_POSITIVE_RATE = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """The guarantee after the fact: planned and achieved, side by side.

    Attributes:
      planned: the plan.
      observed: who took part, summed up.
      achieved: the plan's noise accounted with the observed participation, without amplification by sampling; never weaker than the plan
        without amplification where the run kept to it. None where nobody took part. The run that a simulation stands for was not observed:
        for it this is the plan without amplification, or every client in every round if the simulation broke the plan.
      contradictions: in what the observed participation is not what the plan says; one sentence each.
      unrecorded: names the rounds of the run that are not in the record, what `achieved` counts them as, and what to do; or None.
      log: the file it was read from; None for a ledger.
      everyone: where the ledger marks clients as noncompliant, the audit over all clients; all else is about the others, whom the guarantee
        covers. None where there are no such clients.
    """

    planned: Plan
    observed: ParticipationStats
    achieved: Plan | None
    contradictions: tuple[str, ...] = ()
    unrecorded: str | None = None
    log: ParticipationLog | None = None
    everyone: "Audit | None" = None

    @property
    def epsilon(self) -> float:
        """Epsilon of `achieved` at the plan's delta, whoever knows who was drawn."""
        return 0.0 if self.achieved is None else self.achieved.epsilon

    @property
    def rho(self) -> float:
        """zCDP of `achieved`."""
        return 0.0 if self.achieved is None else self.achieved.rho

    @property
    def amplified_epsilon(self) -> float | None:
        """Epsilon that also rests on the plan's sampling, which no record can prove; None without sampling, or if it was contradicted."""
        if self.planned.sampling is None or self.contradictions:
            return None
        return min(self.planned.epsilon, self.epsilon)

    def statement(self, **options: Any) -> str:
        """The privacy statement of what was run, as Markdown; options are those of `fedmf.privacy.statement.audit_values`."""
        return _statement.as_text(self.statement_values(**options), ".md")

    def statement_values(self, **options: Any) -> dict[str, Any]:
        """The same as plain JSON types, at full precision."""
        values = _statement.audit_values(self, **options)
        return values if self.unrecorded is None else values | {"unrecorded": self.unrecorded}

    def values(self) -> dict[str, Any]:
        """Planned and achieved in plain JSON types; an infinite epsilon is null, and so is all that a simulation achieves."""
        p = self.planned.guaranteed_participation
        planned, achieved = _numbers(self.planned), _numbers(self.achieved)
        of_all = None if self.everyone is None else self.everyone.epsilon
        if self.planned.claimed_cohort is not None:
            achieved, of_all = dict.fromkeys(achieved), None
        return {
            "rounds": self.observed.rounds,
            "participations": self.observed.participations,
            "clients": self.observed.clients,
            "empty_rounds": self.observed.empty_rounds,
            "min_separation_planned": p.min_sep,
            "min_separation_observed": self.observed.min_separation,
            "max_participations_planned": p.max_participations,
            "max_participations_observed": self.observed.max_participations,
            "sensitivity_planned": planned["sensitivity"],
            "sensitivity_achieved": achieved["sensitivity"],
            "epsilon_planned": planned["epsilon"],
            "epsilon_achieved": achieved["epsilon"],
            "rho_planned": planned["rho"],
            "rho_achieved": achieved["rho"],
            "delta": self.planned.delta,
            "sampling": None if self.planned.sampling is None else type(self.planned.sampling).__name__,
            "epsilon_achieved_if_sampled_as_planned": self.amplified_epsilon
            if self.planned.claimed_cohort is None
            else None,
            "contradictions": list(self.contradictions),
            "not_in_the_record": self.unrecorded,
            "claimed_cohort": self.planned.claimed_cohort,
            "epsilon_achieved_of_all_clients": None if of_all is None else _finite(of_all),
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _numbers(plan: Plan | None) -> dict[str, float | None]:
    if plan is None:
        return {"sensitivity": 0.0, "epsilon": 0.0, "rho": 0.0}
    s = sensitivity(plan.mechanism, plan.guaranteed_participation) if plan.sampling else plan.sensitivity
    return {"sensitivity": s.value, "epsilon": _finite(plan.epsilon), "rho": _finite(plan.rho)}


def audit_ledger(ledger: ParticipationLedger, plan: Plan) -> Audit:
    """Accounts the plan's noise with the participation observed in `ledger` (banded paper, Sec. 6: planned 400, achieved 385).

    The noise's standard deviation is what it was; a different sensitivity makes it a different multiplier. Clients that the ledger marks
    as noncompliant harm nobody else (banded paper, App. K.1): the audit is of the others, and `everyone` is of all.

    Raises:
      ValueError: the ledger is longer than the plan.
    """
    if len(ledger) > plan.participation.rounds:
        raise ValueError(
            f"ledger has {len(ledger)} rounds but the plan covers {plan.participation.rounds}: audit a run with its own plan"
        )
    everyone = _audited(ledger.observed(), plan)
    if not len(ledger.noncompliant()):
        return everyone
    return dataclasses.replace(_audited(ledger.well_behaved().observed(), plan), everyone=everyone)


def audit_log(
    path: str | os.PathLike[str], plan: Plan, *, cohort_size: int = 1, rounds_run: int | None = None, **options: Any
) -> Audit:
    """The same for a CSV or Parquet file of clients and rounds, of any length: see `fedmf.audits.log.read_log`.

    Args:
      path: the file.
      plan: what the run was planned with.
      cohort_size: rounds with fewer clients are counted as short; by default those without any.
      rounds_run: rounds after which the run ended; None for all of the plan's. Rounds after the last one in the log count as much as the
        plan allows.
      **options: client_column, round_column, first_round, duplicates, memory, folder of `read_log`.

    Raises:
      TypeError, ValueError, OSError: those of `read_log`.

    Example:
      >>> import pathlib, tempfile
      >>> import fedmf
      >>> twice = fedmf.Participation(rounds=8, schema="min_sep", min_sep=4)
      >>> identity = fedmf.fit(fedmf.prefix_sum(8), twice, family="identity")
      >>> plan = fedmf.calibrate(identity, twice, epsilon=2.0, delta=1e-6)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     log = pathlib.Path(folder) / "log.csv"
      ...     _ = log.write_text("client,round\\nann,0\\nbob,1\\nann,3\\nbob,7\\n")
      ...     audit = audit_log(log, plan)
      >>> audit.observed.min_separation, audit.contradictions, audit.epsilon <= plan.epsilon
      (3, ('two rounds of one client are 3 apart where at least 4 were planned',), True)
    """
    rounds = plan.participation.rounds
    if rounds_run is not None:
        hint = "pass the number of rounds that were run"
        rounds = checks.integer("rounds_run", rounds_run, low=1, high=rounds, hint=hint)
    log = read_log(path, rounds=rounds, cohort_size=cohort_size, **options)
    audit = dataclasses.replace(_audited(log.stats, plan), log=log)
    if log.lookalikes is not None:
        one, other = map(ascii, log.lookalikes)
        alike = f"clients {one} and {other} differ only in characters that leave no mark or in how letters are composed: they count as one"
        audit = dataclasses.replace(audit, contradictions=(*audit.contradictions, alike))
    missing = range(log.stats.rounds, rounds)
    return with_unrecorded(
        audit, missing, f"audit the log of the whole run, or pass rounds_run={missing.start} if it ended there"
    )


def _audited(stats: ParticipationStats, plan: Plan) -> Audit:
    if stats.participations == 0:
        return Audit(planned=plan, observed=stats, achieved=None)
    if plan.claimed_cohort is not None:
        achieved = _within_bounds(plan, stats)
    else:
        achieved = _accounted(plan, stats.within(plan.guaranteed_participation))
    if stats.keeps_to(plan.guaranteed_participation):
        # The planned guarantee holds; rounding in a second way of computing the same sensitivity must not deny it.
        multiplier = max(achieved.noise_multiplier, plan.unamplified_noise_multiplier)
        achieved = dataclasses.replace(achieved, noise_multiplier=multiplier)
    contradictions = (*_broken(stats, plan.guaranteed_participation), *_unsampled(stats, plan))
    return Audit(planned=plan, observed=stats, achieved=achieved, contradictions=contradictions)


def with_unrecorded(audit: Audit, rounds: Sequence[int], hint: str) -> Audit:
    """The audit where these rounds, increasing, were run without a record; `hint` says what to do about it.

    They count as much as the plan allows. If the recorded ones broke the plan, what let them may have gone on: then every client counts in
    every round.
    """
    if not rounds:
        return audit
    kept = audit.observed.keeps_to(audit.planned.guaranteed_participation)
    assumed = (
        "as much as the plan allows"
        if kept
        else "as if every client had taken part in every round, since the recorded ones break the plan"
    )
    be, count = ("is", "counts") if len(rounds) == 1 else ("are", "count")
    return dataclasses.replace(
        audit,
        achieved=_within_bounds(audit.planned, audit.observed),
        unrecorded=f"{named(rounds)} {be} not in the record of participations, and {count} {assumed}: {hint}",
    )


def named(rounds: Sequence[int]) -> str:
    """Increasing rounds in words."""
    first, last = rounds[0], rounds[-1]
    if first == last:
        return f"round {first}"
    return f"{'' if last - first < len(rounds) else f'{len(rounds)} of the '}rounds {first} to {last}"


def _within_bounds(plan: Plan, stats: ParticipationStats) -> Plan:
    if stats.keeps_to(plan.guaranteed_participation):
        return plan.without_amplification()
    return _accounted(plan, Participation(rounds=plan.participation.rounds, schema="every_round"))


def _accounted(plan: Plan, participation: Participation) -> Plan:
    """The same noise under another participation, without what sampling adds."""
    value = sensitivity(plan.mechanism, participation).value
    multiplier = plan.noise_multiplier * plan.sensitivity.value / value
    return dataclasses.replace(plan, participation=participation, noise_multiplier=multiplier, sampling=None)


def _broken(stats: ParticipationStats, p: Participation) -> list[str]:
    """In what the record does not keep to the participation."""
    broken = []
    if stats.max_participations > p.max_participations:
        broken.append(
            f"a client took part {stats.max_participations} times where at most {p.max_participations} were planned"
        )
    least = stats.min_separation
    if least is not None and least < p.min_sep:
        broken.append(f"two rounds of one client are {least} apart where at least {p.min_sep} were planned")
    if p.schema == "fixed_epoch":
        off = sum(count for gap, count in stats.separations.items() if gap % p.min_sep)
        if off:
            broken.append(
                f"{off} separations of two rounds of one client are no multiples of {p.min_sep}, so that those clients left their part "
                "of the population"
            )
        elif not broken and not stats.keeps_to(p):
            broken.append(
                f"the rounds of a client span {stats.longest_span + 1}, more than the {p.max_participations} epochs of {p.min_sep} "
                "that were planned"
            )
    return broken


def _unsampled(stats: ParticipationStats, plan: Plan) -> list[str]:
    """What shows that clients were not drawn as the plan's sampling says. Too few say nothing: those drawn may drop out."""
    from scipy import stats as distributions

    sampling = plan.sampling
    if sampling is None:
        return []
    found = []
    if stats.clients > sampling.population:
        found.append(f"{stats.clients} clients took part where the population is {sampling.population}")
    largest = int(stats.cohort_sizes.max())
    if not isinstance(sampling, CyclicPoisson) and largest > sampling.cohort_size:
        found.append(f"a round has {largest} clients where {sampling.cohort_size} were to be drawn")
    if isinstance(sampling, CyclicShuffle) and sampling.groups is not None:
        off = sum(count for gap, count in stats.separations.items() if gap % sampling.groups)
        if off and sampling.reshuffle:  # one order for all epochs is a fixed_epoch, which `_broken` checks
            found.append(
                f"{off} separations of two rounds of one client are no multiples of {sampling.groups}, so that those clients left their "
                "part of the population"
            )
    if not isinstance(sampling, CyclicPoisson | CyclicFixedSize):
        return found
    assert sampling.groups is not None
    q, n = sampling.probability, plan.mechanism.rounds
    times = sampling.compositions(n)
    # Upper bounds on the tails of what is binomial: the largest part, all rounds of the plan, all clients.
    tests = [
        (
            stats.max_participations,
            sampling.population * distributions.binom.sf(stats.max_participations - 1, times, q),
            "a client took part {} times",
        )
    ]
    if isinstance(sampling, CyclicPoisson):
        part = -(-sampling.population // sampling.groups)
        sizes = distributions.binom.sf(np.unique(stats.cohort_sizes)[-1] - 1, part, q)
        tests.append((largest, stats.rounds * float(sizes), "a round has {} clients"))
        total = distributions.binom.sf(stats.participations - 1, part * stats.rounds, q)
        tests.append((stats.participations, float(total), "there are {} participations"))
    for count, p_value, words in tests:
        if p_value < FALSE_POSITIVE_RATE / 3:
            found.append(
                f"{words.format(count)}, which sampling with probability {q:.6g} gives with probability at most {max(p_value, 1e-300):.2g}"
            )
    return found
