"""The dual of the dense problem under (k, b)-participation: lower bounds, their gradients and
feasible gram matrices.

Multi-epoch paper, Sec. 3. Rounds i, i + b, i + 2b, ... are one class: a client takes part in rounds
of one class only. U below is zero across classes, positive definite, and factored as U = H H^T with
H zero across classes too.

For every positive-definite X: tr(A^T A X^-1) + tr(U X) >= 2 T with T = tr((H^T A^T A H)^(1/2)),
with equality at X(U) = H^-T (H^T A^T A H)^(1/2) H^-1 (multi-epoch paper, Thm. 3.1, Eq. 7, and
Eq. 33). If every feasible X has tr(U X) <= budget(U), the loss of all of them is at least 2 T -
budget, and, as U may be scaled freely, at least T^2 / budget.

What budget holds, and why no more general U does better, for a class of size k (C
of sensitivity 1):

- "pairs" (their Eq. 36: X_ij >= 0 in each class, sum over the class <= 1). Multipliers v of the sum
  and W >= 0 of the signs give U_c = v 1 1^T - W: a constant diagonal v, entries <= v, and budget v.
  A positive-definite matrix of diagonal v has all |U_ij| <= v, so that every such U_c with a
  constant diagonal is allowed. That is also the dual of "X_ij = 0 within classes, trace of each
  class <= 1": an optimal X has orthogonal columns on every client's rounds. And it bounds EVERY
  encoder, whatever its signs, under vector contributions: a client who contributes the rows of a
  Cholesky factor of U_c / v, of norm 1 each, shows tr(U_c X_c) <= v sens^2 = v.
- equal column norms d <= 1 / k with the same orthogonality: any positive-definite U_c, budget tr(U)
  / k. Encoders of equal norms that are not orthogonal on the pairs need not obey this bound.

T is the nuclear norm of A H, the largest tr(Q A H) over orthogonal Q. Maximising over Q and H in
turn never lowers the bound; for given Q the best H is in closed form, and one turn is H_c <- X_c
H_c with rows then scaled to norm sqrt(v), sqrt(v) = the sum of their norms before ("pairs"); H_c <-
k X_c H_c (equal norms). For one participation this is v_i <- v_i X_ii^2, a step twice as long in
log v as that of Denisov et al. 2022, Thm. 3.2, v_i <- v_i X_ii, and T^2 / budget is their Eq. 8 at
its best scale. A few turns start L-BFGS on H, whose gradient is the difference of a turn.

`Ascent` climbs it, and keeps the best feasible encoder met on the way.
"""

from collections.abc import Iterator

import numpy as np
import scipy.linalg

from fedmf.mechanisms.dense.classes import Blocks, Classes, Resolvents, inverted, transposed
from fedmf.mechanisms.fitting.descent import minimise
from fedmf.mechanisms.fitting.progress import Stopping, raise_if_interruptible
from fedmf.workloads import Workload

# Eigenvalues below this share of the largest are lost in rounding.
_SMALLEST_EIGENVALUE = 20 * np.finfo(float).eps


class PairsDual:
    """The bound T^2 / budget for all encoders as a smooth function of free variables, and the
    feasible X next to it.

    U has a constant diagonal in each class. The variables are rows of any norm: H_c has them scaled
    to norm sqrt(v_c), v_c being the mean of their squared norms.

    Attributes:
      A: the workload with its columns in class order.
      gram: A^T A, likewise.
      resolvents: what evaluates the bound without an eigendecomposition, to about 1e-7 or better;
        None: nothing does.
      bound: T^2 / budget at the variables last evaluated.
      factor: H there.
    """

    def __init__(self, workload: Workload, classes: Classes) -> None:
        self.classes = classes
        self.A = workload.matrix[:, classes.order]
        self.gram = self.A.T @ self.A
        self.resolvents = Resolvents.suited(workload.inverse_diagonals, classes)
        self.bound = 0.0
        self.factor: Blocks = []
        self._budget = 0.0
        self._eigen: tuple[np.ndarray, np.ndarray] | None = None

    def start(self) -> Blocks:
        """First variables, good ones if an X that is nearly diagonal is.

        Of diagonal X, the best has X_ii proportional, in each class, to sqrt((A^T A)_ii). U(X) =
        X^-1 A^T A X^-1 then has these correlations within classes.
        """
        blocks = []
        for gram in self.classes.blocks(self.gram):
            scale = 1.0 / np.sqrt(np.einsum("cii->ci", gram))
            correlations = gram * scale[:, :, None] * scale[:, None, :]
            try:
                blocks.append(np.linalg.cholesky(correlations))
            # Columns of A that are parallel to rounding: start at diagonal U instead
            except np.linalg.LinAlgError:
                blocks.append(np.broadcast_to(np.eye(gram.shape[1]), gram.shape).copy())
        return self._scaled(blocks, self.classes.sums(np.sqrt(np.diagonal(self.gram))))

    def factored(self, variables: Blocks) -> tuple[Blocks, float]:
        """H and the budget of U = H H^T."""
        norms = [np.linalg.norm(block, axis=2) for block in variables]
        v = [np.square(norm).mean(axis=1) for norm in norms]
        H = [
            block * (np.sqrt(level)[:, None] / norm)[:, :, None]
            for block, level, norm in zip(variables, v, norms, strict=True)
        ]
        return H, float(sum(level.sum() for level in v))

    def gradient(self, variables: Blocks, G: Blocks) -> tuple[Blocks, Blocks]:
        """The derivatives of T and of the budget with respect to the variables, given G = dT / dH =
        X_c H_c.
        """
        of_T = []
        of_budget = []
        for block, g in zip(variables, G, strict=True):
            norms = np.linalg.norm(block, axis=2)
            size = block.shape[1]
            root_v = np.sqrt(np.square(norms).mean(axis=1))
            unit = block / norms[:, :, None]
            along = np.einsum("cij,cij->ci", g, unit)
            across = (g - along[:, :, None] * unit) * (root_v[:, None] / norms)[:, :, None]
            of_T.append(across + (along.sum(axis=1) / (size * root_v))[:, None, None] * block)
            of_budget.append(block * (2.0 / size))
        return of_T, of_budget

    def turn(self, variables: Blocks, G: Blocks) -> Blocks:
        """The variables that are best for the Q of these: the bound at them is no lower."""
        norms = [np.linalg.norm(g, axis=2) for g in G]
        units = [g / norm[:, :, None] for g, norm in zip(G, norms, strict=True)]
        return self._scaled(units, np.concatenate([norm.sum(axis=1) for norm in norms]))

    def scaled(self, X: np.ndarray) -> np.ndarray:
        """X with its rows and columns scaled to sensitivity 1, if X is feasible but for its scale:
        each class has trace 1.
        """
        scale = 1.0 / np.sqrt(self.classes.spread(self.classes.sums(np.diagonal(X))))
        return X * scale[:, None] * scale

    def _scaled(self, units: Blocks, root_v: np.ndarray) -> Blocks:
        of_groups = self.classes.grouped(root_v)
        return [unit * root[:, None, None] for unit, root in zip(units, of_groups, strict=True)]

    def evaluate(self, variables: Blocks) -> tuple[float, Blocks, Blocks]:
        """-log of the bound, its gradient, and dT / dH: by `resolvents` or one n
        x n eigendecomposition.
        """
        self.factor, self._budget = self.factored(variables)
        if self.resolvents is None:
            self._eigen = self._decomposed()
            roots, V = self._eigen
            T = roots.sum()
            S = self.classes.gram_blocks(V, roots)
            G = [
                s / h if h.shape[1] == 1 else np.linalg.solve(h.transpose(0, 2, 1), s)
                for h, s in zip(self.factor, S, strict=True)
            ]
        else:
            self._eigen = None
            T, G = self.resolvents.evaluate(self.factor, self.A)
        self.bound = T * T / self._budget
        of_T, of_budget = self.gradient(variables, G)
        of_loss = [b / self._budget - (2.0 / T) * t for t, b in zip(of_T, of_budget, strict=True)]
        return -np.log(self.bound), of_loss, G

    def gram_matrix(self) -> np.ndarray:
        """X(U) at the last evaluation, in class order; sets `bound` to the value
        from the eigendecomposition.
        """
        roots, V = self._decomposed() if self._eigen is None else self._eigen
        self._eigen = None
        self.bound = roots.sum() ** 2 / self._budget
        X = self.classes.congruence(transposed(inverted(self.factor)), (V * roots) @ V.T)
        return (X + X.T) / 2

    def candidates(self, X: np.ndarray) -> Iterator[np.ndarray]:
        """Feasible matrices of sensitivity 1 near X, in class order, of which the first
        may be indefinite.

        Where rounds of one class must be orthogonal: once with their entries set to 0, which is
        near X to second order of the loss but may be indefinite; and once by a congruence J^T X J
        with J_c = D (D^-1 X_c D^-1)^(-1/2) D^-1, D^2 the diagonal of X_c, the nearest to 1 of those
        that make the class's columns of C D^-1 orthonormal, which never is.
        """
        if not np.diagonal(X).min() > 0.0:  # lost in rounding
            return
        correlations = self.classes.blocks(X)
        cleared = X.copy()
        self.classes.clear_pairs(cleared)
        yield self.scaled(cleared)
        if self.classes.largest > 1:
            J = []
            for block in correlations:
                norms = np.sqrt(np.einsum("cii->ci", block))
                eigenvalues, V = np.linalg.eigh(block / norms[:, :, None] / norms[:, None, :])
                floor = np.finfo(float).eps * block.shape[1]
                root = (V / np.sqrt(np.maximum(eigenvalues, floor))[:, None, :]) @ V.transpose(
                    0, 2, 1
                )
                J.append(norms[:, :, None] * root / norms[:, None, :])
            turned = self.classes.congruence(J, X)
            self.classes.clear_pairs(turned)
            yield self.scaled(turned)

    def _decomposed(self) -> tuple[np.ndarray, np.ndarray]:
        """S = (H^T A^T A H)^(1/2) as V diag(roots) V^T."""
        eigenvalues, V = np.linalg.eigh(self.classes.congruence(transposed(self.factor), self.gram))
        if eigenvalues[0] > _SMALLEST_EIGENVALUE * eigenvalues[-1]:
            return np.sqrt(eigenvalues), V
        # A badly scaled workload: singular values keep twice as many digits,
        # and cost some times more.
        _, roots, Vt = np.linalg.svd(self.classes.apply(transposed(self.factor), self.A.T).T)
        return roots, Vt.T

    def proven(self, variables: Blocks) -> float:
        """T^2 / budget with T to full accuracy: from eigenvalues of H^T A^T A H half the digits of
        the small ones are lost.
        """
        H, budget = self.factored(variables)
        AH = self.classes.apply(transposed(H), self.A.T).T
        T = scipy.linalg.svdvals(AH, overwrite_a=True, check_finite=False).sum()
        return T * T / budget


class EqualNormsDual(PairsDual):
    """The bound for encoders of equal column norms, orthogonal within classes, over all U zero
    across them.

    The variables are H.
    """

    def factored(self, variables: Blocks) -> tuple[Blocks, float]:
        """See PairsDual."""
        return variables, float(
            sum(np.square(block).sum() for block in variables)
        ) / self.classes.largest

    def gradient(self, variables: Blocks, G: Blocks) -> tuple[Blocks, Blocks]:
        """See PairsDual."""
        return G, [block * (2.0 / self.classes.largest) for block in variables]

    def turn(self, variables: Blocks, G: Blocks) -> Blocks:
        """See PairsDual."""
        return [g * self.classes.largest for g in G]

    def scaled(self, X: np.ndarray) -> np.ndarray:
        """The diagonal is 1 / k."""
        scale = 1.0 / np.sqrt(np.diagonal(X) * self.classes.largest)
        return X * scale[:, None] * scale


# A feasible encoder costs as much as one to thirty steps. It is made where the bound has nearly
# stopped rising and, in any case, after this many times as many steps as the last time.
_FIRST_CHECK, _CHECK_GROWTH = 10, 1.5
# Turns that are worth making before L-BFGS, which is best near the optimum.
_TURNS = 3


class Ascent:
    """Maximises a dual bound until the best feasible encoder is within tolerance of it.

    Attributes:
      encoder: C of the smallest loss so far, lower-triangular, X = C^T C feasible.
      loss: ||A C^-1||_F^2 of it.
      bound: the largest bound so far where an encoder was made, from eigenvalues.
      variables: those of `bound`.
      iterations: steps so far.
      interrupted: whether Ctrl-C ended the ascent.
    """

    def __init__(self, dual: PairsDual, A: np.ndarray, stopping: Stopping) -> None:
        self.dual = dual
        self.A = A
        self.stopping = stopping
        self.encoder = np.empty((0, 0))
        self.loss = np.inf
        self.bound = 0.0
        self.variables: Blocks = dual.start()
        self.iterations = 0
        self.interrupted = False
        self._reached = self.variables
        # The best diagonal X: feasible from the start, and the optimum where every round
        # is of one class.
        diagonal = dual.scaled(np.diag(np.sqrt(np.diagonal(dual.gram))))
        self._compare(lower_factor(dual.classes.in_time_order(diagonal)))
        self._latest_bound = 0.0
        self._checked_at = 0
        self._small_rise = stopping.tolerance

    def run(self) -> None:
        """Iterates; the first Ctrl-C ends it, with a feasible encoder in any case."""
        try:
            if any(self._finished() for _ in self._steps()):
                return
        except KeyboardInterrupt:
            raise_if_interruptible()
            self.interrupted = True
            if self.bound > 0.0:
                return
        self.dual.evaluate(self._reached)  # a line search may have left it
        self._check()

    def _steps(self) -> Iterator[None]:
        """Turns, and then L-BFGS; after each step the dual's last evaluation is at `_reached`."""
        for _ in range(_TURNS):
            of_factor = self.dual.evaluate(self._reached)[2]
            yield
            self._reached = self.dual.turn(self._reached, of_factor)
        yield from self._quasi_newton()
        # A line search found no better point. If rounding in the resolvents was why,
        # eigendecompositions go on.
        if self.dual.resolvents is not None:
            self.dual.resolvents = None
            yield from self._quasi_newton()

    def _quasi_newton(self) -> Iterator[None]:
        # In units in which one turn, H -> (budget / T) X H, is a step of about unit length down the
        # gradient of -log bound.
        gradient = self.dual.evaluate(self._reached)[1]
        unit = (
            self.dual.factored(self._reached)[1]
            / 2.0
            * np.sqrt(sum(np.vdot(g, g) for g in gradient))
        )
        shapes = [block.shape for block in self._reached]
        ends = np.cumsum([block.size for block in self._reached])[:-1]

        def blocks(x: np.ndarray) -> Blocks:
            return [
                part.reshape(shape) * unit
                for part, shape in zip(np.split(x, ends), shapes, strict=True)
            ]

        def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient, _ = self.dual.evaluate(blocks(x))
            return value, np.concatenate([part.ravel() for part in gradient]) * unit

        for x, _ in minimise(
            objective, np.concatenate([block.ravel() for block in self._reached]) / unit
        ):
            self._reached = blocks(x)
            yield

    def _finished(self) -> bool:
        """After each step: counts it, makes an encoder where that pays, and says whether to end."""
        self.iterations += 1
        rise = 1.0 - self._latest_bound / self.dual.bound
        self._latest_bound = self.dual.bound
        gap = None
        if (
            rise <= self._small_rise
            or self.iterations >= max(_FIRST_CHECK, _CHECK_GROWTH * self._checked_at)
            or self.iterations >= self.stopping.max_iterations
        ):
            gap = self._check()
            # Bound and loss close in at about the same rate.
            self._small_rise = min(self._small_rise, rise) * min(
                1.0, self.stopping.tolerance / max(gap, 1e-300)
            )
        if self.stopping.progress is not None:
            self.stopping.progress(self.iterations, self.loss, gap)
        return self.iterations >= self.stopping.max_iterations or (
            gap is not None and gap <= self.stopping.tolerance
        )

    def _check(self) -> float:
        """Makes feasible encoders from the last evaluation; the gap of the best so far."""
        self._checked_at = self.iterations
        X = self.dual.gram_matrix()
        if self.dual.bound > self.bound:
            self.bound = self.dual.bound
            self.variables = self._reached
        for candidate in self.dual.candidates(X):
            self._compare(lower_factor(self.dual.classes.in_time_order(candidate)))
        return max(self.loss / self.bound - 1.0, 0.0)

    def _compare(self, C: np.ndarray | None) -> None:
        if C is not None:
            loss = np.square(decoder(self.A, C)).sum()
            if loss < self.loss:
                self.loss = loss
                self.encoder = C


def decoder(A: np.ndarray, C: np.ndarray) -> np.ndarray:
    """B = A C^-1."""
    return scipy.linalg.blas.dtrsm(1.0, C.T, A.T, lower=False).T


def lower_factor(X: np.ndarray) -> np.ndarray | None:
    """The lower-triangular C with C^T C = X; None for an indefinite X.

    An ordinary Cholesky factor L has L L^T = X, and its rows would have the norms that the columns
    must have. Flipping X, factorising, transposing and flipping back gives the factor on the other
    side (banded paper, Prop. 4.1).
    """
    factor, info = scipy.linalg.lapack.dpotrf(X[::-1, ::-1], lower=True, clean=True)
    return np.ascontiguousarray(factor.T[::-1, ::-1]) if info == 0 else None
