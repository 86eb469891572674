"""Generator of synthetic images for every task on images, each of which shows a figure at a random
place, with colours and noise.

A task says what its figures look like, and draws what is random about them (`Scene`). Placing the
figures and colouring the pixels is then the same for all tasks.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

# The type of one value for each of m images, of shape (m, 1, 1), or of one value for all images.
PerImage = np.ndarray | float


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Wobble:
    """A wavy displacement of a figure's points along one axis, as of a shaky hand.

    Attributes:
      amplitude: largest displacement, in pixels.
      frequency: of the wave along the other axis, in radians a pixel.
      phase: of the wave, in radians.
    """

    amplitude: PerImage
    frequency: PerImage
    phase: PerImage

    def displacement(self, positions: np.ndarray) -> np.ndarray:
        """Returns the displacement of points at positions along the other axis."""
        return self.amplitude * np.sin(positions * self.frequency + self.phase)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Placement:
    """Position, size and distortion of the figure in each image.

    Attributes:
      right, down: position of the figure's centre, in pixels from the centre of the image.
      angle: rotation of the figure, in radians.
      shear: displacement of a point along the figure's x axis, for each pixel above its centre.
      width, height: size of the figure's unit of length, in pixels.
      wobbles: displacements to the right and downwards; none by default.
    """

    right: PerImage
    down: PerImage
    angle: PerImage
    shear: PerImage = 0.0
    width: PerImage
    height: PerImage
    wobbles: tuple[Wobble, Wobble] | None = None

    def points(self, side: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns x (rightwards) and y (downwards) of all pixels in the figure's own coordinates.

        Both have shape (m, side, side), with the figure's centre at (0, 0).
        """
        axis_positions = pixel_steps(side)
        column = axis_positions[None, None, :] - self.right
        row = axis_positions[None, :, None] - self.down
        if self.wobbles is not None:
            wobble_right, wobble_down = self.wobbles
            wobbly_column = column + wobble_right.displacement(row)
            row = row + wobble_down.displacement(column)
            column = wobbly_column
        x = np.cos(self.angle) * column + np.sin(self.angle) * row
        y = np.cos(self.angle) * row - np.sin(self.angle) * column
        return (x + self.shear * y) / self.width, y / self.height


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """The random numbers and functions that determine the pixels of m images of a task.

    Attributes:
      side: height and width of an image, in pixels.
      placement: of the figure in each image.
      coverage: x and y of `Placement.points` -> fraction of each pixel that the figure covers, in
        [0, 1], (m, side, side).
      figure_colour, ground_colour: (m, 1, 1, channels), or (channels,) for all images, in [0, 1].
      shade: added to the colours, (m, side, side, 1), or one number for all pixels.
      noise: coverage (m, side, side, 1) -> noise that is added to the pixels, (m, side, side,
        channels).
      dtype: floating-point type of the pixels before they are rounded.
    """

    side: int
    placement: Placement
    coverage: Callable[[np.ndarray, np.ndarray], np.ndarray]
    figure_colour: np.ndarray
    ground_colour: np.ndarray
    shade: np.ndarray | float = 0.0
    noise: Callable[[np.ndarray], np.ndarray]
    dtype: type[np.floating]


def pixel_steps(side: int) -> np.ndarray:
    """Returns the positions of pixels along an axis, from the centre of the image.

    >>> pixel_steps(4)
    array([-1.5, -0.5,  0.5,  1.5])
    """
    return np.arange(side) - (side - 1) / 2


def draw_images(scene: Scene) -> np.ndarray:
    """Draws the images of a scene as uint8 (m, side, side, channels)."""
    x, y = scene.placement.points(scene.side)
    figure_coverage = scene.coverage(x, y)[..., None]
    mixed_colours = (
        figure_coverage * scene.figure_colour + (1 - figure_coverage) * scene.ground_colour
    )
    shaded = mixed_colours.astype(scene.dtype) + np.asarray(scene.shade).astype(scene.dtype)
    pixels = shaded + scene.noise(figure_coverage)
    return np.round(255 * np.clip(pixels, 0, 1)).astype(np.uint8)
