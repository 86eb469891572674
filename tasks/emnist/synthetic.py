"""Writes a stand-in in the format of TFF's emnist_all.sqlite: offline work goes through
the same loader.

It has characters of fonts drawn by hand: each writer has a font, a pen and a slant, and no two
characters are the same.

A character is kept as its signed distance to the outline. A thicker pen is then another threshold,
and a slanted, turned or shaky hand another place where the distance is looked up.
"""

import functools
import os
import pathlib

import numpy as np
from scipy import ndimage

from fedmf import checks
from fedmf.files import expanded
from fedmf.tasks.data_file import SYNTHETIC, create, write_client
from fedmf.tasks.emnist.data import CLASSES, PIXELS
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
    path = expanded(path)
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


# Of matplotlib's own files. Shapes differ: with and without serifs, upright and italic.
_FONTS = (
    "DejaVuSans",
    "DejaVuSerif",
    "DejaVuSansMono-Oblique",
    "STIXGeneral",
    "STIXGeneralItalic",
    "DejaVuSans-Bold",
)
_FIELD = 96  # side of a distance field
_CAPITAL = 56  # height of a capital in it
_DRAWN = 17.0  # height of a capital in an image, in pixels


@functools.cache
def _distances(font: int) -> np.ndarray:
    """Signed distances to the outlines, float32 (characters, side, side), in pixels of the field,
    negative in the ink.
    """
    import matplotlib
    from matplotlib.ft2font import FT2Font

    face = FT2Font(
        str(pathlib.Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{_FONTS[font]}.ttf")
    )
    face.set_size(_CAPITAL, 72 / 0.72)  # a capital takes 0.72 of the size
    fields = np.empty((len(CLASSES), _FIELD, _FIELD), np.float32)
    for i, character in enumerate(CLASSES):
        face.set_text(character, 0.0)
        face.draw_glyphs_to_bitmap(antialiased=True)
        bitmap = np.asarray(face.get_image())
        below = face.get_descent() // 64
        # The middle of a capital, which stands on the base line, is in the middle of the field.
        bottom = min(_FIELD, (_FIELD + _CAPITAL) // 2 + below)
        top, left = max(0, bottom - bitmap.shape[0]), max(0, (_FIELD - bitmap.shape[1]) // 2)
        ink = np.zeros((_FIELD, _FIELD), bool)
        ink[top:bottom, left : left + bitmap.shape[1]] = (
            bitmap[: bottom - top, : _FIELD - left] > 127
        )
        outside, inside = ndimage.distance_transform_edt(~ink), ndimage.distance_transform_edt(ink)
        fields[i] = outside - inside
    return fields


def draw_images(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Images of characters by one writer, float32 (m, 28, 28) with paper 1 and ink 0, in steps of
    1 / 255.

    Args:
      labels: (m,) indices into `CLASSES`.
      rng: draws the writer's hand, and what differs between two characters.
    """
    # The hand: how far ink goes beyond the font's outline, the shear to the right, and the pen's
    # displacement on its way, in pixels; the noise is the scanner's.
    width, height = np.exp(rng.normal(0, 0.1, 2))
    right, down = rng.normal(0, 0.8, 2)
    font, pen = int(rng.integers(len(_FONTS))), rng.uniform(-0.3, 0.7)
    slant, rotation = rng.normal(0.1, 0.2), rng.normal(0, 0.08)
    shake, noise = rng.uniform(0.2, 0.8), rng.uniform(0, 0.08)
    m = len(labels)

    def each(spread: float) -> np.ndarray:
        return rng.normal(0, spread, (m, 1, 1))

    centred = np.arange(PIXELS) - (PIXELS - 1) / 2
    x = centred[None, None, :] - right - each(0.4)
    y = centred[None, :, None] - down - each(0.4)
    x, y = (
        x + shake * np.sin(y * (0.35 + each(0.08)) + each(3)),
        y + shake * np.sin(x * (0.35 + each(0.08)) + each(3)),
    )
    angle, shear = rotation + each(0.06), slant + each(0.05)
    x, y = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    x = x + shear * y
    zoom = _CAPITAL / _DRAWN
    columns = x / (width * np.exp(each(0.04))) * zoom + (_FIELD - 1) / 2
    rows = y / (height * np.exp(each(0.04))) * zoom + (_FIELD - 1) / 2
    distance = _looked_up(_distances(font)[labels], rows, columns) / zoom
    ink = np.clip(0.5 + pen + each(0.1) - distance, 0, 1)
    image = 1 - ink + noise * rng.normal(size=ink.shape) * (ink > 0)
    return (np.round(255 * np.clip(image, 0, 1)) / 255).astype(np.float32)


def _looked_up(fields: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Bilinear interpolation of fields (m, side, side) at points (m, h, w); beyond the edge as at
    the edge.
    """
    which = np.arange(len(fields))[:, None, None]
    places = np.broadcast_arrays(which, rows, columns)
    return ndimage.map_coordinates(fields, places, order=1, mode="nearest")
