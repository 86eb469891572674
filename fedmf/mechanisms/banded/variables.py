"""Unconstrained variables for banded encoders. Every value of the variables is a feasible encoder,
so that fits need no constraints.
"""

import numpy as np
import scipy.linalg

from fedmf.mechanisms.banded.loss import clear_outside

# One unit of a variable changes the logarithm of a column norm by this much. With values 0.1, 0.3
# and 1, L-BFGS took 122, 70 and 177 steps for 516 rounds.
_NORM_UNIT = 0.3


class EncoderVariables:
    """Banded encoders as functions of free variables x. The first n (bands - 1) entries of x change
    ratios within the columns, and n more change the column norms if these may differ. The descent
    starts at x = 0.

    Column j of C is norm[j] (1, ratios[j]) / |(1, ratios[j])|. The ratios move away from those of a
    Toeplitz start with coefficients c; entry [t, m - 1] of x L^T moves C[t, t - m]. L L^T has the
    entries of the Toeplitz matrix of |c(z)|, a preconditioner: the Hessian of the loss along C is
    roughly (B^T B) x (C^T C)^-1, and half of its second factor's inverse, taken from the start,
    halves the steps (512 rounds, 85 bands, prefix sums: from 55 to 30; all of it, or the first
    factor's, is worse).

    With equal norms norm[j] = 1 and each round is a class of its own; otherwise norm[j] =
    exp(_NORM_UNIT x[j]), scaled so that the squares in each class i, i + min_sep, i + 2 min_sep,
    ... sum to 1.
    """

    def __init__(self, coefficients: np.ndarray, n: int, min_sep: int | None) -> None:
        self.n = n
        self.bands = len(coefficients)
        self.has_equal_norms = min_sep is None
        self.classes = np.arange(n)
        if min_sep is not None:
            self.classes = np.arange(n) % min_sep
        self.start_columns = clear_outside(np.tile(coefficients, (n, 1)))
        self.num_ratios = n * (self.bands - 1)
        self.size = self.num_ratios
        if not self.has_equal_norms:
            self.size = self.num_ratios + n
        transform_modulus = np.abs(np.fft.rfft(coefficients, 8 * self.bands))
        filter_kernel = np.fft.irfft(np.maximum(transform_modulus, 1e-3 * transform_modulus.max()))[
            : self.bands - 1
        ]
        self.preconditioner = np.linalg.cholesky(
            scipy.linalg.toeplitz(filter_kernel / filter_kernel[:1])
        )

    def better_norms(self, gradient: np.ndarray) -> np.ndarray:
        """Returns a starting point whose column norms are better than equal norms. The norms would
        be optimal if the share of column j in the loss were proportional to norm[j]^-2, as it is
        for one band.

        `gradient` is that of the loss along the columns of the start, x = 0.
        """
        x = np.zeros(self.size)
        loss_shares = -0.5 * np.einsum("ij,ij->i", gradient, self.encoder(x))
        x[self.num_ratios :] = (
            0.25 / _NORM_UNIT * np.log(np.maximum(loss_shares, 1e-6 * loss_shares.max()))
        )
        return x

    def encoder(self, x: np.ndarray) -> np.ndarray:
        """Returns the encoder C by columns, float64 (n, bands)."""
        unit_columns, _ = self._unit_columns(x)
        norms = self._norms(x)
        if norms is None:
            return unit_columns
        return unit_columns * norms[:, None]

    def pull_back(self, x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Returns the gradient of the loss with respect to x, given its gradient with respect to
        the columns.
        """
        unit_columns, column_lengths = self._unit_columns(x)
        norms = self._norms(x)
        # Each column of the encoder is divided by its length, so the loss depends on the column's
        # direction only. The part of the gradient along the column is therefore removed.
        parallel_parts = np.einsum("ij,ij->i", gradient, unit_columns)
        ratio_gradient = gradient[:, 1:] - unit_columns[:, 1:] * parallel_parts[:, None]
        if norms is not None:
            column_lengths = column_lengths / norms
        ratio_gradient /= column_lengths[:, None]
        by_rows, by_columns = self._ratio_views()
        by_columns[...] = ratio_gradient
        x_gradient = (by_rows[: self.n] @ self.preconditioner).ravel()
        if norms is None:
            return x_gradient
        parallel_parts *= norms
        # The squared column norms of a class of rounds are a softmax of the class's variables. The
        # gradient follows from the derivative of the softmax.
        class_sums = np.bincount(self.classes, parallel_parts)[self.classes]
        norm_gradient = parallel_parts - norms**2 * class_sums
        return np.append(x_gradient, _NORM_UNIT * norm_gradient)

    def _unit_columns(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the encoder's columns scaled to norm 1, and the lengths by which they were
        divided.
        """
        by_rows, by_columns = self._ratio_views()
        ratio_variables = x[: self.num_ratios].reshape(self.n, self.bands - 1)
        np.matmul(ratio_variables, self.preconditioner.T, out=by_rows[: self.n])
        unscaled_columns = self.start_columns.copy()
        unscaled_columns[:, 1:] += by_columns
        column_lengths = np.sqrt(np.einsum("ij,ij->i", unscaled_columns, unscaled_columns))
        unscaled_columns /= column_lengths[:, None]
        return unscaled_columns, column_lengths

    def _norms(self, x: np.ndarray) -> np.ndarray | None:
        """Returns the norms of the encoder's columns, or None if all of them are 1."""
        if self.has_equal_norms:
            return None
        norm_logarithms = _NORM_UNIT * x[self.num_ratios :]
        relative_squares = np.exp(2.0 * (norm_logarithms - norm_logarithms.max()))
        return np.sqrt(relative_squares / np.bincount(self.classes, relative_squares)[self.classes])

    def _ratio_views(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns an array of zeros for the entries below the main diagonal, by rows, with
        [t, m - 1] for C[t, t - m]; and a view of this array by columns, with [j, o - 1] for
        C[j + o, j].
        """
        num_ratio_columns = self.bands - 1
        by_rows = np.zeros((self.n + self.bands, num_ratio_columns))
        entry_stride = by_rows.itemsize
        view_shape = (self.n, num_ratio_columns)
        view_strides = (num_ratio_columns * entry_stride, (num_ratio_columns + 1) * entry_stride)
        return by_rows, np.lib.stride_tricks.as_strided(by_rows[1:], view_shape, view_strides)
