"""Power of the statistical tests: each plays as many trials as it needs to see the departure that
it states, and asserts so.

Seeds are fixed, so that a test always passes or always fails; the rates say how surprising a
failure would be.
"""

import itertools

import numpy as np
import scipy.stats

# Chance, at most, that a statistical test fails although the code is right.
FALSE_POSITIVE_RATE = 1e-6
# Chance, at most, that it passes although the departure that it states is there.
MISS_RATE = 1e-6


def trials_that_see(missed, start=64) -> int:
    """The least of start * 2**(i / 2) trials of which missed(trials) is at most MISS_RATE."""
    for i in range(60):
        trials = round(start * 2 ** (i / 2))
        if missed(trials) <= MISS_RATE:
            return trials
    raise AssertionError("no number of trials sees this departure")


def missed_by_chi_square(noncentrality, degrees, rate=FALSE_POSITIVE_RATE) -> float:
    """Of Pearson's test: noncentrality = trials * sum((p - p0)^2 / p0), where p is what the
    departure makes of p0.
    """
    return float(scipy.stats.ncx2.cdf(scipy.stats.chi2.isf(rate, degrees), degrees, noncentrality))


def missed_by_distance(trials, distance, rate=FALSE_POSITIVE_RATE) -> float:
    """Of a Kolmogorov-Smirnov test, at most, by the inequality of Dvoretzky, Kiefer,
    Wolfowitz and Massart.
    """
    excess = distance - scipy.stats.kstwo.isf(rate, trials)
    return float(2 * np.exp(-2 * trials * excess**2)) if excess > 0 else 1.0


def missed_by_correlation(trials, correlation, rate=FALSE_POSITIVE_RATE) -> float:
    """Of a two-sided test of correlation, by Fisher's transform."""
    with np.errstate(divide="ignore"):
        shift = np.sqrt(trials - 3) * np.arctanh(min(abs(correlation), 1.0))
    return float(scipy.stats.norm.sf(shift - scipy.stats.norm.isf(rate / 2)))


def missed_by_count(trials, share, truth, rate=FALSE_POSITIVE_RATE) -> float:
    """Of `p_of_count` where the share is `truth`."""
    low, high = (
        scipy.stats.binom.ppf(rate / 2, trials, share),
        scipy.stats.binom.isf(rate / 2, trials, share),
    )
    return float(
        scipy.stats.binom.cdf(high, trials, truth) - scipy.stats.binom.cdf(low - 1, trials, truth)
    )


def missed_by_variance(trials, ratio, rate=FALSE_POSITIVE_RATE) -> float:
    """Of a two-sided chi-square test of the variance of normals, where it is `ratio` times the
    claimed one; exact.
    """
    low, high = scipy.stats.chi2.ppf(rate / 2, trials), scipy.stats.chi2.isf(rate / 2, trials)
    return float(
        scipy.stats.chi2.cdf(high / ratio, trials) - scipy.stats.chi2.cdf(low / ratio, trials)
    )


def missed_by_game(trials, snr, claimed, rate=FALSE_POSITIVE_RATE) -> float:
    """Of a test that the signal-to-noise ratio of a distinguishing game is above the claim; of
    those of signal and noise at most.

    A measured ratio r has variance (4 + r^2 / 2) / trials, half of them with the client,
    to first order.
    """
    at_claim, at_truth = (np.sqrt((4 + ratio**2 / 2) / trials) for ratio in (claimed, snr))
    return float(
        scipy.stats.norm.cdf((claimed + scipy.stats.norm.isf(rate) * at_claim - snr) / at_truth)
    )


def missed_by_noise_audit(covariance, coordinates, rate) -> float:
    """Of `audit_noise` at the threshold `rate` of a finding, at most: the miss rate of the best
    single test that it makes.

    Args:
      covariance: of the n rounds of the whitened noise that is there; claimed is the identity.
      coordinates: independent samples of it.
      rate: `NoiseAudit.threshold`.
    """
    n, variances = len(covariance), np.diagonal(covariance)
    mean, spread = variances.mean(), np.sqrt(2 * (covariance**2).sum() / coordinates) / n
    limit = np.sqrt(2 / (n * coordinates)) * scipy.stats.norm.isf(rate / 2)
    missed = [float(scipy.stats.norm.sf((abs(mean - 1) - limit) / spread))]
    missed += [
        missed_by_variance(coordinates, ratio, rate / n)
        for ratio in (variances.min(), variances.max())
    ]
    correlations = covariance / np.sqrt(np.outer(variances, variances))
    pairs = n * (n - 1) // 2
    if pairs:
        largest = np.abs(np.tril(correlations, -1)).max()
        missed.append(missed_by_correlation(coordinates, largest, rate / pairs))
    return min(missed)


def p_of_count(count, trials, share) -> float:
    """Two-sided p-value of a binomial count."""
    tails = (
        scipy.stats.binom.cdf(count, trials, share),
        scipy.stats.binom.sf(count - 1, trials, share),
    )
    return float(min(1.0, 2 * min(tails)))


def preferring_the_first(places, weight, size=1) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of all sets of `size` of so many places: uniform, and with `weight` times the
    others' chance for the first.
    """
    sets = list(itertools.combinations(range(places), size))
    weights = np.ones(places)
    weights[0] = weight

    def probability(drawn):
        left, product = weights.sum(), 1.0
        for place in drawn:
            product *= weights[place] / left
            left -= weights[place]
        return product

    truth = np.array([sum(map(probability, itertools.permutations(s))) for s in sets])
    return np.full(len(sets), 1 / len(sets)), truth


def draws_that_see(claimed, truth, rate=FALSE_POSITIVE_RATE) -> int:
    """Draws with which Pearson's test of probabilities sees that they are others."""
    distance = float(((truth - claimed) ** 2 / claimed).sum())
    return trials_that_see(
        lambda draws: missed_by_chi_square(draws * distance, len(claimed) - 1, rate)
    )


def unrelated(a, b, departure) -> bool:
    """Whether the correlation of two samples is within its limits; a correlation of `departure`
    would not be.
    """
    assert missed_by_correlation(len(a), departure) <= MISS_RATE, (
        "too few trials for this departure"
    )
    return bool(scipy.stats.pearsonr(a, b)[1] > FALSE_POSITIVE_RATE)


def distributed(values, distribution, departure) -> bool:
    """Whether values pass a Kolmogorov-Smirnov test; those of a distribution further than
    `departure` would not.
    """
    assert missed_by_distance(len(values), departure) <= MISS_RATE, (
        "too few trials for this departure"
    )
    return bool(scipy.stats.kstest(values, distribution).pvalue > FALSE_POSITIVE_RATE)


def counted(count, trials, share, departure) -> bool:
    """Whether a count fits its share; it would not if the share were `departure`."""
    assert missed_by_count(trials, share, departure) <= MISS_RATE, (
        "too few trials for this departure"
    )
    return p_of_count(count, trials, share) > FALSE_POSITIVE_RATE
