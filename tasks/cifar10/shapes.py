"""Pictures of ten shapes and textures: of any colour, place and size, on any ground, and noisy."""

import numpy as np

from fedmf.tasks.cifar10.data import SIDE

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

# The colour that a class has on average: easy to learn, and not enough.
_TINTS = 0.5 + 0.5 * np.cos(2 * np.pi * (np.arange(10)[:, None] * 0.3 + np.arange(3) / 3))
_TINTED = 0.3  # share of the tint in a picture's colour


def draw_pictures(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """uint8 (m, 32, 32, 3), red, green, blue, for labels (m,), indices into `LABEL_NAMES`."""
    m = len(labels)

    def uniform(low: float, high: float) -> np.ndarray:
        return rng.uniform(low, high, (m, 1, 1))

    steps = np.arange(SIDE) - (SIDE - 1) / 2
    angle, size = uniform(-0.3, 0.3), uniform(7, 13)
    right, down = uniform(-5, 5), uniform(-5, 5)
    x, y = (steps[None, None, :] - right) / size, (steps[None, :, None] - down) / size
    x, y = np.cos(angle) * x + np.sin(angle) * y, np.cos(angle) * y - np.sin(angle) * x
    inside = np.empty((m, SIDE, SIDE), bool)
    for label in range(10):
        which = labels == label
        inside[which] = _inside(label, x[which], y[which])
    tint = _TINTED * _TINTS[labels][:, None, None] + (1 - _TINTED) * rng.random((m, 1, 1, 3))
    # A ground unlike the shape: otherwise one picture in ten shows nothing.
    ground = (tint + 0.5 + rng.uniform(-0.2, 0.2, (m, 1, 1, 3))) % 1
    shade = 0.15 * np.sin(
        steps[None, None, :] * uniform(0, 0.2) + steps[None, :, None] * uniform(0, 0.2)
    )
    noise = 0.1 * rng.standard_normal((m, SIDE, SIDE, 3), np.float32)
    picture = (
        np.where(inside[..., None], tint, ground).astype(np.float32)
        + shade[..., None].astype(np.float32)
        + noise
    )
    return np.round(255 * np.clip(picture, 0, 1)).astype(np.uint8)


def _inside(label: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where a shape of about unit radius is, or the dark of a texture."""
    radius = np.hypot(x, y)
    wave = 4.0
    masks = {
        "disc": lambda: radius < 1,
        "ring": lambda: (radius > 0.55) & (radius < 1),
        "square": lambda: np.maximum(abs(x), abs(y)) < 0.85,
        "triangle": lambda: (y < 0.8) & (abs(x) < 0.55 * (y + 1)),
        "cross": lambda: (np.minimum(abs(x), abs(y)) < 0.3) & (np.maximum(abs(x), abs(y)) < 1),
        "crescent": lambda: (radius < 1) & (np.hypot(x - 0.5, y) > 0.75),
        "rows": lambda: np.sin(wave * y) > 0,
        "columns": lambda: np.sin(wave * x) > 0,
        "diagonals": lambda: np.sin(wave * (x + y) / np.sqrt(2)) > 0,
        "checks": lambda: np.sin(wave * x) * np.sin(wave * y) > 0,
    }
    mask: np.ndarray = masks[LABEL_NAMES[label]]()
    return mask
