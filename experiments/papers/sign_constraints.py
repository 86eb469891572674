"""The smallest loss of prefix sums and their kin for six rounds, with the signs of C^T C held as in
the multi-epoch paper, App. I.3.
"""

import itertools

import numpy as np
import scipy.optimize


def constrained_encoder(A: np.ndarray, *, min_sep: int, constraints: str) -> np.ndarray:
    """Minimises tr(A^T A X^-1) over X = C^T C whose sensitivity for contributions of one dimension
    is at most 1.

    The problem is convex; the constraints are written out, so this is for a few rounds. "pairs" is
    also what `fedmf.fit(family="dense")` solves, with a certificate, for any number of rounds.

    Args:
      A: (n, n) workload.
      min_sep: b of the (k, b)-participation, k = ceil(n / b).
      constraints: "signed" (Eq. 34), any signs; "pairs" (Eq. 36), X_ij >= 0 for rounds of one
        client; "all" (Eq. 35), X >= 0.

    Returns:
      (n, n) lower-triangular C, scaled to sensitivity 1 for contributions of one dimension.
    """
    n, gram = len(A), A.T @ A
    rows, columns = np.tril_indices(n)
    weights = np.where(rows == columns, 1.0, 2.0)
    # Row u of `forms` is the quadratic form u^T X u in the entries of X's lower triangle, u = the
    # signs of one client's rounds.
    signs = [
        np.where(np.arange(n) % min_sep == c, s, 0.0)
        for c in range(min_sep)
        for s in itertools.product((1.0, -1.0), repeat=n)
    ]
    forms = np.unique([weights * u[rows] * u[columns] for u in signs], axis=0)
    same_client = (rows - columns) % min_sep == 0
    nonnegative = {"signed": rows < 0, "pairs": same_client, "all": rows >= 0}[constraints]

    def matrix(entries: np.ndarray) -> np.ndarray:
        X = np.zeros((n, n))
        X[rows, columns] = X[columns, rows] = entries
        return X

    def log_loss(entries: np.ndarray) -> tuple[float, np.ndarray]:
        X = matrix(entries)
        if np.linalg.eigvalsh(X)[0] <= 0.0:
            return 1e9, np.zeros(len(entries))  # no line search goes there
        inverse = np.linalg.inv(X)
        loss = float(np.trace(gram @ inverse))
        return np.log(loss), -weights * (inverse @ gram @ inverse)[rows, columns] / loss

    found = scipy.optimize.minimize(
        log_loss,
        np.where(rows == columns, min_sep / n, 0.0),
        jac=True,
        method="SLSQP",
        bounds=scipy.optimize.Bounds(np.where(nonnegative, 0.0, -np.inf), np.inf),
        constraints=scipy.optimize.LinearConstraint(forms, -np.inf, 1.0),
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    X = matrix(found.x / (forms @ found.x).max())
    return np.flip(np.linalg.cholesky(np.flip(X))).T
