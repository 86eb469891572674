"""How long fits take, how good they are by their own certificate, and what memory they need, side
by side.

    make bench-fit                          all cases; about fifteen minutes on two cores
    python -m benchmarks.fit --case "banded 2052"

Each case runs in a process of its own without the cache. The column "products" is the time in units
of one 2048 x 2048 float64 matrix product on this machine now, which makes two machines comparable.
Memory is the peak of the process, Python and numpy included.
"""

from typing import Any, NamedTuple

import numpy as np

import fedmf
from benchmarks.core import memory_bytes, table, timed


class Case(NamedTuple):
    """One fit of prefix sums.

    Attributes:
      family, options: as of `fedmf.fit`.
      rounds, schema, min_sep: of the participation; `min_sep` None for schemas without one.
      small: rounds at toy size; min_sep and bands shrink with it.
    """

    family: str
    options: dict[str, Any]
    rounds: int
    schema: str = "single"
    min_sep: int | None = None
    small: int = 60


CASES = {
    "banded 2052/342, gap 1e-3": Case(
        "banded", {"bands": 342, "tolerance": 1e-3}, 2052, "min_sep", 342
    ),
    "banded 2052/342, gap 1e-5": Case(
        "banded", {"bands": 342, "tolerance": 1e-5}, 2052, "min_sep", 342
    ),
    "dense 2048, gap 1e-3": Case("dense", {"tolerance": 1e-3}, 2048),
    "dense 2048, gap 1e-5": Case("dense", {"tolerance": 1e-5}, 2048),
    "dense 4096, gap 1e-3": Case("dense", {"tolerance": 1e-3}, 4096),
    "dense (k 20, b 100), gap 2e-3": Case("dense", {"tolerance": 2e-3}, 2000, "fixed_epoch", 100),
    "dense (k 6, b 342), gap 2e-3": Case("dense", {"tolerance": 2e-3}, 2052, "fixed_epoch", 342),
    "banded 100,000/32": Case(
        "banded", {"bands": 32, "tolerance": 1e-3}, 100_000, "min_sep", 32, small=320
    ),
    "toeplitz 1,000,000/32, mean": Case(
        "toeplitz", {"bands": 32, "objective": "mean"}, 10**6, small=640
    ),
    "blt 1,000,000, 4 buffers, max": Case(
        "blt", {"buffers": 4, "objective": "max"}, 10**6, small=640
    ),
}


def measure(case: Case, small: bool) -> dict[str, Any]:
    """Fits one case here."""
    rounds = case.small if small else case.rounds
    shrink = case.rounds // rounds
    options = case.options | (
        {"bands": max(4, case.options["bands"] // shrink)} if "bands" in case.options else {}
    )
    min_sep = None if case.min_sep is None else max(4, case.min_sep // shrink)
    participation = fedmf.Participation(rounds=rounds, schema=case.schema, min_sep=min_sep)
    workload, fitted = fedmf.prefix_sum(rounds), []
    seconds = timed(
        lambda: fitted.append(
            fedmf.fit(workload, participation, family=case.family, cache=False, **options)
        )
    )
    certificate = fitted[0].certificate
    side = 64 if small else 2048
    A = np.random.default_rng(0).standard_normal((side, side))
    return {
        "seconds": seconds,
        "products": seconds / min(timed(lambda: A @ A) for _ in range(3)),
        "steps": certificate.iterations if certificate else "none",
        "gap": certificate.gap if certificate else float("nan"),
        "rmse": fedmf.rmse(fitted[0], workload, participation),
        "gibibytes": memory_bytes() / 2**30,
    }


COLUMNS = {
    "seconds": "{seconds:.1f}",
    "products": "{products:.0f}",
    "steps": "{steps}",
    "gap": "{gap:.1e}",
    "rmse": "{rmse:.5g}",
    "peak GiB": "{gibibytes:.2f}",
}
main = table("fit", CASES, measure, COLUMNS, __doc__)

if __name__ == "__main__":
    main()
