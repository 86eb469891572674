"""Families with nothing to optimise: their options, checked, and the mechanism."""

import numpy as np

from fedmf import checks
from fedmf.mechanisms.base import Mechanism
from fedmf.mechanisms.fft import FFTMechanism
from fedmf.mechanisms.fitting.progress import Progress, check_common
from fedmf.mechanisms.identity import IdentityMechanism
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.mechanisms.stamped import stamp
from fedmf.mechanisms.tree import COMPLETIONS, TreeMechanism
from fedmf.participation.schema import Participation
from fedmf.workloads import Workload

# Comparing tree completions takes a few dense products: seconds up to this many rounds.
_MAX_ROUNDS_COMPARED = 4096


def fit_identity(
    workload: Workload,
    participation: Participation,
    *,
    tolerance: float = 1e-3,
    max_iterations: int = 1000,
    progress: Progress | None = None,
) -> IdentityMechanism:
    """Independent noise; see `fedmf.fit`."""
    check_common(tolerance, max_iterations, progress)
    return IdentityMechanism(rounds=workload.rounds)


def fit_tree(
    workload: Workload,
    participation: Participation,
    *,
    decoder: str = "online",
    restarts: int = 1,
    completion: str | None = None,
    tolerance: float = 1e-3,
    max_iterations: int = 1000,
    progress: Progress | None = None,
) -> Mechanism:
    """The binary tree over the run, or one over each of `restarts` equal parts of it; see `fedmf.fit`.

    Args:
      workload: decides, with participation, the completion.
      participation: see workload.
      decoder: "online" or "full", see `TreeMechanism`.
      restarts: 1 for a `TreeMechanism`; more for a `StampedMechanism` of one that spans rounds / restarts rounds
        (multi-epoch paper, App. D.4). N = pinv(C) part by part is the pseudo-inverse of the whole, so that "full" is
        optimal there, too.
      completion: of a tree whose rounds are no power of two, see `TreeMechanism`; None takes the one with the smallest
        loss, and "none", uncompared, for more than 4096 rounds.
      tolerance: not used, as the two below.
      max_iterations: not used.
      progress: not used.

    Raises:
      TypeError, ValueError: an option of the wrong kind or out of range; restarts that do not divide the rounds.
    """
    check_common(tolerance, max_iterations, progress)
    n = workload.rounds
    restarts = checks.integer("restarts", restarts, low=1, high=n, hint="it is a number of equal parts of the run")
    if n % restarts:
        divisors = [r for r in range(1, n + 1) if n % r == 0]
        below, above = max(r for r in divisors if r < restarts), min(r for r in divisors if r > restarts)
        raise ValueError(
            f"restarts={restarts} does not cut {n} rounds into equal parts: choose {below} or {above}, or another "
            f"number of rounds, such as {n - n % restarts}"
        )
    if completion is not None:
        checks.one_of("completion", completion, COMPLETIONS)
    per_part = n // restarts
    if completion is not None:
        completions = [completion]
    elif per_part & (per_part - 1) == 0 or n > _MAX_ROUNDS_COMPARED:
        completions = ["none"]  # a power of two has nothing to complete
    else:
        completions = list(COMPLETIONS) if decoder == "online" else ["none", "virtual"]

    def tree(completion: str) -> Mechanism:
        part = TreeMechanism(rounds=per_part, decoder=decoder, completion=completion)
        return part if restarts == 1 else stamp(part, restarts, decoder="restarted")

    def loss(mechanism: Mechanism) -> float:
        AN = workload.matrix @ mechanism.noising()
        return sensitivity(mechanism, participation).value ** 2 * float(np.einsum("ij,ij->", AN, AN))

    mechanisms = [tree(name) for name in completions]
    return mechanisms[0] if len(mechanisms) == 1 else min(mechanisms, key=loss)


def fit_fft(
    workload: Workload,
    participation: Participation,
    *,
    decoder: str = "optimal",
    tolerance: float = 1e-3,
    max_iterations: int = 1000,
    progress: Progress | None = None,
) -> FFTMechanism:
    """The FFT mechanism of prefix sums: the workload only decides the error of "optimal" against "plain"; see `fedmf.fit`."""
    check_common(tolerance, max_iterations, progress)
    return FFTMechanism(rounds=workload.rounds, decoder=decoder)
