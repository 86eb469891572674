"""What `fedmf.Server` costs, side by side with one iid Gaussian vector of the same generator.

    python -m benchmarks.server                   a minute at full size, behind the fits
    python -m benchmarks.server --case add        some rows

Times are CPU time of all threads. An update is of float32, d = 4,050,000, and is clipped. A release
is a round without clients, in memory: the row of noise and the mean. Rows are made a block of
rounds at a time, so that it is a mean over some blocks.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import fedmf
from benchmarks.core import table
from benchmarks.noise import ROUNDS, SIZE, SMALL_ROUNDS, SMALL_SIZE, iid, plan_of

_UPDATES, _RELEASES, _DRAWS = 20, 64, 9
_SHAPES = (96, 670)  # of the first array of an update; the rest is one vector
CASES = {
    "add": "identity",
    "release, identity": "identity",
    "release, banded, 32 bands": "banded, 32 bands",
    "release, blt, 4 buffers": "blt, 4 buffers",
}


def cpu_ms(run: Callable[[], Any], times: int) -> list[float]:
    """CPU milliseconds of each call."""
    spent = []
    for _ in range(times):
        before = time.process_time()
        run()
        spent.append(1000 * (time.process_time() - before))
    return spent


def measure(case: str, small: bool) -> dict[str, Any]:
    """Times one row of the table here."""
    rounds, size = (SMALL_ROUNDS, SMALL_SIZE) if small else (ROUNDS, SIZE)
    shapes = [(2, 3), (size - 6,)] if small else [_SHAPES, (size - _SHAPES[0] * _SHAPES[1],)]
    server = fedmf.Server(
        plan_of(CASES[case], rounds), shapes=shapes, clients_per_round=10**6, noise_seed=1
    )
    vector = statistics.median(cpu_ms(iid(size), _DRAWS))
    if case == "add":
        rng = np.random.default_rng(0)
        update = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        clients = iter(range(10**6))
        spent = statistics.median(
            cpu_ms(lambda: server.add(update, client=next(clients)), _UPDATES)
        )
    else:
        spent = statistics.mean(cpu_ms(server.release, min(rounds, _RELEASES)))
    return {"ms": spent, "iid": vector, "ratio": spent / vector}


COLUMNS = {"CPU ms": "{ms:.1f}", "iid CPU ms": "{iid:.1f}", "x iid": "{ratio:.2f}"}
main = table("server", {name: name for name in CASES}, measure, COLUMNS, __doc__)

if __name__ == "__main__":
    main()
