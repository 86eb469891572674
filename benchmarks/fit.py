"""How long fits take, how good they are by their own certificate, and what memory they need, side by side.

    make bench-fit                    all cases; about fifteen minutes on two cores
    python -m benchmarks.fit --case "banded 2052/342, gap 1e-5"
    python -m benchmarks.fit --small  all cases at toy size, as a check of this program

Each case runs in a process of its own, one after the other, without the cache. The column "products" is the time in units of
one 2048 x 2048 float64 matrix product on this machine now, so that two machines can be compared.
"""

import dataclasses
import json
import resource
import subprocess
import sys
import time
from typing import Any

import click
import numpy as np

import fedmf


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One fit.

    Attributes:
      name: the row's label.
      goal: what issue 3 of the project asks for, in words.
      family, options: as of `fedmf.fit`.
      rounds, schema, min_sep: of the participation; `min_sep` None for schemas without one.
      small: rounds at toy size; min_sep and bands shrink with it.
    """

    name: str
    goal: str
    family: str
    rounds: int
    options: dict[str, Any]
    schema: str = "single"
    min_sep: int | None = None
    small: int = 64


CASES = (
    Case(
        name="banded 2052/342, gap 1e-3",
        goal="15 s",
        family="banded",
        rounds=2052,
        schema="min_sep",
        min_sep=342,
        options={"bands": 342, "tolerance": 1e-3},
        small=60,
    ),
    Case(
        name="banded 2052/342, gap 1e-5",
        goal="60 s",
        family="banded",
        rounds=2052,
        schema="min_sep",
        min_sep=342,
        options={"bands": 342, "tolerance": 1e-5},
        small=60,
    ),
    Case(name="dense 2048, gap 1e-3", goal="40 s", family="dense", rounds=2048, options={"tolerance": 1e-3}),
    Case(name="dense 2048, gap 1e-5", goal="180 s", family="dense", rounds=2048, options={"tolerance": 1e-5}),
    Case(name="dense 4096, gap 1e-3", goal="12 GB", family="dense", rounds=4096, options={"tolerance": 1e-3}),
    Case(
        name="dense (k 20, b 100), gap 2e-3",
        goal="300 s",
        family="dense",
        rounds=2000,
        schema="fixed_epoch",
        min_sep=100,
        options={"tolerance": 2e-3},
        small=60,
    ),
    Case(
        name="dense (k 6, b 342), gap 2e-3",
        goal="300 s",
        family="dense",
        rounds=2052,
        schema="fixed_epoch",
        min_sep=342,
        options={"tolerance": 2e-3},
        small=60,
    ),
    Case(
        name="banded 100,000/32",
        goal="180 s, 4 GB",
        family="banded",
        rounds=100_000,
        schema="min_sep",
        min_sep=32,
        options={"bands": 32, "tolerance": 1e-3},
        small=320,
    ),
    Case(
        name="toeplitz 1,000,000/32, mean",
        goal="60 s",
        family="toeplitz",
        rounds=1_000_000,
        options={"bands": 32, "objective": "mean"},
        small=640,
    ),
    Case(
        name="blt 1,000,000, 4 buffers, max",
        goal="60 s",
        family="blt",
        rounds=1_000_000,
        options={"buffers": 4, "objective": "max"},
        small=640,
    ),
)


def run(case: Case, small: bool) -> dict[str, Any]:
    """Fits one case here: seconds, steps, gap or None, rmse, and this process's peak memory in GiB."""
    shrink = case.rounds // case.small if small else 1
    rounds = case.small if small else case.rounds
    options = case.options | ({"bands": max(4, case.options["bands"] // shrink)} if "bands" in case.options else {})
    min_sep = None if case.min_sep is None else max(4, case.min_sep // shrink)
    participation = fedmf.Participation(rounds=rounds, schema=case.schema, min_sep=min_sep)
    workload = fedmf.prefix_sum(rounds)
    began = time.perf_counter()
    mechanism = fedmf.fit(workload, participation, family=case.family, cache=False, **options)
    seconds = time.perf_counter() - began
    certificate = mechanism.certificate
    return {
        "seconds": seconds,
        "steps": certificate.iterations if certificate else None,
        "gap": certificate.gap if certificate else None,
        "rmse": fedmf.rmse(mechanism, workload, participation),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def seconds_of_a_product(n: int = 2048) -> float:
    """The faster of three products of two n x n matrices."""
    A = np.random.default_rng(0).standard_normal((n, n))
    times = []
    for _ in range(3):
        began = time.perf_counter()
        A @ A
        times.append(time.perf_counter() - began)
    return min(times)


def line(*cells: str) -> str:
    """One row of the table."""
    return "".join(f"{cell:<32}" if i == 0 else f"{cell:>13}" for i, cell in enumerate(cells))


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
    unit = seconds_of_a_product(64 if small else 2048)
    print(line("fit", "seconds", "products", "steps", "gap", "rmse", "peak GiB", "goal"), flush=True)
    for case in CASES:
        command = [sys.executable, "-m", "benchmarks.fit", "--case", case.name, *(["--small"] if small else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(line(case.name, f"failed: {(done.stderr.strip().splitlines() or ['killed'])[-1]}"), flush=True)
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        gap = "none" if found["gap"] is None else f"{found['gap']:.1e}"
        steps = "none" if found["steps"] is None else str(found["steps"])
        cells = (f"{found['seconds']:.1f}", f"{found['seconds'] / unit:.0f}", steps, gap, f"{found['rmse']:.5g}")
        print(line(case.name, *cells, f"{found['memory']:.2f}", case.goal), flush=True)


if __name__ == "__main__":
    main()
