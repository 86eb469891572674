"""Tests whether released noise has the distribution that a plan claims,
all with one false-positive rate.

Claim: the d columns of Y (n, d) are independent Normal(0, scale^2 N N^T). N^T = Q R gives the
causal square root L = R^T, L L^T = N N^T, without ever forming N N^T, and then

    W = L^-1 Y / scale        (n, d), all entries independent standard normals, exactly

Every test below has an exact p-value under that claim, or an upper bound of it. Bonferroni's
correction then bounds the chance that an honest run fails any of them. W knows N by definition, in
float64, and nothing of the code that made Y.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from fedmf import checks, fields
from fedmf.audits import tails
from fedmf.audits.finding import Finding
from fedmf.numpy_errors import with_numpy_defaults

FALSE_POSITIVE_RATE = 1e-6
# Lags at which rounds are compared all together. The lengths of the blocks in which rows of noise
# are made are among them.
_LAGS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256)
MAX_COMPARED_COORDINATES, MAX_PAIR_MULTIPLICATIONS = 2048, 4e9
_BLOCK = 1024
# The rounding of float32 rows may move W by so many standard deviations.
MAX_ROUNDING_STDDEVS = 1e-2


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseAudit(fields.Checked):
    """All findings, and the verdict at one false-positive rate.

    Attributes:
      findings: one a test.
      false_positive_rate: chance, at most, that honest noise fails (Bonferroni).
    """

    findings: tuple[Finding, ...]
    false_positive_rate: float = fields.positive_float(FALSE_POSITIVE_RATE, "", below=1)

    @property
    def threshold(self) -> float:
        """The p-value below which a finding contradicts the claim."""
        return self.false_positive_rate / len(self.findings)

    @property
    def contradictions(self) -> tuple[Finding, ...]:
        """Findings that contradict the claim, the worst first.

        A p-value that is not a number contradicts it.
        """
        against = [finding for finding in self.findings if not finding.p_value >= self.threshold]
        return tuple(sorted(against, key=lambda finding: finding.p_value))

    @property
    def consistent(self) -> bool:
        """Whether nothing contradicts the claim."""
        return not self.contradictions


def causal_factor(noising: np.ndarray) -> np.ndarray:
    """L, (n, n) lower-triangular with a positive diagonal, L L^T = N N^T.

    Args:
      noising: N, (n, m) of rank n.

    Raises:
      TypeError, ValueError: noising is not such a matrix.

    >>> causal_factor(np.array([[3.0, 4.0]]))
    array([[5.]])
    """
    N = checks.finite_array("noising", noising, ndim=2)
    n, m = N.shape
    if n == m and not np.triu(N, 1).any() and (np.diagonal(N) > 0).all():
        return N
    if m < n:
        raise ValueError(
            f"noising has shape {N.shape}, fewer sources than rounds: no N of an encoder has"
        )
    R = np.linalg.qr(N.T, mode="r")
    signs = np.sign(np.diagonal(R))
    if not signs.all():
        raise ValueError(
            "noising has linearly dependent rows: no N of an encoder has, check N C = I"
        )
    return np.ascontiguousarray((R * signs[:, None]).T)


def whiten(factor: np.ndarray, rows: np.ndarray, scale: float) -> np.ndarray:
    """W = L^-1 Y / scale, (n, d).

    Args:
      factor: L, from `causal_factor`.
      rows: Y, (n, d), what was released in each round.
      scale: standard deviation of Z in the units of Y, > 0.

    Raises:
      TypeError, ValueError: shapes do not fit, an entry is not finite, scale is not positive, or
        the factor is so ill-conditioned that the rounding of float32 rows would hide the noise.
    """
    import scipy.linalg

    Y = checks.finite_array("rows", rows, ndim=2)
    n = factor.shape[0]
    if Y.shape[0] != n:
        raise ValueError(
            f"rows has shape {Y.shape}, but the plan has {n} rounds: release every round once"
        )
    checks.positive("scale", scale, "noise of a plan without noise cannot be audited")
    inverse = scipy.linalg.solve_triangular(factor, np.eye(n), lower=True, check_finite=False)
    # An entry of Y is off by at most 2^-24 of its own size, if nothing worse happened to it.
    rounding = 2.0**-24 * math.sqrt(float(((inverse**2) @ (factor**2).sum(axis=1)).max()))
    if not rounding < MAX_ROUNDING_STDDEVS:
        raise ValueError(
            "noising is so ill-conditioned that the rounding of float32 rows alone moves the "
            f"whitened noise by {rounding:.2g} "
            "standard deviations: this mechanism cannot be audited by its released rows"
        )
    return scipy.linalg.solve_triangular(factor, Y / scale, lower=True, check_finite=False)


@with_numpy_defaults
def audit_noise(
    whitened: Sequence[np.ndarray],
    *,
    leaves: Sequence[int],
    false_positive_rate: float = FALSE_POSITIVE_RATE,
) -> NoiseAudit:
    """Tests that the entries of all runs are independent standard normals.

    Args:
      whitened: W of one run or several runs that must be independent, each (n, d).
      leaves: sizes of the model's leaves, in the order of the columns; their sum is d.
      false_positive_rate: of the whole audit, in (0, 1).

    Raises:
      TypeError, ValueError: naming the argument, its value and what to do instead.

    >>> rng = np.random.default_rng(1)
    >>> W = rng.standard_normal((64, 300))
    >>> [audit_noise([rows], leaves=(200, 100)).consistent for rows in (W, 1.1 * W)]
    [True, False]
    """
    runs = [checks.finite_array("whitened", W, ndim=2) for W in whitened]
    if not runs or any(W.shape != runs[0].shape for W in runs):
        raise ValueError(
            f"whitened has shapes {[W.shape for W in runs]}: pass one run or "
            "several of the same shape"
        )
    sizes = tuple(
        checks.integer("leaves", size, low=0, hint="sizes of the model's leaves") for size in leaves
    )
    if sum(sizes) != runs[0].shape[1]:
        raise ValueError(
            f"leaves={sizes} has {sum(sizes)} coordinates but the rows have {runs[0].shape[1]}"
        )
    columns = _compared_coordinates(sizes, runs[0].shape[0])
    findings: list[Finding] = []
    for number, W in enumerate(runs, 1):
        prefix = f"run {number}: " if len(runs) > 1 else ""
        findings += [
            dataclasses.replace(f, name=prefix + f.name)
            for f in _findings_of_one_run(W, sizes, columns)
        ]
    for (i, one), (j, other) in itertools.combinations(enumerate(runs, 1), 2):
        pair = _findings_of_two_runs(one, other, columns)
        findings += [dataclasses.replace(f, name=f"runs {i} and {j}: {f.name}") for f in pair]
    # The tails are rare: all runs together show the most of them.
    findings += tails.tail_findings(np.concatenate(runs))
    return NoiseAudit(findings=tuple(findings), false_positive_rate=false_positive_rate)


def _findings_of_one_run(
    W: np.ndarray, leaves: tuple[int, ...], columns: np.ndarray
) -> Iterator[Finding]:
    import scipy.fft

    n, d = W.shape
    for name, rows in (("all entries", W.reshape(1, -1)), ("a round", W), ("a coordinate", W.T)):
        yield from _scale(f"variance of {name}", rows)
        yield _mean(f"mean of {name}", rows)
    yield _distance("normality: distance of the distribution of all entries", W.ravel(), "norm")
    parts = {
        f"columns {end - size}..{end - 1}": W[:, end - size : end]
        for end, size in zip(np.cumsum(leaves), leaves, strict=True)
        if size
    }
    if len(parts) > 1:
        yield _worst_of(
            "variance of a leaf",
            [next(_scale(name, part.reshape(1, -1))) for name, part in parts.items()],
        )
        leaf_pairs = []
        for (name, one), (name_of_other, other) in itertools.combinations(parts.items(), 2):
            common = min(one.shape[1], other.shape[1])
            leaf_pairs.append(
                _correlation(f"{name} with {name_of_other}", one[:, :common], other[:, :common])
            )
        yield _worst_of("correlation of leaves", leaf_pairs)
    # An orthogonal change of basis leaves W's distribution as it is, and turns dependence over
    # rounds of any stationary kind into frequencies of unequal variance.
    coordinates = np.ascontiguousarray(W[:, columns].T)
    for axis, rows, compared in (("round", W, W), ("coordinate", W.T, coordinates)):
        if len(rows) > 1:
            yield from _scale(
                f"variance of a frequency over {axis}s", scipy.fft.dct(rows, axis=0, norm="ortho")
            )
            yield _largest_correlation(f"correlation of any two {axis}s", compared)
    if n > 1:
        pairs = {lag: _disjoint_pairs(n, lag) for lag in (*_LAGS, n // 2) if lag <= n // 2}
        lags = [
            _correlation(f"{lag} apart", W[first], W[second])
            for lag, (first, second) in pairs.items()
        ]
        yield _worst_of("correlation of rounds", lags)
    if n > 1 and d > 1:
        # Two coordinates, so that the compared entries are distinct; one coordinate with itself is
        # a lag above.
        name = "correlation of any two coordinates, a round apart"
        yield _largest_correlation(name, coordinates[:, :-1], coordinates[:, 1:], skip_same=True)


def _findings_of_two_runs(
    one: np.ndarray, other: np.ndarray, columns: np.ndarray
) -> Iterator[Finding]:
    yield _correlation("correlation of the same entries", one, other)
    yield _largest_correlation("correlation of any round with any round", one, other)
    coordinates = [np.ascontiguousarray(W[:, columns].T) for W in (one, other)]
    yield _largest_correlation("correlation of any coordinate with any coordinate", *coordinates)


def _compared_coordinates(leaves: tuple[int, ...], rounds: int) -> np.ndarray:
    """Columns of which all pairs are compared: all, or so many of each leaf's first
    that it stays affordable.
    """
    affordable = max(
        2, min(MAX_COMPARED_COORDINATES, int(math.sqrt(MAX_PAIR_MULTIPLICATIONS / rounds)))
    )
    per_leaf = affordable
    while per_leaf > 1 and sum(min(size, per_leaf) for size in leaves) > affordable:
        per_leaf = per_leaf * 3 // 4
    starts = np.cumsum((0, *leaves))[:-1]
    return np.concatenate(
        [
            np.arange(start, start + min(size, per_leaf))
            for start, size in zip(starts, leaves, strict=True)
        ]
    )


def _disjoint_pairs(n: int, lag: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rounds (t, t + lag) of which no two share a round."""
    first = np.flatnonzero(np.arange(n) % (2 * lag) < lag)
    first = first[first + lag < n]
    return first, first + lag


def _scale(name: str, rows: np.ndarray) -> Iterator[Finding]:
    """Rows' sums of squares of standard normals are chi-squared, and independent: the most extreme
    one, and all of them.

    The p-values of many rows are uniform, which a Kolmogorov-Smirnov test checks; the least of them
    is at most p with chance 1 - (1 - p)^rows.
    """
    import scipy.special

    groups, size = rows.shape
    sums = (rows**2).sum(axis=1)
    # Of the chi-square distribution, without what scipy.stats does around them.
    lower = scipy.special.chdtr(size, sums)
    upper = scipy.special.chdtrc(size, sums)
    p = np.minimum(2 * np.minimum(lower, upper), 1)
    worst = int(p.argmin())
    words = f"{name}, the most extreme of {groups:,}" if groups > 1 else name
    yield Finding(
        name=words, statistic=float(sums[worst] / size), p_value=_least_of(float(p[worst]), groups)
    )
    if groups > 1:
        yield _distance(f"{name}: distance of all from chi-square", lower, "uniform")


def _worst_of(name: str, findings: list[Finding]) -> Finding:
    """Several findings as one, by Bonferroni's correction."""
    worst = min(findings, key=lambda finding: finding.p_value)
    name = f"{name}, the most extreme of {len(findings)}: {worst.name}"
    return Finding(
        name=name, statistic=worst.statistic, p_value=min(1.0, len(findings) * worst.p_value)
    )


def _mean(name: str, rows: np.ndarray) -> Finding:
    """Row means times sqrt(size) are independent standard normals; the most extreme one."""
    import scipy.special

    z = rows.sum(axis=1) / math.sqrt(rows.shape[1])
    worst = int(np.abs(z).argmax())
    p = 2 * float(scipy.special.ndtr(-abs(z[worst])))
    return Finding(
        name=name,
        statistic=float(z[worst]) / math.sqrt(rows.shape[1]),
        p_value=_least_of(p, len(z)),
    )


def _least_of(p: float, count: int) -> float:
    """Chance that the least of `count` independent uniform p-values is at most p."""
    return 1.0 if p >= 1 else -math.expm1(count * math.log1p(-p))


def _correlation(name: str, one: np.ndarray, other: np.ndarray) -> Finding:
    """Correlation about 0 of distinct entries."""
    a = one.ravel()
    b = other.ravel()
    r = float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))
    return Finding(name=name, statistic=r, p_value=_p_of_correlation(r, a.size))


def _p_of_correlation(r: float, count: int) -> float:
    """r sqrt((count - 1) / (1 - r^2)) is Student's t with count - 1 degrees of freedom."""
    import scipy.special

    t = abs(r) * math.sqrt((count - 1) / max(1 - r * r, 1e-300))
    return min(1.0, 2 * float(scipy.special.stdtr(count - 1, -t))) if count > 1 else 1.0


def _largest_correlation(
    name: str, one: np.ndarray, other: np.ndarray | None = None, *, skip_same: bool = False
) -> Finding:
    """The largest correlation about 0 of two rows of `one`, or of a row of `one` with a row of
    `other`; p by Bonferroni.
    """
    a, b = (
        M / np.maximum(np.linalg.norm(M, axis=1, keepdims=True), 1e-300)
        for M in (one, one if other is None else other)
    )
    largest = 0.0
    for first in range(0, len(a), _BLOCK):
        correlations = a[first : first + _BLOCK] @ b.T
        if other is None:
            correlations = np.triu(correlations, first + 1)
        elif skip_same:
            np.fill_diagonal(correlations[:, first:], 0.0)
        largest = max(
            largest, float(correlations.flat[int(np.abs(correlations).argmax())]), key=abs
        )
    count = len(a) * (len(a) - 1) // 2 if other is None else len(a) * (len(b) - skip_same)
    p = min(1.0, count * _p_of_correlation(largest, a.shape[1]))
    return Finding(name=f"{name}, the largest of {count:,}", statistic=largest, p_value=p)


def _distance(name: str, values: np.ndarray, distribution: str) -> Finding:
    """Kolmogorov-Smirnov distance of independent values from their distribution,
    with its exact p-value.
    """
    import scipy.stats

    test = scipy.stats.kstest(values, distribution, method="exact")
    return Finding(name=name, statistic=float(test.statistic), p_value=float(test.pvalue))
