"""The privacy statement: its values as Markdown or JSON, and those of them that are the same for
every plan of a kind of system.

Its points are those of the banded paper's Appendix K.1 (after Ponomareva et al. 2023, Sec. 5.3),
what was observed where a run is finished, what is not covered, and how to check it.
`describe.statement_values` and `Audit.statement_values` hand out the values, in plain JSON types
and at full precision; the template `statement.md.jinja` turns them, and nothing else, into
Markdown.
"""

import datetime
import functools
import hashlib
import importlib.metadata
import json
import platform
import re
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedmf.identifiers import format_client, format_rounds
from fedmf.mechanisms.base import Mechanism
from fedmf.participation.schema import SCHEMAS, Participation
from fedmf.privacy import rounding
from fedmf.privacy.checking import command_checks
from fedmf.privacy.markdown_text import GLUED_BLANK, code_span, in_one_line, plain_markdown
from fedmf.privacy.references import references_of
from fedmf.privacy.systems import System, system_of

FORMAT = "fedmf privacy statement 1"
NOT_COVERED = (
    "Hyperparameter tuning, and any other run on the same clients: every run has its own "
    "guarantee, and several of them compose.",
    "The choice of a checkpoint, of a stopping time or of one run among several by "
    "evaluation metrics or A/B tests.",
    "Evaluation metrics, and training metrics that are exact functions of client data: loss, "
    "examples, clients that took part, clip "
    "fraction, updates zeroed. Publishing them is a release of its own.",
    "What was computed from client data before training, such as a vocabulary, tokens or "
    "normalisation constants.",
    "Who took part and when: the participation record names clients and is not part of the output.",
    "Single updates, checkpoints and the noise seed: whoever holds them "
    "holds more than the output.",
    "Floating-point arithmetic: attacks on rounding, on the generator of the noise or on timing "
    "are out of scope.",
)
_NOTHING_COVERED = "Whatever clients contribute: without noise there is no guarantee to cover it."
_COVERED_METRICS = (
    " A choice by the private metrics of the run is covered.",
    " The private metrics are covered.",
)
_PACKAGES = (
    "fedmf numpy scipy dp-accounting tensorflow tensorflow-federated tensorflow-privacy"
).split()
# Values that only some statements have.
_OPTIONAL = (
    "subject canaries synthetic_clients longer contradictions unrecorded achieved "
    "marked_noncompliant noncompliant_clients noise_source programs server_optimizer "
    "quantile_clipping private_metrics attack"
).split()
_WIDTH = 110
# What a line of the template begins with that is not the rest of the line before.
_MARKER = re.compile(r" *(?:\d+\. |- |> )|(?=[|#]|    \S)")
# At a line's start it would begin a block of Markdown.
_BLOCK_START = rf"\d+[.)](?:[ {GLUED_BLANK}]|$)|[-+*#=]+(?:[ {GLUED_BLANK}]|$)|[>:!]"


def not_covered(system: System, *, private_metrics: bool, private: bool) -> list[str]:
    """Returns the points of what is not covered.

    Args:
      system: the kind of system.
      private_metrics: whether metrics of the rounds are released with noise.
      private: whether noise is added at all.
    """
    if not private:
        return [_NOTHING_COVERED]
    *points, arithmetic = NOT_COVERED
    if private_metrics:
        _, choice, metrics, *_ = points
        additions = dict(zip((choice, metrics), _COVERED_METRICS, strict=True))
        points = [point + additions.get(point, "") for point in points]
    if system.generator is not None:
        arithmetic = f"{arithmetic} {system.generator}"
    return [*points, arithmetic]


def today() -> str:
    """Returns the day, in UTC, as a statement names it."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def installed_versions() -> dict[str, str]:
    """Versions of what decides the guarantee, of the packages that are installed."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions | {"python": platform.python_version()}


def version_changes(recorded: Mapping[str, str]) -> str:
    """Returns the recorded versions that are not those installed here, in one phrase; empty where
    all are.

    >>> version_changes(installed_versions())
    ''
    >>> version_changes(installed_versions() | {"python": "3.9.0", "scipy": "1.9"})[:18]
    'scipy 1.9 (here is'
    """
    installed = installed_versions()
    return ", ".join(
        f"{name} {recorded.get(name, 'missing')} (here is {installed.get(name, 'none')})"
        for name in {**recorded, **installed}
        if recorded.get(name) != installed.get(name)
    )


def mechanism_digest(mechanism: Mechanism) -> str:
    """SHA-256 of what the mechanism is, its matrices and family,
    without its certificate; hexadecimal.

    >>> from fedmf.mechanisms import IdentityMechanism
    >>> mechanism_digest(IdentityMechanism(rounds=4)) == mechanism_digest(
    ...     IdentityMechanism(rounds=5)
    ... )
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


@functools.cache
def _environment() -> Any:
    import jinja2  # a tenth of a second that only statements need

    # Markdown: nothing is escaped. A value that is missing is a mistake, but for those that only
    # some statements have.
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fedmf.privacy", "."),
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        finalize=lambda value: in_one_line(value) if isinstance(value, str) else value,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        up=rounding.up,
        down=rounding.down,
        client=format_client,
        rounds=format_rounds,
        name=plain_markdown,
        code=code_span,
    )
    return environment


def markdown(values: dict[str, Any]) -> str:
    """Returns the statement as Markdown, of the values of `describe.statement_values`."""
    limits = values["participation"]
    # A schema of a module that is not imported here has limits all the same.
    schema = SCHEMAS.get(limits["schema"], Participation)
    facts = dict.fromkeys(_OPTIONAL) | values
    facts |= {
        "kind": system_of(values["system"]),
        "assumption": _environment().from_string(schema.assumption).render(limits),
        "separation_kind": schema.separation_kind,
        "checks": command_checks(values),
    }
    text = _environment().get_template("statement.md.jinja").render(facts)
    references = [f"- {reference}." for reference in references_of(text)]
    text = "\n".join([text, "", "## References", "", *references])
    points: list[str] = []
    for line in text.splitlines():
        if points and points[-1] and line.strip() and not _MARKER.match(line):
            points[-1] += f" {line.strip()}"
        elif line.strip() or (points and points[-1]):
            points.append(line.rstrip())
    lines = "\n".join(map(_wrapped, points))
    return lines.replace(GLUED_BLANK, " ").rstrip() + "\n"


def _wrapped(point: str) -> str:
    """Returns the point in lines of the indentation of its text, none of which begins with what
    Markdown reads as the start of a list, a heading or another block.
    """
    marker = _MARKER.match(point)
    start = marker[0] if marker else ""
    if marker and not start:
        return point
    kept = re.sub(r"\s+", " ", point[len(start) :])
    kept = re.sub(rf" (?={_BLOCK_START})", GLUED_BLANK, kept)
    lines = textwrap.wrap(
        kept,
        _WIDTH,
        initial_indent=start,
        subsequent_indent="> " if start.startswith(">") else " " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines)


def as_text(values: dict[str, Any], suffix: str) -> str:
    """Values as the contents of a file of this suffix, .md or .json.

    Raises:
      ValueError: another suffix.
    """
    if suffix == ".json":
        return json.dumps(values, indent=2, allow_nan=False) + "\n"
    if suffix != ".md":
        raise ValueError(
            f"statement file has the suffix {suffix!r}: name a file that ends in .md or .json"
        )
    return markdown(values)
