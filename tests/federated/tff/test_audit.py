"""The audit of the query: honest mechanisms pass, and mistakes in the code that runs are caught.

Other tests show that the rows of the host and of TFF's process are exact:
tests/server/test_host_noise.py and test_aggregator.py.
"""

import dataclasses
import functools

import pytest
import tensorflow as tf

from fedmf.audits.aggregator import audit_aggregator
from fedmf.audits.aggregator_claim import AggregatorClaim
from fedmf.audits.whitening import causal_factor
from fedmf.audits.worst_case import worst_case
from fedmf.federated.tff import audit as audits
from fedmf.federated.tff import query as queries
from fedmf.federated.tff.query import MatrixFactorizationQuery
from tests.audits.controls import mistakes_over_rounds
from tests.federated.plans import plan_of
from tests.mechanisms.registry import MECHANISMS
from tests.power import FALSE_POSITIVE_RATE, MISS_RATE, missed_by_noise_audit
from tests.server.audited import COORDINATES, LEAVES, ROUNDS, judged, run, run_attack

pytestmark = pytest.mark.usefixtures("clients_in_turn")

of_query = functools.partial(run, subject=audits.Query)


@pytest.fixture(scope="module")
def claim():
    return plan_of(MECHANISMS["banded"](ROUNDS))


# Mistakes in the code that runs. tests/audits/test_noise.py has mistakes in noise of any source.


def test_noise_shared_by_leaves_is_caught(monkeypatch, claim):
    """A correlation of 1 is detected with certainty."""
    honest_result = queries.MatrixFactorizationQuery.get_noised_result

    def shared(self, sample, state):
        [*other_leaves, _, bias], state, event = honest_result(self, sample, state)
        return [*other_leaves, bias[: LEAVES[2]], bias], state, event

    monkeypatch.setattr(queries.MatrixFactorizationQuery, "get_noised_result", shared)
    assert not judged(claim, of_query(claim)).consistent


@pytest.fixture(scope="module")
def resumed_audit(claim):
    return judged(claim, of_query(claim, resume_at=5))


@pytest.mark.parametrize(
    "lost", [*(pytest.param(lost, marks=pytest.mark.slow) for lost in ("all", "round")), "rows"]
)
def test_noise_not_advanced_by_a_resume_is_caught(monkeypatch, claim, resumed_audit, lost):
    """The resume loses all of the state, or only its round number, or only its rows.

    The first is a control of audits.controls, of known power.
    """
    honest_release = audits.Query.release
    subjects = []

    def forgetful(self, state, *clients):
        if self not in subjects:
            subjects.append(self)
            if len(subjects) == 2:
                initial_noise = self.initial_state.noise
                losses = {
                    "all": initial_noise,
                    "round": state.noise._replace(next_round=initial_noise.next_round),
                    "rows": state.noise._replace(rows=initial_noise.rows),
                }
                state = tf.nest.map_structure(tf.constant, state._replace(noise=losses[lost]))
        return honest_release(self, state, *clients)

    assert resumed_audit.consistent
    mistakes = mistakes_over_rounds(causal_factor(claim.mechanism.noising()))
    M = mistakes["noise not advanced by a resume"]
    assert missed_by_noise_audit(M @ M.T, COORDINATES, resumed_audit.threshold) <= MISS_RATE
    monkeypatch.setattr(audits.Query, "release", forgetful)
    assert not judged(claim, of_query(claim, resume_at=5)).consistent
    assert len(subjects) == 2


# The attack detects both mistakes.


@pytest.mark.slow
def test_too_little_noise_and_too_large_a_clip_norm_are_caught(monkeypatch):
    claim = plan_of(MECHANISMS["banded"](12))
    case = worst_case(claim)
    less = dataclasses.replace(claim, noise_multiplier=claim.noise_multiplier * 2 / 3)
    assert (
        run_attack(less, claim, case, 1.5, audits.Query).findings[2].p_value < FALSE_POSITIVE_RATE
    )
    honest_init = queries.MatrixFactorizationQuery.__init__

    def lenient(self, plan, *args, **kwargs):
        honest_init(self, plan, *args, **kwargs)
        self._clip_norm *= 1.5

    monkeypatch.setattr(queries.MatrixFactorizationQuery, "__init__", lenient)
    assert (
        run_attack(claim, claim, case, 1.5, audits.Query).findings[0].p_value < FALSE_POSITIVE_RATE
    )


AUDITED = {"clients": 6, "rounds": 8, "noise_multiplier": 0.2, "shapes": "30x20,20"}


def summed(query):
    """Returns (state, updates) -> the release of a query and the next state.

    There is a graph for each number of updates.
    """

    @tf.function
    def of(state, updates):
        params = query.derive_sample_params(state)
        sample = query.initial_sample_state(updates[0])
        for record in updates:
            sample = query.accumulate_record(params, sample, record)
        return query.get_noised_result(sample, state)[:2]

    def on_tensors(state, updates):
        return of(state, [[tf.constant(array) for array in update] for update in updates])

    return on_tensors


@pytest.mark.slow
def test_the_auditor_passes_the_mean_of_dp_aggregator():
    claim = AggregatorClaim(**AUDITED, noise="correlated", min_sep=3)
    plan = plan_of(MECHANISMS["banded"](8), noise_multiplier=0.2, clip_norm=1.0, delta=1e-4)
    specs = [tf.TensorSpec(shape) for shape in claim.arrays]
    query = MatrixFactorizationQuery(plan, specs, divisor=claim.clients, noise_seed="os")
    next_round = summed(query)

    def make():
        state = query.initial_global_state()

        def aggregate(updates):
            nonlocal state
            result, state = next_round(state, updates)
            return result

        return aggregate

    result = audit_aggregator(make, claim)
    assert result.failed == ()
    assert result.noise_multiplier_most >= 0.2


def test_the_auditor_passes_tf_privacys_sum_except_for_nan():
    """`tf.clip_by_global_norm` makes NaN of an update whose norm is not finite; TFF zeroes such
    updates before.
    """
    import tensorflow_privacy as tfp

    query = tfp.GaussianSumQuery(1.0, 0.2)
    next_round = summed(query)

    def make():
        return lambda updates: next_round(query.initial_global_state(), updates)[0]

    result = audit_aggregator(make, AggregatorClaim(**AUDITED, releases="sum"))
    assert result.failed == ("not-finite",)
    claim = AggregatorClaim(**AUDITED, releases="sum", leave_out="not-finite")
    result = audit_aggregator(make, claim)
    assert result.failed == ()
    assert 0.2 <= result.noise_multiplier_most <= 0.22
