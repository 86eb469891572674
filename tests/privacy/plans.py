"""Plans, banded mechanisms and ledgers for tests of guarantees."""

import numpy as np

import fedmf
from fedmf.mechanisms import BandedMechanism, IdentityMechanism


def plan(participation, mechanism=None, **changes):
    """Returns a plan, of the identity by default."""
    if mechanism is None:
        mechanism = IdentityMechanism(rounds=participation.rounds)
    arguments = {"noise_multiplier": 2.0, "clip_norm": 0.5, "delta": 1e-6, **changes}
    return fedmf.Plan(mechanism=mechanism, participation=participation, **arguments)


def banded(rounds, *entries):
    """Returns the mechanism whose C has these entries in every column, from the diagonal down."""
    diagonals = np.tile(entries, (rounds, 1))
    for j in range(1, len(entries)):
        diagonals[:j, j] = 0
    return BandedMechanism(diagonals=diagonals)


def two_bands(rounds):
    """Returns a mechanism of two bands whose columns have norm 1, except for the last one."""
    return banded(rounds, 0.8, 0.6)


def ledger_of(cohorts, cohort_size=1):
    """Returns a ledger of these cohorts."""
    return fedmf.ParticipationLedger(
        cohort_size=cohort_size, cohorts=[np.array(cohort, np.int64) for cohort in cohorts]
    )
