"""Writer of a synthetic substitute for EMNIST, in the format of TFF's emnist_all.sqlite, so that
offline work uses the same loader.

Its images show characters of fonts as if written by hand: each writer has a font, a pen and a
slant, and no two characters are the same.

A character is stored as the signed distance to its outline. A thicker pen is then another
threshold, and a slanted, turned or shaky hand evaluates the distance at other points.
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
from fedmf.tasks.synthetic_images import Placement, Scene, Wobble, draw_images
from fedmf.terminal import progress_bar

_TEST_FRACTION = 0.11  # Fraction of a writer's images in the test split, as in the real file.


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
    """Writes a synthetic substitute for federated EMNIST and returns its path.

    The file appears when it is complete.

    A writer's images depend on (seed, writer, examples_per_client, only_digits) only. Like a real
    writer, each has train and test images in unequal numbers, and some characters more often than
    others.

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
            writer_rng = np.random.default_rng([seed, writer])
            writer_labels = _draw_labels(examples_per_client, only_digits, writer_rng)
            images = draw_characters(writer_labels, writer_rng)
            examples = [
                (label, encode_example({"label": label, "pixels": image}))
                for label, image in zip(writer_labels.tolist(), images, strict=True)
            ]
            client_id = f"f{writer:04d}_{writer % 50:02d}"
            num_test = max(1, round(_TEST_FRACTION * len(writer_labels)))
            examples_by_split = {"test": examples[:num_test], "train": examples[num_test:]}
            for kind, split_examples in examples_by_split.items():
                digit_records = [record for label, record in split_examples if label < 10]
                write_client(connection, client_id, f"digits_only_{kind}", digit_records)
                if not only_digits:
                    all_records = [record for _, record in split_examples]
                    write_client(connection, client_id, f"all_{kind}", all_records)
    return path


def _draw_labels(mean: int, only_digits: bool, rng: np.random.Generator) -> np.ndarray:
    """Draws the labels of the characters that one writer writes. Their number and the share of each
    class differ between writers.
    """
    num_images = max(5, round(mean * float(rng.lognormal(-0.045, 0.3))))
    class_weights = rng.gamma(5.0, size=len(CLASSES))
    class_weights[10:] *= 0 if only_digits else 10 / 52
    return rng.choice(len(CLASSES), size=num_images, p=class_weights / class_weights.sum())


# Fonts of the synthetic characters, which come with matplotlib, with and without serifs, upright
# and italic.
_FONTS = (
    "DejaVuSans",
    "DejaVuSerif",
    "DejaVuSansMono-Oblique",
    "STIXGeneral",
    "STIXGeneralItalic",
    "DejaVuSans-Bold",
)
# Side of the square array that holds a character's distance field, in pixels.
_FIELD_SIDE = 96
# Height of a capital letter, in pixels of a distance field.
_CAPITAL_HEIGHT = 56
# Height of a capital letter, in pixels of an image.
_IMAGE_CAPITAL_HEIGHT = 17.0


@functools.cache
def _distances(font: int) -> np.ndarray:
    """Computes the signed distance of each pixel to the outline, for all characters of a font.

    Returns:
      float32 (characters, side, side), in pixels of the field, negative in the ink.
    """
    import matplotlib
    from matplotlib.ft2font import FT2Font

    font_face = FT2Font(
        str(pathlib.Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{_FONTS[font]}.ttf")
    )
    # A capital letter is 0.72 times as high as the font size.
    font_face.set_size(_CAPITAL_HEIGHT, 72 / 0.72)
    distance_fields = np.empty((len(CLASSES), _FIELD_SIDE, _FIELD_SIDE), np.float32)
    for i, character in enumerate(CLASSES):
        font_face.set_text(character, 0.0)
        font_face.draw_glyphs_to_bitmap(antialiased=True)
        bitmap = np.asarray(font_face.get_image())
        pixels_below = font_face.get_descent() // 64
        # Capital letters stand on the base line. They are moved so that their middle is the middle
        # of the distance field.
        bottom_row = min(_FIELD_SIDE, (_FIELD_SIDE + _CAPITAL_HEIGHT) // 2 + pixels_below)
        top_row = max(0, bottom_row - bitmap.shape[0])
        left_column = max(0, (_FIELD_SIDE - bitmap.shape[1]) // 2)
        is_ink = np.zeros((_FIELD_SIDE, _FIELD_SIDE), bool)
        is_ink[top_row:bottom_row, left_column : left_column + bitmap.shape[1]] = (
            bitmap[: bottom_row - top_row, : _FIELD_SIDE - left_column] > 127
        )
        distance_outside = ndimage.distance_transform_edt(~is_ink)
        distance_inside = ndimage.distance_transform_edt(is_ink)
        distance_fields[i] = distance_outside - distance_inside
    return distance_fields


def draw_characters(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws images of characters by one writer.

    Args:
      labels: (m,) indices into `CLASSES`.
      rng: source of randomness for the writer's hand and for each character.

    Returns:
      float32 (m, 28, 28) with paper 1 and ink 0, in steps of 1 / 255.
    """
    # Attributes of a writer. The ink extends `pen_width` pixels beyond the font's outline, and a
    # shaky hand displaces it by `shake_size` pixels.
    width, height = np.exp(rng.normal(0, 0.1, 2))
    right, down = rng.normal(0, 0.8, 2)
    font_index = int(rng.integers(len(_FONTS)))
    pen_width = rng.uniform(-0.3, 0.7)
    writer_slant = rng.normal(0.1, 0.2)
    writer_rotation = rng.normal(0, 0.08)
    shake_size = rng.uniform(0.2, 0.8)
    noise_level = rng.uniform(0, 0.08)

    def each(spread: float) -> np.ndarray:
        """Draws a normal deviation for each character, of shape (m, 1, 1)."""
        return rng.normal(0, spread, (len(labels), 1, 1))

    def wobble() -> Wobble:
        """Draws the effect of the shaky hand on each character, along one axis."""
        return Wobble(amplitude=shake_size, frequency=0.35 + each(0.08), phase=each(3))

    placement = Placement(
        right=right + each(0.4),
        down=down + each(0.4),
        wobbles=(wobble(), wobble()),
        angle=writer_rotation + each(0.06),
        shear=writer_slant + each(0.05),
        width=width * np.exp(each(0.04)),
        height=height * np.exp(each(0.04)),
    )
    scene = Scene(
        side=PIXELS,
        placement=placement,
        coverage=functools.partial(
            _ink, _distances(font_index)[labels], 0.5 + pen_width + each(0.1)
        ),
        figure_colour=np.zeros(1),
        ground_colour=np.ones(1),
        noise=lambda ink: noise_level * rng.normal(size=ink.shape) * (ink > 0),
        dtype=np.float64,
    )
    return (draw_images(scene)[..., 0] / 255).astype(np.float32)


def _ink(distances: np.ndarray, pen_widths: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns the fraction of ink at points (m, h, w), for pens of different widths.

    Args:
      distances: signed distance fields of the characters, (m, side, side).
      pen_widths: how far the ink extends beyond the outline, in pixels of the image, and half a
        pixel for its soft edge, (m, 1, 1).
      x, y: points, in pixels of the image from the middle of the character.
    """
    zoom = _CAPITAL_HEIGHT / _IMAGE_CAPITAL_HEIGHT
    middle_pixel = (_FIELD_SIDE - 1) / 2
    scaled_distance = (
        _interpolated(distances, y * zoom + middle_pixel, x * zoom + middle_pixel) / zoom
    )
    return np.clip(pen_widths - scaled_distance, 0, 1)


def _interpolated(fields: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Interpolates fields (m, side, side) bilinearly at points (m, h, w).

    Beyond the edge of a field its values at the edge are repeated.
    """
    field_index = np.arange(len(fields))[:, None, None]
    coordinates = np.broadcast_arrays(field_index, rows, columns)
    return ndimage.map_coordinates(fields, coordinates, order=1, mode="nearest")
