"""The guarantee after the fact: what a plan's noise gives for the participation that was observed.

What a record of (client, round) can show is how often and how far apart clients took part, and with
that the guarantee that does not rest on chance. Whether clients were drawn at random, and who was
drawn stayed secret, it cannot show: an amplified guarantee is repeated as planned, together with
what in the record speaks against its sampling scheme.
"""

import dataclasses
import itertools
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedmf import checks, fields
from fedmf.audits.achieved import (
    Achieved,
    Offender,
    Offenders,
    Tally,
    later_rounds,
    unrecorded_sentence,
)
from fedmf.audits.log import DEFAULT_MEMORY, LogForm, ParticipationLog, sorted_log
from fedmf.files import checked_path
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.ledger import ParticipationLedger
from fedmf.participation.schema import EveryRound
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.attack_risk import AttackRisk
from fedmf.privacy.describe import (
    attack_values,
    audit_log_command,
    group_values,
    guarantee_values,
    statement_values,
)
from fedmf.privacy.plan import Plan, check_plan
from fedmf.privacy.rounding import finite
from fedmf.privacy.statement import markdown
from fedmf.privacy.systems import SYSTEMS, Subject, check_audited_system

_MOST_MEMORY = 2**50  # bytes, of any machine


def _sentences(name: str, value: Any) -> tuple[str, ...]:
    return checks.strings(name, value, hint="give a list of sentences")


def _system(name: str, value: Any) -> str:
    return checks.one_of(name, value, tuple(SYSTEMS))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit(fields.Checked, fields.ShortRepr):
    """The guarantee after the fact: planned and achieved, side by side.

    Attributes:
      planned: the plan.
      observed: who took part, summed up.
      achieved: the plan's noise accounted with the rounds of the one client to whom the run was
        most sensitive, without amplification by sampling; never weaker than the plan without
        amplification where the run kept to it. None where nobody took part. The run that a
        simulation stands for was not observed: for it this is the plan without amplification, or
        every client in every round if the simulation broke the plan.
      contradictions: in what the observed participation is not what the plan says;
        one sentence each.
      offenders: the clients that broke the plan; None where nobody did, and of a simulation.
      most_spent: of a participation budget, the largest sensitivity that a client's rounds cost;
        else None.
      shares_spent: of a participation budget, share of it -> clients that spent so
        much; else empty.
      unrecorded: names the rounds of the run that are not in the record, what `achieved` counts
        them as, and what to do; or None.
      log: the file it was read from; None for a ledger.
      everyone: where the ledger marks clients as noncompliant, the audit over all clients; all else
        but `offenders` is about the others, whom the guarantee covers. None where nobody is.
      system: the kind of system that was audited, a key of `fedmf.privacy.systems.SYSTEMS`.
    """

    _shown_first = ("epsilon", "rho")
    planned: Plan = fields.validated(fields.instance(Plan))
    observed: ParticipationStats = fields.validated(fields.instance(ParticipationStats))
    achieved: Achieved | None = fields.validated(fields.instance(Achieved), repr=False)
    contradictions: Sequence[str] = fields.validated(_sentences, ())
    offenders: Offenders | None = fields.validated(fields.instance(Offenders), None)
    most_spent: float | None = fields.positive_float(None, "", allow_zero=True)
    shares_spent: Mapping[str, int] = dataclasses.field(
        default_factory=dict, metadata={"check": fields.instance(Mapping)}
    )
    unrecorded: str | None = fields.validated(fields.plain_text, None)
    log: ParticipationLog | None = fields.validated(fields.instance(ParticipationLog), None)
    everyone: "Audit | None" = None
    system: str = dataclasses.field(default="ledger", compare=False, metadata={"check": _system})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.everyone is not None:
            fields.instance(Audit)("everyone", self.everyone)

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
        """Epsilon that also rests on the plan's sampling, which no record can prove; None without
        sampling, or if it was contradicted.
        """
        if self.planned.sampling is None or self.contradictions:
            return None
        return min(self.planned.epsilon, self.epsilon)

    def statement(
        self,
        *,
        cohort_size: int | None = None,
        population: int | None = None,
        system: str | None = None,
    ) -> str:
        """Returns the privacy statement of what was run, as Markdown.

        Args:
          cohort_size, population: of the run, where they are known.
          system: "pipeline" for a TFF pipeline with `dp_aggregator`, of whose ledger or log this is
            the audit; None for the system that was audited.

        Raises:
          TypeError, ValueError: naming the argument; a system of which the audit knows nothing.
        """
        subject = None if system is None else Subject(system=system)
        return markdown(
            self.statement_values(cohort_size=cohort_size, population=population, subject=subject)
        )

    def statement_values(
        self,
        *,
        subject: Subject | None = None,
        cohort_size: int | None = None,
        population: int | None = None,
        pretraining: str | None = None,
        canaries: int = 0,
        commands: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """The statement of what was planned, run and observed, in plain JSON types
        and at full precision.

        "achieved" is null where nobody took part, and of a simulation, whose claimed run
        was not observed.

        Args:
          subject: the system that was audited; None says its kind alone.
          cohort_size, population: of the run, where they are known.
          pretraining, canaries: as of `fedmf.privacy.describe.statement_values`.
          commands: that check what is stated; None for those that the audit knows.

        Raises:
          TypeError, ValueError: naming the argument; a subject of another kind than was audited.
        """
        subject = Subject(system=self.system) if subject is None else subject
        fields.instance(Subject)("subject", subject)
        check_audited_system(subject.system, self.system)
        if cohort_size is not None:
            hint = "use the number of clients, or None where it is not known"
            cohort_size = checks.integer("cohort_size", cohort_size, low=1, hint=hint)
        values = statement_values(
            self.planned,
            pretraining=pretraining,
            population=population,
            canaries=canaries,
            commands=self._commands() if commands is None else commands,
            subject=subject,
        )
        observed = self.observed
        log = self.log
        sampling = self.planned.sampling
        achieved = self._achieved_values()
        if achieved is not None:
            achieved["epsilon_if_sampled_as_planned"] = finite(self.amplified_epsilon)
        if self.contradictions and self.achieved is not None:
            simulates = self.planned.simulation is not None
            values["group_privacy"] = [] if simulates else group_values(self.achieved.plan)
            values["attack"] = None if simulates else attack_values(self.achieved.plan)
        if self.unrecorded is not None:
            values["unrecorded"] = self.unrecorded
        varies = sampling is not None and sampling.independent
        everyone = self.everyone
        return values | {
            "observed": observed.summary()
            | {
                "population": population,
                "cohort_size": cohort_size,
                "short_rounds": None if cohort_size is None or varies else observed.short_rounds,
                "empty_rounds": observed.empty_rounds,
                "smallest_cohort": int(min(observed.cohort_sizes, default=0)),
                "largest_cohort": int(max(observed.cohort_sizes, default=0)),
                "log": None
                if log is None
                else {
                    "name": log.name,
                    "bytes": log.size,
                    "sha256": log.sha256,
                    "rows": log.rows,
                    "duplicates_counted_once": log.duplicates,
                },
            }
            | ({} if self.most_spent is None else {"most_spent": self.most_spent}),
            "achieved": achieved,
            "contradictions": list(self.contradictions),
            "offenders": self._offender_values(),
            # What clients that were known to deviate did, and the guarantee
            # of all clients together.
            "noncompliant": None
            if everyone is None
            else {
                "clients": everyone.observed.clients - observed.clients,
                "min_separation": everyone.observed.min_separation,
                "max_participations": everyone.observed.max_participations,
                "achieved_by_all": everyone._achieved_values(),
            },
        }

    def _commands(self) -> list[str] | None:
        """Returns the commands that audit the log again; None without a log."""
        if self.log is None:
            return None
        form = dataclasses.asdict(self.log.form)
        rounds_run = self.log.rounds_run
        return [audit_log_command(self.planned, self.log.name, rounds_run=rounds_run, options=form)]

    def _achieved_values(self) -> dict[str, Any] | None:
        if self.achieved is None or self.planned.simulation is not None:
            return None
        return self.achieved.values()

    def _offender_values(self) -> dict[str, Any] | None:
        return None if self.offenders is None else self.offenders.values()

    def spending(self) -> dict[str, Any]:
        """{"clients_by_share_spent": counts} of a participation budget; empty without one."""
        return {"clients_by_share_spent": dict(self.shares_spent)} if self.shares_spent else {}

    def values(self) -> dict[str, Any]:
        """Planned and achieved in plain JSON types; an infinite epsilon is null, and so is all that
        a simulation achieves.
        """
        p = self.planned.participation
        planned = guarantee_values(self.planned)
        achieved = self._achieved_values() or {}
        simulates = self.planned.simulation is not None
        everyone = self.everyone
        if not simulates and self.achieved is None:
            nothing = AttackRisk(mu=0.0).values()
            achieved = {"sensitivity": 0.0, "epsilon": 0.0, "rho": 0.0, "attack_risk": nothing}
        of_all = None if everyone is None or simulates else finite(everyone.epsilon)
        observed = self.observed
        values = {
            name: getattr(observed, name)
            for name in ("rounds", "participations", "clients", "empty_rounds")
        }
        for name, limit in (
            ("min_separation", p.min_sep),
            ("max_participations", p.max_participations),
        ):
            values |= {f"{name}_planned": limit, f"{name}_observed": getattr(observed, name)}
        values |= self.spending()
        for name in ("sensitivity", "epsilon", "rho", "attack_risk"):
            values |= {f"{name}_planned": planned[name], f"{name}_achieved": achieved.get(name)}
        return values | {
            "delta": self.planned.delta,
            "sampling": None
            if self.planned.sampling is None
            else type(self.planned.sampling).__name__,
            "epsilon_achieved_if_sampled_as_planned": None if simulates else self.amplified_epsilon,
            "contradictions": list(self.contradictions),
            "offenders": self._offender_values(),
            "not_in_the_record": self.unrecorded,
            "claimed_cohort": self.planned.simulation and self.planned.simulation.claimed,
            "epsilon_achieved_of_all_clients": of_all,
        }


@with_numpy_defaults
def audit_ledger(
    ledger: ParticipationLedger, plan: Plan, *, unrecorded: Sequence[int] = (), hint: str = ""
) -> Audit:
    """Accounts the plan's noise with the participation observed in `ledger` (banded paper, Sec. 6:
    planned 400, achieved 385).

    The noise's standard deviation is what it was; a different sensitivity makes it a different
    multiplier. Clients that the ledger marks as noncompliant harm nobody else (banded paper, App.
    K.1): the audit is of the others, and `everyone` is of all.

    Args:
      ledger: who took part.
      plan: what the run was planned with.
      unrecorded: rounds that were run after those of the ledger, increasing. They count as much as
        the plan allows. If somebody broke the plan, what let them may have gone on: then every
        client counts in all of them as well.
      hint: what to do about them.

    Returns:
      What was planned, observed and achieved.

    Raises:
      ValueError: the ledger is longer than the plan, or unrecorded rounds are not after it.
    """
    check_plan(plan)
    if not isinstance(ledger, ParticipationLedger):
        raise TypeError(
            f"ledger={reprlib.repr(ledger)} must be a fedmf.ParticipationLedger: audit a file with "
            "fedmf.audit_log"
        )
    unrecorded = later_rounds(unrecorded)
    hint = fields.plain_text("hint", hint)
    if len(ledger) > plan.participation.rounds:
        raise ValueError(
            f"ledger has {len(ledger)} rounds but the plan covers {plan.participation.rounds}: "
            "audit a run with its own plan"
        )
    ends = [len(ledger) - 1, *unrecorded, plan.participation.rounds]
    if any(a >= b for a, b in itertools.pairwise(ends)):
        raise ValueError(
            f"unrecorded={list(unrecorded)} must be increasing rounds from {len(ledger)} to "
            f"{plan.participation.rounds - 1}: those after the ledger's"
        )

    def audited(ledger: ParticipationLedger) -> Audit:
        clients, rounds = ledger.clients()
        observed = ledger.observed()
        tally = Tally(plan, unrecorded)
        for _ in tally.counted([rounds]):
            pass
        return _audited(
            observed,
            tally,
            lambda row: int(clients[np.searchsorted(rounds.starts, row)]),
            unrecorded=unrecorded_sentence(tally, hint),
        )

    everyone = audited(ledger)
    if not len(ledger.noncompliant()):
        return everyone
    others = audited(ledger.compliant())
    return dataclasses.replace(others, everyone=everyone, offenders=everyone.offenders)


@with_numpy_defaults
def audit_log(
    path: str | os.PathLike[str],
    plan: Plan,
    *,
    form: LogForm = LogForm(),  # noqa: B008  (frozen)
    rounds_run: int | None = None,
    memory: int = DEFAULT_MEMORY,
    folder: str | os.PathLike[str] | None = None,
) -> Audit:
    """The same for a CSV, JSON lines or Parquet file of clients and rounds,
    of any length: see `fedmf.audits.log.sorted_log`.

    Args:
      path: the file.
      plan: what the run was planned with.
      form: how the log is written.
      rounds_run: rounds after which the run ended; None for all of the plan's. Rounds after the
        last one in the log count as much as the plan allows.
      memory, folder: for sorting, as of `sorted_log`.

    Returns:
      What was planned, observed and achieved.

    Raises:
      TypeError, ValueError, OSError: those of `sorted_log`.

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
    path = checked_path("path", path, hint="name a file of clients and rounds")
    check_plan(plan)
    if not isinstance(form, LogForm):
        raise TypeError(f"form={reprlib.repr(form)} must be a fedmf.LogForm")
    if folder is not None:
        hint = "name a folder with room, or give None"
        folder = checked_path("folder", folder, hint=hint)
        if not folder.is_dir():
            raise ValueError(f"folder={str(folder)!r} is no folder: {hint}")
    memory = checks.integer("memory", memory, low=1, high=_MOST_MEMORY, hint="use bytes")
    rounds = plan.participation.rounds
    if rounds_run is not None:
        hint = "pass the number of rounds that were run"
        rounds = checks.integer("rounds_run", rounds_run, low=1, high=rounds, hint=hint)
    with sorted_log(path, rounds=rounds, memory=memory, folder=folder, form=form) as log:
        missing = range(log.rounds, rounds)
        tally = Tally(plan, missing)
        stats = ParticipationStats.of_clients(
            tally.counted(log.clients()), cohort_sizes=log.cohort_sizes()
        )
        hint = (
            f"audit the log of the whole run, or pass rounds_run={missing.start} if it ended there"
        )
        audit = _audited(
            stats,
            tally,
            log.client,
            first_round=log.first_round,
            unrecorded=unrecorded_sentence(tally, hint),
        )
    contradictions = audit.contradictions
    if log.description.lookalikes is not None:
        one, other = map(ascii, log.description.lookalikes)
        contradictions = (
            *contradictions,
            f"clients {one} and {other} differ only in characters that leave no mark, in how "
            "letters are composed or in the script of letters that look alike: they count as one",
        )
    description = dataclasses.replace(log.description, rounds_run=rounds_run)
    return dataclasses.replace(audit, log=description, contradictions=contradictions, system="log")


def _audited(
    stats: ParticipationStats,
    tally: Tally,
    client_of: Callable[[int], int | str],
    *,
    first_round: int = 0,
    unrecorded: str | None,
) -> Audit:
    """The audit of clients that were counted; `client_of` names that of a row of the record."""
    plan = tally.plan
    kept = tally.kept()
    broke = tally.broke()
    found = [sensitivity for sensitivity in (kept, broke) if sensitivity is not None]
    most_spent = None if plan.participation.budget is None else tally.most_spent
    if not found:
        return Audit(planned=plan, observed=stats, achieved=None, most_spent=most_spent)
    worst = max(found, key=lambda sensitivity: sensitivity.value)
    offenders = None
    if plan.simulation is not None:
        always = EveryRound(rounds=plan.participation.rounds)
        worst = plan.sensitivity if broke is None else sensitivity(plan.mechanism, always)
    elif broke is not None:
        others = None if kept is None else Achieved(planned=plan, sensitivity=kept)
        first = tuple(
            Offender(
                client=client_of(row),
                rounds=tuple((rounds + first_round).tolist()),
                achieved=Achieved(planned=plan, sensitivity=own),
            )
            for row, rounds, own in tally.named()
        )
        offenders = Offenders(clients=tally.offenders, first=first, others=others)
    broken = []
    if tally.offenders:
        broken = plan.participation.violations(stats, tally.most_spent)
    undrawn = []
    if plan.sampling is not None and stats.participations:
        undrawn = plan.sampling.contradictions(stats, plan.mechanism.rounds)
    return Audit(
        planned=plan,
        observed=stats,
        achieved=Achieved(planned=plan, sensitivity=worst),
        contradictions=(*broken, *undrawn),
        offenders=offenders,
        most_spent=most_spent,
        shares_spent=tally.spent,
        unrecorded=unrecorded,
    )
