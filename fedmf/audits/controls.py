"""Negative controls of `noise_audit`: known mistakes, made on purpose with noise that a run released.

Each takes the whitened noise W = L^-1 Y / scale of honest runs and returns what W would have been, had the run made the mistake. An
audit that does not catch them would not catch the real ones either.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

# A change of the covariance by less than rounding is no change.
_SAME = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Control:
    """One mistake.

    Attributes:
      name: what is wrong.
      whitened: W of each run with the mistake in it, each (n, d); None where the mistake changes nothing.
      reason: why it changes nothing here; empty if it does.
    """

    name: str
    whitened: tuple[np.ndarray, ...] | None
    reason: str = ""


def negative_controls(factor: np.ndarray, whitened: Sequence[np.ndarray], leaves: Sequence[int]) -> Iterator[Control]:
    """Yields the mistakes, made in turn on the same noise.

    Args:
      factor: L of the honest noise, (n, n), from `noise_audit.causal_factor`.
      whitened: W of two independent honest runs, each (n, d).
      leaves: sizes of the model's leaves, in the order of the columns.

    >>> rng = np.random.default_rng(1)
    >>> controls = negative_controls(np.eye(4), rng.standard_normal((2, 4, 6)), leaves=(3, 3))
    >>> [control.name for control in controls if control.reason]
    ['rows of C normalised in place of columns', 'Cholesky factor not flipped, C C^T = X']
    """
    one, other = whitened
    n, middle = len(one), len(one) // 2
    yield Control(name="noise too small by 3%", whitened=(0.97 * one, 0.97 * other))
    yield Control(name="noise too large by 3%", whitened=(1.03 * one, 1.03 * other))
    yield from _wrong_encoders(factor, (one, other))
    if n > 1:
        yield Control(
            name=f"draw of round {middle - 1} used again in round {middle}",
            whitened=tuple(_changed(W, middle, W[middle - 1]) for W in (one, other)),
        )
    parts = [(end - size, size) for end, size in zip(np.cumsum(leaves), leaves, strict=True) if size]
    if len(parts) > 1:
        (first, size), (second, room) = sorted(sorted(parts, key=lambda part: part[1])[-2:])
        common = min(size, room)
        yield Control(
            name="two leaves of the model share their noise",
            whitened=tuple(_shared(W, first, second, common) for W in (one, other)),
        )
    yield Control(name="two runs with different seeds share their noise", whitened=(one, one.copy()))
    if n > 1:
        rest = slice(middle, None)
        yield Control(
            name=f"sources start again after a resume at round {middle}",
            whitened=(one, _changed(other, rest, other[: n - middle])),
        )
        # What is released starts again, from round 0 of Y: whitened by the rows that it claims to be.
        released = factor @ other
        yield Control(
            name=f"noise not advanced by a resume at round {middle}",
            whitened=(one, _solve(factor, _changed(released, rest, released[: n - middle]))),
        )


def _wrong_encoders(factor: np.ndarray, whitened: tuple[np.ndarray, ...]) -> Iterator[Control]:
    """The noise E_w^-1 z of a wrong encoder E_w beside the claimed E = L^-1: whitened it is E E_w^-1 z."""
    E = _solve(factor, np.eye(len(factor)))
    norms = np.linalg.norm(E, axis=1)
    typical = float(np.sqrt((E**2).sum() / len(E)))
    # E_w = diag(typical / norms) E: its rows have one norm, where those of the columns of E should have it.
    changed = norms / typical

    def by_rows(W: np.ndarray) -> np.ndarray:
        return changed[:, None] * W

    yield _encoder_control("rows of C normalised in place of columns", by_rows, np.diag(changed), whitened)
    if np.abs(E - np.diag(np.diagonal(E))).max() <= _SAME * np.abs(E).max():
        name = "Cholesky factor not flipped, C C^T = X"
        yield Control(name=name, whitened=None, reason="C is diagonal, and the factor the same")
        return
    unflipped = E @ _solve(np.linalg.cholesky(E.T @ E), np.eye(len(E)))
    yield _encoder_control("Cholesky factor not flipped, C C^T = X", lambda W: unflipped @ W, unflipped, whitened)


def _encoder_control(
    name: str, change: Callable[[np.ndarray], np.ndarray], matrix: np.ndarray, whitened: tuple[np.ndarray, ...]
) -> Control:
    if np.abs(matrix @ matrix.T - np.eye(len(matrix))).max() <= _SAME:
        return Control(name=name, whitened=None, reason="the noise has the same distribution for this mechanism")
    return Control(name=name, whitened=tuple(change(W) for W in whitened))


def _solve(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    import scipy.linalg

    solved: np.ndarray = scipy.linalg.solve_triangular(factor, right, lower=True, check_finite=False)
    return solved


def _changed(W: np.ndarray, where: int | slice, rows: np.ndarray) -> np.ndarray:
    changed = W.copy()
    changed[where] = rows
    return changed


def _shared(W: np.ndarray, first: int, second: int, size: int) -> np.ndarray:
    changed = W.copy()
    changed[:, second : second + size] = W[:, first : first + size]
    return changed
