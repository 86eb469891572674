"""The dual problem of the fit of dense encoders, in which a client takes part in at most k rounds
that are b rounds apart. It gives lower bounds on the loss of all encoders C, the gradients of these
bounds, and feasible gram matrices X = C^T C.

Multi-epoch paper, Sec. 3. Rounds i, i + b, i + 2b, ... are one class: a client takes part in rounds
of one class only. U below is zero across classes, positive definite, and factored as U = H H^T with
H zero across classes too.

For every positive-definite X: tr(A^T A X^-1) + tr(U X) >= 2 T with T = tr((H^T A^T A H)^(1/2)),
with equality at X(U) = H^-T (H^T A^T A H)^(1/2) H^-1 (multi-epoch paper, Thm. 3.1, Eq. 7, and
Eq. 33). If every feasible X has tr(U X) <= budget(U), the loss of all of them is at least 2 T -
budget, and, as U may be scaled freely, at least T^2 / budget.

The budget of a class of size k (C of sensitivity 1), and the reason why no more general U gives a
better bound:

- "pairs" (their Eq. 36: X_ij >= 0 in each class, sum over the class <= 1). Multipliers v of the sum
  and W >= 0 of the signs give U_c = v 1 1^T - W: a constant diagonal v, entries <= v, and budget v.
  A positive-definite matrix of diagonal v has all |U_ij| <= v, so that every such U_c with a
  constant diagonal is allowed. That is also the dual of "X_ij = 0 within classes, trace of each
  class <= 1": an optimal X has orthogonal columns on every client's rounds. And it bounds EVERY
  encoder, whatever its signs, under vector contributions: a client who contributes the rows of a
  Cholesky factor of U_c / v, of norm 1 each, shows tr(U_c X_c) <= v sens^2 = v.
- equal column norms d <= 1 / k with the same orthogonality: any positive-definite U_c, budget tr(U)
  / k. Encoders of equal norms that are not orthogonal on the pairs need not obey this bound.

T is the nuclear norm of A H, the largest tr(Q A H) over orthogonal Q. Maximising over Q and H
alternately never lowers the bound. For given Q the best H is in closed form, so that one
alternation is H_c <- X_c H_c with rows then scaled to norm sqrt(v), sqrt(v) = the sum of their
norms before ("pairs"); H_c <- k X_c H_c (equal norms). For one participation this is v_i <- v_i
X_ii^2, a step twice as long in log v as that of Denisov et al. 2022, Thm. 3.2, v_i <- v_i X_ii, and
T^2 / budget is their Eq. 8 at its best scale. A few alternations precede L-BFGS on H, whose
gradient is the difference of an alternation (`fedmf.mechanisms.dense.ascent`).
"""

from collections.abc import Iterator

import numpy as np
import scipy.linalg

from fedmf.mechanisms.dense.classes import (
    Blocks,
    Classes,
    Resolvents,
    invert_blocks,
    transpose_blocks,
)
from fedmf.workloads import Workload

# Eigenvalues below this fraction of the largest one are lost in rounding.
_MIN_EIGENVALUE = 20 * np.finfo(float).eps


class PairsDual:
    """The lower bound T^2 / budget on the loss of every encoder C, as a smooth function of
    unconstrained variables. It also gives feasible gram matrices X = C^T C near the optimum. The
    module docstring defines the notation.

    U has a constant diagonal in each class. The variables are rows of any norm: H_c has them scaled
    to norm sqrt(v_c), v_c being the mean of their squared norms.

    Attributes:
      A: the workload with its columns in class order.
      gram: A^T A, with rows and columns in class order.
      resolvents: evaluation of the bound without an eigendecomposition, to about 1e-7 or better;
        None if the workload has none.
      bound: T^2 / budget at the last evaluation.
      factor: H at the last evaluation.
    """

    def __init__(self, workload: Workload, classes: Classes) -> None:
        self.classes = classes
        self.A = workload.matrix[:, classes.order]
        self.gram = self.A.T @ self.A
        self.resolvents = Resolvents.for_workload(workload.inverse_diagonals, classes)
        self.bound = 0.0
        self.factor: Blocks = []
        self._budget = 0.0
        self._eigen: tuple[np.ndarray, np.ndarray] | None = None

    def start(self) -> Blocks:
        """Returns the values of the variables at which the maximisation starts. They are good if a
        nearly diagonal gram matrix X is good.

        The best diagonal X has X_ii proportional, in each class, to sqrt((A^T A)_ii). U(X) = X^-1
        A^T A X^-1 then has these correlations within classes.
        """
        start_blocks = []
        for gram in self.classes.blocks(self.gram):
            inverse_norms = 1.0 / np.sqrt(np.einsum("cii->ci", gram))
            class_correlations = gram * inverse_norms[:, :, None] * inverse_norms[:, None, :]
            try:
                start_blocks.append(np.linalg.cholesky(class_correlations))
            except np.linalg.LinAlgError:
                # The columns of A are parallel up to rounding, so the factorization has failed. The
                # ascent then starts from the identity in place of these correlations.
                start_blocks.append(np.broadcast_to(np.eye(gram.shape[1]), gram.shape).copy())
        root_v = self.classes.sums(np.sqrt(np.diagonal(self.gram)))
        return self._scale_blocks(start_blocks, root_v)

    def factorize(self, variables: Blocks) -> tuple[Blocks, float]:
        """Returns the factor H of the dual matrix U = H H^T that the variables define, and the
        budget of U.
        """
        row_norms = [np.linalg.norm(block, axis=2) for block in variables]
        v = [np.square(norms).mean(axis=1) for norms in row_norms]
        H = [
            block * (np.sqrt(block_v)[:, None] / norms)[:, :, None]
            for block, block_v, norms in zip(variables, v, row_norms, strict=True)
        ]
        return H, float(sum(block_v.sum() for block_v in v))

    def gradient(self, variables: Blocks, G: Blocks) -> tuple[Blocks, Blocks]:
        """Returns the derivatives of the bound's T and of the budget with respect to the variables,
        given the derivative G = dT / dH = X_c H_c in each class c.
        """
        T_gradient = []
        budget_gradient = []
        for block, g in zip(variables, G, strict=True):
            row_norms = np.linalg.norm(block, axis=2)
            class_size = block.shape[1]
            root_v = np.sqrt(np.square(row_norms).mean(axis=1))
            unit_rows = block / row_norms[:, :, None]
            parallel_parts = np.einsum("cij,cij->ci", g, unit_rows)
            orthogonal_parts = g - parallel_parts[:, :, None] * unit_rows
            orthogonal_parts = orthogonal_parts * (root_v[:, None] / row_norms)[:, :, None]
            v_derivative = parallel_parts.sum(axis=1) / (class_size * root_v)
            T_gradient.append(orthogonal_parts + v_derivative[:, None, None] * block)
            budget_gradient.append(block * (2.0 / class_size))
        return T_gradient, budget_gradient

    def alternate(self, variables: Blocks, G: Blocks) -> Blocks:
        """Returns the variables after one step of alternating optimisation. The step takes the
        orthogonal Q that is best for `variables`, and then the variables that are best for this Q.
        The bound never decreases.
        """
        row_norms = [np.linalg.norm(g, axis=2) for g in G]
        unit_blocks = [g / norms[:, :, None] for g, norms in zip(G, row_norms, strict=True)]
        root_v = np.concatenate([norms.sum(axis=1) for norms in row_norms])
        return self._scale_blocks(unit_blocks, root_v)

    def scale_to_feasible(self, X: np.ndarray) -> np.ndarray:
        """Returns a gram matrix X with its rows and columns scaled so that each class has trace 1.
        If X satisfies all other constraints, the result has sensitivity 1.
        """
        row_scales = 1.0 / np.sqrt(self.classes.spread(self.classes.sums(np.diagonal(X))))
        return X * row_scales[:, None] * row_scales

    def _scale_blocks(self, unit_blocks: Blocks, root_v: np.ndarray) -> Blocks:
        """Returns the blocks with the rows of each class multiplied by the entry of `root_v` for
        that class.
        """
        group_roots = self.classes.split_by_group(root_v)
        return [
            block * roots[:, None, None]
            for block, roots in zip(unit_blocks, group_roots, strict=True)
        ]

    def evaluate(self, variables: Blocks) -> tuple[float, Blocks, Blocks]:
        """Returns the negative logarithm of the bound, its gradient with respect to the variables,
        and the derivative dT / dH. They are computed by `resolvents`, or else by one n x n
        eigendecomposition.
        """
        self.factor, self._budget = self.factorize(variables)
        if self.resolvents is None:
            self._eigen = self._decompose()
            roots, V = self._eigen
            T = roots.sum()
            S_blocks = self.classes.gram_blocks(V, roots)
            G = [_solve_transposed(h, S) for h, S in zip(self.factor, S_blocks, strict=True)]
        else:
            self._eigen = None
            T, G = self.resolvents.evaluate(self.factor, self.A)
        self.bound = T * T / self._budget
        T_gradient, budget_gradient = self.gradient(variables, G)
        loss_gradient = [
            budget_block / self._budget - (2.0 / T) * T_block
            for T_block, budget_block in zip(T_gradient, budget_gradient, strict=True)
        ]
        return -np.log(self.bound), loss_gradient, G

    def gram_matrix(self) -> np.ndarray:
        """Returns X(U), the gram matrix that belongs to the dual matrix U of the last evaluation,
        in class order. It also sets `bound` to the value from the eigendecomposition.
        """
        eigen_decomposition = self._eigen
        if eigen_decomposition is None:
            eigen_decomposition = self._decompose()
        roots, V = eigen_decomposition
        self._eigen = None
        self.bound = roots.sum() ** 2 / self._budget
        inverse_factor = transpose_blocks(invert_blocks(self.factor))
        X = self.classes.congruence(inverse_factor, (V * roots) @ V.T)
        return (X + X.T) / 2

    def feasible_candidates(self, X: np.ndarray) -> Iterator[np.ndarray]:
        """Yields feasible gram matrices of sensitivity 1 near the gram matrix X, in class order.
        The first one may be indefinite.

        Rounds of one class must be orthogonal. The first candidate sets their entries to 0, which
        changes the loss to second order only but may make it indefinite. The second is a congruence
        J^T X J with J_c = D (D^-1 X_c D^-1)^(-1/2) D^-1, D^2 the diagonal of X_c, the closest to 1
        of those that make the class's columns of C D^-1 orthonormal; it is never indefinite.
        """
        # If rounding has made a diagonal entry of X zero or negative, X gives no feasible
        # candidate.
        if not np.diagonal(X).min() > 0.0:
            return
        class_blocks = self.classes.blocks(X)
        cleared_X = X.copy()
        self.classes.clear_pairs(cleared_X)
        yield self.scale_to_feasible(cleared_X)
        if self.classes.largest > 1:
            J = [_orthonormalizer(block) for block in class_blocks]
            orthogonal_X = self.classes.congruence(J, X)
            self.classes.clear_pairs(orthogonal_X)
            yield self.scale_to_feasible(orthogonal_X)

    def _decompose(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the eigenvalues ("roots") and eigenvectors V of S = (H^T A^T A H)^(1/2) = V
        diag(roots) V^T, where A is the workload and H the factor at the last evaluation.
        """
        transposed_factor = transpose_blocks(self.factor)
        eigenvalues, V = np.linalg.eigh(self.classes.congruence(transposed_factor, self.gram))
        if eigenvalues[0] > _MIN_EIGENVALUE * eigenvalues[-1]:
            return np.sqrt(eigenvalues), V
        # If the workload is badly scaled, the eigenvalues have lost too many digits. Singular
        # values keep twice as many digits, but take longer.
        _, roots, Vt = np.linalg.svd(self.classes.apply(transposed_factor, self.A.T).T)
        return roots, Vt.T

    def certified_bound(self, variables: Blocks) -> float:
        """Returns the bound T^2 / budget, with T computed to full accuracy as a sum of singular
        values of A H. The eigenvalues of H^T A^T A H would lose half the digits of the small ones.
        """
        H, budget = self.factorize(variables)
        AH = self.classes.apply(transpose_blocks(H), self.A.T).T
        T = scipy.linalg.svdvals(AH, overwrite_a=True, check_finite=False).sum()
        return T * T / budget


def _solve_transposed(h: np.ndarray, S: np.ndarray) -> np.ndarray:
    """Returns h^-T S for each pair of matrices in `h` and `S`, which are stacked along the first
    axis.
    """
    if h.shape[1] == 1:
        return S / h
    return np.linalg.solve(h.transpose(0, 2, 1), S)


def _orthonormalizer(block: np.ndarray) -> np.ndarray:
    """Returns J_c = D (D^-1 X_c D^-1)^(-1/2) D^-1 for each matrix X_c in `block`, where D^2 is the
    diagonal of X_c.
    """
    root_diagonal = np.sqrt(np.einsum("cii->ci", block))
    eigenvalues, V = np.linalg.eigh(block / root_diagonal[:, :, None] / root_diagonal[:, None, :])
    min_eigenvalue = np.finfo(float).eps * block.shape[1]
    scaled_V = V / np.sqrt(np.maximum(eigenvalues, min_eigenvalue))[:, None, :]
    inverse_root = scaled_V @ V.transpose(0, 2, 1)
    return root_diagonal[:, :, None] * inverse_root / root_diagonal[:, None, :]


class EqualNormsDual(PairsDual):
    """The lower bound for encoders of equal column norms whose columns are orthogonal within
    classes. It is a function of the factor H of a dual matrix U = H H^T, where U is zero across
    classes.

    The variables are H.
    """

    def factorize(self, variables: Blocks) -> tuple[Blocks, float]:
        """Returns the factor H of U = H H^T, which the variables are themselves, and the budget
        tr(U) / k.
        """
        trace = float(sum(np.square(block).sum() for block in variables))
        return variables, trace / self.classes.largest

    def gradient(self, variables: Blocks, G: Blocks) -> tuple[Blocks, Blocks]:
        """Returns the derivatives of the bound's T and of the budget with respect to the variables,
        which are the factor H, given G = dT / dH.
        """
        return G, [block * (2.0 / self.classes.largest) for block in variables]

    def alternate(self, variables: Blocks, G: Blocks) -> Blocks:
        """Returns the variables after one alternation, k X_c H_c in each class, whose bound is no
        lower.
        """
        return [g * self.classes.largest for g in G]

    def scale_to_feasible(self, X: np.ndarray) -> np.ndarray:
        """Returns a gram matrix X with its rows and columns scaled so that every diagonal entry is
        1 / k.
        """
        row_scales = 1.0 / np.sqrt(np.diagonal(X) * self.classes.largest)
        return X * row_scales[:, None] * row_scales


def decoder(A: np.ndarray, C: np.ndarray) -> np.ndarray:
    """Returns the decoder B = A C^-1 of a workload A and an encoder C."""
    return scipy.linalg.blas.dtrsm(1.0, C.T, A.T, lower=False).T


def lower_factor(X: np.ndarray) -> np.ndarray | None:
    """Returns the lower-triangular C with C^T C = X, or None if X is not positive definite.

    An ordinary Cholesky factor L has L L^T = X, and its rows would have the norms that the columns
    must have. Flipping X, factorising, transposing and flipping back gives the factor on the other
    side (banded paper, Prop. 4.1).
    """
    flipped_factor, info = scipy.linalg.lapack.dpotrf(X[::-1, ::-1], lower=True, clean=True)
    if info != 0:
        return None
    return np.ascontiguousarray(flipped_factor.T[::-1, ::-1])
