"""Power of statistical tests: the number of trials that detects a stated departure.

Seeds are fixed, so that a test always passes or always fails; the rates say how surprising a
failure would be.
"""

import itertools

import numpy as np
import scipy.stats

# The largest chance that a statistical test fails although the code is right.
FALSE_POSITIVE_RATE = 1e-6
# The largest chance that it passes although the stated departure exists.
MISS_RATE = 1e-6


def trials_that_detect(missed, start=64) -> int:
    """Returns the least number of trials start * 2**(i / 2) with missed(trials) <= MISS_RATE."""
    for i in range(60):
        trials = round(start * 2 ** (i / 2))
        if missed(trials) <= MISS_RATE:
            return trials
    raise AssertionError("no number of trials sees this departure")


def missed_by_chi_square(noncentrality, degrees, rate=FALSE_POSITIVE_RATE) -> float:
    """Returns the miss rate of Pearson's test.

    The noncentrality is trials * sum((p - p0)^2 / p0), where the departure changes p0 to p.
    """
    return float(scipy.stats.ncx2.cdf(scipy.stats.chi2.isf(rate, degrees), degrees, noncentrality))


def missed_by_distance(trials, distance, rate=FALSE_POSITIVE_RATE) -> float:
    """Returns an upper bound on the miss rate of a Kolmogorov-Smirnov test.

    The bound is the inequality of Dvoretzky, Kiefer, Wolfowitz and Massart.
    """
    excess = distance - scipy.stats.kstwo.isf(rate, trials)
    return float(2 * np.exp(-2 * trials * excess**2)) if excess > 0 else 1.0


def missed_by_correlation(trials, correlation, rate=FALSE_POSITIVE_RATE) -> float:
    """Returns the miss rate of a two-sided test of correlation, by Fisher's transform."""
    with np.errstate(divide="ignore"):
        shift = np.sqrt(trials - 3) * np.arctanh(min(abs(correlation), 1.0))
    return float(scipy.stats.norm.sf(shift - scipy.stats.norm.isf(rate / 2)))


def missed_by_count(trials, share, truth, rate=FALSE_POSITIVE_RATE) -> float:
    """Returns the miss rate of `p_of_count` if the true share is `truth`."""
    low = scipy.stats.binom.ppf(rate / 2, trials, share)
    high = scipy.stats.binom.isf(rate / 2, trials, share)
    return float(
        scipy.stats.binom.cdf(high, trials, truth) - scipy.stats.binom.cdf(low - 1, trials, truth)
    )


def missed_by_variance(trials, ratio, rate=FALSE_POSITIVE_RATE) -> float:
    """Returns the exact miss rate of a two-sided chi-square test of the variance of normals.

    The true variance is `ratio` times the claimed one.
    """
    low = scipy.stats.chi2.ppf(rate / 2, trials)
    high = scipy.stats.chi2.isf(rate / 2, trials)
    return float(
        scipy.stats.chi2.cdf(high / ratio, trials) - scipy.stats.chi2.cdf(low / ratio, trials)
    )


def missed_by_game(trials, snr, claimed, rate=FALSE_POSITIVE_RATE) -> float:
    """Returns the miss rate of a distinguishing attack's test that its signal-to-noise ratio
    exceeds the claim.

    This also bounds the miss rates of its tests of signal and noise. A measured ratio r has
    variance (4 + r^2 / 2) / trials to first order, if half of the trials have the client.
    """
    at_claim, at_truth = (np.sqrt((4 + ratio**2 / 2) / trials) for ratio in (claimed, snr))
    return float(
        scipy.stats.norm.cdf((claimed + scipy.stats.norm.isf(rate) * at_claim - snr) / at_truth)
    )


def missed_by_noise_audit(covariance, coordinates, rate) -> float:
    """Returns an upper bound on the miss rate of `audit_noise`: that of its best single test.

    Args:
      covariance: covariance of the n rounds of the whitened noise; the identity is claimed.
      coordinates: number of its independent samples.
      rate: `NoiseAudit.threshold`, at which a single test reports a finding.
    """
    n = len(covariance)
    variances = np.diagonal(covariance)
    mean = variances.mean()
    spread = np.sqrt(2 * (covariance**2).sum() / coordinates) / n
    limit = np.sqrt(2 / (n * coordinates)) * scipy.stats.norm.isf(rate / 2)
    missed = [float(scipy.stats.norm.sf((abs(mean - 1) - limit) / spread))]
    missed += [
        missed_by_variance(coordinates, ratio, rate / n)
        for ratio in (variances.min(), variances.max())
    ]
    correlations = covariance / np.sqrt(np.outer(variances, variances))
    pairs = n * (n - 1) // 2
    if pairs:
        largest_correlation = np.abs(np.tril(correlations, -1)).max()
        missed.append(missed_by_correlation(coordinates, largest_correlation, rate / pairs))
    return min(missed)


def p_of_count(count, trials, share) -> float:
    """Computes the two-sided p-value of a binomial count."""
    tails = (
        scipy.stats.binom.cdf(count, trials, share),
        scipy.stats.binom.sf(count - 1, trials, share),
    )
    return float(min(1.0, 2 * min(tails)))


def preference_probabilities(places, weight, size=1) -> tuple[np.ndarray, np.ndarray]:
    """Returns the probabilities of all sets of `size` places: uniform ones, and with a preferred
    place.

    The first place then has `weight` times the chance of each other place.
    """
    sets = list(itertools.combinations(range(places), size))
    weights = np.ones(places)
    weights[0] = weight

    def probability(drawn):
        remaining_weight = weights.sum()
        product = 1.0
        for drawn_place in drawn:
            product *= weights[drawn_place] / remaining_weight
            remaining_weight -= weights[drawn_place]
        return product

    truth = np.array(
        [sum(map(probability, itertools.permutations(place_set))) for place_set in sets]
    )
    return np.full(len(sets), 1 / len(sets)), truth


def draws_that_detect(claimed, truth, rate=FALSE_POSITIVE_RATE) -> int:
    """Returns the number of draws with which Pearson's test tells `truth` from `claimed`."""
    distance = float(((truth - claimed) ** 2 / claimed).sum())
    return trials_that_detect(
        lambda draws: missed_by_chi_square(draws * distance, len(claimed) - 1, rate)
    )


def is_uncorrelated(a, b, departure) -> bool:
    """Returns whether the correlation of two samples is within its limits.

    A correlation of `departure` would exceed them.
    """
    assert missed_by_correlation(len(a), departure) <= MISS_RATE, (
        "too few trials for this departure"
    )
    return bool(scipy.stats.pearsonr(a, b)[1] > FALSE_POSITIVE_RATE)


def has_distribution(values, distribution, departure) -> bool:
    """Returns whether values pass a Kolmogorov-Smirnov test.

    Values of a distribution at a distance above `departure` would fail it.
    """
    assert missed_by_distance(len(values), departure) <= MISS_RATE, (
        "too few trials for this departure"
    )
    return bool(scipy.stats.kstest(values, distribution).pvalue > FALSE_POSITIVE_RATE)


def has_share(count, trials, share, departure) -> bool:
    """Returns whether a count fits its share; a count of share `departure` would not."""
    assert missed_by_count(trials, share, departure) <= MISS_RATE, (
        "too few trials for this departure"
    )
    return p_of_count(count, trials, share) > FALSE_POSITIVE_RATE
