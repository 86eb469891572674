"""Whether released noise has the distribution that a plan claims: a battery of exact tests with one false-positive rate.

Claim: the d columns of Y (n, d) are independent Normal(0, scale^2 N N^T). N^T = Q R gives the causal square root L = R^T, L L^T =
N N^T, without ever forming N N^T, and then

    W = L^-1 Y / scale        (n, d), all entries independent standard normals, exactly

Every test below has an exact p-value under that claim, so that Bonferroni's correction bounds the chance that an honest run fails
any of them. W says nothing of how Y was made: it knows N by definition, in float64, and not the code that ran.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedmf import checks

FALSE_POSITIVE_RATE = 1e-6
# Lags at which rounds are compared all together; the lengths at which rows of noise are made in blocks are among them.
_LAGS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256)
# Coordinates that are compared in all pairs, and multiplications that it may cost.
_MAX_COMPARED, _PAIRS_BUDGET = 2048, 4e9
_BLOCK = 1024
# Rounding of float32 rows, in standard deviations of W, up to which W is taken for exact.
_ROUNDING_LIMIT = 1e-2


def check_false_positive_rate(rate: float) -> None:
    """Raises unless the rate is in (0, 1)."""
    hint = "use a small number such as 1e-6"
    if not 0 < checks.real("false_positive_rate", rate, hint=hint) < 1:
        raise ValueError(f"false_positive_rate={rate} must be in (0, 1): {hint}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One test.

    Attributes:
      name: what was looked at.
      statistic: a number to read, named in `name`: a ratio of variances, a correlation, a distance.
      p_value: chance of a statistic at least as extreme under the claim; exact, or an upper bound where tests are put together.
    """

    name: str
    statistic: float
    p_value: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseAudit:
    """All findings, and the verdict at one false-positive rate.

    Attributes:
      findings: one a test.
      false_positive_rate: chance, at most, that honest noise fails (Bonferroni).
    """

    findings: tuple[Finding, ...]
    false_positive_rate: float = FALSE_POSITIVE_RATE

    def __post_init__(self) -> None:
        check_false_positive_rate(self.false_positive_rate)

    @property
    def threshold(self) -> float:
        """The p-value below which a finding contradicts the claim."""
        return self.false_positive_rate / len(self.findings)

    @property
    def contradictions(self) -> tuple[Finding, ...]:
        """Findings that contradict the claim, the worst first."""
        return tuple(
            sorted((f for f in self.findings if not f.p_value >= self.threshold), key=lambda finding: finding.p_value)
        )

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
    N = checks.array("noising", noising, ndim=2)
    n, m = N.shape
    if n == m and not np.triu(N, 1).any() and (np.diagonal(N) > 0).all():
        return N
    if m < n:
        raise ValueError(f"noising has shape {N.shape}, fewer sources than rounds: no N of an encoder has")
    import scipy.linalg

    (R,) = scipy.linalg.qr(N.T, mode="r", check_finite=False)
    R = R[:n]
    signs = np.sign(np.diagonal(R))
    if not signs.all():
        raise ValueError("noising has linearly dependent rows: no N of an encoder has, check N C = I")
    return np.ascontiguousarray((R * signs[:, None]).T)


def whiten(factor: np.ndarray, rows: np.ndarray, scale: float) -> np.ndarray:
    """W = L^-1 Y / scale, (n, d).

    Args:
      factor: L, from `causal_factor`.
      rows: Y, (n, d), what was released in each round.
      scale: standard deviation of Z in the units of Y, > 0.

    Raises:
      TypeError, ValueError: shapes do not fit, an entry is not finite, scale is not positive, or the factor is so ill-conditioned
        that the rounding of float32 rows would hide the noise.
    """
    import scipy.linalg

    Y = checks.array("rows", rows, ndim=2)
    n = factor.shape[0]
    if Y.shape[0] != n:
        raise ValueError(f"rows has shape {Y.shape}, but the plan has {n} rounds: release every round once")
    if checks.real("scale", scale, hint="it is the standard deviation of Z") <= 0:
        raise ValueError(f"scale={scale} must be positive: noise of a plan without noise cannot be audited")
    inverse = scipy.linalg.solve_triangular(factor, np.eye(n), lower=True, check_finite=False)
    # An entry of Y is off by at most 2^-24 of its own size, if nothing worse happened to it.
    rounding = 2.0**-24 * math.sqrt(float(((inverse**2) @ (factor**2).sum(axis=1)).max()))
    if not rounding < _ROUNDING_LIMIT:
        raise ValueError(
            f"noising is so ill-conditioned that the rounding of float32 rows alone moves the whitened noise by {rounding:.2g} "
            "standard deviations: this mechanism cannot be audited by its released rows"
        )
    W: np.ndarray = scipy.linalg.solve_triangular(factor, Y / scale, lower=True, check_finite=False)
    return W


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
    >>> audit_noise([W], leaves=(200, 100)).consistent, audit_noise([1.1 * W], leaves=(200, 100)).consistent
    (True, False)
    """
    check_false_positive_rate(false_positive_rate)
    runs = [checks.array("whitened", W, ndim=2) for W in whitened]
    if not runs or any(W.shape != runs[0].shape for W in runs):
        raise ValueError(f"whitened has shapes {[W.shape for W in runs]}: pass one run or several of the same shape")
    sizes = tuple(checks.integer("leaves", size, low=0, hint="sizes of the model's leaves") for size in leaves)
    if sum(sizes) != runs[0].shape[1]:
        raise ValueError(f"leaves={sizes} has {sum(sizes)} coordinates but the rows have {runs[0].shape[1]}")
    columns = _compared_coordinates(sizes, runs[0].shape[0])
    found: list[Finding] = []
    for number, W in enumerate(runs):
        prefix = f"run {number + 1}: " if len(runs) > 1 else ""
        found += [dataclasses.replace(f, name=prefix + f.name) for f in _findings_of_one_run(W, sizes, columns)]
    for (i, one), (j, other) in itertools.combinations(enumerate(runs), 2):
        found += [
            dataclasses.replace(f, name=f"runs {i + 1} and {j + 1}: {f.name}")
            for f in _findings_of_two_runs(one, other, columns)
        ]
    return NoiseAudit(findings=tuple(found), false_positive_rate=false_positive_rate)


def _findings_of_one_run(W: np.ndarray, leaves: tuple[int, ...], columns: np.ndarray) -> Iterator[Finding]:
    import scipy.fft

    n, d = W.shape
    squares = W**2
    yield _scale("variance, all entries", squares.reshape(1, -1))[0]
    ends = np.cumsum(leaves)
    parts = [slice(end - size, end) for end, size in zip(ends, leaves, strict=True) if size]
    if len(parts) > 1:
        yield _worst_of(
            "variance of a leaf",
            [_scale(f"columns {part.start}..{part.stop - 1}", squares[:, part].reshape(1, -1))[0] for part in parts],
        )
    yield from _scale("variance of a round", squares)
    yield from _scale("variance of a coordinate", squares.T)
    # An orthogonal change of basis leaves W's distribution as it is, and turns dependence over rounds of any stationary
    # kind into frequencies of unequal variance.
    if n > 1:
        yield from _scale("variance of a frequency over rounds", scipy.fft.dct(W, axis=0, norm="ortho") ** 2)
    if d > 1:
        yield from _scale("variance of a frequency over coordinates", scipy.fft.dct(W.T, axis=0, norm="ortho") ** 2)
    yield _mean("mean, all entries", W.reshape(1, -1))
    yield _mean("mean of a round", W)
    yield _mean("mean of a coordinate", W.T)
    if n > 1:
        pairs = {lag: _disjoint_pairs(n, lag) for lag in (*_LAGS, n // 2) if lag <= n // 2}
        lags = [_correlation(f"{lag} apart", W[first], W[second]) for lag, (first, second) in pairs.items()]
        yield _worst_of("correlation of rounds", lags)
    if len(parts) > 1:
        leaf_pairs = []
        for one, other in itertools.combinations(parts, 2):
            common = min(one.stop - one.start, other.stop - other.start)
            name = f"columns {one.start}.. with {other.start}.."
            leaf_pairs.append(_correlation(name, W[:, one][:, :common], W[:, other][:, :common]))
        yield _worst_of("correlation of leaves", leaf_pairs)
    if n > 1:
        yield _largest_correlation("correlation of any two rounds", W, W, lambda s, t: s < t)
    coordinates = np.ascontiguousarray(W[:, columns].T)
    if d > 1:
        yield _largest_correlation("correlation of any two coordinates", coordinates, coordinates, lambda i, j: i < j)
    if n > 1 and d > 1:
        # Two coordinates, so that the compared entries are distinct; one coordinate with itself is a lag above.
        yield _largest_correlation(
            "correlation of any two coordinates, a round apart",
            coordinates[:, :-1],
            coordinates[:, 1:],
            lambda i, j: i != j,
        )
    yield _distance("normality: distance of the distribution of all entries", W.ravel(), "norm")


def _findings_of_two_runs(one: np.ndarray, other: np.ndarray, columns: np.ndarray) -> Iterator[Finding]:
    yield _correlation("correlation of the same entries", one, other)
    yield _largest_correlation("correlation of any round with any round", one, other, lambda s, t: (s >= 0) & (t >= 0))
    yield _largest_correlation(
        "correlation of any coordinate with any coordinate",
        np.ascontiguousarray(one[:, columns].T),
        np.ascontiguousarray(other[:, columns].T),
        lambda i, j: (i >= 0) & (j >= 0),
    )


def _compared_coordinates(leaves: tuple[int, ...], rounds: int) -> np.ndarray:
    """Columns of which all pairs are compared: all, or so many of each leaf's first that it stays affordable."""
    affordable = max(2, min(_MAX_COMPARED, int(math.sqrt(_PAIRS_BUDGET / rounds))))
    most = affordable
    while most > 1 and sum(min(size, most) for size in leaves) > affordable:
        most = most * 3 // 4
    starts = np.cumsum((0, *leaves))
    return np.concatenate(
        [np.arange(start, start + min(size, most)) for start, size in zip(starts, leaves, strict=False)]
    )


def _disjoint_pairs(n: int, lag: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rounds (t, t + lag) of which no two share a round."""
    first = np.flatnonzero(np.arange(n) % (2 * lag) < lag)
    first = first[first + lag < n]
    return first, first + lag


def _scale(name: str, squares: np.ndarray) -> list[Finding]:
    """Row sums of squares of standard normals are chi-squared, and independent: the most extreme one, and all of them.

    The p-values of many rows are uniform, which a Kolmogorov-Smirnov test checks; the least of them is at most p with chance
    1 - (1 - p)^rows.
    """
    import scipy.stats

    groups, size = squares.shape
    sums = squares.sum(axis=1)
    lower, upper = scipy.stats.chi2.cdf(sums, size), scipy.stats.chi2.sf(sums, size)
    p = np.minimum(2 * np.minimum(lower, upper), 1)
    worst = int(p.argmin())
    found = [Finding(name=name, statistic=float(sums[worst] / size), p_value=_least_of(float(p[worst]), groups))]
    if groups > 1:
        found[0] = dataclasses.replace(found[0], name=f"{name}, the most extreme of {groups:,}")
        found.append(_distance(f"{name}: distance of all from chi-square", lower, "uniform"))
    return found


def _worst_of(name: str, found: list[Finding]) -> Finding:
    """Several findings as one, by Bonferroni's correction."""
    worst = min(found, key=lambda finding: finding.p_value)
    name = f"{name}, the most extreme of {len(found)}: {worst.name}"
    return Finding(name=name, statistic=worst.statistic, p_value=min(1.0, len(found) * worst.p_value))


def _mean(name: str, rows: np.ndarray) -> Finding:
    """Row means times sqrt(size) are independent standard normals; the most extreme one."""
    import scipy.special

    z = rows.sum(axis=1) / math.sqrt(rows.shape[1])
    worst = int(np.abs(z).argmax())
    p = 2 * float(scipy.special.ndtr(-abs(z[worst])))
    return Finding(name=name, statistic=float(z[worst]) / math.sqrt(rows.shape[1]), p_value=_least_of(p, len(z)))


def _least_of(p: float, count: int) -> float:
    """Chance that the least of `count` independent uniform p-values is at most p."""
    return -math.expm1(count * math.log1p(-p)) if p < 1 else 1.0


def _correlation(name: str, one: np.ndarray, other: np.ndarray) -> Finding:
    """Correlation about 0 of distinct entries: r sqrt((M - 1) / (1 - r^2)) is Student's t with M - 1 degrees of freedom."""
    a, b = one.ravel(), other.ravel()
    r = float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))
    return Finding(name=name, statistic=r, p_value=_p_of_correlation(r, a.size))


def _p_of_correlation(r: float, count: int) -> float:
    import scipy.stats

    if count < 2:
        return 1.0
    t = abs(r) * math.sqrt((count - 1) / max(1 - r * r, 1e-300))
    return min(1.0, 2 * float(scipy.stats.t.sf(t, count - 1)))


def _largest_correlation(
    name: str, one: np.ndarray, other: np.ndarray, pairs: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> Finding:
    """The largest correlation about 0 of a row of `one` with a row of `other`, of those `pairs`; p by Bonferroni."""
    a, b = (M / np.maximum(np.linalg.norm(M, axis=1, keepdims=True), 1e-300) for M in (one, other))
    largest, count = 0.0, 0
    for first in range(0, len(a), _BLOCK):
        correlations = a[first : first + _BLOCK] @ b.T
        allowed = pairs(np.arange(first, first + len(correlations))[:, None], np.arange(len(b))[None, :])
        count += int(allowed.sum())
        # Zero where not allowed.
        correlations *= allowed
        extreme = float(correlations.flat[int(np.abs(correlations).argmax())])
        largest = max(largest, extreme, key=abs)
    return Finding(
        name=f"{name}, the largest of {count:,}",
        statistic=largest,
        p_value=min(1.0, count * _p_of_correlation(largest, a.shape[1])),
    )


def _distance(name: str, values: np.ndarray, distribution: str) -> Finding:
    """Kolmogorov-Smirnov distance of independent values from their distribution."""
    import scipy.special
    import scipy.stats

    uniform = np.sort(scipy.special.ndtr(values) if distribution == "norm" else values)
    steps = np.arange(len(uniform) + 1) / len(uniform)
    distance = float(max((steps[1:] - uniform).max(), (uniform - steps[:-1]).max()))
    return Finding(name=name, statistic=distance, p_value=float(scipy.stats.kstwo.sf(distance, len(uniform))))
