"""Synthetic images, compared with figures whose pixels are known."""

import numpy as np
from numpy.testing import assert_array_equal

from fedmf.tasks.synthetic_images import Placement, Scene, Wobble, draw_images

SIDE = 21  # the centre of the image is pixel (10, 10)
CENTRED = {"right": 0.0, "down": 0.0, "angle": 0.0, "width": 1.0, "height": 1.0}


def is_in_bar(x, y):
    """Returns whether points are in a bar of 5 x 1 units, from the centre to the right."""
    return (abs(x - 2) < 2.5) & (abs(y) < 0.5)


def figure_pixels(figure=is_in_bar, **placement):
    """Returns the rows and columns of the pixels that show the figure."""
    scene = Scene(
        side=SIDE,
        placement=Placement(**CENTRED | placement),
        coverage=figure,
        figure_colour=np.ones(1),
        ground_colour=np.zeros(1),
        noise=np.zeros_like,
        dtype=np.float64,
    )
    _, rows, columns, _ = np.nonzero(draw_images(scene))
    return set(zip(rows.tolist(), columns.tolist(), strict=True))


def test_a_figure_is_drawn_at_its_placement():
    assert figure_pixels() == {(10, column) for column in range(10, 15)}
    assert figure_pixels(right=3, down=-2) == {(8, column) for column in range(13, 18)}
    assert figure_pixels(angle=np.pi / 2) == {(row, 10) for row in range(10, 15)}
    wide_and_high = figure_pixels(width=2, height=3)
    assert wide_and_high == {(row, column) for row in (9, 10, 11) for column in range(10, 19)}


def test_shear_moves_what_is_above_the_centre_to_the_right():
    pixels = figure_pixels(figure=lambda x, y: is_in_bar(-y, x), shear=0.4)
    assert pixels == {(10, 10), (9, 10), (8, 11), (7, 11), (6, 12)}


def test_a_wobble_displaces_along_the_other_axis():
    quarter_turn = Wobble(amplitude=2.0, frequency=0.0, phase=np.pi / 2)
    still = Wobble(amplitude=0.0, frequency=1.0, phase=1.0)
    moved_right = {(10, column) for column in range(8, 13)}
    assert figure_pixels(wobbles=(quarter_turn, still)) == moved_right
    assert figure_pixels(wobbles=(still, quarter_turn)) == {(8, column) for column in range(10, 15)}


def test_pixels_are_sums_of_colour_shade_and_noise():
    scene = Scene(
        side=SIDE,
        placement=Placement(**CENTRED),
        coverage=is_in_bar,
        figure_colour=np.array([0.8, 0.2]),
        ground_colour=np.array([0.4, 0.0]),
        shade=0.2,
        noise=lambda coverage: 0.4 * coverage,
        dtype=np.float32,
    )
    (image,) = draw_images(scene)
    assert image.dtype == np.uint8
    assert_array_equal(image[10, 12], [255, 204])  # 1.4 is clipped to 1
    assert_array_equal(image[0, 0], [153, 51])
