"""The runs that tests compare between versions of Python and TensorFlow:
python -m tests.federated.run_versions FOLDER SHARED.

SHARED holds mechanism.npz and corpus.sqlite. FOLDER gets the runs `regression` and `text`, and
noise.npz: the draws of the source and the rows of a banded mechanism.
"""

import pathlib
import sys

import numpy as np

import fedmf
from fedmf.server.host_noise import HostNoise
from fedmf.server.source import GaussianSource, noise_key
from tests.cli.program import fedmf as program

ROUNDS = 6
SIZE = 200_000
SMALL = (
    f"--rounds {ROUNDS} --cohort-size 4 --min-sep 2 --noise-multiplier 0.2 --clip-norm 0.3 "
    "--noise-seed 9 --quiet"
)
TASKS = {
    "regression": "--task regression --server-learning-rate 0.01",
    "text": "--data {shared}/corpus.sqlite --client-learning-rate 1 --server-learning-rate 0.5 "
    "-o vocabulary-size=60 -o embedding-size=8 -o lstm-size=8 -o max-sentences=8 "
    "-o validation-sentences=50 -o test-sentences=50",
}


def main(folder: str, shared: str) -> None:
    mechanism = f"{shared}/mechanism.npz"
    for name, description in TASKS.items():
        program(
            f"train --out {folder}/{name} {SMALL} --family file --mechanism {mechanism}",
            description.format(shared=shared),
        )
    plan = fedmf.Run.load(f"{folder}/text").config.plan()
    noise = HostNoise(plan, SIZE, noise_seed=9)
    draws = np.empty((ROUNDS, SIZE), np.float32)
    GaussianSource(noise_key(9)).fill(draws, 0)
    rows = [noise.row(t) for t in range(ROUNDS)]
    np.savez(pathlib.Path(folder) / "noise.npz", draws=draws, rows=rows)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
