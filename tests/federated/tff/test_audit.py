"""The audit of the query: honest mechanisms pass, and mistakes in the code that runs are caught.

The host's rows and TFF's process are held to the same rows exactly, in tests/server/test_rows.py
and test_aggregator.py.
"""

import collections
import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from fedmf.audits.distinguishing import audit_distinguishing, worst_case
from fedmf.audits.noise import audit_noise, causal_factor, whiten
from fedmf.federated.tff import audit as audits
from fedmf.federated.tff import query as queries
from fedmf.server.audit import (
    audit_mechanism,
    divisor_of,
    model_of,
    released_rows,
    worst_clients,
)
from tests.audits.controls import mistakes_over_rounds
from tests.federated.plans import plan_of
from tests.mechanisms.registry import MECHANISMS, every_form
from tests.power import (
    FALSE_POSITIVE_RATE,
    MISS_RATE,
    missed_by_game,
    missed_by_noise_audit,
    trials_that_see,
)
from tests.refusals import refusal

pytestmark = pytest.mark.usefixtures("clients_in_turn")

ROUNDS, COORDINATES = 10, 7_000
LEAVES = [math.prod(shape) for shape in model_of(COORDINATES).values()]


@pytest.fixture(scope="module")
def claim():
    return plan_of(MECHANISMS["banded"](ROUNDS))


def run(plan, seed=1, **options):
    return released_rows(plan, COORDINATES, noise_seed=seed, subject=audits.Query, **options)


def judged(claim, *runs):
    L, scale = causal_factor(claim.mechanism.noising()), claim.stddev / divisor_of(claim)
    return audit_noise([whiten(L, np.stack(list(rows)), scale) for rows in runs], leaves=LEAVES)


@pytest.mark.slow
@every_form
def test_every_form_is_what_is_claimed(build):
    plan = plan_of(build(ROUNDS))
    assert judged(plan, run(plan, seed=99, resume_at=6)).contradictions == ()


def test_an_audit_is_of_two_runs_and_a_game():
    progress = []
    plan = plan_of(MECHANISMS["tree online"](4))
    result = audit_mechanism(
        plan,
        seed=3,
        coordinates=300,
        trials=20,
        progress=lambda done, total: progress.append((done, total)),
        subject=audits.Query,
    )
    assert result.verdict.consistent
    assert (result.rounds, result.coordinates, result.trials) == (4, 300, 20)
    assert (result.game.present, result.game.absent) == (10, 10)
    assert progress == [(done, 12) for done in range(1, 13)]


# Mistakes in what runs. tests/audits/test_noise.py has those of noise, whoever makes it.


def test_noise_shared_by_leaves_is_caught(monkeypatch, claim):
    """A correlation of 1 is seen with certainty."""
    honest = queries.MatrixFactorizationQuery.get_noised_result

    def shared(self, sample, state):
        result, state, event = honest(self, sample, state)
        return collections.OrderedDict(result, kernel=result["bias"][: LEAVES[2]]), state, event

    monkeypatch.setattr(queries.MatrixFactorizationQuery, "get_noised_result", shared)
    assert not judged(claim, run(claim)).consistent


@pytest.fixture(scope="module")
def resumed(claim):
    return judged(claim, run(claim, resume_at=5))


@pytest.mark.parametrize("lost", ["all", pytest.param("round", marks=pytest.mark.slow), "rows"])
def test_noise_not_advanced_by_a_resume_is_caught(monkeypatch, claim, resumed, lost):
    """All of the state lost, or only its round number, or only its rows.

    The first is a control of audits.controls, of known power.
    """
    honest, made = audits.Query.release, []

    def forgetful(self, state, *clients):
        if self not in made:
            made.append(self)
            if len(made) == 2:
                begun = self.initial_state.noise
                losses = {
                    "all": begun,
                    "round": state.noise._replace(next_round=begun.next_round),
                    "rows": state.noise._replace(rows=begun.rows),
                }
                state = tf.nest.map_structure(tf.constant, state._replace(noise=losses[lost]))
        return honest(self, state, *clients)

    assert resumed.consistent
    mistakes = mistakes_over_rounds(causal_factor(claim.mechanism.noising()))
    M = mistakes["noise not advanced by a resume"]
    assert missed_by_noise_audit(M @ M.T, COORDINATES, resumed.threshold) <= MISS_RATE
    monkeypatch.setattr(audits.Query, "release", forgetful)
    assert not judged(claim, run(claim, resume_at=5)).consistent
    assert len(made) == 2


# The game.


def of_query(plan, trials, clients):
    return released_rows(plan, trials, noise_seed=5, clients=clients, subject=audits.Query)


def game(run_plan, claim, case, departure):
    """As many trials as see a signal-to-noise ratio `departure` times that of the case."""
    claimed = 1 / claim.noise_multiplier
    trials = trials_that_see(lambda trials: missed_by_game(trials, departure * case.snr, claimed))
    clients, present = worst_clients(claim, case, trials, seed=1)
    rows = np.stack(list(of_query(run_plan, trials, clients)))
    s = case.projection @ rows * divisor_of(claim) / claim.stddev
    return audit_distinguishing(
        claim, case, s[present], s[~present], confidence=1 - FALSE_POSITIVE_RATE
    )


@pytest.mark.parametrize("name", ["banded", "tree online"])
def test_the_worst_client_is_seen_as_well_as_claimed_and_no_better(name):
    plan = plan_of(MECHANISMS[name](12))
    case = worst_case(plan)
    result = game(plan, plan, case, 1.5)
    assert all(finding.p_value > FALSE_POSITIVE_RATE for finding in result.findings)
    assert result.snr_lower <= case.snr <= result.snr_upper
    assert result.epsilon_lower <= plan.epsilon
    if plan.sensitivity.exact:
        assert case.snr == pytest.approx(1 / plan.noise_multiplier, rel=0.01)


def test_games_that_break_the_claim_are_caught(monkeypatch):
    claim = plan_of(MECHANISMS["banded"](12))
    case = worst_case(claim)
    less = dataclasses.replace(claim, noise_multiplier=claim.noise_multiplier * 2 / 3)
    assert game(less, claim, case, 1.5).findings[2].p_value < FALSE_POSITIVE_RATE
    honest = queries.MatrixFactorizationQuery.__init__

    def lenient(self, plan, *args, **kwargs):
        honest(self, plan, *args, **kwargs)
        self._clip_norm *= 1.5

    monkeypatch.setattr(queries.MatrixFactorizationQuery, "__init__", lenient)
    assert game(claim, claim, case, 1.5).findings[0].p_value < FALSE_POSITIVE_RATE


def test_a_simulated_cohort_has_the_noise_it_says(claim):
    plan = claim.simulating(simulated=5, claimed=50)
    assert judged(plan, run(plan)).consistent
    with refusal("guarantees nothing of what runs"):
        audit_mechanism(plan, seed=1)
