"""Federated learning with matrix-factorization differential privacy (MF-DP-FTRL).

A training run takes three steps:

    (Workload, Participation)                -- fit -->        Mechanism (+ Certificate)
    (Mechanism, Participation, eps, delta)   -- calibrate -->  Plan
    (Plan, Task)                             -- run -->        Run

Importing this package imports neither TensorFlow nor PyTorch. `from fedmf import federated` imports
TensorFlow, and `from fedmf import pytorch` imports PyTorch.
"""

from typing import TYPE_CHECKING, Any

from fedmf import partition as partition
from fedmf.audits.audit import Audit
from fedmf.audits.guarantee import audit_ledger, audit_log
from fedmf.audits.log_file import LogForm
from fedmf.cohorts.controller import ParticipationController
from fedmf.cohorts.draws import PoolRanDryWarning
from fedmf.mechanisms import Certificate, Mechanism, load_factorization, load_mechanism, stamp
from fedmf.mechanisms.budget import Budget
from fedmf.mechanisms.error import loss, max_error, per_round_error, rmse
from fedmf.mechanisms.fit import fit
from fedmf.mechanisms.sensitivity import Sensitivity, sensitivity
from fedmf.participation.ledger import ParticipationLedger
from fedmf.participation.schema import Participation
from fedmf.privacy.attack_risk import AttackRisk, attack_risk
from fedmf.privacy.bands import choose_bands
from fedmf.privacy.calibrate import calibrate
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.describe import statement
from fedmf.privacy.learning_rate import effective_rmse, predicted_learning_rate
from fedmf.privacy.plan import Plan, dp_event
from fedmf.privacy.private_metrics import PrivateMetrics
from fedmf.privacy.quantile_clipping import QuantileClipping
from fedmf.privacy.sampling import (
    BallsInBins,
    CyclicFixedSize,
    CyclicPoisson,
    CyclicRandomAllocation,
    MinSepPoisson,
)
from fedmf.privacy.sampling import (
    CyclicShuffle as CyclicShuffle,  # This is the former name of CyclicRandomAllocation.
)
from fedmf.privacy.selection import PrivateSelection, private_selection
from fedmf.privacy.trial_count import TrialCount
from fedmf.runs.audit import audit_run
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import Run
from fedmf.schedule import WarmupCooldown
from fedmf.server.server import Server
from fedmf.workloads import Workload, identity, momentum_buffer, momentum_sgd, prefix_sum, sgd

if TYPE_CHECKING:
    from fedmf.training.loop import train


def __getattr__(name: str) -> Any:
    """Imports `fedmf.train` on first use, so that fits and audits do not load the training loop."""
    if name != "train":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedmf.training.loop import train

    return train


__all__ = [
    "AttackRisk",
    "Audit",
    "BallsInBins",
    "Budget",
    "Certificate",
    "CyclicFixedSize",
    "CyclicPoisson",
    "CyclicRandomAllocation",
    "LogForm",
    "Mechanism",
    "MinSepPoisson",
    "Participation",
    "ParticipationController",
    "ParticipationLedger",
    "Plan",
    "PlanConfig",
    "PoolRanDryWarning",
    "PrivateMetrics",
    "PrivateSelection",
    "QuantileClipping",
    "Run",
    "Sensitivity",
    "Server",
    "TrainConfig",
    "TrialCount",
    "WarmupCooldown",
    "Workload",
    "attack_risk",
    "audit_ledger",
    "audit_log",
    "audit_run",
    "calibrate",
    "choose_bands",
    "dp_event",
    "effective_rmse",
    "fit",
    "identity",
    "load_factorization",
    "load_mechanism",
    "loss",
    "max_error",
    "momentum_buffer",
    "momentum_sgd",
    "per_round_error",
    "predicted_learning_rate",
    "prefix_sum",
    "private_selection",
    "rmse",
    "sensitivity",
    "sgd",
    "stamp",
    "statement",
    "train",
]
