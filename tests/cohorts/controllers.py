"""Controllers for tests: arguments that may or may not work, availability by a function, and
a run without training.
"""

import dataclasses
import warnings

from hypothesis import strategies as st

import fedmf
from tests.mechanisms.schemas import separated
from tests.participation.test_participation import participations


@st.composite
def settings_of_controllers(draw):
    """Arguments that need not work: construction refuses those that cannot."""
    participation = draw(participations(most_rounds=10))
    size = draw(st.integers(1, 3))
    population = draw(st.integers(size, size * (participation.rounds + 2)))
    return {
        "participation": participation,
        "population": population,
        "cohort_size": size,
        "seed": draw(st.integers(0, 9)),
    }


@st.composite
def controllers_that_work(draw):
    given = draw(settings_of_controllers())
    p, size = given["participation"], given["cohort_size"]
    if p.schema == "fixed_epoch":
        given["participation"] = p = dataclasses.replace(
            p, max_participations=-(-p.rounds // p.min_sep)
        )
    least = max(size * p.min_sep, -(-size * p.rounds // p.max_participations))
    return given | {"population": max(given["population"], least)}


class WhoComes:
    """A model of availability from a function of the round and the clients."""

    def __init__(self, available):
        self.available = available


def run(controller, rounds=None):
    """All cohorts; warnings do not matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fedmf.PoolRanDryWarning)
        return [
            controller.cohort(t).tolist() for t in range(rounds or controller.participation.rounds)
        ]


def rounds_of_clients(ledger):
    """client -> its rounds, in increasing order."""
    rounds = {}
    for t, client in ledger.pairs().tolist():
        rounds.setdefault(client, []).append(t)
    return rounds


def refusal(given):
    """What the constructor objects to; nothing if the arguments work."""
    try:
        fedmf.ParticipationController(**given)
    except ValueError as error:
        return str(error)
    return ""


def min_sep_controller(**changes):
    given = {"population": 30, "cohort_size": 4, "seed": 3, **changes}
    participation = given.pop("participation", separated(20, 5))
    return fedmf.ParticipationController(participation, **given)
