"""What the participation controller costs at the size of real populations.

    make bench-participation                                       all cases; some minutes
    python -m benchmarks.participation --case "10 million, min_sep"

Each case runs in a process of its own: the controller is made, hands out all cohorts, and its
ledger is summed up. "seconds" is all of that, "peak MiB" the largest resident memory of the
process, Python and numpy included.
"""

import time
import warnings
from typing import Any, NamedTuple

from benchmarks.core import MIB, memory_bytes, table
from fedmf.cohorts.availability import Always, Diurnal
from fedmf.cohorts.controller import ParticipationController
from fedmf.cohorts.draws import PoolRanDryWarning
from fedmf.participation.schema import Participation
from fedmf.privacy.sampling import CyclicPoisson, CyclicRandomAllocation


class Case(NamedTuple):
    """One run of the controller.

    Attributes:
      population, cohort_size, rounds: of the run.
      schema: of the participation; or "poisson" or "random-allocation".
      min_sep: or the partitions of a sampling scheme.
      always: every client is available; by default by the hour of the day.
    """

    population: int = 10**7
    cohort_size: int = 6500
    rounds: int = 2000
    schema: str = "min_sep"
    min_sep: int = 300
    always: bool = False


CASES = {
    "10 million, min_sep": Case(),
    "10 million, near the limit": Case(min_sep=1500),
    "10 million, too far": Case(min_sep=1535),
    "10 million, every round": Case(schema="every_round"),
    "10 million, fixed order": Case(schema="fixed_epoch", min_sep=1500, always=True),
    "10 million, poisson": Case(schema="poisson"),
    "10 million, random allocation": Case(schema="random-allocation", min_sep=2, always=True),
}


def controller_of(case: Case, small: bool) -> ParticipationController:
    """The controller of a case.

    Toy sizes keep the share of the population a round, and so how hard a separation is to hold.
    """
    population, cohort, rounds, min_sep = (
        case.population,
        case.cohort_size,
        case.rounds,
        case.min_sep,
    )
    if small:
        population, cohort, rounds = (
            max(population // 1000, 2000),
            max(cohort // 1000, 1),
            max(rounds // 20, 5),
        )
        min_sep = min(min_sep, rounds) if case.schema != "random-allocation" else 1
    options: dict[str, Any] = {"population": population, "cohort_size": cohort}
    sampling: CyclicPoisson | CyclicRandomAllocation | None = None
    if case.schema == "poisson":
        sampling = CyclicPoisson(**options, partitions=min_sep)
    elif case.schema == "random-allocation":
        sampling = CyclicRandomAllocation(**options, partitions=min_sep)
    if sampling is not None:
        participation = sampling.participation(rounds)
    else:
        separation = {} if case.schema == "every_round" else {"min_sep": min_sep}
        participation = Participation(rounds=rounds, schema=case.schema, **separation)
    availability = Always() if case.always else Diurnal(seed=1)
    return ParticipationController(
        participation, availability=availability, sampling=sampling, seed=1, **options
    )


def measure(case: Case, small: bool) -> dict[str, Any]:
    """All rounds of one case here."""
    began = time.perf_counter()
    controller = controller_of(case, small)
    rounds = controller.participation.rounds
    drawing = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoolRanDryWarning)
        for t in range(rounds):
            controller.cohort(t)
    milliseconds = 1000 * (time.perf_counter() - drawing) / rounds
    observed = controller.ledger.observed()
    seconds, mebibytes = time.perf_counter() - began, memory_bytes() / MIB
    return {
        "seconds": seconds,
        "milliseconds": milliseconds,
        "mebibytes": mebibytes,
        "dry": controller.ledger.planned().observed().short_rounds,
        "separation": observed.min_separation,
        "most": observed.max_participations,
    }


COLUMNS = {
    "seconds": "{seconds:.1f}",
    "ms a round": "{milliseconds:.2f}",
    "peak MiB": "{mebibytes:.0f}",
    "dry rounds": "{dry}",
    "separation": "{separation}",
    "most": "{most}",
}
main = table("participation", CASES, measure, COLUMNS, __doc__)

if __name__ == "__main__":
    main()
