"""Known mistakes in the noise and in a client's rounds, which audits must detect."""

import numpy as np
import scipy.linalg

from fedmf.audits.whitening import causal_factor
from fedmf.audits.worst_case import worst_case

# A change of the covariance by less than rounding is no change.
UNCHANGED = 1e-9


def mistakes_over_rounds(factor) -> dict[str, np.ndarray]:
    """Returns name -> M: honest noise, whitened by `factor`, is W, and the mistake makes it M W.

    Mistakes that do not change the covariance are left out.
    """
    n = len(factor)
    half_rounds = len(factor) // 2
    E = solve(factor, np.eye(n))
    row_norms = np.linalg.norm(E, axis=1)
    # The rows have equal norms, although the columns should have them.
    row_normalised = E * (np.sqrt(np.mean(row_norms**2)) / row_norms)[:, None]
    rounds = np.arange(n)
    restarted_noise = np.eye(n)[np.where(rounds < half_rounds, rounds, rounds - half_rounds)]
    mistakes = {
        "noise too small by 3%": 0.97 * np.eye(n),
        "noise too large by 3%": 1.03 * np.eye(n),
        "rows of C normalised in place of columns": E @ solve(row_normalised, np.eye(n)),
        "Cholesky factor not flipped, C C^T = X": E @ solve(np.linalg.cholesky(E.T @ E), np.eye(n)),
        "a draw used in two rounds": np.eye(n)[
            np.where(rounds == half_rounds, half_rounds - 1, rounds)
        ],
        "sources start again after a resume": restarted_noise,
        "noise not advanced by a resume": E @ restarted_noise @ factor,
    }
    return {
        name: M for name, M in mistakes.items() if np.abs(M @ M.T - np.eye(n)).max() > UNCHANGED
    }


def too_many_rounds(plan, extra=None):
    """Returns the worst rounds of a plan and further ones, more than it allows.

    Args:
      plan: the claim.
      extra: number of further rounds, each chosen where it gains most; None for as many again.
    """
    client_rounds = np.flatnonzero(worst_case(plan).contributions).tolist()
    L = causal_factor(plan.mechanism.noising())
    E = solve(L, np.eye(len(L)))
    X = E.T @ E
    num_further_rounds = len(client_rounds) if extra is None else extra
    for _ in range(num_further_rounds):
        free_rounds = sorted(set(range(len(X))) - set(client_rounds))
        round_gains = np.diagonal(X)[free_rounds] + 2 * X[np.ix_(free_rounds, client_rounds)].sum(
            axis=1
        )
        client_rounds.append(free_rounds[int(round_gains.argmax())])
    assert not plan.participation.allows(client_rounds)
    return tuple(sorted(client_rounds))


def solve(factor, right):
    """Solves a lower-triangular system."""
    return scipy.linalg.solve_triangular(factor, right, lower=True)
