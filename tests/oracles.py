"""Slow computations from the definitions alone, which call nothing of the code that they check."""

import functools
import itertools

import numpy as np


def allowed_sets(participation) -> list[tuple[int, ...]]:
    """Returns all sets of rounds that one client may take part in, by trying every subset.

    The rules are those of the words that describe each schema.
    """
    n = participation.rounds
    b = participation.min_sep
    k = participation.max_participations
    allowed_round_sets = []
    for size in range(1, n + 1):
        for round_set in itertools.combinations(range(n), size):
            pairs = list(itertools.combinations(round_set, 2))
            if participation.schema == "single":
                fits = size == 1
            elif participation.schema == "every_round":
                fits = True
            elif participation.schema == "min_sep":
                fits = size <= k and all(j - i >= b for i, j in pairs)
            else:  # fixed_epoch: some window of k rounds exactly b apart holds them all
                windows = [{start + b * step for step in range(k)} for start in range(n)]
                fits = any(set(round_set) <= window for window in windows)
            if fits:
                allowed_round_sets.append(round_set)
    return allowed_round_sets


@functools.cache
def maximal_sets(participation) -> list[tuple[int, ...]]:
    """Returns the allowed sets that no other allowed set contains."""
    allowed_round_sets = [frozenset(round_set) for round_set in allowed_sets(participation)]
    return sorted(
        tuple(sorted(allowed_set))
        for allowed_set in allowed_round_sets
        if not any(allowed_set < larger_set for larger_set in allowed_round_sets)
    )


def attained_sensitivity(C, participation, rng, starts=4, sweeps=200) -> float:
    """Returns the largest ||C G||_F that a search finds over G with rows of norm <= 1 in one
    allowed set.

    It is attained, and therefore never above the true sensitivity.
    """
    return attained_by_sets(C, maximal_sets(participation), rng, starts, sweeps)


def attained_by_sets(C, sets, rng, starts=4, sweeps=200) -> float:
    """Returns the largest ||C G||_F that a search finds for these sets of rounds.

    The search is coordinate ascent: with the other rows fixed, the best row i points along sum_j
    X_ij g_j. With as many dimensions as rounds it nearly always ends at the global maximum.
    """
    best_value = 0.0
    for size, group in itertools.groupby(sorted(sets, key=len), key=len):
        columns = C[:, list(group)].transpose(1, 0, 2)[:, None]  # (sets, 1, m, size)
        X = columns.swapaxes(-1, -2) @ columns
        G = rng.standard_normal((len(X), starts, size, size))
        G /= np.linalg.norm(G, axis=-1, keepdims=True)
        for _ in range(sweeps):
            previous_G = G.copy()
            for i in range(size):
                direction = (X[..., i : i + 1, :] @ G)[..., 0, :] - X[..., i, i, None] * G[
                    ..., i, :
                ]
                length = np.linalg.norm(direction, axis=-1, keepdims=True)
                G[..., i, :] = np.where(
                    length > 0.0, direction / np.where(length > 0.0, length, 1.0), G[..., i, :]
                )
            if np.abs(G - previous_G).max() < 1e-12:
                break
        best_value = max(best_value, float(np.linalg.norm(columns @ G, axis=(-2, -1)).max()))
    return best_value


def sensitivity_of_nonnegative(C, participation) -> float:
    """Computes the sensitivity if X = C^T C >= 0 or if a client takes part at most twice.

    All contributions are then along one line.
    """
    squares = []
    for round_set in maximal_sets(participation):
        columns = C[:, list(round_set)]
        signs = (
            itertools.product([1.0, -1.0], repeat=len(round_set))
            if len(round_set) <= 2
            else [np.ones(len(round_set))]
        )
        squares += [float(np.sum((columns @ np.asarray(s)) ** 2)) for s in signs]
    return float(np.sqrt(max(squares)))


def simulated_loss_score(
    mechanism, workload, sensitivity_squared, claimed_loss, rng, samples, scale=1.0
) -> float:
    """Returns how many standard errors a simulated loss is above the claimed one.

    The noise comes from the mechanism's stream, and `scale` changes it for negative controls. The
    standard error is that of the claim: for z standard normal, ||A N z||^2 has variance 2 ||(A N)^T
    (A N)||_F^2.
    """
    Z = rng.standard_normal((mechanism.stream().sources, samples))
    noise = scale * np.stack(list(mechanism.stream().rows(lambda i: Z[i])))
    errors = np.square(workload.matrix @ noise).sum(axis=0) * sensitivity_squared
    AN = workload.matrix @ mechanism.noising()
    standard_error = sensitivity_squared * np.sqrt(2.0 * np.sum((AN.T @ AN) ** 2) / samples)
    return float((errors.mean() - claimed_loss) / standard_error)
