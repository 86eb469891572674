"""Noise streams, which are recipes that turn independent Gaussian draws into correlated noise
vectors.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg

from fedmf import checks, fields
from fedmf.noise.buffers import Buffers
from fedmf.noise.tree import TreeNoise

# Largest allowed entry of (N C - I) s, which should be 0 for the noise matrix N, the encoder C and
# a random vector s of signs.
_INVERSE_TOLERANCE = 1e-6
_NUM_PROBES = 4


def check_recurrence(name: str, value: np.ndarray) -> np.ndarray:
    """Checks the coefficients of a banded encoder C, float64 (rounds, bands), and returns them.

    They must be finite, positive on the main diagonal, and zero outside C.
    """
    coefficients = checks.banded_rows(name, value)
    if coefficients[:, 0].min() <= 0.0:
        t = int(np.argmin(coefficients[:, 0]))
        raise ValueError(
            f"{name}[{t}, 0]={coefficients[t, 0]} is on the main diagonal of C: make it positive"
        )
    return coefficients


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class NoiseStream(fields.Checked):
    """A recipe for the rows of N Z, the noise vectors of a run. N is the noise matrix, and row i of
    Z is the Gaussian draw of source i.

    It does not depend on an array library. Exactly one form is set::

        recurrence   x_t = (z_t - sum_{j=1}^{bands-1} recurrence[t, j] * x_{t-j}) / recurrence[t, 0]

            recurrence[t, j] = C[t, t-j]              t=0 | c00   0    0
            (zero where t - j < 0)                    t=1 | c11  c10   0
                                                      t=2 | c22  c21  c20
            solves C x = z forwards; source t is drawn in round t (banded paper, App. J, Alg. 9)

        contraction  x_t = sum_j contraction[t, j] * z_j, with the rows of N

        buffers      x_t from the last few z and a few running sums; see `Buffers`

        tree         x_t from the draws of a binary tree's nodes, or from one draw a round and the
                     sums of the last finished nodes; see `TreeNoise`

    Attributes:
      rounds: number of rows, n.
      sources: number of independent draws, m.
      recurrence: float64 (rounds, bands) or None; then sources equals rounds.
      contraction: float64 (rounds, sources) or None.
      buffers: Buffers or None; then sources equals rounds.
      tree: TreeNoise or None; then sources equals its nodes, or rounds for one draw a round.

    Raises:
      TypeError, ValueError: several forms are set, or none; or shapes and numbers do not fit.

    >>> stream = NoiseStream(
    ...     rounds=3, sources=3, recurrence=np.array([[1.0, 0.0], [1.0, 0.5], [1.0, 0.5]])
    ... )
    >>> np.stack(list(stream.rows(lambda i: np.eye(3)[i])))
    array([[ 1.  ,  0.  ,  0.  ],
           [-0.5 ,  1.  ,  0.  ],
           [ 0.25, -0.5 ,  1.  ]])
    """

    rounds: int = fields.validated(
        functools.partial(checks.integer, low=1, hint="pass the number of rounds, a positive int")
    )
    sources: int = fields.validated(
        functools.partial(checks.integer, low=1, hint="pass the number of independent draws")
    )
    recurrence: np.ndarray | None = fields.validated(check_recurrence, None)
    contraction: np.ndarray | None = fields.array(2, None)
    buffers: Buffers | None = None
    tree: TreeNoise | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        field_names = ("recurrence", "contraction", "buffers", "tree")
        present_fields = [name for name in field_names if getattr(self, name) is not None]
        if len(present_fields) != 1:
            raise ValueError(
                f"the forms given are {', '.join(present_fields) or 'none'}: pass exactly one of "
                "recurrence, contraction, buffers, tree"
            )
        if self.tree is not None:
            self._check_tree(self.tree)
            return
        recipe_array = (
            getattr(self, present_fields[0]) if self.buffers is None else self.buffers.window
        )
        recipe_shape = recipe_array.shape
        num_sources = self.rounds if self.contraction is None else recipe_shape[1]
        if (recipe_shape[0], num_sources) != (self.rounds, self.sources):
            raise ValueError(
                f"rounds={self.rounds} and sources={self.sources} do not fit an array of shape "
                f"{recipe_shape}: pass a recurrence of (rounds, bands) or buffers with "
                "sources=rounds, or a contraction of (rounds, sources)"
            )

    def _check_tree(self, tree: TreeNoise) -> None:
        """Raises ValueError unless the numbers of rounds and sources are those of the tree."""
        is_whole = self.rounds == tree.rounds
        if not is_whole or self.sources not in (tree.rounds, tree.num_nodes):
            raise ValueError(
                f"rounds={self.rounds} and sources={self.sources} do not fit a tree of "
                f"{tree.rounds} rounds and {tree.num_nodes} nodes: pass its rounds, and its nodes "
                "or its rounds as sources"
            )

    def as_contraction(self) -> "NoiseStream":
        """Returns a stream of the same noise that is computed as a contraction, that is, with the
        rows of the noise matrix N.
        """
        if self.contraction is not None:
            return self
        if self.recurrence is not None:
            N = inverse_of_banded(self.recurrence)
        elif self.tree is not None:
            checks.fits_in_memory("the noising matrix of this tree", (self.rounds, self.sources))
            N = self.tree.matrix() if self._has_node_draws else self.tree.causal_matrix()
        else:
            assert self.buffers is not None
            N = self.buffers.matrix()
        return NoiseStream(rounds=self.rounds, sources=self.sources, contraction=N)

    @property
    def _has_node_draws(self) -> bool:
        """True if the sources are the nodes of a tree, and not one draw a round."""
        return self.tree is not None and self.sources != self.rounds

    def causal(self) -> "NoiseStream":
        """Returns a stream whose noise has the same distribution, and whose row t depends on
        sources 0..t only.

        The result is this stream itself if it is causal already. The distribution of the rows of
        N Z depends on N N^T only. With N = L Q, L lower-triangular and Q of orthonormal rows, L Z
        has the same distribution and needs one new source a round (Denisov et al. 2022, Prop. 2.2).

        Raises:
          ValueError: N is too ill-conditioned for float64.
        """
        N = self.contraction
        if self._has_node_draws:
            return NoiseStream(rounds=self.rounds, sources=self.rounds, tree=self.tree)
        if N is None or (self.sources == self.rounds and not np.triu(N, 1).any()):
            return self
        R = scipy.linalg.qr(N.T, mode="r", check_finite=False)[0]
        L = np.tril(R[: self.rounds].T)
        L = L * np.where(np.diag(L) < 0, -1.0, 1.0)
        random_signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(self.rounds, _NUM_PROBES))
        solve = functools.partial(scipy.linalg.solve_triangular, L, lower=True, check_finite=False)
        # If the factor L is accurate, L L^T equals N N^T, and the computed `recovered_signs` equal
        # `random_signs`.
        recovered_signs = solve(N @ (N.T @ solve(random_signs, trans="T")))
        max_error = float(np.abs(recovered_signs - random_signs).max())
        if not max_error <= _INVERSE_TOLERANCE:
            raise ValueError(
                "the noising matrix is too ill-conditioned for float64: its causal square root is "
                f"wrong by {max_error:.2g}; use a mechanism whose noise has rows of more similar "
                "size"
            )
        return NoiseStream(rounds=self.rounds, sources=self.rounds, contraction=L)

    def rows(self, draw: Callable[[int], np.ndarray]) -> Iterator[np.ndarray]:
        """Yields the noise vectors of the rounds, the rows of N Z, in float64. Each has the shape
        of a draw.

        This numpy implementation is the reference. If draw(i) is the basis vector e_i, the rows are
        those of N, which tests every mechanism and every implementation. A recurrence or buffers
        hold a few rows in memory, a contraction and the nodes of a tree all draws.

        Args:
          draw: source index -> array (d,).
        """
        if self.contraction is not None:
            Z = np.stack([draw(j) for j in range(self.sources)])
            yield from np.tensordot(self.contraction, Z, axes=1)
            return
        if self.tree is not None and self._has_node_draws:
            Z = np.stack([draw(j) for j in range(self.sources)])
            yield from self.tree.apply(Z)
            return
        S: np.ndarray | None = None
        for t in range(self.rounds):
            z = np.asarray(draw(t), dtype=np.float64)
            if S is None:
                S = np.zeros((self.width, *z.shape))
            x, S = self.step(t, z, S)
            yield x

    @property
    def width(self) -> int:
        """The number of rows in the state of a recurrence, of buffers or of a tree.

        The state consists of the last x, or of the sums and the last z.
        """
        if self.recurrence is not None:
            return self.recurrence.shape[1] - 1
        if self.tree is not None:
            return self.tree.width
        assert self.buffers is not None
        return self.buffers.width

    def step(self, t: int, z: np.ndarray, S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the noise vector of round t (row t of N Z) and the state after the round, for a
        recurrence, buffers, or a tree with one draw a round.

        Args:
          t: round.
          z: draw of source t.
          S: state before the round, (width, ...); zeros in round 0.
        """
        if self.tree is not None:
            return self.tree.step(t, z, S)
        if self.recurrence is None:
            assert self.buffers is not None
            return self.buffers.step(t, z, S)
        row_weights = self.recurrence[t]
        noise_vector = (z - np.tensordot(row_weights[1:], S, axes=1)) / row_weights[0]
        return noise_vector, np.concatenate([noise_vector[None], S])[: len(S)]

    def block(self, start: int, stop: int) -> np.ndarray:
        """Returns the matrix M that computes a block of rounds at once, float64 (rounds + width,
        rounds + width).

        For rounds start .. stop - 1 of a recurrence, of buffers or of a tree, [rows; state after
        them] = M [draws; state before them].
        """
        if self.recurrence is not None:
            return _recurrence_block(self.recurrence[start:stop])
        if self.tree is not None:
            return self.tree.block(start, stop)
        assert self.buffers is not None
        return self.buffers.block(start, stop)

    def coefficients(self, start: int, stop: int) -> tuple[bytes, ...]:
        """Returns the coefficients that the stream uses in a block of rounds, as bytes. Blocks with
        equal coefficients have equal matrices.
        """
        if self.recurrence is not None:
            return (self.recurrence[start:stop].tobytes(),)
        if self.tree is not None:
            return self.tree.pattern(start, stop)
        assert self.buffers is not None
        window, read, write = self.buffers.coefficients(start, stop)
        return window.tobytes(), read.tobytes(), write.tobytes()


def _recurrence_block(coefficients: np.ndarray) -> np.ndarray:
    """Returns the matrix that computes a block of rounds of a recurrence. The state of a recurrence
    is its last rows, the newest first.

    The rows of C in the block consist of A for the rounds of the block and P for the rounds before
    it, so that A X + P S = Z.
    """
    count, bands = coefficients.shape
    num_state_rows = bands - 1
    M = np.zeros((count + num_state_rows, count + num_state_rows))
    # A block of a single round is computed separately, because the general computation would take
    # ten times as long.
    if count == 1:
        M[0] = np.append(1.0, -coefficients[0, 1:]) / coefficients[0, 0]
        M[1:2] = M[0]
        M[2:, 1:num_state_rows] = np.eye(max(0, num_state_rows - 1))
        return M
    padded_coefficients = np.hstack([coefficients, np.zeros((count, count))])
    round_column = np.arange(count)[:, None]
    A = np.tril(
        np.take_along_axis(
            padded_coefficients, np.maximum(round_column - np.arange(count), 0), axis=1
        )
    )
    P = np.take_along_axis(
        padded_coefficients, round_column + 1 + np.arange(num_state_rows), axis=1
    )
    M[:count] = scipy.linalg.solve_triangular(
        A, np.hstack([np.eye(count), -P]), lower=True, check_finite=False
    )
    num_new = min(count, num_state_rows)
    M[count : count + num_new] = M[count - num_new : count][::-1]
    M[count + num_new :, count : count + num_state_rows - num_new] = np.eye(
        num_state_rows - num_new
    )
    return M


def banded_matrix(coefficients: np.ndarray) -> np.ndarray:
    """Returns the banded matrix C, float64 (n, n), with C[t, t - j] = coefficients[t, j]."""
    n, bands = coefficients.shape
    checks.fits_in_memory("the matrix of these diagonals", (n, n))
    C = np.zeros((n, n))
    for j in range(bands):
        np.fill_diagonal(C[j:], coefficients[j:, j])
    return C


def inverse_of_banded(coefficients: np.ndarray) -> np.ndarray:
    """Returns the noise matrix N = C^-1, float64 (n, n), of a banded encoder C.
    `check_left_inverse` has checked it.
    """
    C = banded_matrix(coefficients)
    return check_left_inverse(triangular_inverse(C), C)


def check_left_inverse(N: np.ndarray, C: np.ndarray) -> np.ndarray:
    """Returns the noise matrix N, or raises ValueError if N is not an accurate left inverse of the
    encoder C.

    A run releases x + N z. With N C = I + E this is N (C' x + z) for C' = C (I + E)^-1, so that the
    sensitivity of C' determines the guarantee. It is near that of C if the entries |c_i| E_ij /
    |c_j| are small, where c_j are the columns of C. If C is so ill-conditioned that they are not,
    it can be any number of times as large.

    Raises:
      ValueError: N C is not I to 6 digits.
    """
    # Each column of C is scaled by its largest magnitude and not by its norm, since the squares of
    # small entries underflow.
    column_scales = np.abs(C).max(axis=0)
    random_signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(C.shape[1], _NUM_PROBES))
    # If the products overflow, the error is infinite or NaN, and the check of the error fails.
    with np.errstate(all="ignore"):
        recovered_signs = (N @ (C @ (random_signs / column_scales[:, None]))) * column_scales[
            :, None
        ]
        max_error = float(np.abs(recovered_signs - random_signs).max())
    if not max_error <= _INVERSE_TOLERANCE:
        raise ValueError(
            "the encoder is too ill-conditioned for float64: N C differs from the identity by "
            f"{max_error:.2g}, so that the noise N Z would not have the encoder's privacy: use an "
            "encoder whose inverse has smaller entries"
        )
    return N


def triangular_inverse(C: np.ndarray) -> np.ndarray:
    """Returns the inverse of a lower-triangular matrix C, with exact zeros above the diagonal."""
    checks.fits_in_memory("the inverse of this encoder", C.shape, copies=3)
    return np.tril(
        scipy.linalg.solve_triangular(C, np.eye(C.shape[0]), lower=True, check_finite=False)
    )
