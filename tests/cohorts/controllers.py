"""Helpers for tests of the participation controller: arguments, availability, and runs."""

import dataclasses
import warnings

from hypothesis import strategies as st

import fedmf
from tests.mechanisms.schemas import separated
from tests.participation.test_participation import participations


@st.composite
def controller_arguments(draw):
    """Draws arguments of a controller, which its constructor may refuse."""
    participation = draw(participations(max_rounds=10))
    size = draw(st.integers(1, 3))
    population = draw(st.integers(size, size * (participation.rounds + 2)))
    return {
        "participation": participation,
        "population": population,
        "cohort_size": size,
        "seed": draw(st.integers(0, 9)),
    }


@st.composite
def valid_controller_arguments(draw):
    """Draws arguments of a controller that its constructor accepts."""
    arguments = draw(controller_arguments())
    participation = arguments["participation"]
    size = arguments["cohort_size"]
    if participation.schema == "fixed_epoch":
        participation = dataclasses.replace(
            participation, max_participations=-(-participation.rounds // participation.min_sep)
        )
        arguments["participation"] = participation
    min_population = max(
        size * participation.min_sep,
        -(-size * participation.rounds // participation.max_participations),
    )
    return arguments | {"population": max(arguments["population"], min_population)}


class FunctionAvailability:
    """Availability model from a function of the round and the clients."""

    def __init__(self, available):
        self.available = available


def cohorts_of_run(controller, rounds=None):
    """Returns the cohorts of a run, without warnings of dry pools."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fedmf.PoolRanDryWarning)
        rounds = rounds or controller.participation.rounds
        return [controller.cohort(t).tolist() for t in range(rounds)]


def rounds_of_clients(ledger):
    """Returns the increasing rounds of each client, by client."""
    rounds_by_client = {}
    for t, client in ledger.pairs().tolist():
        rounds_by_client.setdefault(client, []).append(t)
    return rounds_by_client


def construction_error(arguments):
    """Returns the message with which the constructor refuses arguments, or ""."""
    try:
        fedmf.ParticipationController(**arguments)
    except ValueError as error:
        return str(error)
    return ""


def min_sep_controller(**changes):
    """Returns a controller of schema min_sep for 30 clients, with some arguments changed."""
    arguments = {"population": 30, "cohort_size": 4, "seed": 3, **changes}
    participation = arguments.pop("participation", separated(20, 5))
    return fedmf.ParticipationController(participation, **arguments)
