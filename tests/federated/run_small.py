"""A training process of the crash tests: `python -m tests.federated.run_small FOLDER EXECUTION N`.

It kills itself after N rounds. EXECUTION "cluster" is "fast" on a cluster of this process, in
groups of two clients.
"""

import os
import pathlib
import signal
import sys

import fedmf
from fedmf import federated
from fedmf.training import vectorised_sizes
from fedmf.training.execution import groups
from tests.federated.small_task import small_task

# The noise seed of the runs on clusters, which no message may contain.
SEED = 0xFEED5EED5EED5EED
# Constants of `execution.groups`, for a cohort of six.
GROUPS_OF_TWO = {"MIN_PRODUCT": 0, "MIN_CLIENTS": 1, "MAX_GROUPS": 3}


def config(execution: str = "fast", **changes: object) -> fedmf.TrainConfig:
    """Returns the config of six rounds with banded noise of visible size."""
    values: dict[str, object] = {
        "rounds": 6, "cohort_size": 4, "min_sep": 2, "family": "banded", "noise_multiplier": 0.3,
        "client_learning_rate": 0.5, "server_learning_rate": 0.5,
        "evaluate_every": 2,
        "execution": execution, "seed": 3,
    }  # fmt: skip
    return fedmf.TrainConfig(**(values | changes))  # type: ignore[arg-type]


def worker_processes() -> list[int]:
    """Returns TFF's worker processes; none where TFF was not imported."""
    worker = sys.modules.get("fedmf.federated.tff.worker")
    return worker.worker_processes() if worker else []


def descendants(pid: int) -> list[int]:
    """Returns the processes that a process has started, and those that they have started.

    Ray's agents are left out, because they wait a minute before they end.
    """
    process_ids = []
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            if "agent" not in pathlib.Path(f"/proc/{child}/cmdline").read_text():
                process_ids += [child, *descendants(child)]
    return process_ids


def main(folder: str, execution: str, kill_after: int) -> None:
    """Trains, and kills this process with SIGKILL after that many rounds."""
    settings = None
    cluster = None
    if execution == "cluster":
        settings = config(cohort_size=6)
        cluster = "local"
        vars(groups).update(GROUPS_OF_TWO)
    else:
        vectorised_sizes.SMALL_MODEL = 0  # As in the fixture `clients_in_turn`.

    class Kill(federated.Callback):
        def on_round(self, training: object, row: dict[str, object]) -> None:
            if row["round"] + 1 == kill_after:
                workers = worker_processes() if cluster is None else descendants(os.getpid())
                print("workers", *workers, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

    noise_seed = SEED if cluster else 9
    federated.train(
        small_task(), settings or config(execution), folder=folder,
        noise_seed=noise_seed, progress=False, callbacks=[Kill()], cluster=cluster,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
