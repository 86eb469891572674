"""Writes a stand-in in the format of TFF's emnist_all.sqlite: offline work goes through
the same loader.
"""

import os
import pathlib

import numpy as np

from fedmf import checks
from fedmf.tasks.data_file import SYNTHETIC, create, write_client
from fedmf.tasks.emnist.glyphs import draw_images
from fedmf.tasks.emnist.options import CLASSES
from fedmf.tasks.example_proto import encode_example
from fedmf.terminal import progress_bar

_TEST_SHARE = 0.11  # of a writer's images, as in the real file


def write_synthetic(
    path: str | os.PathLike[str],
    *,
    clients: int = 200,
    seed: int = 0,
    examples_per_client: int = 100,
    only_digits: bool = True,
    overwrite: bool = False,
    progress: bool = True,
) -> pathlib.Path:
    """Writes a stand-in for federated EMNIST and returns its path.

    The file appears when it is complete.

    A writer's images depend on (seed, writer, examples_per_client, only_digits) only. Like the real
    writers each has train and test images, not equally many, and some characters more
    often than others.

    Args:
      path: file to write, such as "emnist.sqlite"; its folder must exist.
      clients: number of writers.
      seed: draws writers and images.
      examples_per_client: mean number of a writer's images in both splits.
      only_digits: ten classes; otherwise half of the images are letters, and the file holds the 62
        classes beside the digits alone.
      overwrite: replace an existing file.
      progress: show a progress bar.

    Raises:
      TypeError: an argument of the wrong kind.
      ValueError: an argument out of range, an existing file without `overwrite`, or a folder that
        cannot be written.
    """
    path = pathlib.Path(path)
    checks.integer("clients", clients, low=1, hint="use a positive whole number")
    checks.integer("seed", seed, low=0, hint="use a non-negative whole number")
    checks.integer(
        "examples_per_client",
        examples_per_client,
        low=10,
        hint="every writer needs some for each split",
    )
    with (
        create(path, SYNTHETIC, overwrite=overwrite) as connection,
        progress_bar.bar(
            range(clients), desc=f"writing {path.name}", unit="writer", disable=not progress
        ) as writers,
    ):
        for writer in writers:
            rng = np.random.default_rng([seed, writer])
            labels = _draw_labels(examples_per_client, only_digits, rng)
            images = draw_images(labels, rng)
            examples = [
                (label, encode_example({"label": label, "pixels": image}))
                for label, image in zip(labels.tolist(), images, strict=True)
            ]
            test = max(1, round(_TEST_SHARE * len(labels)))
            for kind, part in (("test", examples[:test]), ("train", examples[test:])):
                client_id = f"f{writer:04d}_{writer % 50:02d}"
                digits = [record for label, record in part if label < 10]
                write_client(connection, client_id, f"digits_only_{kind}", digits)
                if not only_digits:
                    write_client(
                        connection, client_id, f"all_{kind}", [record for _, record in part]
                    )
    return path


def _draw_labels(mean: int, only_digits: bool, rng: np.random.Generator) -> np.ndarray:
    """A writer's labels: of uneven number, and unevenly spread over the classes."""
    count = max(5, round(mean * float(rng.lognormal(-0.045, 0.3))))
    weights = rng.gamma(5.0, size=len(CLASSES))
    weights[10:] *= 0 if only_digits else 10 / 52
    return rng.choice(len(CLASSES), size=count, p=weights / weights.sum())
