"""Figures of the slides on the stationary error of learning with correlated noise, by the formula
and by simulation.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedmf.experiments.papers import slides_theory as theory
from fedmf.experiments.papers.clause import Clause, from_numbers
from fedmf.experiments.papers.drawing import Line, Lines
from fedmf.experiments.papers.item import Outcome, Request, figure
from fedmf.experiments.papers.slides_theory import (
    Noise,
    anti_pgd,
    best,
    damped,
    high,
    independent,
    low,
    rounds_for,
    simulated,
)

# A simulated mean counts as different from the formula if it is at least this many standard errors
# away. For a normal mean the chance of that is one in 1.7 million.
FAR = 5.0
SGD, ANTI, FTRL, BEST = "independent", "damped anti-PGD", "nu-FTRL", "best"


class Point(NamedTuple):
    """Stationary error at one point of a figure, by the formula and by simulation."""

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
            formula_error = theory.stationary_error(noise, eta, spectrum, sampled=self.sampled)
            simulation = simulated(
                noise,
                eta,
                spectrum,
                rounds=rounds_for(noise, eta, spectrum),
                chains=self.chains,
                seed=len(self.points),
                sampled=self.sampled,
            )
            simulated_mean = simulation.mean()
            standard_error = simulation.std(ddof=1) / np.sqrt(self.chains)
            deviations = (simulated_mean - formula_error) / standard_error
            self.points.append(
                Point(
                    panel, noise.name, x, formula_error, simulated_mean, standard_error, deviations
                )
            )

    def line(self, panel: str, noise: str) -> np.ndarray:
        """Returns x, formula, simulation and its standard error of one line, float64 (4,
        points).
        """
        return np.array([p[2:6] for p in self.points if p[:2] == (panel, noise)]).T

    def outcome(self, xlabel: str, clauses: Sequence[Clause], reduced: str) -> Outcome:
        """Returns an outcome that draws the formula, and the simulation with two of its standard
        errors.
        """
        panels: list[Lines] = []
        for panel in dict.fromkeys(p.panel for p in self.points):
            formula_by_name = {}
            simulated_by_name = {}
            for noise in dict.fromkeys(p.noise for p in self.points if p.panel == panel):
                x, formula, mean, error = self.line(panel, noise)
                formula_by_name[noise] = Line(x, formula)
                interval_ends = mean - 2 * error, mean + 2 * error
                simulated_by_name[f"{noise}, simulated"] = Line(x, mean, *interval_ends)
            ylabel = "" if panels else "stationary error · ρ"
            panel_options = {"beside": formula_by_name, "points": True, "log": "xy", "ticks": x}
            panels.append(Lines(simulated_by_name, xlabel, ylabel, title=panel, **panel_options))
        return Outcome(
            panels,
            clauses=clauses,
            columns=("panel", "noise", "x", "formula", "simulated", "standard error", "deviations"),
            rows=self.points,
            seeds=tuple(range(len(self.points))),
            reduced=reduced,
        )


def _line(points: Sequence[Point], panel: str, noise: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the x values of a line of the figure, and its errors by the formula."""
    xy_pairs = [(p.x, p.formula) for p in points if (p.panel, p.noise) == (panel, noise)]
    x, formula = np.array(xy_pairs).T
    return x, formula


def _judge_simulation(points: Sequence[Point]) -> Clause:
    """Judges whether theory predicts the simulations, at every point."""
    largest_deviation = max(abs(p.deviations) for p in points)
    largest_share = max(p.deviation / p.simulated for p in points)
    return from_numbers(
        f"Theory predicts the simulations: all are within {FAR:g} standard errors of the formula.",
        largest_deviation < FAR,
        f"{len(points)} points; the farthest is {largest_deviation:.1f} standard errors away, of "
        f"at most {100 * largest_share:.1f}% each",
    )


def _judge_power(text: str, power: float, expected: float, evidence: str) -> Clause:
    """Judges whether a power differs from the expected one by at most `_POWER_TOLERANCE`."""
    return from_numbers(
        f"{text} (judged: a power within {_POWER_TOLERANCE} of {expected:g}).",
        abs(power - expected) <= _POWER_TOLERANCE,
        f"power {power:.2f} {evidence}",
    )


def _judge_bound(text: str, ratios: np.ndarray, *, is_upper: bool) -> Clause:
    """Judges whether the ratios of errors to a rate of the slides are at most, or at least, 1."""
    is_within_bound = ratios.max() <= 1 if is_upper else ratios.min() >= 1
    evidence = f"{ratios.min():.2g} to {ratios.max():.2g} times the rate"
    return from_numbers(text, bool(is_within_bound), evidence)


# Absolute tolerance of judged powers, since the slides' rates hold only to first order in the
# learning rate.
_POWER_TOLERANCE = 0.15
# Learning rates between which the powers of the formula are computed. They are small enough for
# the first order, and too small to simulate.
_SMALL_ETAS = (0.001, 0.002)
_SQUARED = "eta² log²(1 / (eta mu))"


def _squared_rate(eta: np.ndarray | float, spectrum: np.ndarray) -> np.ndarray:
    """Returns the rate d_eff eta^2 log^2(1 / (eta mu)), where d_eff is the effective dimension and
    mu the smallest eigenvalue of the spectrum.
    """
    eta = np.asarray(eta)
    return effective_dimension(spectrum) * eta**2 * np.log(eta * spectrum.min()) ** 2


def effective_dimension(spectrum: np.ndarray) -> float:
    """Returns the effective dimension Tr(H) / ||H|| of a Hessian H with these eigenvalues."""
    return float(spectrum.sum() / spectrum.max())


def _small_errors(
    noise: Callable[[float], Noise], spectrum: np.ndarray, *, sampled: bool
) -> np.ndarray:
    """Returns the stationary errors by the formula at the learning rates `_SMALL_ETAS`."""
    return np.array(
        [theory.stationary_error(noise(eta), eta, spectrum, sampled=sampled) for eta in _SMALL_ETAS]
    )


def _small_power(errors: np.ndarray) -> float:
    """Returns the power of the learning rate with which errors at `_SMALL_ETAS` grow."""
    return float(np.log(errors[1] / errors[0]) / np.log(_SMALL_ETAS[1] / _SMALL_ETAS[0]))


@figure("slides-mean-estimation")
def mean_estimation(request: Request) -> Outcome:
    """Plots the error of mean estimation over the learning rate, and over nu at one learning
    rate.
    """
    learning_rates = request.pick(
        (0.02, 0.1), (0.02, 0.05, 0.1, 0.2, 0.4), (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
    )
    unit_spectrum = np.ones(1)
    comparison = Comparison(request.pick(4000, 20_000, 200_000), sampled=False)
    for eta in learning_rates:
        noise_kinds = independent(), damped(eta), anti_pgd(1 - np.sqrt(2 * eta))
        comparison.add("over eta; nu = eta", eta, eta, unit_spectrum, *noise_kinds)
    for nu in (0.01, 0.02, 0.05, 0.2, 0.8):
        comparison.add("over nu; eta = 0.05", nu, 0.05, unit_spectrum, damped(nu))
    closed_form_error = max(
        abs(
            theory.stationary_error(best(eta, unit_spectrum, sampled=False), eta, unit_spectrum)
            / theory.stationary_error(damped(eta), eta, unit_spectrum)
            - 1
        )
        for eta in learning_rates
    )
    small_errors = {
        name: _small_errors(noise, unit_spectrum, sampled=False)
        for name, noise in ((SGD, lambda eta: independent()), (FTRL, damped))
    }
    clauses = judge_mean_estimation(
        points=comparison.points, small_errors=small_errors, closed_form_error=closed_form_error
    )
    reduced = "stationary from round to round; no clipping, as in the slides"
    return comparison.outcome("eta (left), nu (right)", clauses, reduced)


def judge_mean_estimation(
    *,
    points: Sequence[Point],
    small_errors: Mapping[str, np.ndarray],
    closed_form_error: float,
) -> list[Clause]:
    """Judges the slides' claims on mean estimation.

    `closed_form_error` is the largest relative difference of the error at nu = eta from the least.
    """
    over_eta, over_nu = dict.fromkeys(p.panel for p in points)
    etas, ftrl = _line(points, over_eta, FTRL)
    nus, nu_errors = _line(points, over_nu, FTRL)
    best_nu = nus[np.argmin(nu_errors)]
    unit_spectrum = np.ones(1)
    eta_range = f"of eta between {_SMALL_ETAS[0]} and {_SMALL_ETAS[1]}"
    normalized_errors = small_errors[FTRL] / _squared_rate(np.array(_SMALL_ETAS), unit_spectrum)
    return [
        _judge_simulation(points),
        _judge_power(
            "With independent noise the error is of order eta",
            _small_power(small_errors[SGD]),
            1.0,
            eta_range,
        ),
        _judge_power(
            "With the best noise it is of order eta² log²(1 / eta)",
            2.0 + _small_power(normalized_errors),
            2.0,
            f"{eta_range}, beside the logarithm",
        ),
        _judge_bound(
            "With the best noise it is at most eta² log²(1 / eta) / rho at every eta.",
            ftrl / _squared_rate(etas, unit_spectrum),
            is_upper=True,
        ),
        from_numbers(
            "The noise of nu = eta attains the least error of all.",
            closed_form_error < 1e-6 and bool(np.isclose(best_nu, 0.05)),
            f"the least error to {closed_form_error:.0e}; at eta = 0.05 the best nu tried is "
            f"{best_nu:g}",
        ),
    ]


@figure("slides-linear-regression")
def linear_regression(request: Request) -> Outcome:
    """Plots the error of linear regression over the dimension, for spectra of high and low
    effective dimension.
    """
    eta = request.pick(0.05, 0.02, 0.02)
    dimensions = request.pick((2, 4), (2, 4, 8, 16), (2, 4, 8, 16, 24))
    comparison = Comparison(request.pick(400, 512, 4096), sampled=True)
    for panel, spectrum_of in (("d", high), ("2 - 1/d", low)):
        for d in dimensions:
            eigenvalues = spectrum_of(d)
            noise_kinds = (
                independent(),
                damped(eta * eigenvalues.min()),
                best(eta, eigenvalues, sampled=True),
            )
            comparison.add(f"effective dimension {panel}", d, eta, eigenvalues, *noise_kinds)
    reduced = "no clipping, as in the slides"
    if request.scale == "tiny":
        reduced += "; dimensions up to 4"
    clauses = judge_linear_regression(points=comparison.points, eta=eta)
    return comparison.outcome("dimension d", clauses, reduced)


def judge_linear_regression(*, points: Sequence[Point], eta: float) -> list[Clause]:
    """Judges the slides' claims on linear regression, over the dimension at one learning rate."""
    clauses = [_judge_simulation(points)]
    upper_ratios = []
    lower_ratios = []
    for panel, spectrum_of, name in zip(
        dict.fromkeys(p.panel for p in points), (high, low), ("high", "low"), strict=True
    ):
        d, sgd = _line(points, panel, SGD)
        _, ftrl = _line(points, panel, FTRL)
        _, least = _line(points, panel, BEST)
        spectra = [spectrum_of(int(i)) for i in d]
        squared_rates = np.array([_squared_rate(eta, spectrum) for spectrum in spectra])
        upper_ratios.append(ftrl / squared_rates)
        lower_ratios.append(least / [effective_dimension(H) * eta**2 for H in spectra])
        over_d = f"of d from {d[0]:g} to {d[-1]:g}"
        clauses.append(
            _judge_power(
                f"With {name} effective dimension noisy SGD's error scales with d",
                float(np.polyfit(np.log(d), np.log(sgd), 1)[0]),
                1.0,
                over_d,
            )
        )
        ftrl_power = float(np.polyfit(np.log(d), np.log(ftrl), 1)[0])
        if name == "high":
            text = "With high effective dimension, which is d, nu-Noisy-FTRL's scales with it"
            clauses.append(_judge_power(text, ftrl_power, 1.0, over_d))
        else:
            evidence = f"power {ftrl_power:.2f} {over_d}"
            clauses.append(_judge_low_dimension(upper_ratios[-1], evidence))
    return [
        *clauses,
        _judge_bound(
            f"The error of nu-Noisy-FTRL is at most d_eff {_SQUARED} / rho at every d.",
            np.concatenate(upper_ratios),
            is_upper=True,
        ),
        _judge_bound(
            "The least error of any noise is at least d_eff eta² / rho at every d.",
            np.concatenate(lower_ratios),
            is_upper=False,
        ),
    ]


def _judge_low_dimension(upper_ratios: np.ndarray, evidence: str) -> Clause:
    """Judges whether nu-Noisy-FTRL's error over its rate never rises with the dimension, for the
    spectrum with low effective dimension.
    """
    return from_numbers(
        "With low effective dimension, which stays below 2, nu-Noisy-FTRL's error grows no faster "
        "than d_eff log²(1 / (eta mu)).",
        bool((np.diff(upper_ratios) <= 0).all()),
        f"divided by it: {', '.join(f'{r:.3f}' for r in upper_ratios)}; {evidence}",
    )


@figure("slides-learning-rate")
def learning_rate(request: Request) -> Outcome:
    """Plots the error of linear regression over the learning rate."""
    d, chains = request.pick((2, 400), (8, 512), (8, 4096))
    learning_rates = request.pick(
        (0.05, 0.1), (0.01, 0.02, 0.05, 0.1), (0.005, 0.01, 0.02, 0.05, 0.1)
    )
    comparison = Comparison(chains, sampled=True)
    for panel, H in ((f"d = {d}, high", high(d)), (f"d = {d}, low", low(d))):
        for eta in learning_rates:
            comparison.add(
                panel,
                eta,
                eta,
                H,
                independent(),
                anti_pgd(1 - _drop(eta, H)),
                damped(eta * H.min()),
                best(eta, H, sampled=True),
            )
    noise_by_name = {
        SGD: lambda eta, H: independent(),
        ANTI: lambda eta, H: anti_pgd(1 - _drop(eta, H)),
        FTRL: lambda eta, H: damped(eta * H.min()),
    }
    small_errors = {
        (name, kind): _small_errors(functools.partial(noise, H=H), H, sampled=True)
        for name, noise in noise_by_name.items()
        for kind, H in (("high", high(d)), ("low", low(d)))
    }
    clauses = judge_learning_rate(points=comparison.points, small_errors=small_errors, dimension=d)
    return comparison.outcome("learning rate eta", clauses, "no clipping, as in the slides")


def _drop(eta: float, spectrum: np.ndarray) -> float:
    """Returns 1 - nu of damped anti-PGD, which is sqrt(2 eta d_eff / d) and at most 0.9.

    The two terms of anti-PGD's error are equal there (docs/papers/slides.md).
    """
    return min(0.9, float(np.sqrt(2 * eta * spectrum.sum() / len(spectrum))))


def judge_learning_rate(
    *,
    points: Sequence[Point],
    small_errors: Mapping[tuple[str, str], np.ndarray],
    dimension: int,
) -> list[Clause]:
    """Judges the slides' claims on how errors depend on the learning rate, for two spectra."""
    clauses = [_judge_simulation(points)]
    upper_ratios = []
    lower_ratios = []
    for panel, H, kind in zip(
        dict.fromkeys(p.panel for p in points),
        (high(dimension), low(dimension)),
        ("high", "low"),
        strict=True,
    ):
        lines = {name: _line(points, panel, name) for name in (SGD, ANTI, FTRL, BEST)}
        etas, ftrl = lines[FTRL]
        upper_ratios.append(ftrl / _squared_rate(etas, H))
        lower_ratios.append(lines[BEST][1] / (effective_dimension(H) * etas**2))
        subject = f"With {kind} effective dimension"
        normalized_errors = small_errors[FTRL, kind] / _squared_rate(np.array(_SMALL_ETAS), H)
        clauses += _judge_powers(
            subject,
            sgd_power=_small_power(small_errors[SGD, kind]),
            anti_power=_small_power(small_errors[ANTI, kind]),
            ftrl_power=2.0 + _small_power(normalized_errors),
        )
        smallest_index = int(np.argmin(etas))
        sgd_error, anti_error, ftrl_error = (
            lines[name][1][smallest_index] for name in (SGD, ANTI, FTRL)
        )
        clauses.append(
            from_numbers(
                f"{subject} nu-Noisy-FTRL is far better than noisy SGD at a small eta (judged: a "
                f"third of its error), and damped anti-PGD is between them.",
                ftrl_error < sgd_error / 3 and bool(ftrl_error < anti_error < sgd_error),
                f"at eta = {etas[smallest_index]:g}: {ftrl_error:.2g}, {anti_error:.2g} and "
                f"{sgd_error:.2g}",
            )
        )
    return [
        *clauses,
        _judge_bound(
            f"The error of nu-Noisy-FTRL is at most d_eff {_SQUARED} / rho at every eta.",
            np.concatenate(upper_ratios),
            is_upper=True,
        ),
        _judge_bound(
            "The least error of any noise is at least d_eff eta² / rho at every eta.",
            np.concatenate(lower_ratios),
            is_upper=False,
        ),
    ]


def _judge_powers(
    subject: str, *, sgd_power: float, anti_power: float, ftrl_power: float
) -> list[Clause]:
    """Judges the powers of the learning rate with which the errors of three mechanisms grow.

    `subject` begins the text of each clause, and names the spectrum.
    """
    at_small = f"of eta between {_SMALL_ETAS[0]} and {_SMALL_ETAS[1]}"
    return [
        _judge_power(f"{subject} noisy SGD's error scales as eta", sgd_power, 1.0, at_small),
        _judge_power(
            f"{subject} that of damped anti-PGD scales as eta^1.5", anti_power, 1.5, at_small
        ),
        _judge_power(
            f"{subject} that of nu-Noisy-FTRL scales as {_SQUARED}",
            ftrl_power,
            2.0,
            f"{at_small}, beside the logarithm",
        ),
    ]
