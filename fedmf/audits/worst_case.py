"""Search for the rounds and signs of one client's contributions that the releases of a plan reveal
best.

The symbols are those of `fedmf.audits.distinguishing`, whose attack decides whether that client
took part.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from fedmf import checks
from fedmf.audits.whitening import causal_factor
from fedmf.mechanisms.budget import block_sums, pair_costs
from fedmf.participation.budgeted import Budgeted
from fedmf.participation.schema import Participation
from fedmf.privacy.plan import Plan, cohort_scale

# All patterns (possible sets of a client's rounds) are tried if there are at most this many.
MAX_PATTERNS = 5_000
# If a client takes part in at most this many rounds, all combinations of signs of its contributions
# are tried.
_MAX_ROUNDS_FOR_ALL_SIGNS = 8
# If a client takes part in at most this many rounds, the search for the worst case also moves the
# rounds one at a time.
MAX_MOVED_ROUNDS = 64
_MAX_SWEEPS = 20
# Relative difference below which two values of the search's objective count as equal.
_RELATIVE_TIE = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorstCase:
    """Contributions of one client to the rounds, and the statistic that detects them best.

    Attributes:
      contributions: u, float64 (n,), entries -1, 0, 1.
      projection: g, float64 (n,); s = sum_t g_t * (released row t along e, in units of stddev).
      snr: mean of s under the claim if the client is present.
    """

    contributions: np.ndarray
    projection: np.ndarray
    snr: float


def worst_case(plan: Plan, *, rounds: tuple[int, ...] | None = None) -> WorstCase:
    """Searches for the rounds and signs of a client's contributions that releases reveal best.

    All patterns of rounds are tried if they are few. Otherwise the search tries windows of rounds
    min_sep apart, and then moves single rounds of the best window: a lower bound on the worst case.
    Of patterns that differ by rounding alone it takes the first.

    Args:
      plan: with noise, and not a simulation of a larger cohort, whose guarantee is not that of the
        run.
      rounds: the client's rounds in place of the worst ones; they may be more than the plan allows.

    Raises:
      ValueError: the plan has no noise, or simulates, or has too many rounds for memory.
    """
    import scipy.linalg

    if plan.noise_multiplier == 0 or cohort_scale(plan) != 1:
        raise ValueError(
            f"noise_multiplier={plan.noise_multiplier} and simulation={plan.simulation}: a plan "
            "without noise, or that simulates a larger cohort, guarantees nothing of what runs"
        )
    n = plan.mechanism.rounds
    # Memory for the causal factor L, its inverse E, X = E^T E, and one matrix of intermediate
    # results.
    memory_hint = "take a plan of the same family with fewer rounds"
    checks.fits_in_memory("the search of all rounds", (n, n), copies=4, hint=memory_hint)
    L = causal_factor(plan.mechanism.noising())
    E = scipy.linalg.solve_triangular(L, np.eye(len(L)), lower=True, check_finite=False)
    X = E.T @ E
    if rounds is not None:
        u = _with_signs(X, rounds)
    elif isinstance(plan.participation, Budgeted):
        u = _worst_of(X, evenly_spaced(pair_costs(plan.mechanism), plan.participation))
    else:
        u = worst_contributions(X, plan.participation)
    white_contributions = E @ u
    white_norm = float(np.linalg.norm(white_contributions))
    return WorstCase(
        contributions=u,
        projection=E.T @ white_contributions / white_norm,
        snr=white_norm / (plan.sensitivity.value * plan.noise_multiplier),
    )


def _first_largest(values: Iterable[float]) -> int:
    """Returns the index of the first value that equals the largest value up to rounding.

    The result is then the same on all processors.
    """
    value_array = np.fromiter(values, np.float64)
    largest_value = value_array.max()
    return int(np.flatnonzero(value_array >= largest_value - _RELATIVE_TIE * abs(largest_value))[0])


def worst_contributions(X: np.ndarray, participation: Participation) -> np.ndarray:
    """Searches for the contributions of a client to the rounds that releases reveal best.

    These are the contributions u with the largest u^T X u. X is (N N^T)^-1 for the noise matrix N,
    so that u^T X u is the squared signal-to-noise ratio of the client up to a factor. The search is
    the one of `worst_case`.

    The entries of u are -1, 0 and 1, and not 0 only in rounds that the participation allows.
    """
    round_patterns = list(itertools.islice(participation.patterns(), MAX_PATTERNS + 1))
    if len(round_patterns) > MAX_PATTERNS:
        n = participation.rounds
        b = participation.min_sep
        k = participation.max_participations
        round_patterns = [
            tuple(range(start, min(n, start + (k - 1) * b + 1), b)) for start in range(n)
        ]
        full_length = min(k, len(round_patterns[0]))
        round_patterns = [
            pattern for pattern in round_patterns if len(pattern) == full_length
        ] or round_patterns
    best_contributions = _worst_of(X, round_patterns)
    num_rounds = participation.max_participations
    if participation.has_movable_rounds and 1 < num_rounds <= MAX_MOVED_ROUNDS:
        best_contributions = _move_rounds(X, best_contributions, participation.min_sep)
    return best_contributions


def _worst_of(X: np.ndarray, patterns: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns the client contributions that releases reveal best, over several patterns of rounds.

    A pattern is a set of rounds. The contributions u have the largest u^T X u.
    """
    candidates = [_with_signs(X, pattern) for pattern in patterns]
    return candidates[_first_largest(_energy(X, u) for u in candidates)]


def evenly_spaced(costs: np.ndarray, budget: Budgeted) -> list[list[int]]:
    """Returns patterns of equally spaced rounds within a participation budget, for every gap.

    The rounds are 0, gap, 2 gap, ... until the budget is spent. The budget allows other patterns
    as well.
    """
    spaced_choices = (np.arange(0, len(costs), gap) for gap in range(1, len(costs) + 1))
    return [rounds[budget.affords(block_sums(costs, rounds))].tolist() for rounds in spaced_choices]


def _energy(X: np.ndarray, u: np.ndarray) -> float:
    """Returns u^T X u, the squared signal-to-noise ratio of contributions u up to a factor."""
    nonzero_rounds = np.flatnonzero(u)
    return float(u[nonzero_rounds] @ X[np.ix_(nonzero_rounds, nonzero_rounds)] @ u[nonzero_rounds])


def _with_signs(X: np.ndarray, pattern: Iterable[int]) -> np.ndarray:
    """Returns client contributions in given rounds, with the signs that releases reveal best.

    The signs are chosen to make u^T X u large for the contributions u. They are optimal for few
    rounds. For more rounds, signs are flipped one at a time while that increases the value.
    """
    pattern_rounds = np.array(sorted(pattern))
    pattern_gram = X[np.ix_(pattern_rounds, pattern_rounds)]
    has_negative_entry = (pattern_gram < 0).any()
    best_signs = np.ones(len(pattern_rounds))
    if has_negative_entry and len(pattern_rounds) <= _MAX_ROUNDS_FOR_ALL_SIGNS:
        later_signs = itertools.product((1.0, -1.0), repeat=len(pattern_rounds) - 1)
        sign_choices = np.array([(1.0, *choice) for choice in later_signs])
        energies = ((sign_choices @ pattern_gram) * sign_choices).sum(axis=1)
        best_signs = sign_choices[_first_largest(energies)]
    elif has_negative_entry:
        for _ in range(len(pattern_rounds)):
            # Let X be the gram matrix of the client's rounds and s the signs. Flipping the sign s_i
            # changes s^T X s by -4 s_i (sum over j != i of X_ij s_j).
            flip_gains = -best_signs * (
                pattern_gram @ best_signs - np.diagonal(pattern_gram) * best_signs
            )
            if flip_gains.max() <= _RELATIVE_TIE * pattern_gram.max():
                break
            best_signs[_first_largest(flip_gains)] *= -1
    u = np.zeros(len(X))
    u[pattern_rounds] = best_signs
    return u


def _move_rounds(X: np.ndarray, u: np.ndarray, min_sep: int) -> np.ndarray:
    """Moves a client's rounds one by one, as long as each move makes the client easier to detect.

    A move is made if it increases u^T X u for the contributions u.
    """
    all_rounds = np.arange(len(u))
    for _ in range(_MAX_SWEEPS):
        previous_energy = _energy(X, u)
        for t in np.flatnonzero(u):
            remaining_direction = u.copy()
            remaining_direction[t] = 0.0
            fixed_rounds = np.flatnonzero(remaining_direction)
            distances = np.abs(np.subtract.outer(all_rounds, fixed_rounds))
            is_too_near = (distances < min_sep).any(axis=1)
            direction_overlap = X[:, fixed_rounds] @ remaining_direction[fixed_rounds]
            energy_gain = np.diagonal(X) + 2 * np.abs(direction_overlap)
            new_round = _first_largest(np.where(is_too_near, -np.inf, energy_gain))
            remaining_direction[new_round] = -1.0
            if direction_overlap[new_round] >= -_RELATIVE_TIE * X[new_round, new_round]:
                remaining_direction[new_round] = 1.0
            u = remaining_direction
        if _energy(X, u) <= previous_energy * (1 + _RELATIVE_TIE):
            break
    return u
