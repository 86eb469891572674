"""The dense dual with X >= 0 everywhere: n^2 multipliers, for small problems."""

from collections.abc import Iterator
from typing import final

import numpy as np
import scipy.linalg

from fedmf.mechanisms.dense.ascent import Ascent
from fedmf.mechanisms.dense.classes import Blocks, Classes
from fedmf.mechanisms.dense.dual import Dual, PairsDual
from fedmf.workloads import Workload

# The largest number of rounds for constraints="all".
MAX_NONNEGATIVE = 512


@final
class NonnegativeDual(Dual):
    """The bound for encoders with X >= 0 (multi-epoch paper, Eq. 35).

    U = U_pairs - W, with U_pairs as in `PairsDual` and multipliers W >= 0 of the signs of X across classes; here U is no
    longer zero there. The budget is that of U_pairs. The variables are those of `PairsDual`, then Z with W = Z * Z,
    (1, n, n) and symmetric, zero within classes. Where U is not positive definite there is no bound.
    """

    turns = 0

    def __init__(self, workload: Workload, classes: Classes) -> None:
        super().__init__(workload, classes)
        self.resolvents = None
        self._workload = workload
        self._pairs = PairsDual(workload, classes)
        same = classes.spread(np.arange(classes.count))
        self._across = same[:, None] != same
        self._X = np.empty((0, 0))
        self._value = 0.0

    def start(self) -> Blocks:
        """The optimum without these signs, and the smallest W."""
        ascent = Ascent(self._pairs, self._workload.matrix, 1e-4, 30, None)
        ascent.run()
        if ascent.interrupted:
            raise KeyboardInterrupt
        H, _ = self._pairs.factored(ascent.variables)
        smallest = min(np.linalg.svd(h, compute_uv=False).min() for h in H) ** 2
        Z = self._across * np.sqrt(0.1 * smallest / len(self.A))
        return [*ascent.variables, Z[None]]

    def factored(self, variables: Blocks) -> tuple[Blocks, float]:
        """U's own Cholesky factor, (1, n, n); LinAlgError where there is none."""
        *rows, Z = variables
        H, budget = self._pairs.factored(rows)
        U = -np.square(Z[0])
        for (where, classes, size), h in zip(self.classes.groups, H, strict=True):
            for c in range(classes):
                at = slice(where.start + c * size, where.start + (c + 1) * size)
                U[at, at] = h[c] @ h[c].T
        return [np.linalg.cholesky(U)[None]], budget

    def evaluate(self, variables: Blocks) -> tuple[float, Blocks, Blocks]:
        """See Dual; where there is no bound, a value that no line search accepts."""
        try:
            (factor,), budget = self.factored(variables)
        except np.linalg.LinAlgError:
            self.bound = 0.0
            return self._value + 1.0, [np.zeros_like(block) for block in variables], []
        L = factor[0]
        eigenvalues, V = np.linalg.eigh(L.T @ self.gram @ L)
        roots = np.sqrt(np.maximum(eigenvalues, 0.0))
        T = float(roots.sum())
        K = scipy.linalg.solve_triangular(L, V, lower=True, trans="T", check_finite=False)
        self._X = (K * roots) @ K.T
        self.bound, self.factor = T * T / budget, [factor]
        *rows, Z = variables
        H, _ = self._pairs.factored(rows)
        G = [x @ h for x, h in zip(self.classes.blocks(self._X), H, strict=True)]
        of_T, of_budget = self._pairs.gradient(rows, G)
        of_loss = [b / budget - (2.0 / T) * t for t, b in zip(of_T, of_budget, strict=True)]
        # dT = <X, dU> / 2 and dU = -2 Z dZ.
        of_loss.append((2.0 / T) * Z * self._X)
        self._value = -float(np.log(self.bound))
        return self._value, of_loss, G

    def gradient(self, variables: Blocks, G: Blocks) -> tuple[Blocks, Blocks]:
        """Never asked for: `evaluate` has it all."""
        raise AssertionError("NonnegativeDual.evaluate computes its own gradient")

    def turn(self, variables: Blocks, G: Blocks) -> Blocks:
        """Never asked for: `turns` is 0, none is known."""
        raise AssertionError("NonnegativeDual has no turns")

    def gram_matrix(self) -> np.ndarray:
        """See Dual."""
        return self._X

    def candidates(self, X: np.ndarray) -> Iterator[np.ndarray]:
        """X of the pairs' form, negative entries set to 0; then with smaller entries off the diagonal."""
        cleared = np.maximum(X, 0.0)
        self.classes.clear_pairs(cleared)
        found = self._pairs.scaled(cleared)
        diagonal = np.diagonal(found)
        for kept in (1.0, 0.9, 0.5):
            yield kept * found + (1.0 - kept) * np.diag(diagonal)

    def scaled(self, X: np.ndarray) -> np.ndarray:
        """See Dual."""
        return self._pairs.scaled(X)

    def proven(self, variables: Blocks) -> float:
        """See Dual."""
        (factor,), budget = self.factored(variables)
        T = float(scipy.linalg.svdvals(self.A @ factor[0], overwrite_a=True, check_finite=False).sum())
        return T * T / budget
