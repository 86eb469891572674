"""The privacy statement: golden files, and the sentences of each kind of plan."""

import json
import math
import pathlib
import re
import sys

import numpy as np
import pytest

import fedmf
from fedmf.audits.guarantee import audit_ledger, audit_log
from fedmf.mechanisms import DenseMechanism, ToeplitzMechanism, TreeMechanism
from fedmf.privacy.describe import statement, statement_values
from fedmf.privacy.plan import unamplified_epsilon
from fedmf.privacy.statement import as_text, markdown, mechanism_digest
from tests.mechanisms.schemas import epochs, every_round, separated, single
from tests.privacy import plans
from tests.privacy.plans import ledger_of, two_bands

TWICE = separated(8, 4)


def plan(participation=TWICE, **changes):
    return plans.plan(participation, **changes)


def point_text(statement, name):
    """Returns the text of one point of the statement, in one line."""
    match = re.search(
        rf"\*\*{re.escape(name)}\.\*\* (.*?)(?=\n *\d\. \*\*|\n\n|\Z)", statement, re.DOTALL
    )
    assert match, name
    return " ".join(match[1].split())


def test_an_infinite_epsilon_is_stated_as_no_guarantee():
    assert "epsilon = infinity (no guarantee)" in statement(plan(noise_multiplier=1e-3))


@pytest.mark.parametrize(
    ("participation", "words"),
    [
        (single(8), "at most one of the 8 rounds"),
        (every_round(8), "every one of the 8 rounds"),
        (epochs(8, 3), "exactly 3 rounds apart"),
    ],
)
def test_the_assumptions_describe_the_participation(participation, words):
    assert words in point_text(statement(plan(participation)), "Assumptions")


def test_an_upper_bound_of_the_sensitivity_is_called_one():
    toeplitz = ToeplitzMechanism(rounds=8, coefficients=[1.0, 0.2, 0.5])
    toeplitz_plan = plan(separated(8, 2, 3), mechanism=toeplitz)
    assert not toeplitz_plan.sensitivity.exact
    assert ", a proven upper bound (" in point_text(statement(toeplitz_plan), "Assumptions")


def test_without_noise_there_is_no_guarantee():
    noiseless = plan(noise_multiplier=0).simulating(simulated=10, claimed=1000)
    text = statement(noiseless)
    head, _, points = text.partition("1. **DP setting.**")
    assert "**No privacy.**" in head
    assert "no differential privacy guarantee" in point_text(points, "Formal statement")
    assert "epsilon =" not in text
    assert "rho =" not in text
    values = statement_values(noiseless)
    assert values["guarantee"]["epsilon"] is values["guarantee"]["rho"] is None
    json.dumps(values, allow_nan=False)


# Values that depend on the day and the machine.
ENVIRONMENT = {
    "versions": {"fedmf": "0.1.0", "dp-accounting": "0.4.3", "python": "3.11.7"},
    "date": "2026-11-28",
}
DATA = pathlib.Path(__file__).parents[1] / "data"


def sampled(scheme_type=fedmf.CyclicPoisson, **changes):
    """Returns a plan with sampling."""
    scheme = scheme_type(**{"population": 4000, "cohort_size": 20, "partitions": 2, **changes})
    return plan(
        scheme.participation(64), mechanism=two_bands(64), sampling=scheme, noise_multiplier=0.45
    )


def audited(folder):
    """Returns the audit of a log in which one client took part too soon."""
    log_plan = plan(separated(12, 4), mechanism=two_bands(12), noise_multiplier=1.5)
    log_path = folder / "log.csv"
    rows = [f"device-{t % 4},{t}\n" for t in range(9)]
    log_path.write_text("".join(["client,round\n", *rows, "device-2,7\n"]))
    return audit_log(log_path, log_plan, rounds_run=9)


def golden_values(name, folder):
    """Returns the values of a golden statement."""
    if name == "audited":
        command = (
            "fedmf audit log log.csv mechanism.npz --rounds 12 --min-sep 4 "
            "--noise-multiplier 1.5 --clip-norm 0.5"
        )
        return audited(folder).statement_values(commands=[command]) | ENVIRONMENT
    golden_plan = {
        "planned": lambda: plan(delta=1e-10),
        "simulated": lambda: plan(mechanism=TreeMechanism(rounds=8, decoder="online")).simulating(
            simulated=10, claimed=1000
        ),
        "sampled": sampled,
    }[name]()
    pretraining = "public multilingual C4" if name == "planned" else None
    values = statement_values(golden_plan, pretraining=pretraining, rdp=name == "sampled")
    return values | ENVIRONMENT


def is_close(value, golden):
    """Returns whether values are equal, floats up to the rounding of another processor's FFT."""
    if isinstance(value, dict) and isinstance(golden, dict):
        same_keys = value.keys() == golden.keys()
        return same_keys and all(is_close(value[key], golden[key]) for key in value)
    if isinstance(value, list) and isinstance(golden, list):
        return len(value) == len(golden) and all(map(is_close, value, golden))
    if isinstance(value, float) and isinstance(golden, float):
        return math.isclose(value, golden, rel_tol=1e-6)
    return type(value) is type(golden) and value == golden


@pytest.mark.parametrize("name", ["planned", "simulated", "sampled", "audited"])
def test_a_statement_is_its_golden_file(name, tmp_path):
    # A change of a whole statement is a change of the guarantee that users read: read it before
    # renewing the files, with python -m tests.privacy.test_statement.
    values = golden_values(name, tmp_path)
    golden = json.loads((DATA / f"statement_{name}.json").read_text(encoding="utf-8"))
    assert is_close(values, golden)
    # The text comes from the values alone, as they are in JSON.
    text = as_text(values, ".json")
    assert json.loads(text) == values
    assert as_text(json.loads(text), ".md") == (DATA / f"statement_{name}.md").read_text(
        encoding="utf-8"
    )


def test_the_digest_is_of_the_matrices_of_the_mechanism():
    # Only the digest distinguishes two mechanisms of the same family. A certificate is not part of
    # the mechanism.
    C = np.tril(np.ones((3, 3)))
    first_digest = mechanism_digest(DenseMechanism(matrix=C))
    C[2, 0] = np.nextafter(1.0, 2.0)
    assert first_digest != mechanism_digest(DenseMechanism(matrix=C))


class TestSampled:
    def test_fixed_size_sampling_keeps_the_clients_but_not_their_number_secret(self):
        fixed_size_statement = statement(sampled(fedmf.CyclicFixedSize))
        text = point_text(fixed_size_statement, "Assumptions")
        assert "a uniform subset of 20 clients" in text
        assert "The sampled clients stay secret: amplification" in text
        assert "twice the clip norm" in point_text(fixed_size_statement, "Adjacency")

    @pytest.mark.parametrize(
        ("relation", "words"),
        [
            ("add-or-remove", "from adding or removing a client. Zeroing a client out gives"),
            ("replace", "from replacing a client by another one"),
            ("zero-out", "from zeroing a client out, where the other clients"),
        ],
    )
    def test_the_template_says_why_each_relation_covers_zero_out(self, relation, words):
        values = statement_values(sampled())
        values["sampling"]["relation"] = relation
        assert f"The accountant bounds the loss {words}" in point_text(
            markdown(values), "Adjacency"
        )

    def test_random_allocation_is_described_by_its_epochs(self):
        allocation_plan = sampled(fedmf.CyclicRandomAllocation)
        assert allocation_plan.epsilon < unamplified_epsilon(allocation_plan)
        text = point_text(statement(allocation_plan), "Assumptions")
        assert "in every epoch of 200 rounds each client draws one of its 100, uniformly" in text


SIMULATED = plan().simulating(simulated=1, claimed=10)


class TestObserved:
    def test_a_plan_that_was_complied_with_is_stated_to_hold(self):
        ledger = ledger_of([[t % 4, 50 + t] for t in range(8)], 2)
        text = audit_ledger(ledger, plan()).statement(cohort_size=2, population=100)
        assert "Not as planned" not in text
        assert "complies with the plan, so that this holds" in point_text(text, "Formal statement")
        assert "had to enforce all of this" in point_text(text, "Assumptions")
        assert "| rounds with fewer than 2 clients | | 0 |" in re.sub(" +", " ", text)

    def test_a_simulation_achieves_no_epsilon(self):
        # The client of round 0 took part once where the plan allows twice. That proves nothing
        # about the claimed run.
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
        text = point_text(audit.statement(), "Formal statement")
        assert "where at least 4 were planned. Nothing can be claimed." in text
        assert audit.statement_values()["group_privacy"] == []
        broken_ledger = ledger_of([[0], [0]])
        # Clients with unknown rounds count as if they took part in every round, however few rounds
        # there were in the simulation.
        assert audit_ledger(broken_ledger, audit.planned).epsilon == audit.epsilon > plan().epsilon

    @pytest.mark.parametrize(("population", "is_too_small"), [(40, False), (39, True)])
    def test_a_claimed_run_may_need_more_clients_than_there_are(self, population, is_too_small):
        # 10 a round, 4 rounds apart, twice in 8 rounds at most.
        text = markdown(statement_values(SIMULATED, population=population))
        sentence = f"That run needs 40 clients, and the data here are of {population}."
        assert (sentence in text) == is_too_small

    def test_a_ledger_without_participants_has_an_epsilon_of_0(self):
        ledger = ledger_of([[]])
        audit = audit_ledger(ledger, plan())
        assert (audit.achieved, audit.epsilon, audit.rho) == (None, 0.0, 0.0)
        assert "Nobody took part" in point_text(audit.statement(), "Formal statement")


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
def test_the_observed_numbers_are_not_to_be_published_if_they_are_secret(scheme, is_secret):
    """With independent sampling the guarantee rests on the secrecy of the cohort sizes."""
    sampling = scheme and scheme(population=40, cohort_size=4, partitions=2)
    participation = None if sampling else TWICE
    mechanism = two_bands(8) if sampling else None
    sampled_plan = plan(participation, mechanism=mechanism, sampling=sampling)
    text = " ".join(audit_ledger(ledger_of([[1, 2], [3]]), sampled_plan).statement().split())
    assert "## What was observed" in text
    assert ("leave this section out of what is published" in text) == is_secret


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x85", "\u2028"])
def test_a_name_with_a_line_break_stays_in_one_line(end):
    text = markdown(statement_values(plan(), pretraining=f"a model{end}# A heading"))
    assert "a model # A heading" in " ".join(text.split())
    assert not re.search("^# A heading", text, re.MULTILINE)
