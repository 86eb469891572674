"""Known mistakes, made on purpose: an audit that does not catch them would not catch
the real ones either.
"""

import numpy as np
import scipy.linalg

from fedmf.audits.distinguishing import worst_case
from fedmf.audits.noise import causal_factor

# A change of the covariance by less than rounding is no change.
UNCHANGED = 1e-9


def mistakes_over_rounds(factor) -> dict[str, np.ndarray]:
    """Name of a mistake -> M: where honest noise, whitened by `factor`, is W, the mistake makes it
    M W.

    Mistakes that change nothing are left out.
    """
    n, middle = len(factor), len(factor) // 2
    E = solve(factor, np.eye(n))
    norms = np.linalg.norm(E, axis=1)
    # The rows have one norm, where the columns should have it.
    by_rows = E * (np.sqrt(np.mean(norms**2)) / norms)[:, None]
    rounds = np.arange(n)
    again = np.eye(n)[np.where(rounds < middle, rounds, rounds - middle)]
    mistakes = {
        "noise too small by 3%": 0.97 * np.eye(n),
        "noise too large by 3%": 1.03 * np.eye(n),
        "rows of C normalised in place of columns": E @ solve(by_rows, np.eye(n)),
        "Cholesky factor not flipped, C C^T = X": E @ solve(np.linalg.cholesky(E.T @ E), np.eye(n)),
        "a draw used in two rounds": np.eye(n)[np.where(rounds == middle, middle - 1, rounds)],
        "sources start again after a resume": again,
        "noise not advanced by a resume": E @ again @ factor,
    }
    return {
        name: M for name, M in mistakes.items() if np.abs(M @ M.T - np.eye(n)).max() > UNCHANGED
    }


def too_many_rounds(plan, extra=None):
    """The worst rounds and `extra` others (None: as many again), each chosen where it gains most;
    more than the plan allows.
    """
    taken = np.flatnonzero(worst_case(plan).contributions).tolist()
    L = causal_factor(plan.mechanism.noising())
    E = solve(L, np.eye(len(L)))
    X = E.T @ E
    for _ in range(len(taken) if extra is None else extra):
        free = sorted(set(range(len(X))) - set(taken))
        gains = np.diagonal(X)[free] + 2 * X[np.ix_(free, taken)].sum(axis=1)
        taken.append(free[int(gains.argmax())])
    assert not plan.participation.allows(taken)
    return tuple(sorted(taken))


def solve(factor, right):
    return scipy.linalg.solve_triangular(factor, right, lower=True)
