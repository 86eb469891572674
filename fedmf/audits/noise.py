"""Tests whether released noise has the distribution that a plan claims.

The noise of all n rounds is Y, an array of shape (n, d) for d coordinates. The claim is that its
columns are independent Normal(0, scale^2 N N^T), where N is the noise matrix. The QR
decomposition N^T = Q R gives the causal square root L = R^T, L L^T = N N^T, without forming N N^T,
and then

    W = L^-1 Y / scale        (n, d), all entries independent standard normals, exactly

(`fedmf.audits.whitening`).

Every test has an exact p-value under this claim, or an upper bound on it. By Bonferroni's
correction all tests together have one false-positive rate. W is computed from the definition of N
in float64, independently of the code that made Y.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fedmf import checks, fields
from fedmf.audits import tails
from fedmf.audits.finding import Finding
from fedmf.numpy_errors import with_numpy_defaults

FALSE_POSITIVE_RATE = 1e-6
# Distances of rounds at which the correlation of their noise is tested. They include the block
# lengths in which noise vectors are precomputed.
_LAGS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256)
# Pairwise correlations are tested for at most MAX_COMPARED_COORDINATES coordinates, or fewer if
# that takes more than MAX_PAIR_MULTIPLICATIONS multiplications.
MAX_COMPARED_COORDINATES = 2048
MAX_PAIR_MULTIPLICATIONS = 4e9
# Number of rows of the noise whose correlations with all other rows are computed at once.
_BLOCK_ROWS = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseAudit(fields.Checked):
    """Findings of all noise tests, with a verdict whose false-positive rate covers all tests
    together.

    Attributes:
      findings: one for each test.
      false_positive_rate: largest chance that noise as claimed fails any test (Bonferroni).
    """

    findings: tuple[Finding, ...]
    false_positive_rate: float = fields.positive_float(FALSE_POSITIVE_RATE, "", below=1)

    @property
    def threshold(self) -> float:
        """P-value below which a finding contradicts the claim."""
        return self.false_positive_rate / len(self.findings)

    @property
    def contradictions(self) -> tuple[Finding, ...]:
        """Findings that contradict the claim, sorted by p-value; NaN counts as a contradiction."""
        contradicting_findings = [
            finding for finding in self.findings if not finding.p_value >= self.threshold
        ]
        return tuple(sorted(contradicting_findings, key=lambda finding: finding.p_value))

    @property
    def consistent(self) -> bool:
        """Whether no finding contradicts the claim."""
        return not self.contradictions


@with_numpy_defaults
def audit_noise(
    whitened: Sequence[np.ndarray],
    *,
    leaves: Sequence[int],
    false_positive_rate: float = FALSE_POSITIVE_RATE,
) -> NoiseAudit:
    """Tests that the entries of the whitened noise of one or several runs are independent and
    standard normal.

    Args:
      whitened: W of one run, or of several independent runs, each (n, d).
      leaves: sizes of the model's leaves, in the order of the columns; their sum is d.
      false_positive_rate: of all tests together, in (0, 1).

    Raises:
      TypeError, ValueError: an argument of the wrong type, shape or range.

    >>> rng = np.random.default_rng(1)
    >>> W = rng.standard_normal((64, 300))
    >>> [audit_noise([rows], leaves=(200, 100)).consistent for rows in (W, 1.1 * W)]
    [True, False]
    """
    whitened_runs = [checks.finite_array("whitened", W, ndim=2) for W in whitened]
    if not whitened_runs or any(W.shape != whitened_runs[0].shape for W in whitened_runs):
        raise ValueError(
            f"whitened has shapes {[W.shape for W in whitened_runs]}: pass one run or "
            "several of the same shape"
        )
    leaf_sizes = tuple(
        checks.integer("leaves", size, low=0, hint="sizes of the model's leaves") for size in leaves
    )
    if sum(leaf_sizes) != whitened_runs[0].shape[1]:
        raise ValueError(
            f"leaves={leaf_sizes} has {sum(leaf_sizes)} coordinates but the rows have "
            f"{whitened_runs[0].shape[1]}"
        )
    compared_columns = _compared_coordinates(leaf_sizes, whitened_runs[0].shape[0])
    findings: list[Finding] = []
    for run_number, W in enumerate(whitened_runs, 1):
        run_prefix = ""
        if len(whitened_runs) > 1:
            run_prefix = f"run {run_number}: "
        findings += _with_prefix(run_prefix, _test_one_run(W, leaf_sizes, compared_columns))
    for (i, first_run), (j, second_run) in itertools.combinations(enumerate(whitened_runs, 1), 2):
        pair_findings = _test_two_runs(first_run, second_run, compared_columns)
        findings += _with_prefix(f"runs {i} and {j}: ", pair_findings)
    # Entries in the tails of the noise distribution are rare, so the tail tests use the entries of
    # all runs together.
    findings += tails.tail_findings(np.concatenate(whitened_runs))
    return NoiseAudit(findings=tuple(findings), false_positive_rate=false_positive_rate)


def _with_prefix(prefix: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yields findings after adding a prefix to their names."""
    for finding in findings:
        yield dataclasses.replace(finding, name=prefix + finding.name)


def _test_one_run(W: np.ndarray, leaves: tuple[int, ...], columns: np.ndarray) -> Iterator[Finding]:
    """Tests the entries of one run for mean, variance, normality and independence.

    Args:
      W: the whitened noise, (n, d).
      leaves: sizes of the model's leaves.
      columns: indices of the columns that are correlated in pairs.
    """
    import scipy.fft

    n, d = W.shape
    for group_name, rows in (
        ("all entries", W.reshape(1, -1)),
        ("a round", W),
        ("a coordinate", W.T),
    ):
        yield from _test_variances(f"variance of {group_name}", rows)
        yield _test_means(f"mean of {group_name}", rows)
    yield _test_distribution(
        "normality: distance of the distribution of all entries", W.ravel(), "norm"
    )
    yield from _test_leaves(W, leaves)
    # The cosine transform is orthogonal, so that independent standard normal entries stay
    # independent and standard normal. If entries depend on each other in the same way in all
    # rounds, some frequencies have a larger variance than others.
    coordinates = np.ascontiguousarray(W[:, columns].T)
    for axis, rows, compared_rows in (("round", W, W), ("coordinate", W.T, coordinates)):
        if len(rows) > 1:
            cosine_transform = scipy.fft.dct(rows, axis=0, norm="ortho")
            yield from _test_variances(f"variance of a frequency over {axis}s", cosine_transform)
            yield _largest_correlation(f"correlation of any two {axis}s", compared_rows)
    if n > 1:
        yield _test_lags(W)
    if n > 1 and d > 1:
        # `_test_lags` tests the correlation of a coordinate with the same coordinate one round
        # later.
        finding_name = "correlation of any two coordinates, a round apart"
        yield _largest_correlation(
            finding_name, coordinates[:, :-1], coordinates[:, 1:], skip_same=True
        )


def _test_leaves(W: np.ndarray, leaves: tuple[int, ...]) -> Iterator[Finding]:
    """Tests the noise variance of each model leaf, and the correlation of any two leaves."""
    W_by_leaf = {
        f"columns {end - size}..{end - 1}": W[:, end - size : end]
        for end, size in zip(np.cumsum(leaves), leaves, strict=True)
        if size
    }
    if len(W_by_leaf) < 2:
        return
    variance_findings = [
        next(_test_variances(name, leaf.reshape(1, -1))) for name, leaf in W_by_leaf.items()
    ]
    yield _worst_of("variance of a leaf", variance_findings)
    correlation_findings = []
    for first, second in itertools.combinations(W_by_leaf.items(), 2):
        first_name, first_leaf = first
        second_name, second_leaf = second
        num_columns = min(first_leaf.shape[1], second_leaf.shape[1])
        correlation_findings.append(
            _correlation(
                f"{first_name} with {second_name}",
                first_leaf[:, :num_columns],
                second_leaf[:, :num_columns],
            )
        )
    yield _worst_of("correlation of leaves", correlation_findings)


def _test_lags(W: np.ndarray) -> Finding:
    """Tests the correlation between rounds that are 1, 2, 3 and more rounds apart."""
    n = len(W)
    correlation_findings = []
    for lag in dict.fromkeys((*_LAGS, n // 2)):
        if lag <= n // 2:
            first_rounds = _disjoint_pairs(n, lag)
            first_rows = W[first_rounds]
            second_rows = W[first_rounds + lag]
            correlation_findings.append(_correlation(f"{lag} apart", first_rows, second_rows))
    return _worst_of("correlation of rounds", correlation_findings)


def _test_two_runs(
    first_run: np.ndarray, second_run: np.ndarray, columns: np.ndarray
) -> Iterator[Finding]:
    """Tests that the noise of two runs is independent."""
    yield _correlation("correlation of the same entries", first_run, second_run)
    yield _largest_correlation("correlation of any round with any round", first_run, second_run)
    first_coordinates = np.ascontiguousarray(first_run[:, columns].T)
    second_coordinates = np.ascontiguousarray(second_run[:, columns].T)
    finding_name = "correlation of any coordinate with any coordinate"
    yield _largest_correlation(finding_name, first_coordinates, second_coordinates)


def _compared_coordinates(leaves: tuple[int, ...], rounds: int) -> np.ndarray:
    """Returns the columns whose pairwise correlations are tested.

    These are all columns or, if they are too many, the first columns of each leaf.
    """
    affordable_by_time = int(math.sqrt(MAX_PAIR_MULTIPLICATIONS / rounds))
    max_columns = max(2, min(MAX_COMPARED_COORDINATES, affordable_by_time))
    max_per_leaf = max_columns
    while max_per_leaf > 1 and sum(min(size, max_per_leaf) for size in leaves) > max_columns:
        max_per_leaf = max_per_leaf * 3 // 4
    leaf_starts = np.cumsum((0, *leaves))[:-1]
    return np.concatenate(
        [
            np.arange(start, start + min(size, max_per_leaf))
            for start, size in zip(leaf_starts, leaves, strict=True)
        ]
    )


def _disjoint_pairs(n: int, lag: int) -> np.ndarray:
    """Returns rounds t for which no two of the pairs (t, t + lag) have a round in common."""
    first_rounds = np.flatnonzero(np.arange(n) % (2 * lag) < lag)
    return first_rounds[first_rounds + lag < n]


def _test_variances(name: str, rows: np.ndarray) -> Iterator[Finding]:
    """Tests the most extreme variance of any row, and the distribution of the variances of all
    rows.

    The sums of squares of rows of standard normals are independent and chi-squared. Their p-values
    are uniform, which a Kolmogorov-Smirnov test checks; the smallest of them is at most p with
    chance 1 - (1 - p)^rows.
    """
    import scipy.special

    num_rows, size = rows.shape
    square_sums = (rows**2).sum(axis=1)
    # chdtr and chdtrc are the chi-square distribution function and its complement. They have less
    # overhead than scipy.stats.
    lower_tail = scipy.special.chdtr(size, square_sums)
    upper_tail = scipy.special.chdtrc(size, square_sums)
    p_values = np.minimum(2 * np.minimum(lower_tail, upper_tail), 1)
    worst_index = int(p_values.argmin())
    finding_name = name
    if num_rows > 1:
        finding_name = f"{name}, the most extreme of {num_rows:,}"
    yield Finding(
        name=finding_name,
        statistic=float(square_sums[worst_index] / size),
        p_value=_p_value_of_smallest(float(p_values[worst_index]), num_rows),
    )
    if num_rows > 1:
        yield _test_distribution(f"{name}: distance of all from chi-square", lower_tail, "uniform")


def _worst_of(name: str, findings: list[Finding]) -> Finding:
    """Returns the finding with the smallest p-value, after Bonferroni's correction."""
    worst_finding = min(findings, key=lambda finding: finding.p_value)
    return Finding(
        name=f"{name}, the most extreme of {len(findings)}: {worst_finding.name}",
        statistic=worst_finding.statistic,
        p_value=min(1.0, len(findings) * worst_finding.p_value),
    )


def _test_means(name: str, rows: np.ndarray) -> Finding:
    """Tests the means of rows, by the most extreme of them.

    Under the claim the means times sqrt(size) are independent standard normals.
    """
    import scipy.special

    z_scores = rows.sum(axis=1) / math.sqrt(rows.shape[1])
    worst_index = int(np.abs(z_scores).argmax())
    p_value = 2 * float(scipy.special.ndtr(-abs(z_scores[worst_index])))
    return Finding(
        name=name,
        statistic=float(z_scores[worst_index]) / math.sqrt(rows.shape[1]),
        p_value=_p_value_of_smallest(p_value, len(z_scores)),
    )


def _p_value_of_smallest(p_value: float, num_tests: int) -> float:
    """Returns the chance that the smallest of several independent p-values is at most this one."""
    if p_value >= 1:
        return 1.0
    return -math.expm1(num_tests * math.log1p(-p_value))


def _correlation(name: str, first: np.ndarray, second: np.ndarray) -> Finding:
    """Tests whether two arrays are uncorrelated, given that their entries have mean 0."""
    first_values = first.ravel()
    second_values = second.ravel()
    correlation = float(
        first_values
        @ second_values
        / math.sqrt(float(first_values @ first_values) * float(second_values @ second_values))
    )
    return Finding(
        name=name,
        statistic=correlation,
        p_value=_correlation_p_value(correlation, first_values.size),
    )


def _correlation_p_value(r: float, num_pairs: int) -> float:
    """Returns the p-value of a correlation r of pairs of standard normals.

    If the pairs are independent, r sqrt((num_pairs - 1) / (1 - r^2)) has Student's t distribution
    with num_pairs - 1 degrees of freedom.
    """
    import scipy.special

    if num_pairs <= 1:
        return 1.0
    t_statistic = abs(r) * math.sqrt((num_pairs - 1) / max(1 - r * r, 1e-300))
    return min(1.0, 2 * float(scipy.special.stdtr(num_pairs - 1, -t_statistic)))


def _largest_correlation(
    name: str, rows: np.ndarray, other_rows: np.ndarray | None = None, *, skip_same: bool = False
) -> Finding:
    """Tests the largest correlation of any two rows, with Bonferroni's correction.

    Args:
      name: of the test.
      rows: (rows, size).
      other_rows: rows to correlate with each of `rows`; None for any two of `rows`.
      skip_same: whether pairs with the same index are excluded.
    """
    unit_rows = _unit_rows(rows)
    other_unit_rows = unit_rows
    num_correlations = len(unit_rows) * (len(unit_rows) - 1) // 2
    if other_rows is not None:
        other_unit_rows = _unit_rows(other_rows)
        num_correlations = len(unit_rows) * (len(other_unit_rows) - skip_same)
    largest_correlation = 0.0
    for start in range(0, len(unit_rows), _BLOCK_ROWS):
        correlations = unit_rows[start : start + _BLOCK_ROWS] @ other_unit_rows.T
        if other_rows is None:
            correlations = np.triu(correlations, start + 1)
        elif skip_same:
            np.fill_diagonal(correlations[:, start:], 0.0)
        largest_in_block = float(correlations.flat[int(np.abs(correlations).argmax())])
        largest_correlation = max(largest_correlation, largest_in_block, key=abs)
    return Finding(
        name=f"{name}, the largest of {num_correlations:,}",
        statistic=largest_correlation,
        p_value=min(
            1.0, num_correlations * _correlation_p_value(largest_correlation, unit_rows.shape[1])
        ),
    )


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    """Returns the rows of an array, each divided by its L2 norm."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)


def _test_distribution(name: str, values: np.ndarray, distribution: str) -> Finding:
    """Tests the distribution of independent values by their Kolmogorov-Smirnov distance.

    The p-value is exact.
    """
    import scipy.stats

    ks_test = scipy.stats.kstest(values, distribution, method="exact")
    return Finding(name=name, statistic=float(ks_test.statistic), p_value=float(ks_test.pvalue))
