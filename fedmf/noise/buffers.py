"""Noise streams whose state consists of a few running sums, the buffers."""

import dataclasses
import math

import numpy as np
import scipy.linalg

from fedmf import checks, fields


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Buffers:
    """A recipe that computes the noise vectors x_t, the rows of N Z, from running sums of the
    draws, where N is the noise matrix and row t of Z is the draw z_t. Each row is computed from the
    last w draws and from q running sums (buffers) of older draws.

        S(t) = decay * S(t-1) + write[t-w] z_(t-w)                  S(t) = 0 for t < w
        x_t  = sum_(j<w) window[t, j] z_(t-j) + read[t] . S(t)

        N[t, s] = window[t, t-s]                           near the diagonal (t - s < w)
        N[t, s] = read[t] . (decay^(t-w-s) * write[s])     below it

    so that a round costs (w + q) rows of model size, independent of t. A buffered linear Toeplitz
    mechanism has w = 1 and constant `read` and `write` (Dvijotham et al. 2024); a banded plus
    low-rank matrix has decay 1 (Denisov et al. 2022, App. H, Alg. 3).

    With `feedback`, w = 1 and the sums are over the rows x instead of the draws z. Then the entries
    of C = N^-1 are simple: C[t, t] = 1 / window[t, 0], and below the diagonal
    C[t, s] = -read[t] . (decay^(t-1-s) * write[s]) / window[t, 0].

    Attributes:
      window: float64 (rounds, w), w >= 1; entry [t, j] with t < j is 0.
      read: float64 (rounds, q), q >= 0.
      write: float64 (rounds, q).
      decay: float64 (q,).
      feedback: whether the sums are over rows; then w is 1.

    Raises:
      TypeError, ValueError: shapes do not fit, numbers are not finite, the window has entries
        before round 0, or there is feedback with a wider window.

    >>> one = np.ones((3, 1))
    >>> Buffers(window=one, read=-0.5 * one, write=one, decay=[0.5]).matrix()
    array([[ 1.  ,  0.  ,  0.  ],
           [-0.5 ,  1.  ,  0.  ],
           [-0.25, -0.5 ,  1.  ]])
    """

    window: np.ndarray
    read: np.ndarray
    write: np.ndarray
    decay: np.ndarray
    feedback: bool = False

    def __post_init__(self) -> None:
        window_array = checks.finite_array("window", self.window, ndim=2)
        n, w = window_array.shape
        if w > n or np.triu(window_array[:w], 1).any():
            raise ValueError(
                f"window of shape {window_array.shape} reaches before round 0: use at most {n} "
                "columns, [t, j] = 0 for j > t"
            )
        if self.feedback and w != 1:
            raise ValueError(
                f"feedback={self.feedback} with a window of {w} columns: pass a window of one"
            )
        decay_vector = np.asarray(self.decay, dtype=np.float64)
        q = decay_vector.size
        field_arrays = {"window": window_array, "decay": decay_vector}
        for name in ("read", "write"):
            field_arrays[name] = np.asarray(getattr(self, name), dtype=np.float64)
            if field_arrays[name].shape != (n, q):
                raise ValueError(
                    f"{name} has shape {field_arrays[name].shape}: pass ({n}, {q}), "
                    "as window and decay say"
                )
        for name, value in field_arrays.items():
            if not np.isfinite(value).all():
                raise ValueError(f"{name} holds numbers that are not finite: replace them")
        fields.set_fields(self, field_arrays)

    @property
    def rounds(self) -> int:
        """The number of rows, n."""
        return int(self.window.shape[0])

    @property
    def width(self) -> int:
        """The number of rows of the state, q + w - 1. They are the sums S(t), and then the draws
        z_(t-1), ..., z_(t-w+1).
        """
        return len(self.decay) + self.window.shape[1] - 1

    def step(self, t: int, z: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the noise vector of round t (row t of N Z) and the state after the round.

        Args:
          t: round.
          z: draw of source t.
          state: state before the round, (width, ...); zeros in round 0.
        """
        q = len(self.decay)
        w = self.window.shape[1]
        buffer_sums = state[:q]
        # The recent draws are z_t, z_(t-1) and so on, the newest first.
        recent_draws = np.concatenate([z[None], state[q:]])
        noise_vector = _weighted_sum(self.window[t], recent_draws) + _weighted_sum(
            self.read[t], buffer_sums
        )
        if t + 1 >= w:
            # In round t the draw z_(t+1-w) leaves the window and enters the running sums. With
            # `feedback`, the noise vector of round t enters the sums instead.
            entering_row = noise_vector if self.feedback else recent_draws[-1]
            buffer_sums = (self.decay * buffer_sums.T).T + np.multiply.outer(
                self.write[t + 1 - w], entering_row
            )
        return noise_vector, np.concatenate([buffer_sums, recent_draws[:-1]])

    def block(self, start: int, stop: int) -> np.ndarray:
        """Returns the matrix M that computes a block of rounds at once, float64 (rounds + width,
        rounds + width).

        For rounds start .. stop - 1, [rows; state after them] = M [draws; state before them].
        Without feedback the draw of round start + k + 1 - w enters the sums in round start + k:

            x_i = sum_j window[i, j] z_(i-j) + sum_(k<i) (read[i] . decay^(i-1-k) * write[k]) y_k
                  + read[i] . decay^i * S(start),              y_k = z_(start-w+1+k)

        With feedback the row of round start + k enters, so that x is on both sides.
        """
        q = len(self.decay)
        w = self.window.shape[1]
        num_rounds = stop - start
        window, read, write = self.coefficients(start, stop)
        decay_powers = self.decay ** np.arange(num_rounds + 1)[:, None]
        rows, columns = np.tril_indices(num_rounds, -1)
        through_sums = np.zeros((num_rounds, num_rounds))
        through_sums[rows, columns] = np.einsum(
            "eq,eq,eq->e", read[rows], decay_powers[rows - 1 - columns], write[columns]
        )
        from_sums = read * decay_powers[:-1]
        into_sums = (decay_powers[:-1][::-1] * write).T
        M = np.zeros((num_rounds + self.width, num_rounds + self.width))
        if self.feedback:
            combined_columns = np.hstack([np.diag(window[:, 0]), from_sums])
            M[:num_rounds] = scipy.linalg.solve_triangular(
                np.eye(num_rounds) - through_sums, combined_columns, lower=True, check_finite=False
            )
            M[num_rounds:] = into_sums @ M[:num_rounds]
            M[num_rounds:, num_rounds:] += np.diag(decay_powers[-1])
            return M
        rows_from_y = np.zeros((num_rounds, w - 1 + num_rounds))
        rows_from_y[:, :num_rounds] = through_sums
        for j in range(w):
            rows_from_y[np.arange(num_rounds), np.arange(num_rounds) + w - 1 - j] += window[:, j]
        # The state stores the newest draw first, but the vector y stores it last. So the columns
        # are reversed.
        M[:num_rounds] = np.hstack(
            [rows_from_y[:, w - 1 :], from_sums, rows_from_y[:, : w - 1][:, ::-1]]
        )
        state_from_y = np.zeros((self.width, w - 1 + num_rounds))
        state_from_y[:q, :num_rounds] = into_sums
        state_from_y[q + np.arange(w - 1), w - 2 + num_rounds - np.arange(w - 1)] = 1.0
        M[num_rounds:] = np.hstack(
            [state_from_y[:, w - 1 :], np.zeros((self.width, q)), state_from_y[:, : w - 1][:, ::-1]]
        )
        M[num_rounds : num_rounds + q, num_rounds : num_rounds + q] = np.diag(decay_powers[-1])
        return M

    def coefficients(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the rows of `window`, `read` and `write` that the rounds from start to stop - 1
        use.

        The row of write is that of the draw that enters the sums in the round; 0 if there is none.
        """
        entering_rounds = np.arange(start, stop) + 1 - self.window.shape[1]
        write_rows = np.where(entering_rounds[:, None] >= 0, self.write[entering_rounds], 0.0)
        return self.window[start:stop], self.read[start:stop], write_rows

    def first_column(self) -> np.ndarray:
        """Returns the first column of the noise matrix N, float64 (rounds,)."""
        n, w = self.window.shape
        first_column = np.empty(n)
        buffer_sums = np.zeros(len(self.decay))
        for t in range(n):
            from_window = self.window[t, t] if t < w else 0.0
            first_column[t] = from_window + self.read[t] @ buffer_sums
            buffer_sums = self.decay * buffer_sums
            if t + 1 >= w:
                # Column 0 of N is the response to a draw of 1 in round 0, after which all draws are
                # 0. The draw of round t + 1 - w enters the sums in round t.
                entering_value = first_column[t] if self.feedback else float(t + 1 == w)
                buffer_sums += self.write[t + 1 - w] * entering_value
        return first_column

    def matrix(self) -> np.ndarray:
        """Returns the noise matrix N, a lower-triangular float64 array of shape (rounds,
        rounds).
        """
        n = self.rounds
        checks.fits_in_memory("the noising matrix of these buffers", (n, n))
        N = np.zeros((n, n))
        state_matrix = np.zeros((self.width, n))
        for t, z in enumerate(np.eye(n)):
            N[t], state_matrix = self.step(t, z, state_matrix)
        return N


def _weighted_sum(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the weighted sum of the rows. It equals the result of np.tensordot, and takes less
    time.
    """
    flat_rows = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    return np.dot(weights[None], flat_rows).reshape(rows.shape[1:])
