"""What the participation controller costs at the size of real populations, and beside asking every client in every round.

    make bench-participation                                       all cases; some minutes
    python -m benchmarks.participation --case "10 million, min_sep"
    python -m benchmarks.participation --small                     toy sizes, as a check of this program

Each case runs in a process of its own, one after the other: the controller is made, hands out all cohorts, and its ledger is summed up.
"seconds" is all of that, "peak MiB" the largest resident memory of the process, Python and numpy included. The last rows draw the same
number of rounds from the same population twice, as the controller does and by asking everybody, as it did before; "ratio" is the second
time over the first.
"""

import dataclasses
import json
import resource
import subprocess
import sys
import time
import warnings
from typing import Any

import click
import numpy as np

from fedmf.cohorts.availability import Always, Availability, Diurnal
from fedmf.cohorts.controller import ParticipationController, PoolRanDryWarning
from fedmf.participation.schema import Participation
from fedmf.privacy.sampling import CyclicPoisson, CyclicShuffle, Sampling

MIB = 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One run of the controller.

    Attributes:
      name: the row's label.
      population, cohort_size, rounds: of the run.
      min_sep: or the groups of a sampling scheme.
      schema: of the participation; or "poisson" or "shuffle".
      availability: of the clients.
      goal: what issue 5 of the project asks for, in words.
      beside: also by asking everybody.
    """

    name: str
    population: int
    cohort_size: int = 6500
    rounds: int = 2000
    min_sep: int = 300
    schema: str = "min_sep"
    availability: Availability = dataclasses.field(default_factory=lambda: Diurnal(seed=1))
    goal: str = ""
    beside: bool = False


CASES = (
    Case(name="10 million, min_sep", population=10**7, goal="60 s, 1 GB"),
    Case(name="10 million, near the limit", population=10**7, min_sep=1500),
    Case(name="10 million, too far", population=10**7, min_sep=1535),
    Case(name="10 million, every round", population=10**7, schema="every_round"),
    Case(name="10 million, fixed order", population=10**7, min_sep=1500, schema="fixed_epoch", availability=Always()),
    Case(name="10 million, poisson", population=10**7, schema="poisson"),
    Case(name="10 million, shuffle", population=10**7, min_sep=2, schema="shuffle", availability=Always()),
    Case(name="100 million, min_sep", population=10**8, goal="600 s, 3 GB"),
    Case(name="100 million, fixed order", population=10**8, min_sep=1500, schema="fixed_epoch", availability=Always()),
    Case(name="100 million, poisson", population=10**8, schema="poisson"),
    Case(name="1 million, min_sep", population=10**6, cohort_size=650, rounds=200, min_sep=100, beside=True),
    Case(name="10 million, 30 rounds", population=10**7, rounds=30, min_sep=30, beside=True),
)


def controller_of(case: Case, small: bool) -> ParticipationController:
    """The controller of a case; a thousandth of the clients and a twentieth of the rounds where small."""
    population, cohort, rounds, min_sep = case.population, case.cohort_size, case.rounds, case.min_sep
    if small:
        # The same share of the population a round, so that a separation is as hard to hold.
        population, cohort = max(population // 1000, 2000), max(cohort // 1000, 1)
        rounds = max(rounds // 20, 5)
        min_sep = min(min_sep, rounds) if case.schema != "shuffle" else 1
    more: dict[str, Any] = {"population": population, "cohort_size": cohort, "seed": 1}
    sampling: Sampling | None = None
    if case.schema == "poisson":
        sampling = CyclicPoisson(population=population, cohort_size=cohort, groups=min_sep)
    elif case.schema == "shuffle":
        sampling = CyclicShuffle(population=population, cohort_size=cohort, groups=min_sep, reshuffle=True)
    if sampling is not None:
        participation = sampling.participation(rounds)
    elif case.schema == "every_round":
        participation = Participation(rounds=rounds, schema="every_round")
    else:
        participation = Participation(rounds=rounds, schema=case.schema, min_sep=min_sep)
    return ParticipationController(participation, availability=case.availability, sampling=sampling, **more)


def run(case: Case, small: bool) -> dict[str, Any]:
    """All rounds of one case here: seconds, milliseconds a round, peak MiB, dry rounds, and what was observed."""
    began = time.perf_counter()
    controller = controller_of(case, small)
    rounds = controller.participation.rounds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoolRanDryWarning)
        drawing = time.perf_counter()
        for t in range(rounds):
            controller.cohort(t)
        drawn = time.perf_counter() - drawing
    observed = controller.ledger.observed()
    found = {
        "seconds": time.perf_counter() - began,
        "milliseconds": 1000 * drawn / rounds,
        "mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB,
        "dry": controller.ledger.planned().observed().short_rounds,
        "separation": observed.min_separation,
        "most": observed.max_participations,
    }
    if case.beside:
        found["old_milliseconds"] = milliseconds_asking_everybody(case, controller)
    return found


def milliseconds_asking_everybody(case: Case, controller: ParticipationController) -> float:
    """Time a round of drawing as the controller did before version 0.1's issue 5: a mask and a list of all eligible clients."""
    p = controller.participation
    last = np.full(controller.population, -(2**30), np.int32)
    count = np.zeros(controller.population, np.int32)
    everybody = np.arange(controller.population)
    began = time.perf_counter()
    for t in range(p.rounds):
        mask = (t - last >= p.min_sep) & (count < p.max_participations)
        mask &= case.availability.available(t, everybody)
        candidates = np.flatnonzero(mask)
        rng = np.random.default_rng(np.random.SeedSequence([1, 1, t]))
        chosen = np.sort(rng.choice(candidates, size=min(controller.cohort_size, len(candidates)), replace=False))
        last[chosen] = t
        count[chosen] += 1
    return 1000 * (time.perf_counter() - began) / p.rounds


def line(*cells: str) -> str:
    """One row of the table."""
    return "".join(f"{cell:<28}" if i == 0 else f"{cell:>12}" for i, cell in enumerate(cells))


@click.command()
@click.option("--case", "name", help="Run one case in this process and print it as JSON.")
@click.option("--small", is_flag=True, help="Toy sizes: checks this program, measures nothing.")
def main(name: str | None, small: bool) -> None:
    """Print the table."""
    by_name = {case.name: case for case in CASES}
    if name is not None:
        if name not in by_name:
            raise click.UsageError(f"case={name!r} is unknown: choose one of {'; '.join(by_name)}")
        print(json.dumps(run(by_name[name], small)))
        return
    print(
        line("clients, rounds by", "seconds", "ms a round", "peak MiB", "dry rounds", "separation", "most", "goal"),
        flush=True,
    )
    for case in CASES:
        command = [sys.executable, "-m", "benchmarks.participation", "--case", case.name]
        done = subprocess.run([*command, *(["--small"] if small else [])], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(line(case.name, f"failed: {(done.stderr.strip().splitlines() or ['killed'])[-1]}"), flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        separation = "none" if found["separation"] is None else str(found["separation"])
        row = (
            f"{found['seconds']:.1f}",
            f"{found['milliseconds']:.2f}",
            f"{found['mebibytes']:.0f}",
            str(found["dry"]),
        )
        print(line(case.name, *row, separation, str(found["most"]), case.goal), flush=True)
        if case.beside:
            ratio = found["old_milliseconds"] / found["milliseconds"]
            print(line("  asking everybody", "", f"{found['old_milliseconds']:.2f}", f"ratio {ratio:.1f}"), flush=True)


if __name__ == "__main__":
    main()
