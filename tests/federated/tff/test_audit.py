"""The audit of the query: honest mechanisms pass, and mistakes in the code that runs are caught.

The host's rows and TFF's process are held to the same rows exactly, in tests/server/test_rows.py
and test_aggregator.py.
"""

import functools

import pytest
import tensorflow as tf

from fedmf.audits.aggregator import audit_aggregator
from fedmf.audits.aggregator_claim import AggregatorClaim
from fedmf.audits.distinguishing import worst_case
from fedmf.federated.tff import audit as audits
from fedmf.federated.tff import query as queries
from fedmf.federated.tff.query import MatrixFactorizationQuery
from tests.federated.plans import plan_of
from tests.mechanisms.registry import MECHANISMS
from tests.power import FALSE_POSITIVE_RATE
from tests.server.audited import ROUNDS, game, judged, run

pytestmark = pytest.mark.usefixtures("clients_in_turn")

of_query = functools.partial(run, subject=audits.Query)


def test_noise_whose_rows_a_resume_loses_is_caught(monkeypatch):
    """tests/server/test_audit.py has a lost number of the round."""
    claim = plan_of(MECHANISMS["banded"](ROUNDS))
    assert judged(claim, of_query(claim, resume_at=5)).consistent
    honest, made = audits.Query.release, []

    def forgetful(self, state, *clients):
        if self not in made:
            made.append(self)
            if len(made) == 2:
                lost = state.noise._replace(rows=self.initial_state.noise.rows)
                state = state._replace(noise=lost)
        return honest(self, state, *clients)

    monkeypatch.setattr(audits.Query, "release", forgetful)
    assert not judged(claim, of_query(claim, resume_at=5)).consistent
    assert len(made) == 2


@pytest.mark.slow
def test_a_game_that_breaks_the_claim_is_caught(monkeypatch):
    claim = plan_of(MECHANISMS["banded"](12))
    case = worst_case(claim)
    honest = queries.MatrixFactorizationQuery.__init__

    def lenient(self, plan, *args, **kwargs):
        honest(self, plan, *args, **kwargs)
        self._clip_norm *= 1.5

    monkeypatch.setattr(queries.MatrixFactorizationQuery, "__init__", lenient)
    assert game(claim, claim, case, 1.5, audits.Query).findings[0].p_value < FALSE_POSITIVE_RATE


@pytest.mark.slow
def test_the_referee_passes_the_mean_of_dp_aggregator():
    claim = AggregatorClaim(
        clients=6, rounds=8, noise_multiplier=0.2, shapes="30x20,20", noise="correlated", min_sep=3
    )
    plan = plan_of(MECHANISMS["banded"](8), noise_multiplier=0.2, clip_norm=1.0, delta=1e-4)
    specs = [tf.TensorSpec(shape) for shape in claim.arrays]
    query = MatrixFactorizationQuery(plan, specs, divisor=claim.clients, noise_seed="os")

    @tf.function
    def next_round(state, updates):
        params, sample = query.derive_sample_params(state), query.initial_sample_state()
        for record in updates:
            sample = query.accumulate_record(params, sample, record)
        return query.get_noised_result(sample, state)[:2]

    def make():
        state = query.initial_global_state()

        def aggregate(updates):
            nonlocal state
            on_tensors = [[tf.constant(array) for array in update] for update in updates]
            result, state = next_round(state, on_tensors)
            return result

        return aggregate

    result = audit_aggregator(make, claim)
    assert result.failed == ()
    assert result.noise_multiplier_most >= 0.2
