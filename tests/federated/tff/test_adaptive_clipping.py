"""A clip norm that follows a quantile: what is released, and that both streams
tell no more than is claimed.
"""

import numpy as np
import pytest
import tensorflow as tf

from fedmf import QuantileClipping
from fedmf.audits.distinguishing import audit_distinguishing, worst_case
from fedmf.audits.noise import NoiseAudit, causal_factor
from fedmf.federated.tff import query as queries
from fedmf.federated.tff.aggregator import mean_query
from fedmf.federated.tff.audit import Query
from fedmf.privacy.plan import bit_stddev
from fedmf.server.audit import audit_mechanism
from fedmf.server.source import noise_key
from tests.federated.plans import noise_of_sums, plan_of
from tests.mechanisms.registry import MECHANISMS
from tests.power import missed_by_game, trials_that_see

ROUNDS, SIZE, CLIENTS = 6, 5, 4


def query_of(clipping, size=SIZE, **changes):
    plan = plan_of(MECHANISMS["banded"](ROUNDS), quantile_clipping=clipping, **changes)
    return mean_query(
        plan, [tf.TensorSpec([size])], clients_per_round=CLIENTS, noise_seed=3, zeroing_norm=None
    )


@pytest.mark.parametrize("every", [1, 2])
def test_what_is_released_by_brute_force(every):
    clipping = QuantileClipping(quantile=0.7, share=0.2, every=every, learning_rate=0.8)
    query = query_of(clipping)
    plan, state = query.plan, query.initial_global_state()
    noise, zeta, within = noise_of_sums(plan, SIZE + 1, 3), plan.clip_norm, []
    for t in range(ROUNDS):
        updates = np.random.default_rng([7, t]).normal(size=(CLIENTS, SIZE))
        updates *= [[0.05], [0.2], [0.5], [2.0]]
        sample, params = query.initial_sample_state(), query.derive_sample_params(state)
        assert float(params.clip_norm) == pytest.approx(zeta, rel=1e-5)
        for update in updates:
            sample = query.accumulate_record(params, sample, [tf.constant(update, tf.float32)])
        [released], state, _ = query.get_noised_result(sample, state)
        norms = np.linalg.norm(updates, axis=1)
        units = (updates * np.minimum(1 / zeta, 1 / norms)[:, None]).sum(axis=0)
        expected = zeta * (units + noise[t, :-1] / plan.clip_norm) / CLIENTS
        np.testing.assert_allclose(released, expected, rtol=1e-4, atol=1e-5)
        bits = ((norms <= zeta) - 0.5).sum() + noise[t, -1] / plan.stddev * bit_stddev(plan)
        assert float(state.clip.bits) == pytest.approx(bits, rel=1e-4, abs=1e-5)
        metrics, scaled = query.derive_metrics(state), plan.stddev * zeta / plan.clip_norm
        assert float(metrics["clip_norm"]) == pytest.approx(zeta, rel=1e-5)
        assert float(metrics["noise_stddev"]) == pytest.approx(scaled, rel=1e-5)
        within.append(bits / CLIENTS + 0.5)
        if (t + 1) % every == 0:
            zeta *= np.exp(-0.8 * (np.clip(np.mean(within), 0, 1) - 0.7))
            within = []
    assert zeta != pytest.approx(plan.clip_norm, rel=0.1)


def joint_game(clipping, sent, *, departure):
    """The worst client of the plan, in both streams: the likelihood ratio of releases with it and
    without it, over runs of the query.

    Args:
      sent: the norm of the client's update over the clip norm of the round.
      departure: trials are enough to see a signal so many times that of the claim.
    """
    query = query_of(clipping, 1)
    plan, case = query.plan, worst_case(query.plan)
    trials = trials_that_see(
        lambda trials: missed_by_game(trials, departure * case.snr, 1 / plan.noise_multiplier)
    )
    present = np.random.default_rng(6).permutation(trials) < trials // 2
    sign = 1.0 if sent <= 1 else -1.0  # of the bit

    def trial(drawn):
        key, is_present = drawn
        state = query.initial_global_state()
        state = state._replace(noise=state.noise._replace(key=key))
        released = []
        for u in case.contributions:
            params, sample = query.derive_sample_params(state), query.initial_sample_state()
            if u:
                update = tf.cast(u * sent * params.clip_norm, tf.float32)[None]
                one = query.accumulate_record(params, sample, [update])
                sample = tf.nest.map_structure(lambda a, b: tf.where(is_present, a, b), one, sample)
            [mean], state, _ = query.get_noised_result(sample, state)
            released += [mean[0] * CLIENTS / tf.cast(params.clip_norm, tf.float32), state.clip.bits]
        return tf.stack(released)

    keys = np.array([noise_key(1000 + i) for i in range(trials)])
    rows = tf.function(
        lambda keys, present: tf.map_fn(
            trial, (keys, present), fn_output_signature=tf.float32, parallel_iterations=4
        )
    )(tf.constant(keys), tf.constant(present))
    y = rows.numpy().reshape(trials, ROUNDS, 2).astype(np.float64)
    # Whitened, either stream has a signal along one direction; their likelihood ratio weighs them
    # by their means.
    E = np.linalg.inv(causal_factor(plan.mechanism.noising()))
    stddevs = np.array([plan.stddev / plan.clip_norm, bit_stddev(plan)])
    # The bit is of one sign in every round, and the update that of u.
    contributions = np.stack([case.contributions, sign * 0.5 * np.abs(case.contributions)], axis=1)
    means, white = E @ contributions / stddevs, np.einsum("ij,kjl->kil", E, y) / stddevs
    s = (white * means).sum(axis=(1, 2)) / np.linalg.norm(means)
    snr = float(np.linalg.norm(means))
    assert snr == pytest.approx(case.snr, rel=1e-5)
    found = audit_distinguishing(plan, case, s[present], s[~present])
    return NoiseAudit(findings=found.findings)


@pytest.mark.parametrize(
    ("sent", "departure"),
    [
        pytest.param(3.0, 1.2, marks=pytest.mark.slow),
        pytest.param(0.999, 1.2, marks=pytest.mark.slow),
        (0.999, 2.0),
    ],
)
def test_both_streams_together_tell_as_much_as_the_plan_claims(sent, departure):
    verdict = joint_game(QuantileClipping(share=0.5, every=1), sent, departure=departure)
    assert verdict.consistent, verdict.contradictions


@pytest.mark.slow
def test_a_bit_that_is_not_centred_is_caught(monkeypatch):
    """Negative control: the count of clients within the clip norm, 0 or 1 a client.

    At a share of 1/2 its signal is 1.5 / sqrt(2.0) and more times what is claimed.
    """
    honest = queries.MatrixFactorizationQuery.get_noised_result

    def uncentred(self, sample, state):
        # sum of b = clients / 2 - clipped of twice the clients that are not clipped.
        within = sample.clients - sample.clipped
        return honest(self, sample._replace(clients=2 * within, clipped=0 * within), state)

    monkeypatch.setattr(queries.MatrixFactorizationQuery, "get_noised_result", uncentred)
    verdict = joint_game(QuantileClipping(share=0.5, every=1), 0.999, departure=1.2)
    assert not verdict.consistent


@pytest.mark.slow
def test_the_audit_of_a_mechanism_sees_both_streams(monkeypatch):
    plan = plan_of(MECHANISMS["banded"](ROUNDS), quantile_clipping=QuantileClipping(every=1))
    assert audit_mechanism(plan, seed=3, trials=4000, subject=Query).verdict.consistent
    # Negative control: the bits have the noise of an update's entry, and not their own.
    honest = queries.NoiseRows.next

    def shared(self, state):
        row, state = honest(self, state)
        return tf.concat([row[:-1], row[:1]], axis=0), state

    monkeypatch.setattr(queries.NoiseRows, "next", shared)
    assert not audit_mechanism(plan, seed=3, trials=0, subject=Query).verdict.consistent


def test_a_state_of_another_clipping_is_refused():
    """Noise that was released with other noise of the bits beside it would come again."""
    state = query_of(QuantileClipping(share=0.1)).initial_global_state()
    other = query_of(QuantileClipping(share=0.2))
    with pytest.raises(tf.errors.InvalidArgumentError, match="another mechanism, noise scale"):
        other.get_noised_result(other.initial_sample_state(), state)
