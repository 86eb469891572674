"""Families with nothing to optimise: their options, checked, and the mechanism."""

from fedmf import _checks
from fedmf.mechanisms.identity import IdentityMechanism
from fedmf.mechanisms.tree import TreeMechanism
from fedmf.optimize.progress import Progress, check_common
from fedmf.participation import Participation
from fedmf.workloads import Workload


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
    tolerance: float = 1e-3,
    max_iterations: int = 1000,
    progress: Progress | None = None,
) -> TreeMechanism:
    """The binary tree; see `fedmf.fit`."""
    check_common(tolerance, max_iterations, progress)
    _checks.integer(
        "restarts", restarts, low=1, high=1, way_out="only one tree over all rounds is supported, pass restarts=1"
    )
    return TreeMechanism(rounds=workload.rounds, decoder=decoder)
