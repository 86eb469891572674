"""Short constructors of participations, and fits of prefix sums for them."""

import fedmf
from fedmf.mechanisms import Mechanism
from fedmf.participation.schema import Participation


def single(n: int) -> Participation:
    """Returns a participation of one round for each client."""
    return Participation(rounds=n, schema="single")


def every_round(n: int) -> Participation:
    """Returns a participation of all rounds for each client."""
    return Participation(rounds=n, schema="every_round")


def epochs(n: int, b: int, most: int | None = None) -> Participation:
    """Returns a participation of rounds exactly b apart."""
    return Participation(rounds=n, schema="fixed_epoch", min_sep=b, max_participations=most)


def separated(n: int, b: int, most: int | None = None) -> Participation:
    """Returns a participation of rounds at least b apart."""
    return Participation(rounds=n, schema="min_sep", min_sep=b, max_participations=most)


def fitted(participation: Participation, family: str, **options: object) -> Mechanism:
    """Fits a mechanism to prefix sums."""
    workload = fedmf.prefix_sum(participation.rounds)
    return fedmf.fit(workload, participation, family=family, **options)
