"""Numbers of the papers' pages, computed when the site is built and compared with the text."""

import json
import math
import re

import numpy as np

import fedmf
from extensions.printed import DOCS, says
from fedmf.experiments.papers import multi_epoch as papers_multi_epoch
from fedmf.experiments.papers import noise_tables, printed
from fedmf.experiments.papers.lower_bounds import trace_norm_bound
from fedmf.privacy.amplification import (
    _sampled_accountant,
    sampled_gaussian_epsilon,
    sampled_gaussian_noise_multiplier,
)
from fedmf.privacy.gaussian import gaussian_epsilon, gaussian_noise_multiplier

DELTA, ROUNDS = 1e-6, 2052


def denisov() -> None:
    """Checks Figure 6: momentum SGD on a quadratic loss, of which the model sees noise alone."""
    page, num_rounds, momentum = "papers/denisov", 512, 0.95
    participation = fedmf.Participation(rounds=num_rounds, schema="single")
    schedule = fedmf.WarmupCooldown(rounds=num_rounds, peak=1.0, warmup=0.0, cooldown=0.25)
    rates = schedule.learning_rates()

    def errors(workload: fedmf.Workload, steepness: float) -> np.ndarray:
        fitted = fedmf.fit(workload, participation, family="dense", tolerance=1e-3)
        encoder = fitted.encoder()
        noise_matrix = np.linalg.inv(encoder) * np.linalg.norm(encoder, axis=0).max()
        model, buffer, norms = np.zeros(num_rounds), np.zeros(num_rounds), []
        for rate, noise_row in zip(rates, noise_matrix, strict=True):
            buffer = momentum * buffer + steepness * (1 - momentum) * model + noise_row
            model = model - rate * buffer
            norms.append(np.linalg.norm(model))
        return np.array(norms)

    prefix = fedmf.prefix_sum(num_rounds)
    with_momentum = fedmf.momentum_sgd(num_rounds, momentum, rates)
    flat, steep = (errors(prefix, h) / errors(with_momentum, h) for h in (0.0, 0.3))
    half = num_rounds // 2 - 1
    says(page, "model is {} times smaller at half of training than", flat[half])
    says(page, "prefix sums, and {} times smaller at the end.", flat[-1])
    says(page, "the error of the model is {} times larger at half of training", 1 / steep[half])
    says(page, "the error of the model is {} times smaller than with noise optimised", steep[-1])


def multi_epoch() -> None:
    """Checks the noise multipliers of Table 3, and the lower bounds beside Figure 14."""
    page = "papers/multi-epoch"
    rounds = np.array([2048])
    error = papers_multi_epoch.analytic_error(2048) / 4
    older_ratio = math.sqrt(error / papers_multi_epoch.lower_bound(rounds)[0])
    sharper_ratio = math.sqrt(error / trace_norm_bound(rounds)[0])
    says(page, "the plain decoder is {} times the older bound", older_ratio)
    says(page, "{} times the sharper one.", sharper_ratio)
    says(
        page,
        "0.02% more than is needed ({}, as banded Table 4 has it) and gives {}.",
        gaussian_noise_multiplier(2.0, DELTA),
        gaussian_epsilon(2.231, DELTA),
    )
    epsilons = (17.648, 8.824, 2.0)
    sampled = [
        sampled_gaussian_noise_multiplier(
            epsilon, DELTA, probability=1000 / 342_477, compositions=ROUNDS
        )
        for epsilon in epsilons
    ]
    says(page, "The value {} agrees; for 0.491 and 0.757 we need {} and {}.", *sampled)
    every_round = [
        gaussian_noise_multiplier(epsilon, DELTA) * math.sqrt(ROUNDS) for epsilon in epsilons
    ]
    says(page, "15.518, 27.493 and 106.023, the values {}, {} and {} are enough", *every_round)
    for sigma, epsilon in printed.MULTI_EPOCH_TABLE_3_GD.items():
        assert f"{noise_tables.epsilon_on_a_grid(float(sigma)):.3f}" == epsilon


def banded() -> None:
    """Checks Appendix K.1, Tables 4 and 5, and where the lines of Figure 9 cross."""
    page = "papers/banded"
    of_rho = [gaussian_epsilon(1 / math.sqrt(2 * rho), 1e-10) for rho in (0.2355, 0.24, 0.52)]
    says(
        page,
        "{} is the epsilon of rho = 0.2355, and rho = 0.24 gives epsilon {}. For the second "
        "guarantee that the paper prints, rho = 0.52 gives epsilon {}, as the paper prints",
        *of_rho,
    )
    says(
        page,
        "other rows of Table 4 for epsilon 8 have the noise multiplier {}, which is also",
        gaussian_noise_multiplier(8.0, DELTA),
    )
    rows = [row for row in printed.BANDED_TABLE_5 if row.amplified]
    excess = []
    for row in rows:
        # A column has a norm of 1 / sqrt(6).
        epsilon = sampled_gaussian_epsilon(
            float(row.noise_multiplier) * math.sqrt(6),
            DELTA,
            probability=row.bands * 1000 / 342_000,
            compositions=math.ceil(ROUNDS / row.bands),
        )
        excess.append(100 * (epsilon / row.epsilon - 1))
    assert len(rows) == 9
    says(page, "give epsilons that are {}% to {}% above the table's", min(excess), max(excess))
    # These are the rows in which our noise is the least and the most above theirs.
    ends = [row for row in rows if (row.bands, row.epsilon) in ((1, 16.0), (9, 1.0))]
    more_noise = [
        100
        * (noise_tables.amplified_noise(row.bands, row.epsilon) / float(row.noise_multiplier) - 1)
        for row in ends
    ]
    says(page, "are {}% to {}% larger than the printed", *more_noise)
    # The file of results names the command that wrote it.
    result = json.loads((DOCS / "papers" / "banded-figure-9.json").read_text())
    evidence = " ".join(clause["evidence"] for clause in result["clauses"])
    crossing = re.search(r"errors are equal at epsilon ([\d.]+)", evidence)
    assert crossing is not None
    says(page, "better than multi-epoch MF up to epsilon {} by our numbers", float(crossing[1]))


def _share_of_the_way(rounds: int, epochs: int, best_error: float | None = None) -> float:
    """Returns where the error of nu noise is, in % of the way from the optimum's to that of
    independent noise.
    """
    order = fedmf.Participation(rounds=rounds, schema="fixed_epoch", min_sep=rounds // epochs)
    sums = fedmf.prefix_sum(rounds)

    def error(family: str, **options: object) -> float:
        return fedmf.rmse(fedmf.fit(sums, order, family=family, **options), sums, order)

    nu_error = min(error("toeplitz", coefficients="nu", nu=nu) for nu in printed.NUS)
    best_error = best_error or error("dense")
    return 100 * (nu_error - best_error) / (error("identity") - best_error)


def slides() -> None:
    """Checks the shares by which the sizes of nu-DP-FTRL were chosen."""
    page = "papers/slides"
    cifar = _share_of_the_way(2000, 20, math.sqrt(653_731 / 2000))
    stackoverflow = _share_of_the_way(2052, 6, 8.1523)
    says(
        page,
        "nu noise is {}% on CIFAR-10 (2000 steps, 20 epochs) and {}% on StackOverflow",
        cifar,
        stackoverflow,
    )
    says(
        page,
        "of ten steps at epsilon 16, the relative distance of nu noise is {}%.",
        _share_of_the_way(100, 10),
    )
    says(page, "for which the relative distance of nu noise is {}%.", _share_of_the_way(100, 2))
    says(
        page,
        "that of the optimal mechanism is {}% of the error of independent",
        _share_of_the_way(96, 2),
    )
    says(page, "For six epochs of 16 rounds, this ratio would be {}%.", _share_of_the_way(96, 6))
    tenth = gaussian_noise_multiplier(16, 1e-5) * math.sqrt(10)
    half = gaussian_noise_multiplier(6, 1e-5) * math.sqrt(2)
    assert abs(tenth / half - 1) < 0.01


def accountants_grid() -> None:
    """Checks how much the default grid of dp_accounting overstates a small epsilon."""
    coarse = _sampled_accountant(20.0, 1 / 1024, 1024, 1e-4).get_epsilon(DELTA)
    fine = sampled_gaussian_epsilon(20.0, DELTA, probability=1 / 1024, compositions=1024)
    says("papers/fedmf", "small epsilons ({} for {} after", coarse, fine)
