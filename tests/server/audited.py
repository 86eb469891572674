"""Helpers for the audits of a server and of the query: tests of rows, and the attack."""

import math

import numpy as np

from fedmf.audits.distinguishing import audit_distinguishing
from fedmf.audits.noise import audit_noise
from fedmf.audits.whitening import causal_factor, whiten
from fedmf.server.audited_code import divisor_of, model_of, released_rows, worst_clients
from tests.power import FALSE_POSITIVE_RATE, missed_by_game, trials_that_detect

ROUNDS = 10
COORDINATES = 7_000
LEAVES = [math.prod(shape) for shape in model_of(COORDINATES)]


def run(plan, seed=1, **options):
    return released_rows(plan, COORDINATES, noise_seed=seed, **options)


def judged(claim, *runs):
    L = causal_factor(claim.mechanism.noising())
    scale = claim.stddev / divisor_of(claim)
    return audit_noise([whiten(L, np.stack(list(rows)), scale) for rows in runs], leaves=LEAVES)


def run_attack(run_plan, claim, case, departure, subject=None):
    """Runs the attack with enough trials to detect a signal-to-noise ratio of `departure` times
    that of the case.
    """
    claimed_snr = 1 / claim.noise_multiplier
    trials = trials_that_detect(
        lambda trials: missed_by_game(trials, departure * case.snr, claimed_snr)
    )
    clients, is_present = worst_clients(claim, case, trials, seed=1)
    rows = released_rows(run_plan, trials, noise_seed=5, clients=clients, subject=subject)
    s = case.projection @ np.stack(list(rows)) * divisor_of(claim) / claim.stddev
    return audit_distinguishing(
        claim, case, s[is_present], s[~is_present], confidence=1 - FALSE_POSITIVE_RATE
    )
