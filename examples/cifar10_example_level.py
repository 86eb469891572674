"""Example-level privacy on CIFAR-10: every image is a client of its own, and the guarantee is for
one image.

python examples/cifar10_example_level.py                             a substitute: coloured shapes
python examples/cifar10_example_level.py ~/cifar-10-python.tar.gz    the real images

The real images need many more rounds to be accurate.
"""

import pathlib
import sys
import tempfile

import fedmf
from fedmf import federated, tasks
from fedmf.tasks.cifar10 import write_synthetic

EPSILON, DELTA = 8.0, 1e-5
folder = pathlib.Path(tempfile.mkdtemp())
images = sys.argv[1] if len(sys.argv) > 1 else str(folder / "shapes.tar.gz")
if len(sys.argv) == 1:
    write_synthetic(pathlib.Path(images), examples=3000, test_examples=500, progress=False)

for family in ("banded", "identity"):
    config = fedmf.TrainConfig(
        task="cifar10",
        data=images,
        task_options={"model": "small"},
        rounds=54,
        cohort_size=100,  # images in a batch
        min_sep=27,  # an epoch: an image comes back twice at most
        family=family,
        epsilon=EPSILON,
        delta=DELTA,
        server_learning_rate=0.2,
        server_momentum=0.9,
        warmup=0.0,
        evaluate_every=27,
    )
    task = tasks.task_from_config(config, progress=False)
    run = federated.train(task, config, folder=folder / family, noise_seed="os", progress=False)
    accuracy = run.result["test"]["accuracy"]
    print(
        f"{family:<10} test accuracy {accuracy:.3f} at epsilon {EPSILON:g}, delta "
        f"{DELTA:g} for one image"
    )
