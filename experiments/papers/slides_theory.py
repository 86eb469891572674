"""Theory of learning with correlated noise on the slides, compared with simulation, for mean
estimation, linear regression and finite time.

The stationary error of SGD with correlated noise is computed by the slides' Fourier formula, and
simulated with the noise streams of our mechanisms.

The data are x ~ Normal(0, H), where H has the eigenvalues `spectrum`. Labels have no noise, so that
what is left is the error that privacy costs. Let e be the difference of the weights from the
optimum, eta the learning rate, N = C^-1 the noise matrix, and Z a matrix of standard normal draws
with a row for each round. A step is

    e <- e - eta * (gradient(e) + stddev * row of N Z),    stddev = sensitivity / sqrt(2 rho)

for unit clip norm, although nothing is clipped. The error is the expectation of
<e, H e>, in units of 1 / rho. docs/papers/slides.md derives what the slides leave out.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import fedmf
from fedmf.experiments.papers.drawing import Line, Lines
from fedmf.experiments.papers.fits import fit, one_participation, sums_once
from fedmf.experiments.papers.item import Outcome, Request, figure
from fedmf.mechanisms.toeplitz.mechanism import ToeplitzMechanism
from fedmf.tasks.regression.data import RegressionOptions, client_examples, true_weights

# Spectra are summed at this many frequencies. The sums are exact up to (1 - eta * lambda)^POINTS,
# where eta is the learning rate and lambda the smallest eigenvalue.
POINTS = 1 << 17
OMEGA = 2 * np.pi * np.arange(POINTS) / POINTS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """Kind of correlated noise.

    Attributes:
      name: name of the kind of noise.
      power: power spectrum |B(omega)|^2 at the frequencies OMEGA, where B is the Fourier transform
        of the noise's coefficients; float64 (POINTS,).
      mechanism: function from rounds to the mechanism whose stream makes the noise.
      decay: fraction by which the coefficients of B and C = 1 / B shrink in a round. Those of the
        best noise shrink as the error of learning does.
    """

    name: str
    power: np.ndarray
    mechanism: Callable[[int], Any]
    decay: float = 1.0


def independent() -> Noise:
    """Returns independent noise, as in noisy SGD."""
    return Noise(
        name="independent",
        power=np.ones(POINTS),
        mechanism=lambda n: fit(*sums_once(n), "identity"),
    )


def damped(nu: float) -> Noise:
    """Returns the noise of nu-Noisy-FTRL, whose coefficients are those of (1 - (1 - nu)
    x)^(1/2).
    """
    return Noise(
        name="nu-FTRL",
        power=np.abs(1 - (1 - nu) * np.exp(1j * OMEGA)),
        mechanism=lambda n: fit(*sums_once(n), "toeplitz", coefficients="nu", nu=nu),
        decay=nu,
    )


def anti_pgd(nu: float) -> Noise:
    """Returns the noise of damped anti-PGD, which is each normal draw minus nu times the draw
    before.
    """
    return Noise(
        name="damped anti-PGD",
        power=np.abs(1 - nu * np.exp(1j * OMEGA)) ** 2,
        mechanism=lambda n: ToeplitzMechanism(rounds=n, noising_window=np.array([1.0, -nu])[:n]),
        decay=1 - nu,
    )


def best(eta: float, spectrum: np.ndarray, *, sampled: bool) -> Noise:
    """Returns the noise with the least stationary error, whose |B|^2 is proportional to W^(-1/2) by
    Cauchy and Schwarz.

    |B|^2 is the power spectrum of the noise, and W is the weight that `_weight` returns.

    The coefficients of C = 1 / B are those of the minimum-phase function with this modulus, which
    is computed from the modulus' cepstrum.
    """
    power = _weight(eta, spectrum, sampled) ** -0.5
    # The cepstrum of |C|, where C = 1 / B, and B is the Fourier transform of the noise's
    # coefficients.
    cepstrum = np.fft.ifft(-0.5 * np.log(power)).real
    causal_cepstrum = np.zeros(POINTS)
    causal_cepstrum[0] = cepstrum[0]
    causal_cepstrum[1 : POINTS // 2] = 2 * cepstrum[1 : POINTS // 2]
    c = np.fft.ifft(np.exp(np.fft.fft(causal_cepstrum))).real
    return Noise(
        name="best",
        power=power,
        mechanism=lambda n: ToeplitzMechanism(rounds=n, coefficients=c[:n]),
    )


def _weight(eta: float, spectrum: np.ndarray, sampled: bool) -> np.ndarray:
    """Returns the weight W of each frequency, float64 (POINTS,).

    The stationary error, in units of 1 / rho, is the mean of |B|^2 W times the mean of 1 / |B|^2,
    where |B|^2 is the power spectrum of the noise.
    """
    denominator = 2 - 2 * eta * spectrum
    share = (2 - eta * spectrum) / denominator if sampled else np.ones(len(spectrum))
    loss = 1 - (eta * spectrum / denominator).sum() if sampled else 1.0
    if loss <= 0:
        raise ValueError(
            f"eta={eta} is too large for examples of this spectrum: their own variance diverges"
        )
    turn = np.exp(1j * OMEGA)
    response = sum(
        s * v / np.abs(1 - eta * v - turn) ** 2 for s, v in zip(share, spectrum, strict=True)
    )
    return 0.5 * eta**2 * response / loss


def stationary_error(
    noise: Noise, eta: float, spectrum: np.ndarray, *, sampled: bool = False
) -> float:
    """Computes the stationary error by the slides' formula, in units of 1 / rho.

    Args:
      noise: kind of noise.
      eta: learning rate.
      spectrum: eigenvalues of H, (d,).
      sampled: whether each step has the gradient of one example, (x x^T) e, or the mean gradient H
        e, as in mean estimation.
    """
    return (noise.power * _weight(eta, spectrum, sampled)).mean() * (1 / noise.power).mean()


def rounds_for(noise: Noise, eta: float, spectrum: np.ndarray, left: float = 1e-4) -> int:
    """Returns the number of rounds after which the starting point no longer matters.

    The slowest decay, of errors or of coefficients, then leaves the share `left` of a square.
    """
    slowest = min(noise.decay, eta * spectrum.min())
    return max(2, int(np.ceil(np.log(left) / (2 * np.log1p(-slowest)))))


def simulated(
    noise: Noise,
    eta: float,
    spectrum: np.ndarray,
    *,
    rounds: int,
    chains: int,
    seed: int,
    sampled: bool = False,
) -> np.ndarray:
    """Simulates the error <e, H e> of independent chains after `rounds` rounds from e = 0, float64
    (chains,).

    H is the covariance of the data, and the error is in units of 1 / rho.

    The noise comes from the mechanism's stream, scaled by its sensitivity for one participation.
    """
    mechanism = noise.mechanism(rounds)
    stddev = fedmf.sensitivity(mechanism, one_participation(rounds)).value / np.sqrt(2.0)
    draws = np.random.default_rng([seed, 0])
    examples = np.random.default_rng([seed, 1])
    shape = (chains, len(spectrum))
    scale = np.sqrt(spectrum)
    e = np.zeros(shape)
    for row in mechanism.stream().rows(lambda i: draws.standard_normal(shape)):
        if sampled:
            x = scale * examples.standard_normal(shape)
            gradient = x * (x * e).sum(axis=1, keepdims=True)
        else:
            gradient = spectrum * e
        e = e - eta * (gradient + stddev * row)
    return (spectrum * e**2).sum(axis=1)


# A simulated mean counts as different from the formula if it is at least this many standard errors
# away. For a normal mean the chance of that is one in 1.7 million.
FAR = 5.0
SGD, ANTI, FTRL, BEST = "independent", "damped anti-PGD", "nu-FTRL", "best"


def high(d: int) -> np.ndarray:
    """Returns the slides' spectrum with the high effective dimension d."""
    return np.ones(d)


def low(d: int) -> np.ndarray:
    """Returns the slides' spectrum with the low effective dimension 2 - 1 / d."""
    return np.array([1.0, *[1.0 / d] * (d - 1)])


class Point(NamedTuple):
    """Row of numbers.csv, with the error by the formula and by simulation."""

    panel: str
    noise: str
    x: float
    formula: float
    simulated: float
    deviation: float
    deviations: float


@dataclasses.dataclass
class Comparison:
    """Comparison of stationary errors by the formula and by simulation, point by point.

    Attributes:
      chains: number of chains of a simulation, whose seed is the number of the point.
      sampled: whether gradients are of sampled examples, as for `stationary_error`.
      points: points that have been added so far.
    """

    chains: int
    sampled: bool
    points: list[Point] = dataclasses.field(default_factory=list)

    def add(self, panel: str, x: float, eta: float, spectrum: np.ndarray, *noises: Noise) -> None:
        """Adds a point with the error by formula and by simulation, for each kind of noise."""
        for noise in noises:
            formula = stationary_error(noise, eta, spectrum, sampled=self.sampled)
            simulation = simulated(
                noise,
                eta,
                spectrum,
                rounds=rounds_for(noise, eta, spectrum),
                chains=self.chains,
                seed=len(self.points),
                sampled=self.sampled,
            )
            mean = simulation.mean()
            error = simulation.std(ddof=1) / np.sqrt(self.chains)
            deviations = (mean - formula) / error
            self.points.append(Point(panel, noise.name, x, formula, mean, error, deviations))

    def line(self, panel: str, noise: str) -> np.ndarray:
        """Returns x, formula, simulation and its standard error of one line, float64 (4,
        points).
        """
        return np.array([p[2:6] for p in self.points if p[:2] == (panel, noise)]).T

    def powers(self, noise: str) -> list[float]:
        """Returns the power of x with which the formula grows, for each panel that has this
        noise.
        """
        lines = (self.line(panel, noise) for panel in dict.fromkeys(p.panel for p in self.points))
        logs = [np.log(line[:2]) for line in lines if line.size]
        return [np.polyfit(x, y, 1)[0] for x, y in logs]

    def outcome(self, xlabel: str, verdict: str, holds: bool, reduced: str) -> Outcome:
        """Returns an outcome that draws the formula, and the simulation with two of its standard
        errors.

        The outcome holds if both agree and `holds` is true.
        """
        panels: list[Lines] = []
        for panel in dict.fromkeys(p.panel for p in self.points):
            formulas = {}
            simulated_by_name = {}
            for noise in dict.fromkeys(p.noise for p in self.points if p.panel == panel):
                x, formula, mean, error = self.line(panel, noise)
                formulas[noise] = Line(x, formula)
                interval_ends = mean - 2 * error, mean + 2 * error
                simulated_by_name[f"{noise}, simulated"] = Line(x, mean, *interval_ends)
            ylabel = "" if panels else "stationary error · ρ"
            shape = {"beside": formulas, "points": True, "log": "xy", "ticks": x}
            panels.append(Lines(simulated_by_name, xlabel, ylabel, title=panel, **shape))
        largest_deviation = max(abs(p.deviations) for p in self.points)
        share = max(p.deviation / p.simulated for p in self.points)
        return Outcome(
            panels,
            f"The {len(self.points)} simulated errors are within {largest_deviation:.1f} standard "
            f"errors of the formula (each at most {100 * share:.1f}%). {verdict}",
            largest_deviation < FAR and holds,
            columns=("panel", "noise", "x", "formula", "simulated", "standard error", "deviations"),
            rows=self.points,
            seeds=tuple(range(len(self.points))),
            reduced=reduced,
        )


@figure("slides-mean-estimation")
def mean_estimation(request: Request) -> Outcome:
    """Draws the error of mean estimation over the learning rate, and over nu at one learning
    rate.
    """
    etas = request.pick(
        (0.02, 0.1), (0.02, 0.05, 0.1, 0.2, 0.4), (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
    )
    unit_spectrum = np.ones(1)
    comparison = Comparison(request.pick(4000, 20_000, 200_000), sampled=False)
    for eta in etas:
        noises = independent(), damped(eta), anti_pgd(1 - np.sqrt(2 * eta))
        comparison.add("over eta; nu = eta", eta, eta, unit_spectrum, *noises)
    for nu in (0.01, 0.02, 0.05, 0.2, 0.8):
        comparison.add(over_nu := "over nu; eta = 0.05", nu, 0.05, unit_spectrum, damped(nu))
    closed_form_error = max(
        abs(
            stationary_error(best(eta, unit_spectrum, sampled=False), eta, unit_spectrum)
            / stationary_error(damped(eta), eta, unit_spectrum)
            - 1
        )
        for eta in etas
    )
    nus, errors, *_ = comparison.line(over_nu, FTRL)
    least = nus[np.argmin(errors)]
    sgd, anti, ftrl = (comparison.powers(name)[0] for name in (SGD, ANTI, FTRL))
    return comparison.outcome(
        "eta (left), nu (right)",
        f"Error grows as eta to the {sgd:.2f}, {anti:.2f} and {ftrl:.2f} for independent noise, "
        f"anti-PGD and nu-FTRL; nu = eta is the optimum to {closed_form_error:.0e}, and at "
        f"eta = 0.05 the best nu tried is {least:g}.",
        closed_form_error < 1e-6 and least == 0.05 and sgd < 1.2 < anti < ftrl,
        "stationary from round to round; no clipping, as in the slides",
    )


@figure("slides-linear-regression")
def linear_regression(request: Request) -> Outcome:
    """Draws the error of linear regression over the dimension, for spectra of high and low
    effective dimension.
    """
    eta = request.pick(0.05, 0.02, 0.02)
    dimensions = request.pick((2, 4), (2, 4, 8, 16), (2, 4, 8, 16, 24))
    comparison = Comparison(request.pick(400, 512, 4096), sampled=True)
    for panel, spectrum_of in (("d", high), ("2 - 1/d", low)):
        for d in dimensions:
            H = spectrum_of(d)
            noises = (
                independent(),
                damped(eta * H.min()),
                best(eta, H, sampled=True),
            )
            comparison.add(f"effective dimension {panel}", d, eta, H, *noises)
    sgd = comparison.powers(SGD)
    ftrl = comparison.powers(FTRL)
    return comparison.outcome(
        "dimension d",
        f"Over d the error of independent noise grows as d to the {sgd[0]:.2f} and {sgd[1]:.2f} "
        f"for high and low effective dimension, that of nu-FTRL as d to the {ftrl[0]:.2f} and "
        f"{ftrl[1]:.2f}.",
        min(sgd) > 0.9 and ftrl[0] > 0.9 and ftrl[1] < 0.6,
        "no clipping, as in the slides"
        + ("; dimensions up to 4" if request.scale == "tiny" else ""),
    )


@figure("slides-learning-rate")
def learning_rate(request: Request) -> Outcome:
    """Draws the error of linear regression over the learning rate."""
    d, chains = request.pick((2, 400), (8, 512), (8, 4096))
    etas = request.pick((0.05, 0.1), (0.01, 0.02, 0.05, 0.1), (0.005, 0.01, 0.02, 0.05, 0.1))
    comparison = Comparison(chains, sampled=True)
    for panel, H in ((f"d = {d}, high", high(d)), (f"d = {d}, low", low(d))):
        for eta in etas:
            # This drop is sqrt(2 eta d_eff / d), where d_eff is the effective dimension. With it,
            # the two terms of anti-PGD's error are equal (docs/papers/slides.md).
            drop = min(0.9, np.sqrt(2 * eta * H.sum() / d))
            comparison.add(
                panel,
                eta,
                eta,
                H,
                independent(),
                anti_pgd(1 - drop),
                damped(eta * H.min()),
                best(eta, H, sampled=True),
            )
    powers = {name: comparison.powers(name) for name in (SGD, ANTI, FTRL, BEST)}
    sgd, anti, ftrl, _ = powers.values()
    powers_text = ", ".join(f"{a:.2f} and {b:.2f} {name}" for name, (a, b) in powers.items())
    return comparison.outcome(
        "learning rate eta",
        f"Powers of eta, for high and low effective dimension: {powers_text}.",
        max(sgd) < 1.4 < min(ftrl)
        and all(a < b < c for a, b, c in zip(sgd, anti, ftrl, strict=True)),
        "no clipping, as in the slides",
    )


RHO, CLIP_NORM = 0.1, 1.0


def _trained(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray, eta: float, mechanism: Any, seed: int
) -> np.ndarray:
    """Trains DP-SGD or DP-FTRL, and returns the excess error of the last iterates, float64
    (chains,).

    Examples have the shape (rounds, chains, d), and their covariance H is the identity.

    Each chain sees every example once, with a clipped gradient. Its noise is that of a `Plan` with
    rho-zCDP.
    """
    rounds, chains, d = x.shape
    plan = fedmf.Plan(
        mechanism=mechanism,
        participation=one_participation(rounds),
        noise_multiplier=1 / np.sqrt(2 * RHO),
        clip_norm=CLIP_NORM,
        delta=1e-6,
    )
    rng = np.random.default_rng(seed)
    theta = np.zeros((chains, d))
    noise = plan.mechanism.stream().rows(lambda i: rng.standard_normal((chains, d)))
    for t, row in enumerate(noise):
        gradient = x[t] * ((x[t] * theta).sum(axis=1) - y[t])[:, None]
        norms = np.linalg.norm(gradient, axis=1, keepdims=True)
        gradient *= np.minimum(1.0, CLIP_NORM / np.maximum(norms, 1e-30))
        theta = theta - eta * (gradient + plan.stddev * row)
    return ((theta - weights) ** 2).sum(axis=1)


KINDS = {"DP-SGD": lambda eta: independent(), "nu-DP-FTRL": damped}


def predicted(name: str, T: int, d: int) -> float:
    """Predicts the error after T steps without clipping, at the best learning rate.

    The covariance H is the identity, and the start has distance 1 from the optimum.

    A step on one example multiplies the expected squared distance by 1 - 2 eta + (d + 2) eta^2. The
    error of the noise is taken as stationary.
    """
    return min(
        (1 - 2 * eta + (d + 2) * eta**2) ** T
        + stationary_error(KINDS[name](eta), eta, high(d), sampled=True) / RHO
        for eta in 2.0 ** np.arange(-11, -2, 0.25)
    )


@figure("slides-finite-time")
def finite_time(request: Request) -> Outcome:
    """Draws the error on the task `regression` after T steps with clipping, at the best learning
    rate.
    """
    chains = request.pick(16, 64, 256)
    d = 4
    lengths = request.pick(
        (128, 512), (256, 512, 1024, 2048, 4096), (256, 512, 1024, 2048, 4096, 8192)
    )
    data = RegressionOptions(
        features=d, decay=0.0, examples=1, noise=0.01, shift=0.0, clients=chains * lengths[-1]
    )
    examples = [client_examples(data, i) for i in range(data.clients)]
    x = np.stack([a[0] for a, _ in examples]).astype(np.float64).reshape(lengths[-1], chains, d)
    y = np.array([b[0, 0] for _, b in examples], dtype=np.float64).reshape(lengths[-1], chains)
    weights = true_weights(data)
    half_chains = chains // 2
    rows: list[tuple[Any, ...]] = []
    series = {}
    slopes = {}
    for name, noise in KINDS.items():
        for T in lengths:
            tried_rows = []
            for eta in 2.0 ** np.arange(-9, 0, 0.5):
                mechanism = noise(eta).mechanism(T)
                tried_rows.append((eta, _trained(x[:T], y[:T], weights, eta, mechanism, len(rows))))
            # Half of the chains choose the learning rate, and the other half gives the reported
            # error.
            eta, found = min(tried_rows, key=lambda pair: pair[1][:half_chains].mean())
            report = found[half_chains:]
            error = report.std(ddof=1) / np.sqrt(len(report))
            rows.append((name, T, eta, report.mean(), error))
        mean, error = np.array([row[3:] for row in rows if row[0] == name]).T
        formula = np.array([predicted(name, T, d) for T in lengths])
        series[f"{name}, clipped"] = Line(lengths, mean, mean - 2 * error, mean + 2 * error)
        series[f"{name}, formula without clipping"] = Line(lengths, formula)
        slopes[name] = [
            np.polyfit(np.log(lengths), np.log(errors), 1)[0] for errors in (mean, formula)
        ]
    last_by_rounds = {row[0]: row[3] for row in rows}
    sgd, ftrl = slopes.values()
    return Outcome(
        [Lines(series, "iterations T", "error at the best learning rate", log="xy", ticks=lengths)],
        f"With rho = {RHO:g}, clip norm 1 and d = {d} the error falls as T to the "
        f"{sgd[0]:.2f} with independent noise and to the {ftrl[0]:.2f} with correlated; the "
        f"formula without clipping has {sgd[1]:.2f} and {ftrl[1]:.2f}, since its logarithms count "
        f"at these T. At T = {lengths[-1]} the errors are {last_by_rounds['DP-SGD']:.2g} and "
        f"{last_by_rounds['nu-DP-FTRL']:.2g}.",
        ftrl[0] < sgd[0] - 0.2 and last_by_rounds["nu-DP-FTRL"] < last_by_rounds["DP-SGD"],
        columns=("mechanism", "T", "learning rate", "error", "standard error"),
        rows=rows,
        seeds=(data.seed, *range(len(rows))),
        reduced="labels with little noise, which leaves the error of privacy",
    )
