"""fedmf: federated learning with matrix-factorization differential privacy (MF-DP-FTRL).

    (Workload, Participation)                -- fit -->        Mechanism (+ Certificate)
    (Mechanism, Participation, eps, delta)   -- calibrate -->  Plan
    (Plan, Task)                             -- run -->        Run

Importing this package does not import TensorFlow; `from fedmf import federated` does.
"""

from fedmf.accounting import Plan, calibrate
from fedmf.audit import Audit, audit_ledger, audit_log
from fedmf.bands import choose_bands
from fedmf.config import TrainConfig
from fedmf.controller import ParticipationController, PoolRanDryWarning
from fedmf.error import last_error, loss, max_error, per_round_error, rmse
from fedmf.learning_rate import effective_rmse, predicted_learning_rate
from fedmf.ledger import ParticipationLedger
from fedmf.mechanisms import Certificate, Mechanism, load_factorization, load_mechanism, stamp
from fedmf.optimize import fit
from fedmf.participation import Participation
from fedmf.run_audit import audit_run
from fedmf.runs import Run
from fedmf.sampling import CyclicFixedSize, CyclicPoisson, CyclicShuffle
from fedmf.schedule import WarmupCooldown
from fedmf.sensitivity import Sensitivity, sensitivity
from fedmf.workloads import Workload, identity, momentum_buffer, momentum_sgd, prefix_sum, sgd

__all__ = [
    "Audit",
    "Certificate",
    "CyclicFixedSize",
    "CyclicPoisson",
    "CyclicShuffle",
    "Mechanism",
    "Participation",
    "ParticipationController",
    "ParticipationLedger",
    "Plan",
    "PoolRanDryWarning",
    "Run",
    "Sensitivity",
    "TrainConfig",
    "WarmupCooldown",
    "Workload",
    "audit_ledger",
    "audit_log",
    "audit_run",
    "calibrate",
    "choose_bands",
    "effective_rmse",
    "fit",
    "identity",
    "last_error",
    "load_factorization",
    "load_mechanism",
    "loss",
    "max_error",
    "momentum_buffer",
    "momentum_sgd",
    "per_round_error",
    "predicted_learning_rate",
    "prefix_sum",
    "rmse",
    "sensitivity",
    "sgd",
    "stamp",
]
