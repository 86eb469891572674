"""Figure of the slides on the error after T steps, with clipping and at the best learning rate."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import fedmf
from fedmf.experiments.papers.clause import Clause, from_interval, not_judged
from fedmf.experiments.papers.drawing import Line, Lines
from fedmf.experiments.papers.fits import one_participation
from fedmf.experiments.papers.item import Outcome, Request, figure
from fedmf.experiments.papers.slides_theory import damped, high, independent, stationary_error
from fedmf.tasks.regression.data import RegressionOptions, client_examples, true_weights

RHO, CLIP_NORM = 0.1, 1.0
# Range of the binary logarithms of the learning rates.
_RATE_EXPONENTS = (-13, -3)


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
    noise_rows = plan.mechanism.stream().rows(lambda i: rng.standard_normal((chains, d)))
    for t, row in enumerate(noise_rows):
        gradient = x[t] * ((x[t] * theta).sum(axis=1) - y[t])[:, None]
        gradient_norms = np.linalg.norm(gradient, axis=1, keepdims=True)
        gradient *= np.minimum(1.0, CLIP_NORM / np.maximum(gradient_norms, 1e-30))
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
        for eta in 2.0 ** np.arange(*_RATE_EXPONENTS, 0.25)
    )


@figure("slides-finite-time")
def finite_time(request: Request) -> Outcome:
    """Plots the error on the task `regression` after T steps with clipping, at the best learning
    rate.
    """
    num_chains = request.pick(16, 64, 256)
    d = 4
    iteration_counts = request.pick(
        (128, 512), (256, 512, 1024, 2048, 4096), (256, 512, 1024, 2048, 4096, 8192)
    )
    task_options = RegressionOptions(
        features=d,
        decay=0.0,
        examples=1,
        noise=0.01,
        shift=0.0,
        clients=num_chains * iteration_counts[-1],
    )
    chain_examples = [client_examples(task_options, i) for i in range(task_options.clients)]
    x = (
        np.stack([a[0] for a, _ in chain_examples])
        .astype(np.float64)
        .reshape(iteration_counts[-1], num_chains, d)
    )
    y = np.array([b[0, 0] for _, b in chain_examples], dtype=np.float64).reshape(
        iteration_counts[-1], num_chains
    )
    true_theta = true_weights(task_options)
    half_chains = num_chains // 2
    rates = 2.0 ** np.arange(*_RATE_EXPONENTS, 0.5)
    rows: list[tuple[Any, ...]] = []
    line_by_label = {}
    errors_by_name = {}
    formula_by_name = {}
    for name, noise in KINDS.items():
        reported_errors = []
        for T in iteration_counts:
            tried_rows = []
            for eta in rates:
                mechanism = noise(eta).mechanism(T)
                tried_rows.append(
                    (eta, _trained(x[:T], y[:T], true_theta, eta, mechanism, len(rows)))
                )
            # Half of the chains choose the learning rate, and the other half gives the reported
            # error.
            eta, tried_errors = min(tried_rows, key=lambda pair: pair[1][:half_chains].mean())
            if eta in (rates[0], rates[-1]):
                raise ValueError(
                    f"{name} has the best error at T = {T} with the learning rate {eta:g}, an end "
                    f"of those tried: widen _RATE_EXPONENTS"
                )
            reported_errors.append(tried_errors[half_chains:])
            standard_error = reported_errors[-1].std(ddof=1) / np.sqrt(half_chains)
            rows.append((name, T, eta, reported_errors[-1].mean(), standard_error))
        mean, standard_error = np.array([row[3:] for row in rows if row[0] == name]).T
        errors_by_name[name] = np.stack(reported_errors)
        formula_by_name[name] = np.array([predicted(name, T, d) for T in iteration_counts])
        line_by_label[f"{name}, clipped"] = Line(
            iteration_counts, mean, mean - 2 * standard_error, mean + 2 * standard_error
        )
        formula_label = f"{name}, formula without clipping"
        line_by_label[formula_label] = Line(iteration_counts, formula_by_name[name])
    return Outcome(
        [
            Lines(
                line_by_label,
                "iterations T",
                "error at the best learning rate",
                log="xy",
                ticks=iteration_counts,
            )
        ],
        clauses=judge_finite_time(
            lengths=np.array(iteration_counts),
            errors_by_name=errors_by_name,
            formula_by_name=formula_by_name,
        ),
        columns=("mechanism", "T", "learning rate", "error", "standard error"),
        rows=rows,
        seeds=(task_options.seed, *range(len(rows))),
        reduced="labels with little noise, which leaves the error of privacy",
    )


# Absolute tolerance of judged powers of T, the number of steps.
_POWER_TOLERANCE = 0.15
_RESAMPLES = 4000


def judge_finite_time(
    *,
    lengths: np.ndarray,
    errors_by_name: Mapping[str, np.ndarray],
    formula_by_name: Mapping[str, np.ndarray],
) -> list[Clause]:
    """Judges the slides' claims on rates after T steps by the errors of each chain, float64 (T,
    chains).

    Intervals are of 95%, by a bootstrap of the chains. A chain has the same examples at every T and
    with either noise, so that all of its errors are drawn together. The learning rates are those of
    other chains.
    """
    num_chains = next(iter(errors_by_name.values())).shape[1]
    drawn_chains = np.random.default_rng(0).integers(num_chains, size=(_RESAMPLES, num_chains))
    # The mean errors of each resample, float64 (T, resamples).
    means = {name: y[:, drawn_chains].mean(axis=2) for name, y in errors_by_name.items()}
    powers = {name: np.polyfit(np.log(lengths), np.log(y), 1)[0] for name, y in means.items()}
    formula_powers = {
        name: np.polyfit(np.log(lengths), np.log(y), 1)[0] for name, y in formula_by_name.items()
    }
    sgd, ftrl = errors_by_name
    clauses = []
    for name, noise, expected in ((sgd, "independent", -1.0), (ftrl, "correlated", -2.0)):
        evidence = (
            f"for T from {lengths[0]} to {lengths[-1]}; the formula without clipping has "
            f"{formula_powers[name]:.2f}, because of logarithms that the slides leave out"
        )
        clauses.append(_judge_power(noise, powers[name], expected, evidence))
    low, high = _interval(powers[sgd] - powers[ftrl])
    clauses.append(
        from_interval(
            "With correlated noise it falls with a larger power of T than with independent noise.",
            low=low,
            high=high,
            evidence=f"difference of the powers {low:.2f} to {high:.2f}",
        )
    )
    clauses.append(_judge_ratios(lengths, means[sgd] / means[ftrl]))
    unjudged_reason = "the labels have little noise, so that the error of privacy can be seen"
    unjudged_text = "The error of sampling, which is added, falls as 1 / T with either noise."
    return [*clauses, not_judged(unjudged_text, unjudged_reason)]


def _judge_power(noise: str, powers: np.ndarray, expected: float, evidence: str) -> Clause:
    """Judges whether the error falls with the expected power of T, by the powers of all resamples.

    `noise` names the kind of noise.
    """
    low, high = _interval(powers)
    # An end of the interval is within the tolerance if its margin is positive.
    margins = [_POWER_TOLERANCE - abs(end - expected) for end in (low, high)]
    largest_margin = _POWER_TOLERANCE if low <= expected <= high else max(margins)
    return from_interval(
        f"With {noise} noise the privacy error falls as T to the {expected:g} (judged: a power "
        f"within {_POWER_TOLERANCE}).",
        low=min(margins),
        high=largest_margin,
        evidence=f"power {powers.mean():.2f} ({low:.2f} to {high:.2f}) {evidence}",
    )


def _judge_ratios(lengths: np.ndarray, ratios: np.ndarray) -> Clause:
    """Judges whether the error with independent noise is larger at every T, by its ratio to the
    error with correlated noise in each resample, float64 (T, resamples).
    """
    intervals = np.array([_interval(log_ratios) for log_ratios in np.log(ratios)])
    ratios_text = ", ".join(
        f"{np.exp(low):.3g} to {np.exp(high):.3g} at {T}"
        for T, (low, high) in zip(lengths, intervals, strict=True)
    )
    return from_interval(
        "It is smaller with correlated noise at every T.",
        low=intervals[:, 0].min(),
        high=intervals[:, 1].min(),
        evidence=f"the error with independent noise is {ratios_text} times as large",
    )


def _interval(values: np.ndarray) -> tuple[float, float]:
    """Returns the 2.5% and the 97.5% quantile of resampled values."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
