"""The fit of a BLT encoder, which optimises the poles and zeros of its generating function."""

import dataclasses

import numpy as np

from fedmf import checks
from fedmf.mechanisms.blt.fit_problem import BLTProblem, positions
from fedmf.mechanisms.blt.mechanism import BLTMechanism
from fedmf.mechanisms.family import Family, register
from fedmf.mechanisms.fitting.descent import descend
from fedmf.mechanisms.fitting.progress import Stopping
from fedmf.mechanisms.toeplitz.fit import OBJECTIVES, certified, toeplitz_inverse
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload


def fit_blt(
    workload: Workload,
    participation: Participation,
    stopping: Stopping,
    *,
    buffers: int = 4,
    objective: str = "mean",
) -> BLTMechanism:
    """Fits the buffered linear Toeplitz (BLT) encoder with the smallest loss (objective "mean") or
    the smallest error of the worst round (objective "max").

    The variables are the poles and zeros of c(x) on the real line, alternating, so that every step
    is a valid `BLTMechanism` with a known sensitivity under every participation. Sensitivity and
    error are sums over time of products of exponentials, which a grid of a few hundred rounds
    approximates for any number of rounds (`time_grid` of `fit_problem`). Single and several
    participations as in McMahan, Xu and Zhang 2024; the largest error as in Dvijotham et al. 2024.

    `buffers` is d, the cost of a noise vector in model sizes; fewer are used where rounds - 1
    coefficients need no more. A descent has converged when ten steps together lower the loss by
    less than the relative tolerance. The problem is not convex: under several participations there
    are two descents, and the better result is taken. Other arguments and errors as in `fedmf.fit`.
    """
    buffers = checks.integer(
        "buffers", buffers, low=1, high=32, hint="a round of noise costs that many model sizes"
    )
    checks.one_of("objective", objective, OBJECTIVES)
    n = workload.rounds
    # An encoder has n - 1 free coefficients, which determine at most n / 2 poles and as many zeros.
    # So more buffers cannot lower the loss.
    num_buffers = min(buffers, max(1, n // 2))
    blt_problem = BLTProblem(toeplitz_inverse(workload), participation, num_buffers, objective)
    first_start, *other_starts = blt_problem.starts()
    best_descent = descend(blt_problem.log_loss, first_start, stopping, blt_problem.bounds())
    for start in other_starts:
        if best_descent.interrupted or best_descent.iterations >= stopping.max_iterations:
            break
        descent = descend(
            blt_problem.log_loss,
            start,
            stopping.after(best_descent.iterations),
            blt_problem.bounds(),
        )
        better_descent = min(best_descent, descent, key=lambda descent: descent.loss)
        best_descent = dataclasses.replace(
            best_descent.then(descent), point=better_descent.point, loss=better_descent.loss
        )
    poles_and_zeros = 1.0 / (1.0 + np.exp(positions(best_descent.point)))
    mechanism = BLTMechanism(
        rounds=n, decays=poles_and_zeros[0::2], inverse_decays=poles_and_zeros[1::2]
    )
    return certified(mechanism, workload, participation, objective, best_descent, stopping)


register(
    Family(
        mechanism=BLTMechanism,
        fit=fit_blt,
        label="BLT",
        color="#5a1e00",
        tolerance=1e-8,
        help={
            "buffers": "running sums, which is what a round of noise costs",
            "objective": "what to minimise: mean or max",
        },
        choices={"objective": OBJECTIVES},
    )
)
