"""The two limits of every participation schema, which are min_sep, the smallest distance between
two rounds of a client, and max_participations.
"""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from fedmf import checks

ROUNDS_HINT = "pass 0-based round indices"


class Limits(NamedTuple):
    """The limits that apply to the rounds of one client.

    Attributes:
      min_sep: smallest difference between two of its rounds.
      max_participations: largest number of its rounds.
    """

    min_sep: int
    max_participations: int


def check_implied_limits(
    schema: str, rounds: int, *, min_sep: Any, max_participations: Any, implied: Limits
) -> None:
    """Raises ValueError if the user set a limit to a value other than the one that the schema
    implies.

    Args:
      schema: name of the schema.
      rounds: length of the run.
      min_sep, max_participations: the arguments, None if not set.
      implied: the limits that follow from the schema.
    """
    implied_by_argument = {
        "min_sep": (min_sep, implied.min_sep),
        "max_participations": (max_participations, implied.max_participations),
    }
    for name, (value, implied_value) in implied_by_argument.items():
        if value is not None and (isinstance(value, bool) or value != implied_value):
            raise ValueError(
                f"{name}={value!r} contradicts schema={schema!r}, which means "
                f"{name}={implied_value} with rounds={rounds}: "
                'leave it out, or choose schema="min_sep"'
            )


def chosen_limits(schema: str, rounds: int, *, min_sep: Any, max_participations: Any) -> Limits:
    """Checks the limits that the user set, and returns them. If max_participations was not set, it
    becomes the largest number of rounds of one client that min_sep leaves room for.

    Args:
      schema: name of the schema.
      rounds: length of the run.
      min_sep, max_participations: the arguments, None if not set.

    Raises:
      TypeError, ValueError: min_sep is missing, or a limit is out of range.
    """
    hint = f"pass a number in 1..{rounds}"
    if min_sep is None:
        raise ValueError(
            f"`min_sep` is required with schema={schema!r}: {hint}; clients in full "
            "cohorts allow at most the population divided by the clients a round"
        )
    min_sep = checks.integer("min_sep", min_sep, low=1, high=rounds, hint=hint)
    num_fitting = -(-rounds // min_sep)
    if max_participations is None:
        return Limits(min_sep, num_fitting)
    hint = (
        f"with rounds={rounds} and min_sep={min_sep} one client fits in at most {num_fitting} times"
    )
    max_participations = checks.integer(
        "max_participations", max_participations, low=1, high=num_fitting, hint=hint
    )
    return Limits(min_sep, max_participations)


def are_within_limits(sorted_rounds: list[int], rounds: int, limits: Limits) -> bool:
    """Returns whether the increasing rounds of one client are rounds of the run, and satisfy
    min_sep and max_participations.
    """
    if not sorted_rounds:
        return True
    if sorted_rounds[0] < 0 or sorted_rounds[-1] >= rounds:
        return False
    if len(sorted_rounds) > limits.max_participations:
        return False
    round_pairs = itertools.pairwise(sorted_rounds)
    return all(later - earlier >= limits.min_sep for earlier, later in round_pairs)


def sorted_client_rounds(rounds_of_one_client: Iterable[int]) -> list[int]:
    """Returns the rounds of one client as a list of increasing ints.

    Raises:
      TypeError: an entry is not an int.
    """
    argument_name = "rounds_of_one_client"
    round_entries = checks.entries(argument_name, rounds_of_one_client, hint=ROUNDS_HINT)
    return sorted(
        checks.integer(argument_name, t, low=-(2**63), hint=ROUNDS_HINT) for t in round_entries
    )
