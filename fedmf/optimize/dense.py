"""The best encoder of all for a single participation, by the fixed point of Denisov et al. 2022, Sec. 3."""

import time

import numpy as np
import scipy.linalg

from fedmf.mechanisms.dense import DenseMechanism
from fedmf.optimize.certificate import certify, dual_bound
from fedmf.optimize.progress import Progress, check_common, warn_stopped_short
from fedmf.participation import Participation
from fedmf.workloads import Workload


def fit_dense(
    workload: Workload,
    participation: Participation,
    *,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
    progress: Progress | None = None,
) -> DenseMechanism:
    """Minimises ||A C^-1||_F^2 over all C with columns of norm at most 1; the best have norm 1 (Denisov, Eq. 4).

    Iterates v <- phi(v) = diag((V^(1/2) A^T A V^(1/2))^(1/2)), V = diag(v) (Thm. 3.2, Eq. 5). Every iterate gives a
    feasible encoder from X(v) (Eq. 6) and a lower bound (Eq. 8), whose difference says when to stop. Arguments and
    errors as `fedmf.fit`.
    """
    check_common(tolerance, max_iterations, progress)
    if participation.schema != "single":
        raise ValueError(
            f"schema={participation.schema!r} does not suit family='dense', which is optimal for one participation: "
            f"fit it with Participation(rounds={participation.rounds}, schema='single') and calibrate it under "
            "yours, or use family='banded'"
        )
    A = workload.matrix
    began = time.perf_counter()
    gram = A.T @ A
    v = np.sqrt(np.diagonal(gram))
    best_loss, best_C = np.inf, np.empty((0, 0))
    iteration = 0
    while True:
        iteration += 1
        root_v = np.sqrt(v)
        square_root = _square_root(gram * np.outer(root_v, root_v))
        phi = np.diagonal(square_root).copy()
        C = _encoder(square_root / np.outer(root_v, root_v))
        B = scipy.linalg.blas.dtrsm(1.0, C.T, A.T, lower=False).T
        loss = float(np.square(B).sum())
        if loss < best_loss:
            best_loss, best_C = loss, C
        # Eq. 8 with v scaled for the best bound, as in `dual_bound`: T = tr(square_root) = sum(phi).
        bound = float(phi.sum() ** 2 / v.sum())
        gap = best_loss / bound - 1.0
        if progress is not None:
            progress(iteration, best_loss, gap)
        if gap <= tolerance or iteration >= max_iterations:
            break
        v = phi
    # The loop's bound comes from an eigendecomposition; the one that is kept is computed to full accuracy.
    proven = dual_bound(A, np.diag(v))
    if proven is None:
        raise ValueError("workload is too ill-conditioned to certify a fit in float64: rescale its rows")
    certificate = certify(best_loss, proven, iteration, time.perf_counter() - began)
    if certificate.gap > tolerance:
        warn_stopped_short(
            "dense",
            iterations=iteration,
            gap=certificate.gap,
            tolerance=tolerance,
            max_iterations=max_iterations,
        )
    return DenseMechanism(matrix=best_C, certificate=certificate)


def _square_root(symmetric: np.ndarray) -> np.ndarray:
    """The positive square root of a positive-definite matrix."""
    eigenvalues, vectors = scipy.linalg.eigh(symmetric, check_finite=False)
    # Rounding can push the smallest below zero when the workload is badly scaled.
    return (vectors * np.sqrt(np.maximum(eigenvalues, 0.0))) @ vectors.T


def _encoder(X: np.ndarray) -> np.ndarray:
    """The lower-triangular C with C^T C = X, after scaling X to unit diagonal: columns of norm 1.

    An ordinary Cholesky factor L has L L^T = X, and its rows would have norm 1, not its columns. Flipping X,
    factorising, transposing and flipping back gives the factor on the other side (banded paper, Prop. 4.1).
    """
    scale = 1.0 / np.sqrt(np.diagonal(X))
    unit = X * np.outer(scale, scale)
    try:
        flipped = scipy.linalg.cholesky(unit[::-1, ::-1], lower=True, check_finite=False)
    except np.linalg.LinAlgError as error:
        raise ValueError(
            "workload is too ill-conditioned for a dense fit in float64 (its optimal gram matrix is not "
            "numerically positive definite): rescale its rows, for instance the learning rates, or use "
            "family='banded'"
        ) from error
    C = np.ascontiguousarray(flipped.T[::-1, ::-1])
    return C / np.linalg.norm(C, axis=0)
