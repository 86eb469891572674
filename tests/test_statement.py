import pathlib
import re

import pytest

from fedmf.accounting import Plan
from fedmf.mechanisms import IdentityMechanism, TreeMechanism
from fedmf.participation import Participation

TWICE = Participation(rounds=8, schema="min_sep", min_sep=4)


def plan(participation=TWICE, **changes):
    identity = IdentityMechanism(rounds=participation.rounds)
    given = {"mechanism": identity, "noise_multiplier": 2.0, "clip_norm": 0.5, "delta": 1e-6, **changes}
    return Plan(participation=participation, **given)


def point(statement, name):
    """The text of one point of the statement, on one line."""
    match = re.search(rf"\*\*{re.escape(name)}\.\*\* (.*?)(?=\n *\d\. \*\*|\Z)", statement, re.DOTALL)
    assert match, name
    return " ".join(match[1].split())


# Banded paper, App. K.1, in its order, and what each point must say.
STRUCTURE = {
    "DP setting": ["Central", "trusted"],
    "Data accesses covered": ["well-behaved clients", "Not covered: hyperparameter tuning"],
    "Final mechanism output": ["whole sequence", "each of the 8 rounds", "post-processing"],
    "Unit of privacy": ["One client (device)", "group privacy"],
    "Adjacency": ["Zero-out", "zero vector"],
    "Type": ["Privacy loss distributions", "zCDP", "multiplier 2 ", "no amplification"],
    "Assumptions": ["at most 2 of the 8 rounds", "at least 4 rounds apart", "enforces", "norm at most 0.5", "float32"],
    "Formal statement": ["epsilon = 2.255,", "delta = 1e-06", "rho = 0.125 zCDP"],
}


def test_every_point_of_k1_in_order():
    text = plan().statement()
    places = [text.index(f"**{name}.**") for name in STRUCTURE]
    assert places == sorted(places)
    assert text.index("**Instantiating the definition.**") < places[1]
    assert text.index("**Accounting.**") < places[5]
    for name, words in STRUCTURE.items():
        for word in words:
            assert word in point(text, name), name


def test_the_numbers_are_the_plans():
    made = plan(mechanism=TreeMechanism(rounds=8), noise_multiplier=3.25, clip_norm=0.7, delta=3.5e-7)
    text = made.statement()
    assumptions = point(text, "Assumptions")
    assert "family tree" in assumptions
    assert f"{made.sensitivity.value:.6g}, " in assumptions
    assert made.sensitivity.method in assumptions
    assert f"standard deviation {made.stddev:.6g};" in assumptions
    assert "3.25" in point(text, "Type")
    formal = point(text, "Formal statement")
    assert "delta = 3.5e-07)" in formal
    # Four digits, rounded up.
    shown = float(re.search(r"epsilon = ([\d.]+)", formal)[1])
    assert made.epsilon <= shown <= made.epsilon * 1.001


@pytest.mark.parametrize("sigma", [0.31, 0.655, 1.2345, 2.3, 7.0])
def test_no_number_claims_more_than_proven(sigma):
    made = plan(noise_multiplier=sigma, delta=1.23456789e-6)
    formal = point(made.statement(), "Formal statement")
    assert float(re.search(r"epsilon = ([\d.e+-]+)", formal)[1]) >= made.epsilon
    assert float(re.search(r"rho = ([\d.e+-]+)", formal)[1]) >= made.rho
    assert float(re.search(r"delta = ([\d.e+-]+)", formal)[1]) == made.delta


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
        assert words in head
    formal = point(rest, "Formal statement")
    assert formal.startswith("For the claimed cohort of 1000 clients a round: ")
    # The guarantee quoted is the claimed run's, the noise is the simulated run's.
    assert formal.partition(": ")[2].lower() == point(claimed.statement(), "Formal statement").lower()
    assert f"standard deviation {claimed.stddev / 100:.6g};" in point(rest, "Assumptions")
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


def test_less_noise_than_the_accountant_covers_is_no_guarantee():
    assert "epsilon = infinity (no guarantee)" in plan(noise_multiplier=1e-3).statement()


def test_golden():
    # The whole text of one plan. A change here is a change of what we promise: read it before renewing the file.
    golden = pathlib.Path(__file__).parent / "data" / "statement.md"
    assert plan(delta=1e-10).statement() == golden.read_text(encoding="utf-8")
