"""One training process for the crash tests: python -m tests.federated.run_small FOLDER EXECUTION KILL_AFTER."""

import os
import signal
import sys

import fedmf
from fedmf import federated
from fedmf.federated.execution.tff_worker import worker_processes
from tests.federated.small_task import small_task


def config(execution: str = "fast", **changes: object) -> fedmf.TrainConfig:
    """Six rounds of banded noise that matters."""
    values: dict[str, object] = {
        "rounds": 6, "cohort_size": 4, "min_sep": 2, "family": "banded", "noise_multiplier": 0.3,
        "client_learning_rate": 0.5, "server_learning_rate": 0.5, "checkpoint_every": 1, "evaluate_every": 2,
        "execution": execution, "seed": 3,
    }  # fmt: skip
    return fedmf.TrainConfig(**(values | changes))  # type: ignore[arg-type]


def main(folder: str, execution: str, kill_after: int) -> None:
    """Kills itself with SIGKILL after that many rounds."""

    def kill(t: int) -> None:
        if t + 1 == kill_after:
            print("workers", *worker_processes(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    federated.train(small_task(), config(execution), folder=folder, noise_seed=9, progress=False, on_round=kill)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
