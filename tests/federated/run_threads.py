"""A process with a limit on threads that trains: python -m tests.federated.run_threads
FOLDER THREADS EXECUTIONS. In TFF's runtime it makes one round.

The model is large enough that TensorFlow and the linear algebra would share out its operations.
"""

import json
import pathlib
import sys

import tensorflow as tf

from tests.federated.run_small import worker_processes
from tests.federated.small_runs import config, train
from tests.federated.small_task import CLASSES, LENGTH, small_task


def build_model(seed: int) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(seed)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(CLASSES, 256, input_length=LENGTH),
            tf.keras.layers.Dense(512, activation="tanh"),
            tf.keras.layers.Dense(CLASSES),
        ]
    )


def trained(folder: str, execution: str, threads: int) -> dict[str, object]:
    """Trains, and returns a report on the threads of round 0."""
    report: dict[str, object] = {}

    def look(t: int) -> None:
        if t == 0:
            report["tensorflow"] = [
                tf.config.threading.get_intra_op_parallelism_threads(),
                tf.config.threading.get_inter_op_parallelism_threads(),
            ]
            for pid in worker_processes():
                process = pathlib.Path(f"/proc/{pid}")
                report["worker command"] = (process / "cmdline").read_text().split("\0")
                report["worker environment"] = (process / "environ").read_text().split("\0")

    task = small_task(build_model=build_model)
    num_rounds = 1 if execution == "tff" else 2
    settings = config(execution, rounds=num_rounds, min_sep=1)
    train(f"{folder}/{execution}", settings, task, threads=threads, on_round=look)
    return report


if __name__ == "__main__":
    place, limit, *names = sys.argv[1:]
    print(json.dumps({name: trained(place, name, int(limit)) for name in names}))
