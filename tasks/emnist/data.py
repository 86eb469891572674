"""Reader of TFF's federated EMNIST file with 3,400 writers of the NIST collection, or of a
synthetic substitute in the same format.

Images are as TFF gives them, float32 with background 1 and ink 0, and nothing more is done to them,
as in Reddi et al. 2021, "Adaptive federated optimization" (App. C). The data set is by Caldas et
al. 2018, "LEAF: a benchmark for federated settings".
"""

import dataclasses
import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedmf import fields
from fedmf.files import expanded
from fedmf.tasks.client_database import ClientDatabase, quantiles
from fedmf.tasks.example_proto import decode_example
from fedmf.tasks.partitioned import PartitionOptions

MODELS = ("cnn", "small")
CLASSES = (
    # The characters are listed in the order of TFF's labels for them.
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmnistOptions(PartitionOptions):
    """Options for the data and the model of EMNIST. The defaults are digits and the published
    network.

    Raises:
      TypeError, ValueError: naming the option, its value and what to do instead.
    """

    data: str | None = fields.path(
        None,
        "TFF's emnist_all.sqlite or a substitute; by default the file in TFF's own cache.",
    )
    only_digits: bool = fields.flag(
        True, "Digits only, 10 classes; otherwise letters too, 62 classes."
    )
    model: str = fields.choice(
        "cnn", "cnn: the published network, 1.2 million parameters; small: 57,000.", lambda: MODELS
    )
    batch_size: int = fields.whole_number(20, "Images in a client's batch.")
    max_clients: int | None = fields.whole_number(
        None, "Only the first so many writers train; by default all."
    )
    max_examples: int | None = fields.whole_number(
        None, "Images a client trains on at most; by default all."
    )

    @property
    def classes(self) -> int:
        """Number of classes, which is 10 for digits, or 62 for all characters."""
        return 10 if self.only_digits else len(CLASSES)

    def split(self, kind: str) -> str:
        """Returns the name of the "train" or "test" split in TFF's file."""
        class_text = "digits_only" if self.only_digits else "all"
        return f"{class_text}_{kind}"


FILE_NAME = "emnist_all.sqlite"
PIXELS = 28
_SPLITS = ("digits_only_train", "digits_only_test", "all_train", "all_test")
_SAMPLED_WRITERS = 100
_HINT = (
    f"download TFF's {FILE_NAME} with tff.simulation.datasets.emnist.load_data(), which puts it "
    "into ~/.tff, and name it by data=FILE; or, offline, write a substitute with `fedmf data synth "
    "--task emnist --out FILE` (`--letters` gives 62 classes)"
)


def open_file(path: str | os.PathLike[str] | None = None) -> ClientDatabase:
    """Opens the EMNIST data file. The path None means the file that TFF's load_data keeps.

    Nothing is downloaded.

    Raises:
      FileNotFoundError: no such file; the message says what to put where.
      ValueError: the file is damaged or of another format.
    """
    return ClientDatabase(
        expanded(f"~/.tff/{FILE_NAME}" if path is None else path),
        _HINT,
    )


def client_sizes(file: ClientDatabase, split: str) -> dict[str, int]:
    """Returns a mapping from writer to number of images in a split, sorted as in TFF's loader.

    Raises:
      ValueError: the file has no such split.
    """
    size_by_writer = file.client_sizes(split)
    if not size_by_writer:
        split_names = ", ".join(file.splits()) or "none"
        raise ValueError(f"{file.path} has no split {split!r} (but {split_names}): {_HINT}")
    return size_by_writer


def client_examples(
    file: ClientDatabase, split: str, client_id: str, *, classes: int, limit: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a writer's images and labels in file order.

    Args:
      file: the data file.
      split: such as "digits_only_train".
      client_id: the writer.
      classes: 10 or 62.
      limit: most images; None for all.

    Returns:
      Images float32 (m, 28, 28, 1) in [0, 1], and labels int32 (m,) below `classes`.

    Raises:
      ValueError: records that are no such images; names the file and the writer.
    """
    serialized_records = file.records(split, client_id, -1 if limit is None else limit)
    return _arrays([_decoded(file, client_id, record, classes) for record in serialized_records])


def pooled_labels(
    file: ClientDatabase, split: str, writers: Sequence[str], *, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the labels of all images of these writers, and the row number of each image in the
    file.

    Each image is read once, and none is held in memory.

    Returns:
      Labels int32 (m,), and row numbers int64 (m,) for `examples_at`.

    Raises:
      ValueError: as `client_examples`.
    """
    labels_and_numbers = [
        (_decoded(file, writer, record, classes)[1], number)
        for writer, number, record in file.numbered_records(split, writers)
    ]
    labels, numbers = np.array(labels_and_numbers, np.int64).reshape(-1, 2).T
    return labels.astype(np.int32), numbers


def examples_at(
    file: ClientDatabase, numbers: np.ndarray, *, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Reads images and labels by row numbers, in the form that `client_examples` returns."""
    serialized_records = file.records_at(numbers.tolist())
    return _arrays(
        [_decoded(file, "of the pool", record, classes) for record in serialized_records]
    )


def _decoded(
    file: ClientDatabase, writer: str, record: bytes, classes: int
) -> tuple[np.ndarray, int]:
    """Decodes a record's image and label, or raises an error if it has none."""
    try:
        decoded_example = decode_example(record)
    except ValueError as error:
        raise ValueError(f"{file.path}, writer {writer!r}: {error}; {_HINT}") from None
    image_pixels = decoded_example.get("pixels")
    label = decoded_example.get("label")
    if not isinstance(image_pixels, np.ndarray) or image_pixels.size != PIXELS**2:
        raise ValueError(
            f"{file.path}, writer {writer!r}: a record without 28 x 28 float 'pixels'; {_HINT}"
        )
    if not isinstance(label, int) or not 0 <= label < classes:
        raise ValueError(
            f"{file.path}, writer {writer!r}: label {label!r} is not in 0..{classes - 1}; {_HINT}"
        )
    return image_pixels, label


def _arrays(examples: Sequence[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Stacks images and labels into two arrays."""
    x = np.array([image for image, _ in examples], np.float32).reshape(-1, PIXELS, PIXELS, 1)
    return x, np.array([label for _, label in examples], np.int32)


def halves(client_ids: list[str]) -> tuple[list[str], list[str]]:
    """Splits the test writers into the writers for validation and the writers for test.

    Writers alternate between the halves. Neighbours in the sorted order belong to the same NIST
    partition, such as census employees or pupils, so both halves have writers of each partition.
    """
    return client_ids[::2], client_ids[1::2]


def is_emnist(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file is a readable SQLite file with a split of EMNIST."""
    try:
        return bool({*ClientDatabase(expanded(path), _HINT).splits()} & {*_SPLITS})
    except ValueError:
        return False


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describes a data file by its path, size and origin, and its writers, images and labels by
    split, as values for JSON.

    Labels are counted over a sample of writers.

    Raises:
      FileNotFoundError, ValueError: as `open_file` and `client_examples` do.
    """
    data_file = open_file(path)
    description_by_split = {}
    for split in (name for name in _SPLITS if name in data_file.splits()):
        size_by_writer = data_file.client_sizes(split)
        sampled_writers = random.Random(0).sample(
            list(size_by_writer), min(_SAMPLED_WRITERS, len(size_by_writer))
        )
        sampled_labels = np.concatenate(
            [
                client_examples(data_file, split, name, classes=len(CLASSES))[1]
                for name in sampled_writers
            ]
        )
        num_classes = 10 if split.startswith("digits") else len(CLASSES)
        images_by_class = np.bincount(sampled_labels, minlength=num_classes)
        description_by_split[split] = {
            "writers": len(size_by_writer),
            "images": sum(size_by_writer.values()),
            "images_per_writer": quantiles(list(size_by_writer.values())),
            "sample": {
                "writers": len(sampled_writers),
                "labels": {CLASSES[i]: int(count) for i, count in enumerate(images_by_class)},
            },
        }
    origin_text = "synthetic substitute" if data_file.synthetic else "federated EMNIST"
    return {
        "path": str(data_file.path),
        "bytes": data_file.path.stat().st_size,
        "origin": origin_text,
        "splits": description_by_split,
    }
