"""Reader of the Python version of CIFAR-10 (Krizhevsky 2009, "Learning multiple layers of features
from tiny images"), or of a synthetic substitute.

The archive holds pickles, and pickles can run any code. This reader looks every name in them up in
a table of three, and none of the three does more than hold bytes.
"""

import dataclasses
import hashlib
import io
import os
import pathlib
import pickle
import tarfile
import zlib
from typing import Any

import numpy as np

from fedmf import fields
from fedmf.files import expanded
from fedmf.tasks.partitioned import PartitionOptions

MODELS = ("vgg", "small")
VALIDATION = ("train", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cifar10Options(PartitionOptions):
    """Options for the data and the model of CIFAR-10. The default network is the published one.

    Raises:
      TypeError, ValueError: naming the option, its value and what to do instead.
    """

    data: str | None = fields.path(
        None,
        "cifar-10-python.tar.gz or a substitute; by default the file in Keras's own cache.",
    )
    model: str = fields.choice(
        "vgg", "vgg: the published network, 551,000 parameters; small: 39,000.", lambda: MODELS
    )
    validation: str = fields.choice(
        "train",
        "train: validate on the last 5,000 training images (a tenth of a small file), which do not "
        "train; test: on every other test image, so that all training images train, as published.",
        lambda: VALIDATION,
    )
    max_clients: int | None = fields.whole_number(
        None, "Only the first so many images train; by default all."
    )
    batch_size: int = fields.whole_number(1, "Images in a batch of a synthetic client.")


LABEL_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
SIDE = 32
FOLDER = "cifar-10-batches-py"
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = "test_batch"
META = "batches.meta"

_HINT = (
    'download cifar-10-python.tar.gz, the "python version" of the CIFAR-10 page, and name it by '
    "data=FILE; or, offline, write a substitute with `fedmf data synth --task cifar10 --out FILE`"
)
_PICKLE_ERRORS = (
    pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, MemoryError,
    OverflowError, TypeError, ValueError,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Images:
    """Images and labels of a CIFAR-10 archive.

    Attributes:
      x: training images, uint8 (m, 32, 32, 3), red, green, blue.
      y: their labels, int32 (m,) in 0..9.
      x_test, y_test: the test batch.
      label_names: names of the ten classes.
    """

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    label_names: tuple[str, ...]

    @property
    def synthetic(self) -> bool:
        """Whether the archive has other classes than CIFAR-10, and so is a synthetic substitute."""
        return self.label_names != LABEL_NAMES

    @property
    def version(self) -> str:
        """Digest of the images and labels, which identifies the data."""
        image_digest = hashlib.sha256()
        for array in (self.x, self.y, self.x_test, self.y_test):
            image_digest.update(np.ascontiguousarray(array).data)
        return image_digest.hexdigest()[:16]


def load_images(path: str | os.PathLike[str] | None = None) -> Images:
    """Reads the images of a CIFAR-10 archive. The path None means the file that Keras's load_data
    keeps.

    Nothing is downloaded, unpacked or run.

    Raises:
      FileNotFoundError: no such file; the message says what to put where.
      ValueError: the archive is damaged or of another kind.
    """
    archive_path = expanded(f"~/.keras/datasets/{FOLDER}.tar.gz" if path is None else path)
    if not archive_path.exists():
        raise FileNotFoundError(f"there is no file {archive_path}: {_HINT}")
    content_of_members = _members(archive_path)
    content_by_name = {
        name: _unpickled(archive_path, name, content)
        for name, content in content_of_members.items()
    }
    class_names = content_by_name[META].get(b"label_names")
    if not isinstance(class_names, list) or [type(name) for name in class_names] != [bytes] * 10:
        raise ValueError(f"{archive_path}: {META} has no ten label names: {_HINT}")
    train_batches = [_batch(archive_path, name, content_by_name[name]) for name in TRAIN]
    x_test, y_test = _batch(archive_path, TEST, content_by_name[TEST])
    return Images(
        x=np.concatenate([x for x, _ in train_batches]),
        y=np.concatenate([y for _, y in train_batches]),
        x_test=x_test,
        y_test=y_test,
        label_names=tuple(name.decode(errors="replace") for name in class_names),
    )


def _members(archive: pathlib.Path) -> dict[str, bytes]:
    """Returns a mapping from the name of each data file in the archive to its content."""
    expected_names = {*TRAIN, TEST, META}
    content_by_name: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r|gz") as stream:
            for member in stream:
                file_name = pathlib.PurePosixPath(member.name).name
                member_file = stream.extractfile(member) if file_name in expected_names else None
                if member_file is not None:
                    content_by_name[file_name] = member_file.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise ValueError(f"{archive} is no whole .tar.gz archive ({error}): {_HINT}") from None
    missing_names = sorted(expected_names - set(content_by_name))
    if missing_names:
        raise ValueError(
            f"{archive} has no {missing_names[0]}, so it is not the Python version of CIFAR-10: "
            f"{_HINT}"
        )
    return content_by_name


class _PickledType:
    """Replacement for numpy's dtype while unpickling, which keeps only the type's name."""

    def __init__(self, name: bytes | str, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Ignores the rest of the state, such as the byte order, which does not matter for single
        bytes.
        """


class _PickledArray:
    """Replacement for a numpy array while unpickling, which accepts only arrays of bytes."""

    array: np.ndarray

    def __init__(self, *_: Any) -> None:
        """Accepts the arguments of numpy's `_reconstruct`, which describe an empty array, and
        ignores them. The content follows later.
        """

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if dtype.name not in (b"u1", "u1"):
            raise ValueError(f"an array of {dtype.name!r} and not of bytes")
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
    # numpy._core.multiarray is the module's name in pickles that numpy 2 wrote.
    ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
    ("numpy", "dtype"): _PickledType,
    ("numpy", "ndarray"): _PickledArray,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Returns a replacement class for arrays of bytes, and refuses every other class."""
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _NAMES[module, name]


def _unpickled(archive: pathlib.Path, name: str, content: bytes) -> dict[Any, Any]:
    try:
        # The archive was written by Python 2, whose strings are read as bytes.
        unpickled_value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except _PICKLE_ERRORS as error:
        raise ValueError(
            f"{archive}: {name} is not a pickle of images ({error}): {_HINT}"
        ) from None
    return unpickled_value if isinstance(unpickled_value, dict) else {}


def _batch(
    archive: pathlib.Path, name: str, content: dict[Any, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Reads a batch file as images (m, 32, 32, 3) and labels (m,) for its m images."""
    data: Any = getattr(content.get(b"data"), "array", None)
    batch_labels = content.get(b"labels")
    if np.shape(data)[1:] != (3 * SIDE**2,) or not isinstance(batch_labels, list):
        raise ValueError(
            f"{archive}: {name} does not hold b'data' of 3,072 bytes an image "
            f"and b'labels': {_HINT}"
        )
    are_classes = all(type(label) is int and 0 <= label < 10 for label in batch_labels)
    if not are_classes or not 0 < len(batch_labels) == len(data):
        raise ValueError(
            f"{archive}: {name} does not hold one label in 0..9 for each of "
            f"{len(data)} images: {_HINT}"
        )
    return data.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1), np.array(batch_labels, np.int32)


def scaled(x: np.ndarray) -> np.ndarray:
    """Scales images to the network's input, float32 in [-1, 1].

    A value x becomes x / 127.5 - 1, as in the code of Kairouz et al. 2021.
    """
    return x.astype(np.float32) / np.float32(127.5) - np.float32(1)


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describes an archive by its path, size, origin, and number of images by split and class, as
    values for JSON.

    Raises:
      FileNotFoundError, ValueError: as `load_images`.
    """
    images = load_images(path)
    description_by_split = {}
    for name, y in (("training", images.y), ("test", images.y_test)):
        images_by_class = np.bincount(y, minlength=10).tolist()
        count_by_label = dict(zip(images.label_names, images_by_class, strict=True))
        description_by_split[name] = {"images": len(y), "labels": count_by_label}
    origin_text = "synthetic substitute" if images.synthetic else "CIFAR-10"
    return {
        "path": str(path),
        "bytes": expanded(path).stat().st_size,
        "origin": origin_text,
        "splits": description_by_split,
    }
