"""Lower bounds on epsilon that follow from an attacker's guesses about which canaries were
included.

A guarantee bounds the number of correct guesses, whatever the attacker knows besides:

- for an (epsilon, delta)-DP mechanism, `p_value` bounds the chance of v correct ones among r
  guesses (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, Sec. 5);
- for a mu-Gaussian-DP mechanism, whose releases are no easier to distinguish than Normal(0, 1) and
  Normal(mu, 1), the bound is sharper (Mahloujifar, Melis and Chaudhuri 2024, arXiv 2410.22235). A
  run without sampling claims this, with mu = 1 / noise_multiplier;
- if the scores are normal as well, as sums of Gaussian noise along random directions are (Andrew et
  al. 2024, arXiv 2302.03098), the difference of their means gives the sharpest bound.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from fedmf.privacy.gaussian import gaussian_epsilon


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Returns an upper bound on the probability of this many correct guesses under (epsilon,
    delta)-DP.

    For v correct guesses of m canaries it is Pr[W >= v] + 2 m delta max_i (Pr[v > W >= v - i] / i),
    where W is binomial with the number of guesses and probability e^epsilon / (1 + e^epsilon).

    >>> round(p_value(100, 10, 10, 0.0, 0.0) * 2**10, 9)
    1.0
    """
    from scipy import special

    chance_correct = special.expit(epsilon)
    margins = np.arange(1, correct + 1)
    # scipy's bdtrc(k, r, p) is Pr[W > k] for a binomial W of r trials with probability p.
    tail_chance = 1.0
    if correct:
        tail_chance = float(special.bdtrc(correct - 1, guesses, chance_correct))
    lower_thresholds = np.maximum(correct - 1 - margins, 0)
    tail_chances = np.where(
        margins < correct, special.bdtrc(lower_thresholds, guesses, chance_correct), 1.0
    )
    return min(
        1.0,
        tail_chance
        + 2 * canaries * delta * float(np.max((tail_chances - tail_chance) / margins, initial=0.0)),
    )


def gaussian_refuted(
    canaries: int, guesses: int, correct: int, mu: float, significance: float
) -> bool:
    """Returns whether this many correct guesses refute mu-Gaussian DP at a significance level.

    This is the recursion of arXiv 2410.22235, in its notation.
    """
    from scipy import special

    correct_bound = significance * correct / canaries
    wrong_bound = significance * (guesses - correct) / canaries
    for i in range(correct - 1, -1, -1):
        next_wrong_bound = max(wrong_bound, float(special.ndtr(special.ndtri(correct_bound) - mu)))
        if next_wrong_bound == wrong_bound or correct_bound + wrong_bound > guesses / canaries:
            break
        correct_bound = min(
            1.0, correct_bound + i / (guesses - i) * (next_wrong_bound - wrong_bound)
        )
        wrong_bound = next_wrong_bound
    return correct_bound + wrong_bound > guesses / canaries


def epsilon_bound(
    scores: np.ndarray, included: np.ndarray, delta: float, significance: float
) -> float:
    """Returns the largest epsilon that the correct guesses refute for this delta.

    It is 0 if they refute no epsilon. The guesses are about the coins that included canaries.

    Args:
      scores: float64 (canaries,), larger for canaries that seem to be included.
      included: bool (canaries,), the coins.
      delta: of the claim.
      significance: largest chance that the bound exceeds a valid epsilon.
    """
    num_canaries = len(included)
    guess_counts = _guess_counts(scores, included, significance)
    significance_level = significance / max(1, len(guess_counts))
    return _largest_refuted(
        lambda epsilon: any(
            p_value(num_canaries, count.guesses, count.correct, epsilon, delta)
            <= significance_level
            for count in guess_counts
        )
    )


def gaussian_epsilon_bound(
    scores: np.ndarray, included: np.ndarray, delta: float, significance: float
) -> float:
    """Returns a lower bound on epsilon that assumes a Gaussian mechanism.

    It is the epsilon of the largest mu for which the correct guesses refute mu-Gaussian DP.

    The arguments are those of `epsilon_bound`.
    """
    num_canaries = len(included)
    guess_counts = _guess_counts(scores, included, significance)
    significance_level = significance / max(1, len(guess_counts))
    mu = _largest_refuted(
        lambda mu: any(
            gaussian_refuted(num_canaries, count.guesses, count.correct, mu, significance_level)
            for count in guess_counts
        )
    )
    return gaussian_epsilon(1 / mu, delta) if mu else 0.0


def normal_epsilon_bound(
    scores: np.ndarray, included: np.ndarray, delta: float, significance: float
) -> float:
    """Returns a lower bound on epsilon that assumes normally distributed scores.

    It is the epsilon of a lower bound on their signal-to-noise ratio.

    The difference of the means, divided by its standard error, has a non-central t distribution if
    the scores have equal variances. If the signal differs between canaries, the bound is on its
    mean. The arguments are those of `epsilon_bound`.
    """
    from scipy import special

    scores_present = scores[included]
    scores_absent = scores[~included]
    degrees = len(scores) - 2
    if min(len(scores_present), len(scores_absent)) < 2:
        return 0.0
    mean_difference = float(scores_present.mean() - scores_absent.mean())
    squared_deviations = float(
        ((scores_present - scores_present.mean()) ** 2).sum()
        + ((scores_absent - scores_absent.mean()) ** 2).sum()
    )
    if squared_deviations == 0:
        return math.inf if mean_difference > 0 else 0.0
    relative_error = math.sqrt(1 / len(scores_present) + 1 / len(scores_absent))
    t_statistic = mean_difference / (relative_error * math.sqrt(squared_deviations / degrees))
    mu = relative_error * float(special.nctdtrinc(degrees, 1 - significance, t_statistic))
    return gaussian_epsilon(1 / mu, delta) if mu > 0 else 0.0


# Functions that compute a lower bound on epsilon. Each key says what the function assumes about the
# mechanism.
BOUNDS = {
    "nothing": epsilon_bound,
    "Gaussian mechanism": gaussian_epsilon_bound,
    "normal scores": normal_epsilon_bound,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GuessCount:
    """Number of guesses, and how many of them are correct."""

    guesses: int
    correct: int


def _guess_counts(
    scores: np.ndarray, included: np.ndarray, significance: float
) -> list[_GuessCount]:
    """Counts the correct guesses of an attacker, for several numbers of guesses.

    One half of the guesses is that the canaries with the highest scores are included, the other
    half that those with the lowest are not. Half of the canaries, a quarter and so on are guessed
    on each side, while correct guesses alone could refute epsilon = 0. These numbers do not depend
    on the coins, so that Bonferroni's correction is valid.
    """
    coins_by_score = included[np.argsort(scores, kind="stable")]
    guess_counts = []
    num_guesses_per_side = len(coins_by_score) // 2
    while num_guesses_per_side and 2.0 ** (-2 * num_guesses_per_side) <= significance:
        num_correct = int(
            (~coins_by_score[:num_guesses_per_side]).sum()
            + coins_by_score[-num_guesses_per_side:].sum()
        )
        guess_counts.append(_GuessCount(guesses=2 * num_guesses_per_side, correct=num_correct))
        num_guesses_per_side //= 2
    return guess_counts


def _largest_refuted(is_refuted: Callable[[float], bool]) -> float:
    """Returns the largest value that a test refutes, rounded down with a relative error of 1e-9.

    The test must refute all values below a refuted one. The result is 0 if it refutes no value.
    """
    if not is_refuted(0.0):
        return 0.0
    low_epsilon = 0.0
    high_epsilon = 1.0
    while is_refuted(high_epsilon):
        low_epsilon = high_epsilon
        high_epsilon = 2 * high_epsilon
    while high_epsilon - low_epsilon > 1e-9 * max(1.0, high_epsilon):
        middle_epsilon = (low_epsilon + high_epsilon) / 2
        if is_refuted(middle_epsilon):
            low_epsilon = middle_epsilon
        else:
            high_epsilon = middle_epsilon
    return low_epsilon
