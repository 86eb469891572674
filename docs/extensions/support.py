"""The support matrix: what the registries of families and sampling schemes answer when they are
asked, as Markdown tables.
"""

import re
import warnings
from collections.abc import Iterator

import fedmf
from fedmf.mechanisms import Mechanism
from fedmf.mechanisms.family import fitted_families
from fedmf.privacy.plan import unamplified_epsilon, unit_noise
from fedmf.privacy.sampling.base import SCHEMES

ROUNDS, BANDS, COHORT = 24, 4, 20
SIZES = {"population": ROUNDS * COHORT, "cohort_size": COHORT}
SCHEMAS = {
    "single": {},
    "fixed_epoch": {"min_sep": BANDS},
    "min_sep": {"min_sep": BANDS},
    "every_round": {},
}


def mechanism_of(family: str, schema: str = "min_sep") -> Mechanism:
    """A small mechanism of a family, of four bands where the family has that option."""
    participation = fedmf.Participation(rounds=ROUNDS, schema=schema, **SCHEMAS[schema])
    bands = {"bands": BANDS} if family in ("banded", "toeplitz") and schema != "every_round" else {}
    with warnings.catch_warnings():
        # Of fits that stop short: only the shape of the encoder counts here
        warnings.simplefilter("ignore")
        return fedmf.fit(
            fedmf.prefix_sum(ROUNDS), participation, family=family, cache=False, **bands
        )


def table(header: list[str], rows: Iterator[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def sensitivities() -> str:
    """Returns a table for each schema: family, exact or bound, and the theorem that
    `Sensitivity.method` names.
    """

    def row(family: str, schema: str) -> list[str]:
        budget = schema == "budget"  # A budget is made of what `min_sep` costs.
        fitted = "min_sep" if budget else schema
        participation = fedmf.Participation(rounds=ROUNDS, schema=fitted, **SCHEMAS[fitted])
        try:
            mechanism = mechanism_of(family, fitted)
            if budget:
                participation = fedmf.Budget.of(mechanism, participation).participation
            computed = fedmf.sensitivity(mechanism, participation)
        except (TypeError, ValueError) as refusal:
            return [f"`{family}`", "**refused**", str(refusal)]
        kind = "exact" if computed.exact else "bound"
        theorem = re.sub(r": (exact|upper bound)| .fedmf[.a-z_]+.", "", computed.method)
        return [f"`{family}`", f"**{kind}**", theorem]

    parts = []
    for schema in [*SCHEMAS, "budget"]:
        rows = table(
            ["family", "sensitivity", "theorem"],
            (row(family, schema) for family in fitted_families()),
        )
        parts.append(f"Schema `{schema}`:\n\n{rows}")
    return "\n\n".join(parts)


def certificates() -> str:
    """Family x schema: what a certificate of that fit is for, or why there is none."""

    def cell(family: str, schema: str) -> str:
        mechanism = mechanism_of(family, schema)
        if mechanism.certificate is None:
            return f"none: {mechanism.certificate_reason}"
        held = mechanism.certificate.participation
        return "a single participation" if held is None else f"`{held.schema}`"

    names = [f"`{schema}`" for schema in SCHEMAS]
    return table(
        ["family", *names],
        ([f"`{f}`", *(cell(f, schema) for schema in SCHEMAS)] for f in fitted_families()),
    )


def answer(family: str, scheme: str) -> tuple[str, str]:
    """What a plan of this family and scheme is, in one word, and why."""
    try:
        plan = fedmf.Plan(
            mechanism=mechanism_of(family), noise_multiplier=1.0, clip_norm=1.0, delta=1e-5,
            sampling=SCHEMES[scheme].configured(**SIZES),
        )  # fmt: skip
    except ValueError as refusal:
        return "refused", str(refusal)
    chosen = plan.sampling
    assert chosen is not None
    if chosen.simulated:
        return "bounded", "by simulation"
    amplified = chosen.epsilon(plan.mechanism, unit_noise(plan), plan.delta)
    if amplified >= unamplified_epsilon(plan):
        return "none", f"here epsilon {unamplified_epsilon(plan):.2f} with or without sampling"
    return "proven", f"here epsilon {amplified:.2f} for {unamplified_epsilon(plan):.2f}"


def amplifications() -> str:
    """Family x scheme."""

    def cell(family: str, scheme: str) -> str:
        word, why = answer(family, scheme)
        return f"**{word}**" if word == "refused" else f"**{word}**: {why}"

    names = [f"`{scheme}`" for scheme in SCHEMES]
    return table(
        ["family", *names],
        ([f"`{f}`", *(cell(f, scheme) for scheme in SCHEMES)] for f in fitted_families()),
    )


def refusals() -> str:
    """Every reason for which a family is refused, and where."""
    reasons: dict[str, list[str]] = {}
    for family in fitted_families():
        for scheme in SCHEMES:
            word, why = answer(family, scheme)
            if word == "refused":
                reasons.setdefault(re.sub(r"-0\.\d+", "..", why), []).append(
                    f"`{family}` with `{scheme}`"
                )
    return "\n".join(f"- {', '.join(where)}: {why}." for why, where in reasons.items())


def theorems() -> str:
    """Returns a table of the schemes: class, accounting with its theorems, and the accountant's
    neighbouring relation, in the words of the privacy statement.
    """

    def row(scheme: str) -> list[str]:
        mechanism = mechanism_of("banded")
        chosen = SCHEMES[scheme].configured(**SIZES)
        chosen = chosen.for_mechanism(mechanism)
        description = chosen.description(mechanism, 1.0)
        return [
            f"`{scheme}`",
            f"{{py:class}}`fedmf.{type(chosen).__name__}`",
            f"{description.accountant}, of {description.accounted}",
            description.relation,
        ]

    return table(
        ["scheme", "class", "accounting of an example", "relation of the accountant"],
        (row(s) for s in SCHEMES),
    )
