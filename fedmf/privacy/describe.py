"""A plan in words and plain JSON types: its summary, its guarantee and its statement."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fedmf import checks, fields
from fedmf.files import shell_path, shell_word
from fedmf.mechanisms.budget import max_rounds_per_client
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy import statement as _statement
from fedmf.privacy.attack_risk import AttackRisk, attack_risk, claimed_alone, trade_off_plot
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.flat_config import FIT_FIELDS
from fedmf.privacy.plan import (
    Plan,
    bit_stddev,
    check_plan,
    cohort_scale,
    metric_stddev,
    noise_multiplier_without_metrics,
    per_query_noise_multiplier,
    rdp_epsilon,
    unamplified_epsilon,
    unit_noise,
    update_noise_multiplier,
)
from fedmf.privacy.rounding import finite_or_none
from fedmf.privacy.source_tail import tail_remark
from fedmf.privacy.systems import Subject, system_of

# Options of a printed command, also where they are at their default: the guarantee rests on them.
ALWAYS_PRINTED = ("rounds", "delta", "clip_norm")
# Users with so many devices are given a guarantee of their own.
_DEVICES = (2, 3, 5)


def plan_summary(plan: Plan) -> dict[str, Any]:
    """The plan in plain JSON types, for the run folder and for `--json`."""
    certificate = plan.mechanism.certificate
    cohorts = plan.simulation
    return {
        "family": plan.mechanism.family,
        "rounds": plan.mechanism.rounds,
        "bands": plan.mechanism.bands,
        "participation": plan.participation.limits(),
        "sampling": _sampling_facts(
            plan, {"unamplified_epsilon": finite_or_none(unamplified_epsilon(plan))}
        ),
        "clip_norm": plan.clip_norm,
        "noise_multiplier": plan.noise_multiplier,
        "sensitivity": dataclasses.asdict(plan.sensitivity),
        "stddev": plan.stddev,
        "epsilon": finite_or_none(plan.epsilon),
        "delta": plan.delta,
        "rho": finite_or_none(plan.rho),
        "attack_risk": risk_values(plan),
        "neighbouring_relation": "zero-out",
        "simulated_cohort": None if cohorts is None else cohorts.simulated,
        "claimed_cohort": None if cohorts is None else cohorts.claimed,
        "certificate": dataclasses.asdict(certificate) if certificate else None,
    } | _other_streams(plan)


def _other_streams(plan: Plan) -> dict[str, Any]:
    """What a summary and a statement say of quantile_clipping and private_metrics; nothing without
    them.
    """
    facts = {}
    updates = {"update_noise_multiplier": update_noise_multiplier(plan)}
    if (adaptive := plan.quantile_clipping) is not None:
        multiplier = adaptive.bit_noise_multiplier(noise_multiplier_without_metrics(plan))
        bits = {"bit_noise_multiplier": multiplier, "bit_stddev": bit_stddev(plan)}
        facts["quantile_clipping"] = dataclasses.asdict(adaptive) | updates | bits
    if (metrics := plan.private_metrics) is not None:
        multiplier = metrics.noise_multiplier(plan.noise_multiplier)
        own = {"noise_multiplier": multiplier, "stddev": metric_stddev(plan)}
        facts["private_metrics"] = dataclasses.asdict(metrics) | updates | own
    return facts


def _sampling_facts(plan: Plan, more: Mapping[str, Any]) -> dict[str, Any] | None:
    if plan.sampling is None:
        return None
    query = {"per_query_noise_multiplier": per_query_noise_multiplier(plan)}
    return {**plan.sampling.facts(plan.mechanism.rounds), **more, **query}


def guarantee_values(plan: Plan) -> dict[str, Any]:
    """Epsilon, delta, rho and attack risk, and what they were computed from, in plain JSON types.

    An infinite epsilon is null.
    """
    return {
        "epsilon": finite_or_none(plan.epsilon),
        "delta": plan.delta,
        "rho": finite_or_none(plan.rho),
        "unamplified_epsilon": finite_or_none(unamplified_epsilon(plan)),
        "attack_risk": risk_values(plan),
        "noise_multiplier": plan.noise_multiplier,
        "sensitivity": plan.sensitivity.value,
        "sensitivity_exact": plan.sensitivity.exact,
        "sensitivity_method": plan.sensitivity.method,
    }


def risk_values(plan: Plan) -> dict[str, Any]:
    """`fedmf.attack_risk` in plain JSON types, with sampling also without amplification; of a
    simulation also that of the model trained here, if its clients keep to the participation.
    """
    risk = attack_risk(plan)
    values = risk.values()
    if plan.sampling is not None:
        values["unamplified"] = AttackRisk(mu=risk.mu).values()
    if plan.simulation is not None:
        values["trained_here"] = AttackRisk(mu=risk.mu / cohort_scale(plan)).values()
    return values


def attack_values(plan: Plan) -> dict[str, Any]:
    """What a statement says of attacks, in plain JSON types: beside epsilon alone, and drawn."""
    risk = attack_risk(plan)
    alone = claimed_alone(plan.epsilon, plan.delta)
    return risk_values(plan) | {
        "epsilon": finite_or_none(plan.epsilon),
        "epsilon_alone": alone.values(),
        "picture": trade_off_plot(risk, alone),
    }


def group_values(plan: Plan) -> list[dict[str, Any]]:
    """The guarantee of users of several devices.

    A sum of g clients is g times as sensitive: rho grows by g^2.
    """
    return [
        {
            "devices": g,
            "epsilon": finite_or_none(plan.group_epsilon(g)),
            "delta": plan.delta,
            "rho": finite_or_none(g * g * plan.rho),
            "attack_risk": attack_risk(plan, g).values(),
        }
        for g in _DEVICES
    ]


@with_numpy_defaults
def statement(plan: Plan) -> str:
    """The privacy statement of a plan, in the structure of the banded paper's App. K.1.

    Args:
      plan: what is run.

    Returns:
      Markdown.

    Raises:
      TypeError: no plan.
      ValueError: float32 does not hold the noise's scale.

    >>> import fedmf
    >>> config = fedmf.PlanConfig(rounds=8, min_sep=4, family="identity", noise_multiplier=2.0)
    >>> "epsilon" in fedmf.statement(config.plan())
    True
    """
    check_plan(plan)
    return _statement.markdown(statement_values(plan))


def statement_values(
    plan: Plan,
    *,
    rdp: bool = False,
    pretraining: str | None = None,
    population: int | None = None,
    canaries: int = 0,
    commands: Sequence[str] | None = None,
    subject: Subject = Subject(),  # noqa: B008  (frozen)
) -> dict[str, Any]:
    """Returns every fact of the statement, in plain JSON types and at full precision.

    Args:
      plan: what is run.
      rdp: Renyi accounting as well, which older literature reports.
      pretraining: data on which the model was trained before, in a few words, and whether it is
        public; a text that begins with "none" says that there was none; None says nothing.
      population: clients that there are, where they are known: a simulation says whether the run
        that it stands for could have them.
      canaries: synthetic clients among them, for an audit of the run.
      commands: that check what is stated; None for those that follow from the plan.
      subject: the system that the statement is about.

    Returns:
      The values of `fedmf.privacy.statement.markdown`. An infinite epsilon is null.

    Raises:
      TypeError, ValueError: naming the argument.
    """
    fields.instance(Subject)("subject", subject)
    canaries = checks.integer("canaries", canaries, low=0, hint="use the number of canaries, or 0")
    if population is not None:
        hint = "use the number of clients, or None where it is not known"
        population = checks.integer("population", population, low=1, hint=hint)
    if pretraining is not None:
        fields.plain_text("pretraining", pretraining)
    if commands is not None:
        commands = checks.strings("commands", commands, hint="give a list of commands, or None")
    scheme = plan.sampling
    sentences: dict[str, Any] = {}
    if scheme is not None:
        noise = unit_noise(plan)
        sentences = scheme.description(plan.mechanism, noise).values()
        # Given how many others are in each round, their number would tell of the client.
        sentences["secret"] = ", and so does how many are in any round" * scheme.independent
        if evidence := scheme.evidence(plan.mechanism, noise, plan.delta):
            sentences["evidence"] = evidence
    guarantee = guarantee_values(plan) | (
        {"rdp_epsilon": finite_or_none(rdp_epsilon(plan))} if rdp else {}
    )
    private = plan.noise_multiplier > 0
    released = "all privatised aggregates" if private else "all aggregates, without noise"
    values = {
        "format": _statement.FORMAT,
        "date": _statement.today(),
        "system": subject.system,
        "subject": subject.values(),
        "dp_setting": "central",
        "simulation": _simulation(plan, population),
        "pretraining": pretraining,
        "output": {"rounds": plan.mechanism.rounds, "released": released},
        "unit_of_privacy": "client",
        "neighbouring_relation": "zero-out",
        "mechanism": {
            "family": plan.mechanism.family,
            "rounds": plan.mechanism.rounds,
            "bands": plan.mechanism.bands,
            "sha256": _statement.mechanism_digest(plan.mechanism),
        },
        "participation": plan.participation.limits(),
        "sampling": _sampling_facts(plan, sentences),
        "clip_norm": plan.clip_norm,
        "stddev": plan.stddev,
        "noise_source": tail_remark(plan) if subject.system == "plan" else None,
        "guarantee": guarantee,
        "attack": attack_values(plan),
        "group_privacy": group_values(plan),
        "not_covered": _statement.not_covered(
            system_of(subject.system),
            private_metrics=plan.private_metrics is not None,
            private=private,
        ),
        "commands": [calibrate_command(plan, rdp=rdp)] if commands is None else list(commands),
        "versions": _statement.installed_versions(),
    } | _other_streams(plan)
    if plan.longer is not None:
        longer = dataclasses.replace(plan.longer, delta=plan.delta)
        values["longer"] = guarantee_values(longer) | {"rounds": longer.mechanism.rounds}
    return values | ({"canaries": canaries} if canaries else {})


def _simulation(plan: Plan, population: int | None) -> dict[str, Any] | None:
    if plan.simulation is None:
        return None
    p = plan.participation
    claimed = plan.simulation.claimed
    # Cohorts of min_sep rounds in a row have no client in common, and nobody is in more than
    # max_rounds_per_client of all.
    needed = max(
        claimed * p.min_sep, -(-claimed * p.rounds // max_rounds_per_client(plan.mechanism, p))
    )
    return {
        "simulated_cohort": plan.simulation.simulated,
        "claimed_cohort": claimed,
        "population_needed": needed,
        "population": population,
    }


def calibrate_command(
    plan: Plan,
    mechanism: str = "mechanism.npz",
    *,
    rdp: bool = False,
    config: PlanConfig | None = None,
) -> str:
    """Returns the command that prints the statement of this plan again.

    Args:
      plan: what is stated.
      mechanism: the file of its mechanism, of all rounds.
      rdp: as of `statement_values`.
      config: that the plan is of; None for one that was made in Python.
    """
    stop = [] if plan.longer is None else [f"--stop-after {plan.mechanism.rounds}"]
    flags = _flags_of_all_rounds(plan, config)
    words = [shell_path(mechanism), *flags, *stop, "--statement", *["--rdp"] * rdp]
    return " ".join(["fedmf calibrate", *words])


def audit_log_command(
    plan: Plan,
    log: str,
    mechanism: str = "mechanism.npz",
    *,
    rounds_run: int | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    config: PlanConfig | None = None,
) -> str:
    """Returns the command that audits a log against this plan.

    Args:
      plan: what the run was planned with.
      log, mechanism: the file of participations, and that of the mechanism of all rounds.
      rounds_run: rounds after which the run ended or stands; None for all of the plan's.
      options: of the command, by the names of their arguments; None leaves one out.
      config: as of `calibrate_command`.
    """
    rounds_run = plan.participation.rounds if rounds_run is None else rounds_run
    whole_rounds = (plan.longer or plan).participation.rounds
    more = {"rounds_run": None if rounds_run == whole_rounds else rounds_run, **options}
    words = [shell_path(log), shell_path(mechanism), *_flags_of_all_rounds(plan, config)]
    words += [
        f"--{name.replace('_', '-')} {shell_word(str(value))}"
        for name, value in more.items()
        if value is not None
    ]
    return " ".join(["fedmf audit log", *words])


def _flags_of_all_rounds(plan: Plan, config: PlanConfig | None) -> list[str]:
    """Returns the options that say what is planned for all rounds of the mechanism."""
    whole = dataclasses.replace(plan.longer or plan, delta=plan.delta)
    pinned = PlanConfig.of(whole) if config is None else config.pinned_to(whole)
    return pinned.flags(leave_out=FIT_FIELDS, always=ALWAYS_PRINTED)
