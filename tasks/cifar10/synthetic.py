"""Writer of a synthetic substitute for CIFAR-10, in the format of cifar-10-python.tar.gz, so that
offline work uses the same loader.

Its pictures show ten shapes and textures of any colour, position and size, on any ground, with
noise.
"""

import functools
import gzip
import io
import os
import pathlib
import struct
import tarfile
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from fedmf import checks
from fedmf.files import expanded, write_atomically
from fedmf.tasks import data_file
from fedmf.tasks.cifar10.data import FOLDER, META, SIDE, TEST, TRAIN
from fedmf.tasks.synthetic_images import Placement, Scene, draw_images, pixel_steps
from fedmf.terminal import progress_bar

# Number of pictures that are drawn at a time. Drawing more at once would take more memory and no
# less time.
_PICTURES_PER_DRAW = 500

Pickled = bytes | int | np.ndarray | list["Pickled"] | dict[bytes, "Pickled"]


def write_synthetic(
    path: str | os.PathLike[str],
    *,
    examples: int = 5_000,
    test_examples: int = 1_000,
    seed: int = 0,
    overwrite: bool = False,
    progress: bool = True,
) -> pathlib.Path:
    """Writes a synthetic substitute for CIFAR-10 and returns its path.

    The file appears when it is complete; the same arguments give the same pictures.

    Args:
      path: file to write, such as "shapes.tar.gz"; its folder must exist.
      examples: training images, in five batches.
      test_examples: images of the test batch.
      seed: draws the images.
      overwrite: replace an existing file.
      progress: show a progress bar.

    Raises:
      TypeError: an argument of the wrong kind.
      ValueError: an argument out of range, an existing file without `overwrite`, or a file that
        cannot be written.
    """
    path = expanded(path)
    for name, value in (("examples", examples), ("test_examples", test_examples)):
        checks.integer(name, value, low=10, hint="use at least one image a class")
    checks.integer("seed", seed, low=0, hint="use a non-negative whole number")
    data_file.check_new(path, overwrite=overwrite)
    train_batches = np.array_split(np.arange(examples), len(TRAIN))
    size_by_batch = {name: len(batch) for name, batch in zip(TRAIN, train_batches, strict=True)}
    names: list[Pickled] = [name.encode() for name in LABEL_NAMES]

    def write(out: BinaryIO) -> None:
        """Writes the archive, one batch after another."""
        # The lowest compression level suffices, because noise cannot be compressed. The archive
        # contains no times, so that equal arguments give equal files.
        with (
            gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            meta: Pickled = {
                b"num_cases_per_batch": size_by_batch[TRAIN[0]],
                b"label_names": names,
                b"num_vis": 3 * SIDE**2,
            }
            _add(archive, META, meta)
            batch_bar = progress_bar.bar(
                (size_by_batch | {TEST: test_examples}).items(),
                desc=f"writing {path.name}",
                unit="batch",
                disable=not progress,
            )
            for number, (name, size) in enumerate(batch_bar):
                batch_rng = np.random.default_rng([seed, number])
                _add(archive, name, _batch_content(name, size, batch_rng))

    try:
        write_atomically(path, write)
    except OSError as error:
        raise data_file.unwritable(path, error) from None
    return path


def _batch_content(name: str, size: int, rng: np.random.Generator) -> Pickled:
    """Draws the labels and pictures of a batch."""
    picture_labels = rng.integers(0, 10, size)
    num_draws = -(-size // _PICTURES_PER_DRAW)
    pictures = np.concatenate(
        [
            draw_pictures(some_labels, rng)
            for some_labels in np.array_split(picture_labels, num_draws)
        ]
    )
    file_names: list[Pickled] = [
        f"{LABEL_NAMES[label]}_{i:06d}.png".encode() for i, label in enumerate(picture_labels)
    ]
    return {
        b"batch_label": f"synthetic {name}".encode(),
        b"labels": picture_labels.tolist(),
        b"data": pictures.transpose(0, 3, 1, 2).reshape(size, 3 * SIDE**2),
        b"filenames": file_names,
    }


def _add(archive: tarfile.TarFile, name: str, value: Pickled) -> None:
    """Adds a file with the pickle of a value to the archive."""
    # The pickle has protocol 2 and strings as Python 2 wrote them, as in the real archive. A reader
    # can load them as bytes or as text.
    pickled_value = b"\x80\x02" + _opcodes(value) + b"."
    member = tarfile.TarInfo(f"{FOLDER}/{name}")
    member.size = len(pickled_value)
    archive.addfile(member, io.BytesIO(pickled_value))


def _opcodes(value: Pickled) -> bytes:
    """Returns the pickle opcodes (see pickletools) that leave `value` on the unpickler's stack."""
    if isinstance(value, bytes):
        # "T" is the pickle opcode BINSTRING.
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        # "J" is the pickle opcode BININT.
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        # A list is the pickle opcodes EMPTY_LIST and MARK, the opcodes of its entries, and APPENDS.
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, dict):
        entry_opcodes = (_opcodes(key) + _opcodes(content) for key, content in value.items())
        # A dict is the opcodes EMPTY_DICT and MARK, the opcodes of its entries, and SETITEMS.
        return b"}(" + b"".join(entry_opcodes) + b"u"
    # The rest writes what numpy's ndarray.__reduce__ returns for an array of bytes in C order. The
    # opcodes c, R and b are GLOBAL, REDUCE and BUILD.
    empty_array_opcodes = (
        b"cnumpy.core.multiarray\n_reconstruct\n"
        + b"cnumpy\nndarray\n"
        + b"K\x00\x85"
        + _opcodes(b"b")
        + b"\x87R"
    )
    order_opcodes = b"(" + b"K\x03" + _opcodes(b"|") + b"NNN" + 2 * _opcodes(-1) + b"K\x00" + b"t"
    dtype_opcodes = b"cnumpy\ndtype\n" + _opcodes(b"u1") + b"K\x00K\x01\x87R" + order_opcodes + b"b"
    shape_opcodes = b"(" + b"".join(map(_opcodes, value.shape)) + b"t"
    return (
        empty_array_opcodes
        + b"("
        + b"K\x01"
        + shape_opcodes
        + dtype_opcodes
        + b"\x89"
        + _opcodes(value.tobytes())
        + b"tb"
    )


LABEL_NAMES = (
    "disc",
    "ring",
    "square",
    "triangle",
    "cross",
    "crescent",
    "rows",
    "columns",
    "diagonals",
    "checks",
)

# Each class of pictures has a mean colour, which is easy to learn but does not suffice to tell the
# classes apart.
_TINTS = 0.5 + 0.5 * np.cos(2 * np.pi * (np.arange(10)[:, None] * 0.3 + np.arange(3) / 3))
# Weight of the class's mean colour in the colour of a picture. The rest of the colour is random.
_TINT_WEIGHT = 0.3


def draw_pictures(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws one picture for each label.

    Args:
      labels: (m,) indices into `LABEL_NAMES`.
      rng: source of randomness.

    Returns:
      uint8 (m, 32, 32, 3), red, green, blue.
    """
    num_pictures = len(labels)

    def uniform(low: float, high: float) -> np.ndarray:
        """Draws a uniform number for each picture, of shape (m, 1, 1)."""
        return rng.uniform(low, high, (num_pictures, 1, 1))

    angle = uniform(-0.3, 0.3)
    figure_size = uniform(7, 13)
    placement = Placement(
        right=uniform(-5, 5),
        down=uniform(-5, 5),
        angle=angle,
        width=figure_size,
        height=figure_size,
    )
    figure_tint = _TINT_WEIGHT * _TINTS[labels][:, None, None] + (1 - _TINT_WEIGHT) * rng.random(
        (num_pictures, 1, 1, 3)
    )
    # The background's colour is chosen to differ from the colour of the shape. Otherwise one
    # picture in ten would show nothing.
    ground = (figure_tint + 0.5 + rng.uniform(-0.2, 0.2, (num_pictures, 1, 1, 3))) % 1
    steps = pixel_steps(SIDE)
    waves = steps[None, None, :] * uniform(0, 0.2) + steps[None, :, None] * uniform(0, 0.2)
    scene = Scene(
        side=SIDE,
        placement=placement,
        coverage=functools.partial(_is_in_shape, labels),
        figure_colour=figure_tint,
        ground_colour=ground,
        shade=0.15 * np.sin(waves)[..., None],
        noise=lambda _: 0.1 * rng.standard_normal((num_pictures, SIDE, SIDE, 3), np.float32),
        dtype=np.float32,
    )
    return draw_images(scene)


def _is_in_shape(labels: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns for each point whether it lies in the shape of its image's label, bool (m, side,
    side).
    """
    is_shape = np.empty(x.shape, bool)
    for label in range(10):
        has_label = labels == label
        is_shape[has_label] = _shape_mask(label, x[has_label], y[has_label])
    return is_shape


def _shape_mask(label: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns for each point whether it lies in a shape of about unit radius, or in the dark
    stripes of a texture.
    """
    center_distance = np.hypot(x, y)
    wave_number = 4.0
    masks: dict[str, Callable[[], np.ndarray]] = {
        "disc": lambda: center_distance < 1,
        "ring": lambda: (center_distance > 0.55) & (center_distance < 1),
        "square": lambda: np.maximum(abs(x), abs(y)) < 0.85,
        "triangle": lambda: (y < 0.8) & (abs(x) < 0.55 * (y + 1)),
        "cross": lambda: (np.minimum(abs(x), abs(y)) < 0.3) & (np.maximum(abs(x), abs(y)) < 1),
        "crescent": lambda: (center_distance < 1) & (np.hypot(x - 0.5, y) > 0.75),
        "rows": lambda: np.sin(wave_number * y) > 0,
        "columns": lambda: np.sin(wave_number * x) > 0,
        "diagonals": lambda: np.sin(wave_number * (x + y) / np.sqrt(2)) > 0,
        "checks": lambda: np.sin(wave_number * x) * np.sin(wave_number * y) > 0,
    }
    return masks[LABEL_NAMES[label]]()
