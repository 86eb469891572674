import json
import math
import pathlib
import re
import sys

import numpy as np
import pytest

from fedmf.audits.guarantee import audit_ledger, audit_log
from fedmf.mechanisms import BandedMechanism, DenseMechanism, IdentityMechanism, TreeMechanism
from fedmf.participation.ledger import ParticipationLedger
from fedmf.participation.schema import Participation
from fedmf.privacy.plan import Plan
from fedmf.privacy.sampling import CyclicFixedSize, CyclicPoisson, CyclicShuffle
from fedmf.privacy.statement import as_text, mechanism_digest

TWICE = Participation(rounds=8, schema="min_sep", min_sep=4)


def plan(participation=TWICE, **changes):
    identity = IdentityMechanism(rounds=participation.rounds)
    given = {"mechanism": identity, "noise_multiplier": 2.0, "clip_norm": 0.5, "delta": 1e-6, **changes}
    return Plan(participation=participation, **given)


def point(statement, name):
    """The text of one point of the statement, on one line."""
    match = re.search(rf"\*\*{re.escape(name)}\.\*\* (.*?)(?=\n *\d\. \*\*|\n\n|\Z)", statement, re.DOTALL)
    assert match, name
    return " ".join(match[1].split())


# Banded paper, App. K.1, in its order, and what each point must say.
STRUCTURE = {
    "DP setting": ["Central", "trusted"],
    "Data accesses covered": ["well-behaved clients", "one training run", "pre-training", "nobody else's"],
    "Final mechanism output": ["whole sequence", "each of the 8 rounds", "every intermediate model", "post-processing"],
    "Unit of privacy": ["One client (device)", "however large", "stronger", "weaker", "group privacy"],
    "Adjacency": ["Zero-out", "zero vector", "add-or-remove", "fixed number of clients"],
    "Type": ["Privacy loss distributions", "zCDP", "multiplier 2 ", "no amplification"],
    "Assumptions": ["at most 2 of the 8 rounds", "at least 4 rounds apart", "enforces", "norm at most 0.5", "secret"],
    "Formal statement": ["epsilon = 2.255,", "delta = 1e-06", "rho = 0.125 zCDP"],
    "Transparency and verifiability": ["commands", "versions"],
}
# Beyond K.1, and what each section must say.
SECTIONS = {
    "Users with several devices": ["| 2 |", "| 3 |", "| 5 |"],
    "Not covered": [
        *("Hyperparameter tuning", "checkpoint", "Evaluation metrics", "vocabulary", "Who took part", "seed"),
        *("Floating-point", "any other run"),
    ],
    "How to check it": ["fedmf calibrate", "SHA-256", "python"],
}


def test_every_point_of_k1_in_order():
    text = plan().statement()
    places = [text.index(f"**{name}.**") for name in STRUCTURE]
    assert places == sorted(places)
    assert text.index("**Instantiating the definition.**") < places[1]
    assert text.index("**Accounting.**") < places[5]
    sections = [text.index(f"\n## {name}\n") for name in SECTIONS]
    assert [*places, *sections] == sorted([*places, *sections])
    for name, words in SECTIONS.items():
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for word in words:
            assert word in section, name
    for name, words in STRUCTURE.items():
        for word in words:
            assert word in point(text, name), name


def test_the_numbers_are_the_plans():
    made = plan(mechanism=TreeMechanism(rounds=8), noise_multiplier=3.25, clip_norm=0.7, delta=3.5e-7)
    text = made.statement()
    assumptions = point(text, "Assumptions")
    assert "family tree" in assumptions
    assert made.sensitivity.method in assumptions
    # Six digits; what the guarantee takes away rounded up, what it rests on rounded down.
    sensitivity = float(re.search(r"unit clip norm, is ([\d.]+),", assumptions)[1])
    assert made.sensitivity.value <= sensitivity <= made.sensitivity.value * 1.00001
    stddev = float(re.search(r"standard deviation ([\d.]+);", assumptions)[1])
    assert made.stddev * 0.99999 <= stddev <= made.stddev
    assert "3.25" in point(text, "Type")
    formal = point(text, "Formal statement")
    assert "delta = 3.5e-07)" in formal
    # Four digits, rounded up.
    shown = float(re.search(r"epsilon = ([\d.]+)", formal)[1])
    assert made.epsilon <= shown <= made.epsilon * 1.001
    assert float(re.search(r"rho = ([\d.e+-]+)", formal)[1]) >= made.rho
    assert "epsilon = infinity (no guarantee)" in plan(noise_multiplier=1e-3).statement()


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"schema": "single"}, ["at most one of the 8 rounds"]),
        ({"schema": "every_round"}, ["every one of the 8 rounds"]),
        ({"schema": "fixed_epoch", "min_sep": 3}, ["at most 3 of the 8", "exactly 3 rounds apart"]),
        (
            {"schema": "min_sep", "min_sep": 3, "max_participations": 2},
            ["at most 2 of the 8", "at least 3 rounds apart"],
        ),
    ],
)
def test_participation_in_words(limits, words):
    assumptions = point(plan(Participation(rounds=8, **limits)).statement(), "Assumptions")
    for word in words:
        assert word in assumptions


def test_an_upper_bound_is_called_one():
    exact = plan()
    bound = plan(
        Participation(rounds=8, schema="min_sep", min_sep=2, max_participations=3), mechanism=TreeMechanism(rounds=8)
    )
    assert exact.sensitivity.exact
    assert not bound.sensitivity.exact
    assert ", exact (" in point(exact.statement(), "Assumptions")
    assert ", a proven upper bound (" in point(bound.statement(), "Assumptions")


def test_a_simulation_says_so_first_and_last():
    claimed = plan()
    text = claimed.simulating(simulated=10, claimed=1000).statement()
    head, _, rest = text.partition("1. **DP setting.**")
    for words in (
        "**Simulation.**",
        "10 clients a round stand for 1000",
        "10/1000",
        "does **not** have this guarantee",
    ):
        assert words in " ".join(head.replace("\n> ", " ").split())
    formal = point(rest, "Formal statement")
    assert formal.startswith("For the claimed cohort of 1000 clients a round: ")
    # The guarantee quoted is the claimed run's, the noise is the simulated run's.
    assert formal.partition(": ")[2].lower() == point(claimed.statement(), "Formal statement").lower()
    shown = float(re.search(r"standard deviation ([\d.]+);", point(rest, "Assumptions"))[1])
    assert shown == pytest.approx(claimed.stddev / 100, rel=1e-5)
    assert "imulat" not in claimed.statement()


@pytest.mark.parametrize("simulated", [False, True])
def test_no_noise_no_guarantee(simulated):
    made = plan(noise_multiplier=0)
    made = made.simulating(simulated=10, claimed=1000) if simulated else made
    text = made.statement()
    head, _, rest = text.partition("1. **DP setting.**")
    assert "**No privacy.**" in head
    assert "no differential privacy guarantee" in point(rest, "Formal statement")
    assert "epsilon =" not in text
    assert "rho =" not in text
    assert ("10 clients a round stand for 1000" in head) == simulated
    values = made.statement_values()
    assert values["guarantee"]["epsilon"] is values["guarantee"]["rho"] is None
    json.dumps(values, allow_nan=False)


VERSIONS = {"fedmf": "0.1.0", "dp-accounting": "0.4.3", "python": "3.11.7"}
DATA = pathlib.Path(__file__).parents[1] / "data"


def two_bands(rounds):
    diagonals = np.tile([0.8, 0.6], (rounds, 1))
    diagonals[0, 1] = 0
    return BandedMechanism(diagonals=diagonals)


def sampled(kind=CyclicPoisson, **changes):
    given = {"population": 4000, "cohort_size": 20, **changes}
    scheme = kind(**given).in_partitions(2)
    return plan(scheme.participation(64), mechanism=two_bands(64), sampling=scheme, noise_multiplier=0.45)


def audited(folder):
    """A log in which one client came too soon."""
    made = plan(Participation(rounds=12, schema="min_sep", min_sep=4), mechanism=two_bands(12), noise_multiplier=1.5)
    log = folder / "log.csv"
    log.write_text("client,round\n" + "".join(f"device-{t % 4},{t}\n" for t in range(9)) + "device-2,7\n")
    return audit_log(log, made, rounds_run=9)


def golden_values(name, folder):
    if name == "audited":
        command = "fedmf audit log log.csv mechanism.npz --rounds 12 --min-sep 4 --noise-multiplier 1.5 --clip-norm 0.5"
        return audited(folder).statement_values(subject="log", versions=VERSIONS, commands=[command])
    made = {
        "planned": lambda: plan(delta=1e-10),
        "simulated": lambda: plan(mechanism=TreeMechanism(rounds=8)).simulating(simulated=10, claimed=1000),
        "sampled": sampled,
    }[name]()
    pretraining = "public multilingual C4" if name == "planned" else None
    return made.statement_values(versions=VERSIONS, pretraining=pretraining, rdp=name == "sampled")


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
    # The whole of a statement. A change here is a change of what we promise: read it before renewing the files, with
    # python -m tests.privacy.test_statement
    values = golden_values(name, tmp_path)
    assert close(values, json.loads((DATA / f"statement_{name}.json").read_text(encoding="utf-8")))
    # The text comes from the values alone, as they are in JSON.
    text = as_text(values, ".json")
    assert json.loads(text) == values
    assert as_text(json.loads(text), ".md") == (DATA / f"statement_{name}.md").read_text(encoding="utf-8")


class TestValues:
    def test_group_privacy_is_that_of_a_smaller_multiplier(self):
        made = plan(noise_multiplier=6.0)
        for row in made.statement_values()["group_privacy"]:
            alone = plan(noise_multiplier=6.0 / row["devices"])
            assert row["epsilon"] == pytest.approx(alone.epsilon, rel=1e-12)
            assert row["rho"] == pytest.approx(alone.rho, rel=1e-12)

    def test_another_suffix_is_refused(self):
        with pytest.raises(ValueError, match=r"suffix '.txt': name a file that ends in .md or .json"):
            as_text({}, ".txt")

    def test_rdp_on_request(self):
        made = plan()
        assert "Renyi" not in made.statement()
        text = point(made.statement(rdp=True), "Type")
        assert float(re.search(r"Renyi accounting.* epsilon = ([\d.]+)", text)[1]) >= made.rdp_epsilon > made.epsilon

    def test_pretraining(self):
        words = point(plan().statement(pretraining="public multilingual C4"), "Data accesses covered")
        assert "Pre-training: public multilingual C4. The data used for it is not covered." in words
        words = point(plan().statement(pretraining="none, drawn with seed 3"), "Data accesses covered")
        assert "Pre-training: none, drawn with seed 3." in words
        assert "used for it" not in words

    def test_the_digest_is_of_the_mechanism(self):
        # Nothing else tells two mechanisms of one family apart, and a certificate says how it was found, not what it is.
        C = np.tril(np.ones((3, 3)))
        first = mechanism_digest(DenseMechanism(matrix=C))
        assert first == mechanism_digest(DenseMechanism(matrix=C.copy()))
        C[2, 0] = np.nextafter(1.0, 2.0)
        assert first != mechanism_digest(DenseMechanism(matrix=C))


class TestSampled:
    @pytest.mark.parametrize(
        ("kind", "changes", "words"),
        [
            (CyclicFixedSize, {}, ["a uniform subset of 20 clients", "part t mod 2 only"]),
            (CyclicShuffle, {}, ["batches of 20 clients in one random order for all epochs of 200 rounds"]),
            (CyclicShuffle, {"reshuffle": True}, ["a new random order every epoch of 200 rounds"]),
        ],
    )
    def test_schemes_in_words(self, kind, changes, words):
        statement = sampled(kind, **changes).statement()
        text = point(statement, "Assumptions")
        for word in words:
            assert word in text
        assert "Who is drawn stays secret: amplification" in text  # how many are drawn is no secret
        adjacency = point(statement, "Adjacency")
        assert "twice the clip norm" in adjacency
        assert "same two distributions" not in adjacency


class TestObserved:
    def test_what_was_kept_is_said_to_hold(self):
        ledger = ParticipationLedger(cohort_size=2, cohorts=[np.array([t % 4, 50 + t]) for t in range(8)])
        audit = audit_ledger(ledger, plan())
        text = audit.statement(cohort_size=2, population=100)
        assert "Not as planned" not in text
        assert "keeps to the plan, so that this holds" in point(text, "Formal statement")
        assert "| rounds with fewer than 2 clients | | 0 |" in re.sub(" +", " ", text)
        assert "The participation controller enforced it." in point(text, "Assumptions")

    def test_a_simulation_was_not_the_claimed_run(self):
        ledger = ParticipationLedger(cohort_size=1, cohorts=[np.array([t % 4]) for t in range(8)])
        text = " ".join(audit_ledger(ledger, plan().simulating(simulated=1, claimed=10)).statement().split())
        assert "That of the claimed run, which the guarantee is about, was not observed." in text
        assert "The participation simulated keeps to it; that of the claimed run" in text
        assert "so that this holds" not in text
        assert "the same noise gives" not in text

    def test_a_simulation_achieves_no_epsilon(self):
        # The client of round 0 took part once where the plan allows twice: of the claimed run that says nothing.
        ledger = ParticipationLedger(cohort_size=1, cohorts=[np.array([t]) for t in range(8)])
        assert audit_ledger(ledger, plan()).epsilon < plan().epsilon
        audit = audit_ledger(ledger, plan().simulating(simulated=1, claimed=10))
        assert audit.epsilon == plan().epsilon
        assert audit.achieved.stddev == audit.planned.stddev
        values = audit.values()
        assert [values[f"{name}_achieved"] for name in ("epsilon", "rho", "sensitivity")] == [None] * 3
        assert audit.statement_values()["achieved"] is None

    def test_a_simulation_that_breaks_its_plan_claims_nothing(self):
        ledger = ParticipationLedger(cohort_size=1, cohorts=[np.array([0])] * 8)
        audit = audit_ledger(ledger, plan().simulating(simulated=1, claimed=10))
        text = audit.statement()
        assert "where at least 4 were planned. Nothing can be claimed." in point(text, "Formal statement")
        assert "the same noise gives" not in text
        assert "several devices, each" not in text
        assert audit.statement_values()["group_privacy"] == []
        once = ParticipationLedger(cohort_size=1, cohorts=[np.array([0]), np.array([0])])
        # Of clients whose rounds are not known every round counts, however few there were in the simulation.
        assert audit_ledger(once, audit.planned).epsilon == audit.epsilon > plan().epsilon

    @pytest.mark.parametrize(("population", "said"), [(None, False), (40, False), (39, True), (4, True)])
    def test_a_claimed_run_may_need_more_clients_than_there_are(self, population, said):
        # 10 a round, 4 rounds apart, twice in 8 rounds at most.
        ledger = ParticipationLedger(cohort_size=1, cohorts=[np.array([t % 4]) for t in range(8)])
        audit = audit_ledger(ledger, plan().simulating(simulated=1, claimed=10))
        text = " ".join(audit.statement(population=population).replace("\n> ", " ").split())
        assert (f"That run needs 40 clients, and the data here are of {population}." in text) == said

    def test_nobody(self):
        ledger = ParticipationLedger(cohort_size=1, cohorts=[np.zeros(0, np.int64)])
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
            (DATA / f"statement_{golden}{suffix}").write_text(as_text(renewed, suffix), encoding="utf-8")
