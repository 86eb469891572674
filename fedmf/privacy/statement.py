"""The privacy statement as values: every fact that a reviewer asks for, in plain JSON types and at full precision.

Its points are those of the banded paper's Appendix K.1 (after Ponomareva et al. 2023, Sec. 5.3), what was observed where a run is
finished, what is not covered, and how to check it. `fedmf.privacy.statement_text` turns the values, and nothing else, into Markdown.
"""

import hashlib
import importlib.metadata
import json
import math
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.privacy.sampling import CyclicFixedSize, CyclicPoisson, CyclicShuffle
from fedmf.privacy.statement_text import markdown

if TYPE_CHECKING:
    from fedmf.audits.guarantee import Audit
    from fedmf.privacy.plan import Plan

FORMAT = "fedmf privacy statement 1"
# Users with as many devices are given a guarantee of their own.
_DEVICES = (2, 3, 5)
_PACKAGES = ("fedmf", "numpy", "scipy", "dp-accounting", "tensorflow", "tensorflow-federated", "tensorflow-privacy")
_NOT_COVERED = (
    "Hyperparameter tuning, and any other run on the same clients: every run has its own guarantee, and several of them compose.",
    "The choice of a checkpoint, of a stopping time or of one run among several by evaluation metrics or A/B tests.",
    "Evaluation metrics, and training metrics that are exact functions of client data: loss, examples, clients that took part, clip "
    "fraction, updates zeroed. Publishing them is a release of its own.",
    "What was computed from client data before training, such as a vocabulary, tokens or normalisation constants.",
    "Who took part and when: the participation record names clients and is not part of the output.",
    "Single updates, checkpoints and the noise seed: whoever holds them holds more than the output.",
    "Floating-point arithmetic: Gaussians are drawn in float32 by a counter-based pseudo-random generator (Philox), and attacks on "
    "rounding, on the generator or on timing are out of scope.",
)


def installed_versions() -> dict[str, str]:
    """Versions of what decides the guarantee, of the packages that are installed."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions | {"python": platform.python_version()}


def mechanism_digest(mechanism: Mechanism) -> str:
    """SHA-256 of what the mechanism is, its matrices and family, without its certificate; hexadecimal.

    >>> from fedmf.mechanisms import IdentityMechanism
    >>> mechanism_digest(IdentityMechanism(rounds=4)) == mechanism_digest(IdentityMechanism(rounds=5))
    False
    """
    digest = hashlib.sha256()
    for name, value in sorted(mechanism.entries().items()):
        if name.startswith("certificate"):
            continue
        array = np.asarray(value)
        header = json.dumps([name, array.dtype.newbyteorder("<").str, list(array.shape)])
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(header.encode() + b"\0" + np.ascontiguousarray(little).tobytes() + b"\0")
    return digest.hexdigest()


def plan_values(
    plan: "Plan",
    *,
    rdp: bool = False,
    pretraining: str | None = None,
    population: int | None = None,
    commands: Sequence[str] | None = None,
    versions: dict[str, str] | None = None,
) -> dict[str, Any]:
    """The statement of what is planned.

    Args:
      plan: what will be run.
      rdp: Renyi accounting as well, which older literature reports.
      pretraining: data on which the model was trained before, in a few words, and whether it is public; a text that begins with "none"
        says that there was none; None says nothing.
      population: clients that there are, where they are known: a simulation says whether the run that it stands for could have them.
      commands: that make what is stated again; None for those that follow from the plan.
      versions: of packages; None for those installed here.

    Returns:
      Plain JSON types; an infinite epsilon is null.

    >>> import fedmf
    >>> once = fedmf.Participation(rounds=8, schema="single")
    >>> tree = fedmf.fit(fedmf.prefix_sum(8), once, family="tree")
    >>> values = plan_values(fedmf.calibrate(tree, once, epsilon=2.0, delta=1e-6))
    >>> values["guarantee"]["epsilon"] <= 2.0, [row["devices"] for row in values["group_privacy"]]
    (True, [2, 3, 5])
    """
    return {
        "format": FORMAT,
        "subject": "plan",
        "dp_setting": "central",
        "simulation": None if plan.claimed_cohort is None else _simulation(plan, plan.claimed_cohort, population),
        "pretraining": pretraining,
        "output": {"rounds": plan.mechanism.rounds, "released": "all privatised aggregates"},
        "unit_of_privacy": "client",
        "neighbouring_relation": "zero-out",
        "mechanism": {
            "family": plan.mechanism.family,
            "rounds": plan.mechanism.rounds,
            "bands": plan.mechanism.bands,
            "sha256": mechanism_digest(plan.mechanism),
        },
        "participation": _participation(plan),
        "sampling": _sampling(plan),
        "clip_norm": plan.clip_norm,
        "stddev": plan.stddev,
        "guarantee": _guarantee(plan, rdp=rdp),
        "group_privacy": _group_privacy(plan),
        "not_covered": list(_NOT_COVERED),
        "commands": [calibrate_command(plan, rdp=rdp)] if commands is None else list(commands),
        "versions": installed_versions() if versions is None else dict(versions),
    }


def _simulation(plan: "Plan", claimed: int, population: int | None) -> dict[str, Any]:
    p = plan.participation
    return {
        "simulated_cohort": plan.simulated_cohort,
        "claimed_cohort": claimed,
        # Cohorts of min_sep rounds in a row have no client in common, and nobody is in more than max_participations of all.
        "population_needed": max(claimed * p.min_sep, -(-claimed * p.rounds // p.max_participations)),
        "population": population,
    }


def audit_values(
    audit: "Audit",
    *,
    subject: str = "run",
    cohort_size: int | None = None,
    population: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The statement of what was run and observed.

    Args:
      audit: planned and achieved.
      subject: "run" of fedmf, or "log" of another system.
      cohort_size, population: of the run, where they are known.
      **options: those of `plan_values`.

    Returns:
      Plain JSON types; "achieved" is null where nobody took part, and of a simulation, whose claimed run was not observed.
    """
    values = plan_values(audit.planned, population=population, **options)
    log = audit.log
    poisson = isinstance(audit.planned.sampling, CyclicPoisson)
    achieved = _achieved(audit)
    if audit.contradictions and audit.achieved is not None:
        values["group_privacy"] = [] if audit.planned.claimed_cohort else _group_privacy(audit.achieved)
    return values | {
        "subject": subject,
        "observed": {
            "rounds": audit.observed.rounds,
            "participations": audit.observed.participations,
            "clients": audit.observed.clients,
            "population": population,
            "cohort_size": cohort_size,
            "min_separation": audit.observed.min_separation,
            "max_participations": audit.observed.max_participations,
            # Poisson cohorts vary in size by design.
            "short_rounds": None if cohort_size is None or poisson else audit.observed.short_rounds,
            "empty_rounds": audit.observed.empty_rounds,
            "smallest_cohort": int(min(audit.observed.cohort_sizes, default=0)),
            "largest_cohort": int(max(audit.observed.cohort_sizes, default=0)),
            "log": None
            if log is None
            else {
                "name": log.name,
                "bytes": log.size,
                "sha256": log.sha256,
                "rows": log.rows,
                "duplicates_counted_once": log.duplicates,
            },
        },
        "achieved": achieved
        if achieved is None
        else achieved | {"epsilon_if_sampled_as_planned": _finite(audit.amplified_epsilon)},
        "contradictions": list(audit.contradictions),
        "noncompliant": None if audit.everyone is None else _disobedient(audit, audit.everyone),
    }


def _achieved(audit: "Audit") -> dict[str, Any] | None:
    if audit.achieved is None or audit.planned.claimed_cohort is not None:
        return None
    return _guarantee(audit.achieved)


def _disobedient(audit: "Audit", everyone: "Audit") -> dict[str, Any]:
    """What clients that were known to deviate did, and what is left to them."""
    return {
        "clients": everyone.observed.clients - audit.observed.clients,
        "min_separation": everyone.observed.min_separation,
        "max_participations": everyone.observed.max_participations,
        "achieved_by_all": _achieved(everyone),
    }


def privacy_statement(plan: "Plan", **options: Any) -> str:
    """`plan_values` as Markdown."""
    return markdown(plan_values(plan, **options))


def audit_statement(audit: "Audit", **options: Any) -> str:
    """`audit_values` as Markdown."""
    return markdown(audit_values(audit, **options))


def as_text(values: dict[str, Any], suffix: str) -> str:
    """Values as the contents of a file of this suffix, .md or .json.

    Raises:
      ValueError: another suffix.
    """
    if suffix == ".json":
        return json.dumps(values, indent=2, allow_nan=False) + "\n"
    if suffix != ".md":
        raise ValueError(f"statement file has the suffix {suffix!r}: name a file that ends in .md or .json")
    return markdown(values)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _participation(plan: "Plan") -> dict[str, Any]:
    p = plan.guaranteed_participation
    return {
        "schema": p.schema,
        "rounds": p.rounds,
        "min_sep": p.min_sep,
        "max_participations": p.max_participations,
    }


def _sampling(plan: "Plan") -> dict[str, Any] | None:
    scheme = plan.sampling
    if scheme is None:
        return None
    values = {
        "scheme": type(scheme).__name__,
        "population": scheme.population,
        "cohort_size": scheme.cohort_size,
        "groups": scheme.groups,
        "per_query_noise_multiplier": plan.per_query_noise_multiplier,
    }
    for name in ("probability", "epoch", "positions", "reshuffle"):
        if hasattr(scheme, name):
            values[name] = getattr(scheme, name)
    for name in ("compositions", "epochs"):
        if hasattr(scheme, name):
            values[name] = getattr(scheme, name)(plan.mechanism.rounds)
    return values


def _guarantee(plan: "Plan", *, rdp: bool = False) -> dict[str, Any]:
    """Epsilon, delta and rho, and what they were computed from."""
    s = (
        plan.sensitivity
        if plan.guaranteed_participation == plan.participation
        else sensitivity(plan.mechanism, plan.guaranteed_participation)
    )
    values = {
        "epsilon": _finite(plan.epsilon),
        "delta": plan.delta,
        "rho": _finite(plan.rho),
        "unamplified_epsilon": _finite(plan.unamplified_epsilon),
        "noise_multiplier": plan.unamplified_noise_multiplier,
        "sensitivity": s.value,
        "sensitivity_exact": s.exact,
        "sensitivity_method": s.method,
    }
    return values | ({"rdp_epsilon": _finite(plan.rdp_epsilon)} if rdp else {})


def _group_privacy(plan: "Plan") -> list[dict[str, Any]]:
    """For users of several devices: a sum of g clients is g times as sensitive, so that rho grows by g^2."""
    return [
        {
            "devices": g,
            "epsilon": _finite(plan.group_epsilon(g)),
            "delta": plan.delta,
            "rho": _finite(g * g * plan.rho),
        }
        for g in _DEVICES
    ]


def calibrate_command(plan: "Plan", mechanism: str = "mechanism.npz", *, rdp: bool = False) -> str:
    """The command that prints the statement of this plan again."""
    return " ".join(["fedmf calibrate", mechanism, *plan_command_options(plan), "--statement", *["--rdp"] * rdp])


def plan_command_options(plan: "Plan") -> list[str]:
    """Command-line options that describe the plan, all of it but the mechanism."""
    p = plan.participation
    words = [f"--rounds {p.rounds}", f"--schema {p.schema}"]
    if p.schema in ("min_sep", "fixed_epoch"):
        words += [f"--min-sep {p.min_sep}", f"--max-participations {p.max_participations}"]
    words += [
        f"--noise-multiplier {plan.noise_multiplier!r}",
        f"--delta {plan.delta!r}",
        f"--clip-norm {plan.clip_norm!r}",
    ]
    if plan.simulated_cohort is not None:
        words += [f"--simulated-cohort {plan.simulated_cohort}", f"--claimed-cohort {plan.claimed_cohort}"]
    scheme = plan.sampling
    if scheme is None:
        return words
    names = {CyclicPoisson: "poisson", CyclicFixedSize: "fixed_size", CyclicShuffle: "shuffle"}
    name = "reshuffle" if isinstance(scheme, CyclicShuffle) and scheme.reshuffle else names[type(scheme)]
    words += [f"--sampling {name}", f"--population {scheme.population}", f"--cohort-size {scheme.cohort_size}"]
    # Also where they are the mechanism's bands: the guarantee depends on them, and what is left out is not checked.
    return [*words, f"--groups {scheme.groups}"]
