"""The result of an audit, which compares the guarantee of a run with the planned guarantee."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fedmf import checks, fields
from fedmf.audits.achieved import Achieved, NoncompliantClients
from fedmf.audits.log_file import ParticipationLog
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.attack_risk import AttackRisk
from fedmf.privacy.describe import (
    attack_values,
    audit_log_command,
    guarantee_values,
    statement_values,
)
from fedmf.privacy.plan import Plan
from fedmf.privacy.rounding import finite_or_none
from fedmf.privacy.statement import markdown
from fedmf.privacy.systems import SYSTEMS, Subject, check_audited_system


def _checked_sentences(name: str, value: Any) -> tuple[str, ...]:
    """Checks that a value is a sequence of texts, and returns it as a tuple."""
    return checks.strings(name, value, hint="give a list of sentences")


def _checked_system(name: str, value: Any) -> str:
    """Checks that a value names a kind of system in `SYSTEMS`, and returns it."""
    return checks.one_of(name, value, tuple(SYSTEMS))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit(fields.Checked, fields.ShortRepr):
    """Planned guarantee of a run, together with the guarantee that follows from the observed rounds
    of its clients.

    Attributes:
      planned: the plan.
      observed: statistics of the observed participation.
      achieved: the guarantee of the plan's noise, without amplification by sampling, for the client
        to whom the run was most sensitive. If the run followed the plan, it is at least as strong
        as the plan without amplification. None if nobody took part. A simulation does not show the
        participation of the run that it simulates: this is then the plan without amplification, or
        that of every client in every round if the simulation broke the plan. The same holds for a
        private selection, most of whose trials leave no record.
      contradictions: sentences on the differences between the observed participation and the plan.
      noncompliant_clients: the clients that broke the plan; None if nobody did, or if the run is a
        simulation or a trial of a private selection.
      most_spent: of a participation budget, the largest sensitivity that a client's rounds cost;
        else None.
      shares_spent: of a participation budget, fraction of it -> number of clients that spent this
        much; else empty.
      unrecorded: a sentence on the rounds that are not in the record: how `achieved` accounts for
        them, and what to do. None if all are there.
      log: the file that was audited; None for a ledger.
      everyone: the audit of all clients, if the ledger marks some as non-compliant; all other
        attributes but `noncompliant_clients` then exclude them. None if no client is marked.
      system: the kind of system that was audited, a key of `fedmf.privacy.systems.SYSTEMS`.
    """

    _shown_first = ("epsilon", "rho")
    planned: Plan = fields.validated(fields.instance(Plan))
    observed: ParticipationStats = fields.validated(fields.instance(ParticipationStats))
    achieved: Achieved | None = fields.validated(fields.instance(Achieved), repr=False)
    contradictions: Sequence[str] = fields.validated(_checked_sentences, ())
    noncompliant_clients: NoncompliantClients | None = fields.validated(
        fields.instance(NoncompliantClients), None
    )
    most_spent: float | None = fields.positive_float(None, "", allow_zero=True)
    shares_spent: Mapping[str, int] = dataclasses.field(
        default_factory=dict, metadata={"check": fields.instance(Mapping)}
    )
    unrecorded: str | None = fields.validated(fields.plain_text, None)
    log: ParticipationLog | None = fields.validated(fields.instance(ParticipationLog), None)
    everyone: "Audit | None" = None
    system: str = dataclasses.field(
        default="ledger", compare=False, metadata={"check": _checked_system}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.everyone is not None:
            fields.instance(Audit)("everyone", self.everyone)

    @property
    def epsilon(self) -> float:
        """Epsilon of the achieved guarantee at the plan's delta; 0 if nobody took part."""
        return self._epsilon_in(self.system)

    def _epsilon_in(self, system: str) -> float:
        """Computes epsilon for the noise of a kind of system; 0 if nobody took part."""
        return 0.0 if self.achieved is None else self.achieved.epsilon_in(system)

    @property
    def rho(self) -> float:
        """Rho of the achieved guarantee in zero-concentrated DP; 0 if nobody took part."""
        return 0.0 if self.achieved is None else self.achieved.rho

    @property
    def amplified_epsilon(self) -> float | None:
        """Epsilon with amplification by sampling, if the clients were sampled as planned.

        No record can prove how they were sampled. The value is None if the plan has no sampling, or
        if the record contradicts the plan.
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
        """Returns the privacy statement of the run, as Markdown.

        Args:
          cohort_size, population: of the run, if they are known.
          system: "pipeline" for a TFF pipeline with `dp_aggregator` whose ledger or log was
            audited; None for the audited system.

        Raises:
          TypeError, ValueError: an argument of the wrong type or out of range, or a system that
            does not fit the audited one.
        """
        statement_subject = None if system is None else Subject(system=system)
        return markdown(
            self.statement_values(
                cohort_size=cohort_size, population=population, subject=statement_subject
            )
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
        """Returns the values of the privacy statement in plain JSON types, at full precision.

        "achieved" is null if nobody took part, or if the run is a simulation, whose simulated run
        was not observed.

        Args:
          subject: the audited system; None names only its kind.
          cohort_size, population: of the run, if they are known.
          pretraining, canaries: as for `fedmf.privacy.describe.statement_values`.
          commands: commands that check the statement; None for the command that audits the log.

        Raises:
          TypeError, ValueError: an argument of the wrong type or out of range, or a subject of
            another kind than the audited system.
        """
        if subject is None:
            subject = Subject(system=self.system)
        fields.instance(Subject)("subject", subject)
        check_audited_system(subject.system, self.system)
        if cohort_size is not None:
            hint = "use the number of clients, or None if it is not known"
            cohort_size = checks.integer("cohort_size", cohort_size, low=1, hint=hint)
        if commands is None:
            commands = self._commands()
        all_values = statement_values(
            self.planned,
            pretraining=pretraining,
            population=population,
            canaries=canaries,
            commands=commands,
            subject=subject,
        )
        achieved_values = self._achieved_values(subject.system)
        if achieved_values is not None:
            achieved_values["epsilon_if_sampled_as_planned"] = finite_or_none(
                self.amplified_epsilon
            )
        if self.contradictions and self.achieved is not None:
            is_simulation = self.planned.simulation is not None
            all_values["group_privacy"] = []
            all_values["attack"] = None
            if not is_simulation:
                all_values["group_privacy"] = self.achieved.group_values(subject.system)
                all_values["attack"] = attack_values(
                    self.achieved.plan, self._epsilon_in(subject.system)
                )
        if self.unrecorded is not None:
            all_values["unrecorded"] = self.unrecorded
        return all_values | {
            "observed": self._observed_values(cohort_size, population),
            "achieved": achieved_values,
            "contradictions": list(self.contradictions),
            "noncompliant_clients": self._noncompliant_values(subject.system),
            "marked_noncompliant": self._marked_values(subject.system),
        }

    def _observed_values(self, cohort_size: int | None, population: int | None) -> dict[str, Any]:
        """Returns the observed participation in plain JSON types, for the privacy statement."""
        observed_participation = self.observed
        planned_sampling = self.planned.sampling
        # If each client is sampled independently, cohort sizes are random, so no cohort counts as
        # too small.
        short_rounds = None
        if cohort_size is not None and not (
            planned_sampling is not None and planned_sampling.independent
        ):
            short_rounds = observed_participation.short_rounds
        observed_values = observed_participation.summary() | {
            "population": population,
            "cohort_size": cohort_size,
            "short_rounds": short_rounds,
            "empty_rounds": observed_participation.empty_rounds,
            "smallest_cohort": int(min(observed_participation.cohort_sizes, default=0)),
            "largest_cohort": int(max(observed_participation.cohort_sizes, default=0)),
            "log": None,
        }
        if self.log is not None:
            observed_values["log"] = {
                "name": self.log.name,
                "bytes": self.log.size,
                "sha256": self.log.sha256,
                "rows": self.log.rows,
                "duplicates_counted_once": self.log.duplicates,
            }
        if self.most_spent is not None:
            observed_values["most_spent"] = self.most_spent
        return observed_values

    def _marked_values(self, system: str) -> dict[str, Any] | None:
        """Returns the participation of the clients that the ledger marks as non-compliant.

        The guarantee in it is that of all clients together. It is None if no client is marked.
        """
        guarantee_of_all = self.everyone
        if guarantee_of_all is None:
            return None
        return {
            "clients": guarantee_of_all.observed.clients - self.observed.clients,
            "min_separation": guarantee_of_all.observed.min_separation,
            "max_participations": guarantee_of_all.observed.max_participations,
            "achieved_by_all": guarantee_of_all._achieved_values(system),
        }

    def _commands(self) -> list[str] | None:
        """Returns the commands that repeat the audit; None if a ledger was audited and no log."""
        if self.log is None:
            return None
        form_options = dataclasses.asdict(self.log.form)
        audit_command = audit_log_command(
            self.planned, self.log.name, rounds_run=self.log.rounds_run, options=form_options
        )
        return [audit_command]

    def _achieved_values(self, system: str) -> dict[str, Any] | None:
        """Returns the achieved guarantee in plain JSON types.

        It is None if nobody took part, or if the run simulates a larger cohort.
        """
        if self.achieved is None or self.planned.simulation is not None:
            return None
        return self.achieved.values(system)

    def _noncompliant_values(self, system: str) -> dict[str, Any] | None:
        """Returns the clients that broke the plan, in plain JSON types; None if nobody did."""
        if self.noncompliant_clients is None:
            return None
        return self.noncompliant_clients.values(system)

    def spending(self) -> dict[str, Any]:
        """Returns the number of clients that spent each share of a participation budget.

        The key is "clients_by_share_spent". The result is empty if the plan has no such budget.
        """
        if not self.shares_spent:
            return {}
        return {"clients_by_share_spent": dict(self.shares_spent)}

    def values(self) -> dict[str, Any]:
        """Returns the planned and the achieved guarantee in plain JSON types.

        An infinite epsilon is null. So is each value that is unknown because the run simulates a
        larger cohort.
        """
        participation = self.planned.participation
        observed_participation = self.observed
        record_values = {
            name: getattr(observed_participation, name)
            for name in ("rounds", "participations", "clients", "empty_rounds")
        }
        participation_limits = {
            "min_separation": participation.min_sep,
            "max_participations": participation.max_participations,
        }
        for name, limit in participation_limits.items():
            record_values |= {
                f"{name}_planned": limit,
                f"{name}_observed": getattr(observed_participation, name),
            }
        record_values |= self.spending()
        planned_values = guarantee_values(self.planned)
        achieved = self._achieved_values(self.system) or {}
        is_simulation = self.planned.simulation is not None
        if not is_simulation and self.achieved is None:
            no_risk = AttackRisk(mu=0.0).values()
            achieved = {"sensitivity": 0.0, "epsilon": 0.0, "rho": 0.0, "attack_risk": no_risk}
        for name in ("sensitivity", "epsilon", "rho", "attack_risk"):
            record_values |= {
                f"{name}_planned": planned_values[name],
                f"{name}_achieved": achieved.get(name),
            }
        sampling_name = None
        if self.planned.sampling is not None:
            sampling_name = type(self.planned.sampling).__name__
        amplified_epsilon = None
        if not is_simulation:
            amplified_epsilon = self.amplified_epsilon
        epsilon_of_all = None
        if self.everyone is not None and not is_simulation:
            epsilon_of_all = finite_or_none(self.everyone._epsilon_in(self.system))
        return record_values | {
            "delta": self.planned.delta,
            "sampling": sampling_name,
            "epsilon_achieved_if_sampled_as_planned": amplified_epsilon,
            "contradictions": list(self.contradictions),
            "noncompliant_clients": self._noncompliant_values(self.system),
            "not_in_the_record": self.unrecorded,
            "claimed_cohort": self.planned.simulation and self.planned.simulation.claimed,
            "selection": self.planned.selection and dataclasses.asdict(self.planned.selection),
            "epsilon_achieved_of_all_clients": epsilon_of_all,
        }
