"""Rendering of a privacy statement, a text that says what a run guarantees, as Markdown or JSON.

It has the points of the banded paper's Appendix K.1 (after Ponomareva et al. 2023, Sec. 5.3), the
observed participation of a run, the limits of the guarantee, and the commands that check it.
`describe.statement_values` and `Audit.statement_values` return its values, in plain JSON types and
at full precision; the template `statement.md.jinja` makes Markdown from these values alone.
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
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmf.identifiers import format_client, format_rounds
from fedmf.mechanisms.base import Mechanism
from fedmf.participation.schema import SCHEMAS, Participation
from fedmf.privacy import rounding
from fedmf.privacy.checking import command_checks
from fedmf.privacy.markdown_text import GLUED_BLANK, code_span, in_one_line, plain_markdown
from fedmf.privacy.references import references_of
from fedmf.privacy.systems import System, system_of

if TYPE_CHECKING:
    import jinja2

FORMAT = "fedmf privacy statement 1"
NOT_COVERED = (
    "Hyperparameter tuning, and any other run on the same clients: every run has its own "
    "guarantee, and several of them compose.",
    "The choice of a checkpoint, of a stopping time or of one run among several by "
    "evaluation metrics or A/B tests.",
    "Evaluation metrics, and training metrics that are exact functions of client data: loss, "
    "examples, clients that took part, clip "
    "fraction, updates zeroed. Publishing them is a release of its own.",
    "Values computed from client data before training, such as a vocabulary, tokens or "
    "normalisation constants.",
    "The participation of each client: its record names clients and is not part of the output.",
    "Single updates, checkpoints, and the noise or its seed: they contain more than the output.",
    "Floating-point arithmetic: attacks on rounding, on the generator of the noise or on timing "
    "are out of scope.",
)
_NOTHING_COVERED = "All contributions of clients: without noise there is no guarantee."
_COVERED_CHOICE = " A choice by the private metrics of the run is covered."
_COVERED_METRICS = " The private metrics are covered."
_COVERED_TUNING = " The private selection that chose this run among its trials is covered."
_NOT_HIDDEN = (
    "The running time of a private selection, its processes, its disk use, its cache of fitted "
    "mechanisms, the inode numbers and times of its file system and the dashboard of a cluster, "
    "which an attacker may observe: they tell something about the number of trials."
)
_PACKAGES = (
    "fedmf numpy scipy dp-accounting tensorflow tensorflow-federated tensorflow-privacy torch"
).split()
# Names of values that only some statements have. All other values are required.
_OPTIONAL = (
    "subject canaries synthetic_clients longer contradictions unrecorded achieved "
    "marked_noncompliant noncompliant_clients noise_source programs server_optimizer "
    "quantile_clipping private_metrics selection selection_score attack"
).split()
_WIDTH = 110
# Matches the start of a line of the statement's template that begins a new paragraph or list item,
# and does not continue the line before it.
_MARKER = re.compile(r" *(?:\d+\. |- |> )|(?=[|#]|    \S)")
# Matches text that would begin a block of Markdown, such as a list, at the start of a line.
_BLOCK_START = rf"\d+[.)](?:[ {GLUED_BLANK}]|$)|[-+*#=]+(?:[ {GLUED_BLANK}]|$)|[>:!]"


def not_covered(
    system: System, *, private_metrics: bool, private: bool, selected: bool = False
) -> list[str]:
    """Returns sentences on what the guarantee of a statement does not cover.

    Args:
      system: the kind of system.
      private_metrics: whether metrics of the rounds are released with noise.
      selected: whether the guarantee is that of a private selection.
      private: whether the run adds noise.
    """
    if not private:
        return [_NOTHING_COVERED]
    tuning, choice, metrics, preprocessing, *further_points, arithmetic = NOT_COVERED
    if private_metrics:
        choice += _COVERED_CHOICE
        metrics += _COVERED_METRICS
    if selected:
        tuning += _COVERED_TUNING
        further_points = [*further_points, _NOT_HIDDEN]
    if system.generator is not None:
        arithmetic = f"{arithmetic} {system.generator}"
    return [tuning, choice, metrics, preprocessing, *further_points, arithmetic]


def today() -> str:
    """Returns the current date in UTC, in ISO format."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def installed_versions() -> dict[str, str]:
    """Returns the versions of Python and of the installed packages that affect the guarantee."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions | {"python": platform.python_version()}


def version_changes(recorded: Mapping[str, str]) -> str:
    """Describes in one phrase how the installed versions differ from recorded ones; an empty text
    if they do not.

    >>> version_changes(installed_versions())
    ''
    >>> version_changes(installed_versions() | {"python": "3.9.0", "scipy": "1.9"})[:18]
    'scipy 1.9 (here is'
    """
    installed_by_name = installed_versions()
    return ", ".join(
        f"{name} {recorded.get(name, 'missing')} (here is {installed_by_name.get(name, 'none')})"
        for name in {**recorded, **installed_by_name}
        if recorded.get(name) != installed_by_name.get(name)
    )


def mechanism_digest(mechanism: Mechanism) -> str:
    """Returns the hexadecimal SHA-256 digest of a mechanism's matrices and family. Its certificate
    is not part of the digest.

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
        matrix = np.asarray(value)
        header = json.dumps([name, matrix.dtype.newbyteorder("<").str, list(matrix.shape)])
        little_endian = matrix.astype(matrix.dtype.newbyteorder("<"), copy=False)
        content = np.ascontiguousarray(little_endian).tobytes()
        digest.update(header.encode() + b"\0" + content + b"\0")
    return digest.hexdigest()


@functools.cache
def _environment() -> "jinja2.Environment":
    """Returns the Jinja environment of the statement's template, with filters that format numbers
    and names.
    """
    import jinja2  # The import takes a tenth of a second, and only statements need it.

    # autoescape is off because the output is Markdown and not HTML. A missing value is an error,
    # except for the values in `_OPTIONAL`.
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
        factor=rounding.factor,
        client=format_client,
        rounds=format_rounds,
        name=plain_markdown,
        code=code_span,
    )
    return environment


def markdown(values: dict[str, Any]) -> str:
    """Returns the privacy statement as Markdown.

    Args:
      values: the values of the statement, as `describe.statement_values` returns them.
    """
    participation_values = values["participation"]
    # The saved values may name a participation schema that a user's module defines and that is not
    # imported here.
    schema = SCHEMAS.get(participation_values["schema"], Participation)
    template_values = dict.fromkeys(_OPTIONAL) | values
    template_values |= {
        "kind": system_of(values["system"]),
        "assumption": _environment().from_string(schema.assumption).render(participation_values),
        "separation_kind": schema.separation_kind,
        "checks": command_checks(values),
    }
    statement_text = _environment().get_template("statement.md.jinja").render(template_values)
    references = [f"- {reference}." for reference in references_of(statement_text)]
    statement_text = "\n".join([statement_text, "", "## References", "", *references])
    wrapped_points = "\n".join(_wrapped(point) for point in _points(statement_text))
    return wrapped_points.replace(GLUED_BLANK, " ").rstrip() + "\n"


def _points(text: str) -> list[str]:
    """Joins the lines of each paragraph, list item or heading to one line. At most one empty line
    remains between them.
    """
    points: list[str] = []
    for line in text.splitlines():
        if points and points[-1] and line.strip() and not _MARKER.match(line):
            points[-1] += f" {line.strip()}"
        elif line.strip() or (points and points[-1]):
            points.append(line.rstrip())
    return points


def _wrapped(point: str) -> str:
    """Wraps a paragraph or list item with its indentation. No line begins with text that Markdown
    would read as a list, a heading or another block.
    """
    marker = _MARKER.match(point)
    marker_text = marker[0] if marker else ""
    if marker and not marker_text:
        return point
    point_text = re.sub(r"\s+", " ", point[len(marker_text) :])
    point_text = re.sub(rf" (?={_BLOCK_START})", GLUED_BLANK, point_text)
    indent = "> " if marker_text.startswith(">") else "".ljust(len(marker_text))
    wrapped_lines = textwrap.wrap(
        point_text,
        _WIDTH,
        initial_indent=marker_text,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(wrapped_lines)


def as_text(values: dict[str, Any], suffix: str) -> str:
    """Returns the statement as Markdown or JSON, depending on the suffix of its file. It is .md or
    .json.

    Raises:
      ValueError: the file has another suffix.
    """
    if suffix == ".json":
        return json.dumps(values, indent=2, allow_nan=False) + "\n"
    if suffix != ".md":
        raise ValueError(
            f"statement file has the suffix {suffix!r}: name a file that ends in .md or .json"
        )
    return markdown(values)
