"""Participations of each schema, in a word."""

from fedmf.participation.schema import Participation


def single(n: int) -> Participation:
    """One round for each client."""
    return Participation(rounds=n, schema="single")


def epochs(n: int, b: int) -> Participation:
    """Rounds exactly b apart."""
    return Participation(rounds=n, schema="fixed_epoch", min_sep=b)


def separated(n: int, b: int) -> Participation:
    """Rounds at least b apart."""
    return Participation(rounds=n, schema="min_sep", min_sep=b)
