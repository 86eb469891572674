"""Plans, banded mechanisms and ledgers for tests of guarantees."""

import numpy as np

import fedmf
from fedmf.mechanisms import BandedMechanism, IdentityMechanism


def plan(participation, mechanism=None, **changes):
    """Of the identity, unless another mechanism is given."""
    mechanism = IdentityMechanism(rounds=participation.rounds) if mechanism is None else mechanism
    given = {"noise_multiplier": 2.0, "clip_norm": 0.5, "delta": 1e-6, **changes}
    return fedmf.Plan(mechanism=mechanism, participation=participation, **given)


def banded(rounds, *entries):
    """C with these entries in every column, from the diagonal down."""
    diagonals = np.tile(entries, (rounds, 1))
    for j in range(1, len(entries)):
        diagonals[:j, j] = 0
    return BandedMechanism(diagonals=diagonals)


def two_bands(rounds):
    """Columns of norm 1, but for the last."""
    return banded(rounds, 0.8, 0.6)


def ledger_of(cohorts, cohort_size=1):
    return fedmf.ParticipationLedger(
        cohort_size=cohort_size, cohorts=[np.array(c, np.int64) for c in cohorts]
    )
