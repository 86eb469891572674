"""The noise of an aggregator, seen on updates of zeros: how large it is, whether every array has
some, and whether entries, rounds and starts have their own.

`fedmf.audits.noise` tests it. With noise that may be correlated over rounds the covariance of the
rounds is estimated from all entries, which are independent samples of it.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedmf.audits.aggregator_claim import Evidence, nearest
from fedmf.audits.noise import audit_noise
from fedmf.participation.schema import Participation

# Entries of an array whose dependence is tested; all are tested for their size.
_COMPARED = 50_000
_MANY = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """What of the noise the other plays need, in units.

    Attributes:
      by_round: variance in each round of a run, (rounds,).
      sigma: standard deviation over all.
      weights: (rounds,), sum 1, of the rounds' releases in the best mean of a run.
      spread: standard deviation of that mean along a unit vector.
    """

    by_round: np.ndarray
    sigma: float
    weights: np.ndarray
    spread: float


def judge_noise(rows: np.ndarray, evidence: Evidence, raised: str) -> Noise | None:
    """Judges the releases of updates of zeros, in units: float64 (2 runs, rounds, entries).

    None where they are no numbers: then nothing else can be judged. `raised` says what updates of
    zeros did where the releases are of others, next to zero.
    """
    claim = evidence.claim
    _, length, d = rows.shape
    done = f"{2 * length} rounds of {claim.clients} updates of zeros"
    evidence.broken = not np.isfinite(rows).all()
    seen = raised or ("not a number came out" if evidence.broken else "numbers came out")
    mistake = "A clip factor clip_norm / norm, of norm 0, does this: use max(norm, 1e-12)."
    evidence.say("zeros", float(not raised and not evidence.broken), (done, seen, "noise"), mistake)
    if evidence.broken:
        return None
    _size(rows, done, evidence)
    by_round = (rows**2).mean(axis=(0, 2))
    if by_round.any():
        _kind(rows, done, evidence)
    sigma = max(math.sqrt(by_round.mean()), 1e-9)
    weights = np.full(length, 1 / length)
    spread = sigma / math.sqrt(length)
    if claim.correlated:  # what best tells a movement that is the same in each round
        G = sum(run @ run.T for run in rows) / (2 * d)
        X = np.linalg.inv(G + 1e-12 * sigma**2 * np.eye(length))
        weights = X.sum(axis=0) / X.sum()
        spread = 1 / math.sqrt(X.sum())
    return Noise(by_round=by_round, sigma=sigma, weights=weights, spread=spread)


def _size(rows: np.ndarray, done: str, evidence: Evidence) -> None:
    from scipy import stats

    claim = evidence.claim
    _, length, d = rows.shape
    z = claim.multiplier()
    rounds = rows.reshape(-1, d)
    degrees = rows.size
    ratio = math.sqrt((rows**2).mean()) / z
    n = claim.clients
    mistakes = {
        math.sqrt(2): "Noise that is added twice does this: it guarantees more, and costs.",
        n: "Noise of a sum on a mean does this: divide sum and noise together.",
        1 / n: "Noise of a mean on a sum does this.",
        math.sqrt(n): "Every client adding the whole noise does this.",
        1 / math.sqrt(n): "Every client adding its share of the noise, and a mean that divides "
        "it again, does this.",
    }
    U = _patterns(length, claim.min_sep or length)
    given = _unexplained(rounds, U)
    freedom = d - len(rounds) + 1
    sees = 1 + math.sqrt(1 / (2 * degrees)) * evidence.reach()
    if claim.correlated:
        # 1 / u' G^-1 u is chi-squared about 1 / u' Sigma^-1 u (Muirhead 1982, Theorem 3.2.12).
        p = len(U) * float(stats.chi2.cdf(given.min() / z**2, freedom))
        worst = math.sqrt(given.min() / freedom)
        seen = f"a noise multiplier of {worst:.4g} over {length} rounds"
        claimed = f"{z:.4g} at least"
        mistake = "Noise that is smaller, or that rounds share, does this."
    else:
        squares = float((rows**2).sum()) / z**2
        p = 2 * min(stats.chi2.cdf(squares, degrees), stats.chi2.sf(squares, degrees))
        one = ratio * z * claim.unit
        seen = f"noise of standard deviation {one:.4g}, a noise multiplier of "
        seen += f"{ratio * z:.4g}"
        claimed = f"{z * claim.unit:.4g}, of {z:.4g}"
        mistake = nearest(ratio, 0.0, mistakes) or "The scale of the noise is another."
    evidence.say("noise", p, (done, seen, claimed), mistake, sees)
    evidence.most_noise = math.sqrt(
        min(
            given.min() / stats.chi2.ppf(evidence.error / len(U), freedom), *_bounds(rows, evidence)
        )
    )


def _bounds(rows: np.ndarray, evidence: Evidence) -> Iterator[float]:
    """Upper bounds on the variance of the noise of an array, of an array where another is
    known, and of a frequency over entries, which is 0 where entries share a draw.
    """
    import scipy.fft
    from scipy import stats

    # Of correlated noise the first round of each run has independent entries.
    claim = evidence.claim
    d = rows.shape[2]
    kept = rows[:, 0] if claim.correlated else rows.reshape(-1, d)
    parts = np.split(kept, np.cumsum(claim.sizes)[:-1], axis=1)
    for part in parts:
        yield (part**2).sum() / stats.chi2.ppf(evidence.error / len(parts), part.size)
    longest = [part for part in parts if part.shape[1] >= _MANY]
    if len(longest) > 1:
        common = min(part.shape[1] for part in longest)
        samples = np.array([part[:, :common].ravel() for part in longest])
        left = _unexplained(samples)
        freedom = samples.shape[1] - len(samples) + 1
        yield left.min() / stats.chi2.ppf(evidence.error / len(samples), freedom)
    fast = 2 ** int(math.log2(d))
    squares = (scipy.fft.dct(kept[:, :fast], axis=1, norm="ortho") ** 2).sum(axis=0)
    yield squares.min() / stats.chi2.ppf(evidence.error / fast, len(kept))


def _patterns(length: int, min_sep: int) -> np.ndarray:
    """Contributions of a client to the rounds of both runs, one a row, up to their sign."""
    schema = Participation(rounds=length, schema="min_sep", min_sep=min(min_sep, length))
    rows = []
    for pattern in schema.patterns():
        for signs in itertools.product((1.0, -1.0), repeat=len(pattern) - 1):
            u = np.zeros(length)
            u[list(pattern)] = (1.0, *signs)
            rows.append(u)
    return np.kron(np.eye(2), np.array(rows))


def _kind(rows: np.ndarray, done: str, evidence: Evidence) -> None:
    # Divided by its own size, so that a wrong size is one failure and not four. Of correlated
    # noise the first round has independent entries.
    claim = evidence.claim
    rng = np.random.default_rng(evidence.claim.seed)
    ends = np.cumsum(claim.sizes)
    sizes = [min(size, _COMPARED) for size in claim.sizes]
    columns = [
        end - size + np.sort(rng.choice(size, taken, replace=False))
        for end, size, taken in zip(ends, claim.sizes, sizes, strict=True)
    ]
    kept = (rows[:, :1] if claim.correlated else rows)[:, :, np.concatenate(columns)]
    unit = [run / math.sqrt((run**2).mean()) for run in kept]
    groups: dict[str, list[Any]] = {"arrays": [], "dependence": [], "start": []}
    with np.errstate(invalid="ignore"):  # a round without noise has no correlation
        findings = audit_noise(unit, leaves=sizes).findings
    for finding in findings:
        of_leaf = "variance of a leaf" in finding.name
        two = finding.name.startswith("runs")
        groups["start" if two else "arrays" if of_leaf else "dependence"].append(finding)
    claims = {
        "arrays": ("the same noise in every array", "An array that gets no noise, or its own."),
        "dependence": (
            "independent normal noise in every entry" + " and round" * (not claim.correlated),
            "One draw for several arrays or rounds, or a seed that is the same each round, "
            "does this. For noise that is meant to be correlated over rounds say so: "
            '`noise`="correlated".',
        ),
        "start": (
            "other noise after each start",
            "A seed that is a constant, or the number of the round, does this: whoever knows "
            "it takes the noise away.",
        ),
    }
    for name, (claimed, mistake) in claims.items():
        found = groups[name]
        if found:
            # A p-value that is not a number contradicts the claim.
            worst = min(found, key=lambda finding: np.nan_to_num(finding.p_value))
            p = len(found) * float(np.nan_to_num(worst.p_value))
            seen = f"{worst.name} is {worst.statistic:.4g}"
            evidence.say(name, p, (done, seen, claimed), mistake)


def _unexplained(rows: np.ndarray, contributions: np.ndarray | None = None) -> np.ndarray:
    """1 / u' (Y Y')^-1 u for the rows of Y and each u, by default each row alone: what is left of
    the sum of squares when the other rows are known.
    """
    G = rows @ rows.T
    X = np.linalg.inv(G + (1e-12 * np.trace(G) / len(G) + 1e-200) * np.eye(len(G)))
    U = np.eye(len(G)) if contributions is None else contributions
    return 1 / np.einsum("us,st,ut->u", U, X, U)
