"""Descriptions of a plan for people and files, such as its numbers in plain JSON types, its
guarantee, and its privacy statement in words.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fedmf import checks, fields
from fedmf.files import shell_path, shell_word
from fedmf.mechanisms.budget import max_rounds_per_client
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.privacy import statement as _statement
from fedmf.privacy.attack_risk import AttackRisk, attack_risk, risk_of_pair, trade_off_plot
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
    selection_bounds,
    unamplified_epsilon,
    unit_noise,
    update_noise_multiplier,
)
from fedmf.privacy.rounding import finite_or_none
from fedmf.privacy.source_tail import GRAPH_END, HOST_END, is_revealed, tail_remark
from fedmf.privacy.systems import Subject, system_of

# Options that printed commands have even at their default, because the guarantee depends on them.
ALWAYS_PRINTED = ("rounds", "delta", "clip_norm")
# Numbers of devices per user for which a statement has a guarantee of group privacy.
_DEVICE_COUNTS = (2, 3, 5)


def plan_summary(plan: Plan) -> dict[str, Any]:
    """Returns the numbers of a plan in plain JSON types, as in plan.json and the output of
    `--json`.
    """
    certificate = None
    if plan.mechanism.certificate:
        certificate = dataclasses.asdict(plan.mechanism.certificate)
    simulated_cohort = None
    claimed_cohort = None
    if plan.simulation is not None:
        simulated_cohort = plan.simulation.simulated
        claimed_cohort = plan.simulation.claimed
    unamplified_value = finite_or_none(unamplified_epsilon(plan))
    return {
        "family": plan.mechanism.family,
        "rounds": plan.mechanism.rounds,
        "bands": plan.mechanism.bands,
        "participation": plan.participation.limits(),
        "sampling": _sampling_facts(plan, {"unamplified_epsilon": unamplified_value}),
        "clip_norm": plan.clip_norm,
        "noise_multiplier": plan.noise_multiplier,
        "sensitivity": dataclasses.asdict(plan.sensitivity),
        "stddev": plan.stddev,
        "epsilon": finite_or_none(plan.epsilon),
        "delta": plan.delta,
        "rho": finite_or_none(plan.rho),
        "attack_risk": risk_values(plan),
        "neighbouring_relation": "zero-out",
        "simulated_cohort": simulated_cohort,
        "claimed_cohort": claimed_cohort,
        "certificate": certificate,
    } | _further_facts(plan)


def _further_facts(plan: Plan) -> dict[str, Any]:
    """Returns the settings and noise of quantile_clipping and private_metrics, and the number of
    trials of a private selection; an empty dict for a plan that has none of them.
    """
    stream_facts: dict[str, Any] = {}
    bounds = selection_bounds(plan)
    if bounds is not None:
        stream_facts["selection"] = dataclasses.asdict(bounds.trials) | {
            "quantiles": bounds.trials.quantiles(),
            "accounting": bounds.source(plan.delta),
        }
    multiplier_of_updates = update_noise_multiplier(plan)
    if plan.quantile_clipping is not None:
        clipping_facts = dataclasses.asdict(plan.quantile_clipping)
        clipping_facts["update_noise_multiplier"] = multiplier_of_updates
        clipping_facts["bit_noise_multiplier"] = plan.quantile_clipping.bit_noise_multiplier(
            noise_multiplier_without_metrics(plan)
        )
        clipping_facts["bit_stddev"] = bit_stddev(plan)
        stream_facts["quantile_clipping"] = clipping_facts
    if plan.private_metrics is not None:
        metric_facts = dataclasses.asdict(plan.private_metrics)
        metric_facts["update_noise_multiplier"] = multiplier_of_updates
        metric_facts["noise_multiplier"] = plan.private_metrics.noise_multiplier(
            plan.noise_multiplier
        )
        metric_facts["stddev"] = metric_stddev(plan)
        stream_facts["private_metrics"] = metric_facts
    return stream_facts


def _sampling_facts(plan: Plan, further_facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the facts of the sampling scheme and further facts, in one dict; None without
    sampling.
    """
    if plan.sampling is None:
        return None
    scheme_facts = {**plan.sampling.facts(plan.mechanism.rounds), **further_facts}
    scheme_facts["per_query_noise_multiplier"] = per_query_noise_multiplier(plan)
    return scheme_facts


def guarantee_values(plan: Plan) -> dict[str, Any]:
    """Returns the guarantee of a plan (epsilon, delta, rho and attack risk) and the numbers from
    which it was computed, in plain JSON types.

    An infinite epsilon is None.
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
    """Returns the bounds of `fedmf.attack_risk` in plain JSON types.

    With sampling, the bounds without amplification are added. With a simulation of a larger cohort,
    the bounds for the model that is really trained are added; they hold if its clients comply with
    the participation.
    """
    risk = attack_risk(plan)
    bound_by_name = risk.values()
    if plan.sampling is not None:
        bound_by_name["unamplified"] = _unamplified_risk(plan, risk.mu, 1.0).values()
    if plan.simulation is not None:
        bound_by_name["trained_here"] = _unamplified_risk(
            plan, risk.mu, cohort_scale(plan)
        ).values()
    return bound_by_name


def _unamplified_risk(plan: Plan, mu: float, scale: float) -> AttackRisk:
    """Computes bounds on attacks without amplification by sampling, for `scale` times the noise
    with which a single run has the bound `mu`.
    """
    if plan.selection is None:
        return AttackRisk(mu=mu / scale)
    noise_multiplier = plan.noise_multiplier * scale
    return attack_risk(
        dataclasses.replace(plan, sampling=None, simulation=None, noise_multiplier=noise_multiplier)
    )


def attack_values(plan: Plan, epsilon: float) -> dict[str, Any]:
    """Returns the values of a statement's section on attacks, which are the attack risk, the weaker
    bounds that follow from epsilon alone, and a plot of both.

    Args:
      plan: the plan of the run.
      epsilon: the epsilon that the statement has at the plan's delta.
    """
    risk = attack_risk(plan)
    risk_by_epsilon = risk_of_pair(epsilon, plan.delta)
    return risk_values(plan) | {
        "epsilon": finite_or_none(epsilon),
        "epsilon_alone": risk_by_epsilon.values(),
        "picture": trade_off_plot(risk, risk_by_epsilon),
    }


def group_values(plan: Plan, system: str = "plan") -> list[dict[str, Any]]:
    """Returns the guarantee for users with several devices, one dict for each number of devices.

    The sensitivity for g devices is g times as large, so that rho is g^2 times as large.

    Args:
      plan: the plan of the run.
      system: the kind of system. Epsilon is infinite where the bounded size of its normal draws
        would reveal the user.
    """
    end = noise_end(system)
    return [
        {
            "devices": g,
            "epsilon": _group_epsilon(plan, g, end),
            "delta": plan.delta,
            "rho": finite_or_none(g * g * plan.rho),
            "attack_risk": attack_risk(plan, g).values(),
        }
        for g in _DEVICE_COUNTS
    ]


def noise_end(system: str) -> float:
    """Returns the largest radius of a pair of normal draws in a kind of system, in standard
    deviations. A system whose generator fedmf does not know may draw in a TensorFlow graph.
    """
    subject_system = system_of(system)
    is_known = subject_system.generator is not None
    return HOST_END if is_known and not subject_system.draws_in_graph else GRAPH_END


def _group_epsilon(plan: Plan, devices: int, end: float) -> float | None:
    """Returns epsilon for a user with several devices; None if it is infinite."""
    if is_revealed(plan, devices=devices, end=end):
        return None
    return finite_or_none(plan.group_epsilon(devices))


@with_numpy_defaults
def statement(plan: Plan) -> str:
    """Returns the privacy statement of a plan as Markdown. Its structure is that of the
    banded paper, App. K.1.

    Args:
      plan: the plan of the run.

    Returns:
      The text of the statement in Markdown.

    Raises:
      TypeError: `plan` is not a Plan.
      ValueError: float32 cannot hold the noise.

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
    """Returns all values of a privacy statement, in plain JSON types and at full precision.

    Args:
      plan: the plan of the run.
      rdp: whether to add epsilon by Renyi accounting, which older literature reports.
      pretraining: data on which the model was trained before, in a few words, and whether it is
        public; a text that begins with "none" states that there was none; None states nothing.
      population: number of clients, if it is known: the statement of a simulation compares it with
        the clients that the claimed run needs.
      canaries: number of synthetic clients among the clients, for an audit of the run.
      commands: commands that check the statement; None for the one that follows from the plan.
      subject: the system that the statement is about.

    Returns:
      The values from which `fedmf.privacy.statement.markdown` makes the text. An infinite epsilon
      is None.

    Raises:
      TypeError: an argument has another type.
      ValueError: population or canaries is out of range, or pretraining is no plain text.
    """
    fields.instance(Subject)("subject", subject)
    canaries = checks.integer("canaries", canaries, low=0, hint="use the number of canaries, or 0")
    population = _checked_population(population)
    if pretraining is not None:
        fields.plain_text("pretraining", pretraining)
    check_commands = _commands(commands, plan, rdp=rdp)
    guarantee = guarantee_values(plan)
    if rdp:
        guarantee["rdp_epsilon"] = finite_or_none(rdp_epsilon(plan))
    statement_by_name = {
        "format": _statement.FORMAT,
        "date": _date(plan),
        "system": subject.system,
        "subject": subject.values(),
        "dp_setting": "central",
        "simulation": _simulation(plan, population),
        "pretraining": pretraining,
        **_release_values(plan),
        "noise_source": _noise_source(plan, subject),
        "guarantee": guarantee,
        "attack": attack_values(plan, plan.epsilon),
        "group_privacy": group_values(plan, subject.system),
        "not_covered": _statement.not_covered(
            system_of(subject.system),
            private_metrics=plan.private_metrics is not None,
            selected=plan.selection is not None,
            private=plan.noise_multiplier > 0,
        ),
        "commands": check_commands,
        "versions": _statement.installed_versions(),
        **_further_facts(plan),
    }
    if plan.longer is not None:
        longer_plan = dataclasses.replace(plan.longer, delta=plan.delta)
        statement_by_name["longer"] = guarantee_values(longer_plan) | {
            "rounds": longer_plan.mechanism.rounds
        }
    if canaries:
        statement_by_name["canaries"] = canaries
    return statement_by_name


def _noise_source(plan: Plan, subject: Subject) -> str | None:
    """Returns the remark on noise sources in the statement of a plan alone."""
    return tail_remark(plan) if subject.system == "plan" else None


def _date(plan: Plan) -> str | None:
    """Returns the date of a statement; None for a private selection, since the date of a trial
    would tell an attacker how many trials ran before it.
    """
    return _statement.today() if plan.selection is None else None


def _commands(commands: Sequence[str] | None, plan: Plan, *, rdp: bool) -> list[str]:
    """Returns the commands that check a statement; the one that follows from the plan for None."""
    if commands is None:
        return [calibrate_command(plan, rdp=rdp)]
    return list(checks.strings("commands", commands, hint="give a list of commands, or None"))


def _checked_population(population: int | None) -> int | None:
    """Returns the argument if it is a number of clients, or None for an unknown one; raises
    otherwise.
    """
    if population is None:
        return None
    hint = "use the number of clients, or None where it is not known"
    return checks.integer("population", population, low=1, hint=hint)


def _release_values(plan: Plan) -> dict[str, Any]:
    """Returns the values of a statement that describe what is released, with the mechanism, the
    participation, the sampling and the noise.
    """
    is_private = plan.noise_multiplier > 0
    released_outputs = (
        "all privatised aggregates" if is_private else "all aggregates, without noise"
    )
    return {
        "output": {"rounds": plan.mechanism.rounds, "released": released_outputs},
        "unit_of_privacy": "client",
        "neighbouring_relation": "zero-out",
        "mechanism": {
            "family": plan.mechanism.family,
            "rounds": plan.mechanism.rounds,
            "bands": plan.mechanism.bands,
            "sha256": _statement.mechanism_digest(plan.mechanism),
        },
        "participation": plan.participation.limits(),
        "sampling": _sampling_facts(plan, _sampling_clauses(plan)),
        "clip_norm": plan.clip_norm,
        "stddev": plan.stddev,
    }


def _sampling_clauses(plan: Plan) -> dict[str, Any]:
    """Returns the clauses of a statement about the sampling scheme; an empty dict without
    sampling.
    """
    scheme = plan.sampling
    if scheme is None:
        return {}
    noise_stddev = unit_noise(plan)
    clauses = scheme.description(plan.mechanism, noise_stddev).values()
    # If clients are sampled independently, the size of a cohort must be secret too: together with
    # the other clients of the cohort it reveals whether a client is in it.
    clauses["secret"] = ", and so does how many are in any round" if scheme.independent else ""
    evidence = scheme.evidence(plan.mechanism, noise_stddev, plan.delta)
    if evidence:
        clauses["evidence"] = evidence
    return clauses


def _simulation(plan: Plan, population: int | None) -> dict[str, Any] | None:
    """Returns both cohort sizes of the simulation of a larger cohort, and the number of clients
    that the claimed run needs; None without a simulation.
    """
    if plan.simulation is None:
        return None
    participation = plan.participation
    claimed_cohort = plan.simulation.claimed
    # The population must be large enough for two limits: cohorts of min_sep consecutive rounds have
    # no client in common, and no client takes part in more than max_rounds_per_client rounds.
    needed_for_separation = claimed_cohort * participation.min_sep
    max_rounds = max_rounds_per_client(plan.mechanism, participation)
    needed_for_rounds = -(-claimed_cohort * participation.rounds // max_rounds)
    return {
        "simulated_cohort": plan.simulation.simulated,
        "claimed_cohort": claimed_cohort,
        "population_needed": max(needed_for_separation, needed_for_rounds),
        "population": population,
    }


def calibrate_command(
    plan: Plan,
    mechanism: str = "mechanism.npz",
    *,
    rdp: bool = False,
    config: PlanConfig | None = None,
) -> str:
    """Returns the `fedmf calibrate` command that prints the statement of a plan again.

    Args:
      plan: the plan of the statement.
      mechanism: the file of the mechanism for all rounds.
      rdp: as in `statement_values`.
      config: the config of the plan; None for a plan that was made in Python.
    """
    command_words = ["fedmf calibrate", shell_path(mechanism), *_flags_of_all_rounds(plan, config)]
    if plan.longer is not None:
        command_words.append(f"--stop-after {plan.mechanism.rounds}")
    command_words.append("--statement")
    if rdp:
        command_words.append("--rdp")
    return " ".join(command_words)


def audit_log_command(
    plan: Plan,
    log: str,
    mechanism: str = "mechanism.npz",
    *,
    rounds_run: int | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    config: PlanConfig | None = None,
) -> str:
    """Returns the `fedmf audit log` command that audits a log of participations against a plan.

    Args:
      plan: the plan of the run.
      log: the file of participations.
      mechanism: the file of the mechanism for all rounds.
      rounds_run: rounds that the run has completed; None for all rounds of the plan.
      options: further options of the command, by the names of their arguments; None leaves one out.
      config: as in `calibrate_command`.
    """
    if rounds_run is None:
        rounds_run = plan.participation.rounds
    all_rounds = (plan.longer or plan).participation.rounds
    value_by_option = {"rounds_run": None if rounds_run == all_rounds else rounds_run, **options}
    command_words = ["fedmf audit log", shell_path(log), shell_path(mechanism)]
    command_words += _flags_of_all_rounds(plan, config)
    for name, value in value_by_option.items():
        if value is not None:
            command_words.append(f"--{name.replace('_', '-')} {shell_word(str(value))}")
    return " ".join(command_words)


def _flags_of_all_rounds(plan: Plan, config: PlanConfig | None) -> list[str]:
    """Returns the command-line options that make the plan. For a plan of the first rounds, they
    make the plan of all rounds of the mechanism.
    """
    plan_of_all_rounds = dataclasses.replace(plan.longer or plan, delta=plan.delta)
    if config is None:
        pinned_config = PlanConfig.of(plan_of_all_rounds)
    else:
        pinned_config = config.pinned_to(plan_of_all_rounds)
    return pinned_config.flags(leave_out=FIT_FIELDS, always=ALWAYS_PRINTED)
