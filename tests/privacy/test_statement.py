import json
import math
import pathlib
import re
import sys

import numpy as np
import pytest

import fedmf
from fedmf.audits.guarantee import audit_ledger, audit_log
from fedmf.mechanisms import DenseMechanism, TreeMechanism
from fedmf.privacy.describe import statement, statement_values
from fedmf.privacy.plan import unamplified_epsilon
from fedmf.privacy.statement import as_text, markdown, mechanism_digest
from tests.mechanisms.schemas import epochs, every_round, separated, single
from tests.privacy import plans
from tests.privacy.plans import ledger_of, two_bands

TWICE = separated(8, 4)


def plan(participation=TWICE, **changes):
    return plans.plan(participation, **changes)


def point(statement, name):
    """The text of one point of the statement, on one line."""
    match = re.search(
        rf"\*\*{re.escape(name)}\.\*\* (.*?)(?=\n *\d\. \*\*|\n\n|\Z)", statement, re.DOTALL
    )
    assert match, name
    return " ".join(match[1].split())


def test_an_epsilon_that_is_none():
    assert "epsilon = infinity (no guarantee)" in statement(plan(noise_multiplier=1e-3))


@pytest.mark.parametrize(
    ("participation", "words"),
    [
        (single(8), "at most one of the 8 rounds"),
        (every_round(8), "every one of the 8 rounds"),
        (epochs(8, 3), "exactly 3 rounds apart"),
    ],
)
def test_participation_in_words(participation, words):
    assert words in point(statement(plan(participation)), "Assumptions")


def test_an_upper_bound_is_called_one():
    bound = plan(separated(8, 2, 3), mechanism=TreeMechanism(rounds=8))
    assert not bound.sensitivity.exact
    assert ", a proven upper bound (" in point(statement(bound), "Assumptions")


def test_no_noise_no_guarantee():
    made = plan(noise_multiplier=0).simulating(simulated=10, claimed=1000)
    text = statement(made)
    head, _, rest = text.partition("1. **DP setting.**")
    assert "**No privacy.**" in head
    assert "no differential privacy guarantee" in point(rest, "Formal statement")
    assert "epsilon =" not in text
    assert "rho =" not in text
    values = statement_values(made)
    assert values["guarantee"]["epsilon"] is values["guarantee"]["rho"] is None
    json.dumps(values, allow_nan=False)


# What another day or machine makes different.
MADE_ON = {
    "versions": {"fedmf": "0.1.0", "dp-accounting": "0.4.3", "python": "3.11.7"},
    "date": "2026-11-28",
}
DATA = pathlib.Path(__file__).parents[1] / "data"


def sampled(kind=fedmf.CyclicPoisson, **changes):
    given = {"population": 4000, "cohort_size": 20, "partitions": 2, **changes}
    scheme = kind(**given)
    return plan(
        scheme.participation(64), mechanism=two_bands(64), sampling=scheme, noise_multiplier=0.45
    )


def audited(folder):
    """A log in which one client came too soon."""
    made = plan(separated(12, 4), mechanism=two_bands(12), noise_multiplier=1.5)
    log = folder / "log.csv"
    log.write_text(
        "client,round\n" + "".join(f"device-{t % 4},{t}\n" for t in range(9)) + "device-2,7\n"
    )
    return audit_log(log, made, rounds_run=9)


def golden_values(name, folder):
    if name == "audited":
        command = (
            "fedmf audit log log.csv mechanism.npz --rounds 12 --min-sep 4 "
            "--noise-multiplier 1.5 --clip-norm 0.5"
        )
        return audited(folder).statement_values(commands=[command]) | MADE_ON
    made = {
        "planned": lambda: plan(delta=1e-10),
        "simulated": lambda: plan(mechanism=TreeMechanism(rounds=8, decoder="online")).simulating(
            simulated=10, claimed=1000
        ),
        "sampled": sampled,
    }[name]()
    pretraining = "public multilingual C4" if name == "planned" else None
    values = statement_values(made, pretraining=pretraining, rdp=name == "sampled")
    return values | MADE_ON


def close(one, other):
    """Equal, floats to the rounding of another processor's FFT."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("name", ["planned", "simulated", "sampled", "audited"])
def test_golden(name, tmp_path):
    # The whole of a statement. A change here is a change of what we promise: read it before
    # renewing the files, with python -m tests.privacy.test_statement
    values = golden_values(name, tmp_path)
    assert close(values, json.loads((DATA / f"statement_{name}.json").read_text(encoding="utf-8")))
    # The text comes from the values alone, as they are in JSON.
    text = as_text(values, ".json")
    assert json.loads(text) == values
    assert as_text(json.loads(text), ".md") == (DATA / f"statement_{name}.md").read_text(
        encoding="utf-8"
    )


def test_the_digest_is_of_the_mechanism():
    # Nothing else tells two mechanisms of one family apart, and a certificate says how it was
    # found, not what it is.
    C = np.tril(np.ones((3, 3)))
    first = mechanism_digest(DenseMechanism(matrix=C))
    C[2, 0] = np.nextafter(1.0, 2.0)
    assert first != mechanism_digest(DenseMechanism(matrix=C))


class TestSampled:
    def test_fixed_size(self):
        said = statement(sampled(fedmf.CyclicFixedSize))
        text = point(said, "Assumptions")
        assert "a uniform subset of 20 clients" in text
        assert "The sampled clients stay secret: amplification" in text  # their number is no secret
        assert "twice the clip norm" in point(said, "Adjacency")

    def test_places(self):
        places = sampled(fedmf.CyclicRandomAllocation)
        assert places.epsilon < unamplified_epsilon(places)
        text = point(statement(places), "Assumptions")
        assert "in every epoch of 200 rounds each client draws one of its 100, uniformly" in text


SIMULATED = plan().simulating(simulated=1, claimed=10)


class TestObserved:
    def test_what_was_kept_is_said_to_hold(self):
        ledger = ledger_of([[t % 4, 50 + t] for t in range(8)], 2)
        text = audit_ledger(ledger, plan()).statement(cohort_size=2, population=100)
        assert "Not as planned" not in text
        assert "keeps to the plan, so that this holds" in point(text, "Formal statement")
        assert "had to enforce all of this" in point(text, "Assumptions")
        assert "| rounds with fewer than 2 clients | | 0 |" in re.sub(" +", " ", text)

    def test_a_simulation_achieves_no_epsilon(self):
        # The client of round 0 took part once where the plan allows twice: of the claimed run that
        # says nothing.
        ledger = ledger_of([[t] for t in range(8)], 1)
        assert audit_ledger(ledger, plan()).epsilon < plan().epsilon
        audit = audit_ledger(ledger, SIMULATED)
        assert audit.epsilon == plan().epsilon
        values = audit.values()
        names = ("epsilon_achieved", "rho_achieved", "sensitivity_achieved")
        assert {values[name] for name in names} == {None}
        assert audit.statement_values()["achieved"] is None
        text = " ".join(audit.statement().split())
        assert "That of the claimed run, which the guarantee is about, was not observed." in text
        assert "so that this holds" not in text

    def test_a_simulation_that_breaks_its_plan_claims_nothing(self):
        ledger = ledger_of([[0]] * 8)
        audit = audit_ledger(ledger, SIMULATED)
        said = point(audit.statement(), "Formal statement")
        assert "where at least 4 were planned. Nothing can be claimed." in said
        assert audit.statement_values()["group_privacy"] == []
        once = ledger_of([[0], [0]])
        # Of clients whose rounds are not known every round counts, however few there were
        # in the simulation.
        assert audit_ledger(once, audit.planned).epsilon == audit.epsilon > plan().epsilon

    @pytest.mark.parametrize(("population", "said"), [(40, False), (39, True)])
    def test_a_claimed_run_may_need_more_clients_than_there_are(self, population, said):
        # 10 a round, 4 rounds apart, twice in 8 rounds at most.
        text = markdown(statement_values(SIMULATED, population=population))
        assert (
            f"That run needs 40 clients, and the data here are of {population}." in text
        ) == said

    def test_nobody(self):
        ledger = ledger_of([[]])
        audit = audit_ledger(ledger, plan())
        assert (audit.achieved, audit.epsilon, audit.rho) == (None, 0.0, 0.0)
        assert "Nobody took part" in point(audit.statement(), "Formal statement")


if __name__ == "__main__":
    # Renews the golden files: of those named, or of all.
    import tempfile

    for golden in sys.argv[1:] or ["planned", "simulated", "sampled", "audited"]:
        with tempfile.TemporaryDirectory() as folder:
            renewed = golden_values(golden, pathlib.Path(folder))
        for suffix in (".md", ".json"):
            (DATA / f"statement_{golden}{suffix}").write_text(
                as_text(renewed, suffix), encoding="utf-8"
            )


@pytest.mark.parametrize(
    ("scheme", "is_secret"),
    [(fedmf.CyclicPoisson, True), (fedmf.CyclicFixedSize, False), (None, False)],
)
def test_numbers_of_who_was_drawn_are_kept_from_publication(scheme, is_secret):
    """Where clients are drawn independently the guarantee rests on nobody knowing how many were."""
    sampling = scheme and scheme(population=40, cohort_size=4, partitions=2)
    participation = None if sampling else TWICE
    mechanism = two_bands(8) if sampling else None
    made = plan(participation, mechanism=mechanism, sampling=sampling)
    text = " ".join(audit_ledger(ledger_of([[1, 2], [3]]), made).statement().split())
    assert "## What was observed" in text
    assert ("leave this section out of what is published" in text) == is_secret


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x85", "\u2028"])
def test_a_name_stays_in_its_line(end):
    text = markdown(statement_values(plan(), pretraining=f"a model{end}# A heading"))
    assert "a model # A heading" in " ".join(text.split())
    assert not re.search("^# A heading", text, re.MULTILINE)
