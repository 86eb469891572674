"""Numbers of the pages on mathematics and accounting, computed by the build and compared with the
text.
"""

import csv
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

import fedmf
from extensions.printed import DOCS, says
from fedmf.mechanisms.leading import column_norm
from fedmf.privacy.amplification import (
    _sampled_accountant,
    sampled_gaussian_noise_multiplier,
)
from fedmf.privacy.loss_samples import SEARCH, remove_sample
from fedmf.privacy.plan import unamplified_epsilon
from fedmf.privacy.random_allocation import allocation_law


def print_epsilon_of_known_size() -> None:
    """Prints the epsilon of an observer who knows the size of a Poisson sample, as accounting.md
    describes it.
    """
    q, delta = 0.1, 1e-5
    sigma = sampled_gaussian_noise_multiplier(2.0, delta, probability=q, compositions=1)

    def density(y: float, mean: float) -> float:
        return (1 - q) * norm.pdf(y / sigma) + q * norm.pdf((y - mean) / sigma)

    def tail(y: float, mean: float) -> float:
        return (1 - q) * norm.sf(y / sigma) + q * norm.sf((y - mean) / sigma)

    def excess(epsilon: float) -> float:
        """Returns delta(epsilon) - delta. The likelihood ratio grows with y."""
        y = brentq(lambda y: np.log(density(y, 2) / density(y, 1)) - epsilon, 0, 20 * sigma)
        return tail(y, 2) - np.exp(epsilon) * tail(y, 1) - delta

    epsilon = brentq(excess, 0.1, 10)
    assert epsilon > 3.9
    print(f"noise multiplier {sigma:.4f}")
    print(f"epsilon for this observer: at least {epsilon:.3f}, where 2 was accounted for")


def mathematics(cells: dict[str, Any]) -> None:
    """Checks what the text of mathematics.md says about the numbers of its cells.

    Args:
      cells: the variables of the page's cells, by name.
    """
    v = SimpleNamespace(**cells)
    assert abs(v.N @ v.C - np.eye(v.n)).max() < 1e-12
    assert abs((v.x + v.N @ v.Z) - v.N @ (v.C @ v.x + v.Z)).max() < 1e-12
    assert v.known.exact
    assert np.isclose(v.known.value, v.by_hand, rtol=1e-12)
    assert np.isclose(v.by_hand, 3**0.5, rtol=1e-9)
    assert v.delta <= 1e-6
    assert round(v.sigma, 5) == 1.19352
    assert np.allclose(np.linalg.norm(v.C, axis=0), 1)
    assert fedmf.sensitivity(v.wrong, v.participation).value > 1.1 * 3**0.5
    assert v.mechanism.certificate.lower_bound <= v.bound
    assert v.bound <= np.linalg.norm(v.A @ v.N) ** 2 * (1 + 1e-12)
    assert np.linalg.eigvalsh(v.U).min() > 0
    assert v.sampled.epsilon < unamplified_epsilon(v.sampled)
    assert (v.covariance[6, 7:10] < 0).all()


def accounting() -> None:
    """Checks the example of a permutation into batches of fixed size."""
    x = np.linspace(-9, 9, 1501)

    def permuted_density(first: float, second: float) -> np.ndarray:
        """Returns the density of two rounds with one client in each, in either order."""
        a, b = (norm.pdf(x - mean) for mean in (first, second))
        both = np.outer(a, b) + np.outer(b, a)
        return both / both.sum()

    difference = permuted_density(1, -1) - np.exp(0.5) * permuted_density(0, -1)
    independent = max(allocation_law(1.0, 2, 1).deltas(0.5))
    says(
        "accounting",
        "delta(0.5) is {} for the permutation and {} for independent draws",
        np.maximum(0, difference).sum(),
        independent,
    )


SETTINGS = (("2052", "342"), ("2000", "100"))
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
# Row of the table -> scheme in the file.
SCHEMES = {
    "`CyclicPoisson`": "cyclic Poisson",
    "`CyclicRandomAllocation`": "random allocation",
    "`MinSepPoisson`": "min-sep Poisson",
    "`BallsInBins`, banded": "balls in bins, banded",
    "`BallsInBins`, Toeplitz": "balls in bins, Toeplitz",
    "`BallsInBins`, BLT": "balls in bins, BLT",
}


def _relative_error() -> Callable[[str, float, tuple[str, str]], float]:
    """Returns the relative error of a scheme, from the file of `fedmf paper run fedmf-schemes`."""
    with open(DOCS / "images" / "schemes.csv", newline="") as file:
        errors = {
            (row["rounds"], row["separation"], row["scheme"], float(row["epsilon"])): float(
                row["rmse"]
            )
            for row in csv.DictReader(file)
        }

    def relative(scheme: str, epsilon: float, setting: tuple[str, str]) -> float:
        dense = errors[(*setting, "dense, unamplified", epsilon)]
        return errors[(*setting, scheme, epsilon)] / dense

    return relative


def choose_sampling() -> None:
    """Checks the table of choose_sampling.md, and the deltas of two schemes at equal noise."""
    page = "choose_sampling"
    short = fedmf.fit(
        fedmf.prefix_sum(64),
        fedmf.Participation(rounds=64, schema="single"),
        family="banded",
        bands=4,
    )
    rare = fedmf.MinSepPoisson(population=2000, cohort_size=100, min_sep=4)
    losses = rare.losses(short, column_norm(short))
    estimate, _ = remove_sample(losses, 2, 2**18, SEARCH).moments(1.0)
    cyclic = _sampled_accountant(1.0, 0.05 * 4, 16, 1e-4).get_delta(1.0)
    says(page, "has delta {} at epsilon 1, and `CyclicPoisson` has {}.", estimate, cyclic)

    relative = _relative_error()

    def cell(scheme: str, epsilon: float, setting: tuple[str, str]) -> str:
        best = min(SCHEMES.values(), key=lambda name: relative(name, epsilon, setting))
        return "**{}**" if scheme == best else "{}"

    for title, scheme in SCHEMES.items():
        cells = [
            " ".join(cell(scheme, epsilon, setting) for setting in SETTINGS) for epsilon in EPSILONS
        ]
        values = [
            relative(scheme, epsilon, setting) for epsilon in EPSILONS for setting in SETTINGS
        ]
        says(page, f"| {title} | {' | '.join(cells)} |", *values)
    least = [
        min(relative(scheme, epsilon, ("1024", "32")) for scheme in SCHEMES.values())
        for epsilon in (0.5, 2.0, 8.0, 16.0)
    ]
    says(
        page,
        "the smallest error of all schemes is {} of the dense mechanism's error at epsilon 0.5, "
        "{} at 2, {} at 8, and {} at 16",
        *least,
    )
