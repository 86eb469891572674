"""docs/reference/statement_fields.md: it describes every field of a statement, and no other."""

import dataclasses
import json
import pathlib
import re

import pytest

import fedmf
from fedmf.audits.guarantee import audit_ledger
from fedmf.mechanisms.budget import Budget
from fedmf.participation.ledger import ParticipationLedger
from fedmf.privacy.describe import statement_values
from fedmf.privacy.sampling import SCHEMES
from fedmf.privacy.stopping import stopped_after
from tests.privacy.plans import ledger_of, plan, two_bands
from tests.privacy.test_systems import APART, PLANS, ROUNDS, sampled

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/statement_fields.md"
RISKS = ("attack_risk", "unamplified", "trained_here", "epsilon_alone")
# Fields that a run adds to its statement: fedmf/runs/statement.py.
OF_RUNS = {"synthetic_clients", "programs", "server_optimizer", "selection_score"}


def paths_of(value, prefix=""):
    """Yields the path of every field in the values of a statement."""
    if isinstance(value, dict):
        for name, entry in value.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path
            if name != "versions":
                yield from paths_of(entry, path)
    elif isinstance(value, list):
        for entry in value:
            yield from paths_of(entry, f"{prefix}[]")


def described_path(path):
    """Returns the path under which the page describes a field: bounds on attackers and guarantees
    are described once.
    """
    head, *names = path.split(".")
    for position, name in enumerate(names):
        if name in RISKS and position + 1 < len(names) and head != name:
            return described_path(".".join(["attack", *names[position + 1 :]]))
    if path.startswith("marked_noncompliant.achieved_by_all."):
        return described_path(f"achieved.{names[-1]}")
    if head in ("longer", "achieved") and names and names[0] not in OWN_FIELDS[head]:
        return ".".join(["guarantee", *names])
    return path


OWN_FIELDS = {"longer": ["rounds"], "achieved": ["epsilon_if_sampled_as_planned"]}


def all_values():
    """Yields the values of statements that together have all fields."""
    for name in ("planned", "simulated", "sampled", "audited"):
        yield json.loads((ROOT / f"tests/data/statement_{name}.json").read_text(encoding="utf-8"))
    yield statement_values(PLANS["adaptive"](), canaries=3)
    yield statement_values(stopped_after(plan(APART), 8))
    for name in SCHEMES:
        yield statement_values(sampled(name))
    selection = fedmf.TrialCount(mean_trials=5)
    yield statement_values(dataclasses.replace(plan(APART), selection=selection))
    budgeted = Budget.of(two_bands(ROUNDS), APART).participation
    ledger = ledger_of([[t % 4] for t in range(ROUNDS)], 1)
    yield audit_ledger(ledger, plan(budgeted, two_bands(ROUNDS))).statement_values()
    marked = ParticipationLedger(cohort_size=1)
    marked.append([0])
    marked.append([0], noncompliant=[0])
    yield audit_ledger(marked, plan(APART), unrecorded=[2]).statement_values()


@pytest.mark.usefixtures("quick")
def test_the_page_describes_every_field_and_no_other():
    fields = {described_path(path) for values in all_values() for path in paths_of(values)}
    described = re.findall(r"^\| `([\w.\[\]]+)` \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert len(described) == len(set(described))
    assert fields | OF_RUNS == set(described)


def test_the_page_names_the_kinds_of_system():
    from fedmf.privacy.systems import SYSTEMS

    (line,) = re.findall(r"^\| `system` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    assert all(re.search(rf"\b{name}\b", line) for name in SYSTEMS)
    assert fedmf.participation.schema.SCHEMAS.keys() <= set(
        re.findall(r"\w+", PAGE.read_text(encoding="utf-8"))
    )
