"""Releases of a run are bitwise identical to those of a `fedmf.Server` with its plan and seed.

Releases of the query of a TFF process are equal to them up to rounding.
"""

import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf.runs.audit import audit_run
from fedmf.runs.plan_record import recorded_plan
from fedmf.server.clipping import UpdateSum
from fedmf.server.host_noise import HostNoise
from fedmf.server.means import NoisyMeans
from tests.federated.run_small import SEED, config
from tests.federated.small_runs import train

BOTH = {"clip_quantile": 0.5, "clip_every": 2}


@pytest.mark.parametrize("adaptive", [{}, BOTH], ids=["fixed", "adaptive"])
def test_a_run_and_a_server_have_equal_releases(adaptive, tmp_path, monkeypatch):
    sums = []
    released_means = []
    honest_release = NoisyMeans.release
    honest_add = UpdateSum.add_clipped

    def release(self, state, total, row):
        mean, state = honest_release(self, state, total, row)
        released_means.append(mean)
        return mean, state

    def add_clipped(self, leaves, clients, clipped, zeroed):
        sums.append((len(released_means), leaves, int(clients), int(clipped)))
        honest_add(self, leaves, clients, clipped, zeroed)

    with monkeypatch.context() as patch:
        patch.setattr(NoisyMeans, "release", release)
        patch.setattr(UpdateSum, "add_clipped", add_clipped)
        run = train(tmp_path / "run", config(cohort_size=6, **adaptive), noise_seed=SEED)
    plan = recorded_plan(run)
    shapes = [np.asarray(leaf).shape for leaf in sums[0][1]]
    server = fedmf.Server(plan, shapes=shapes, clients_per_round=6, noise_seed=SEED)
    ledger = fedmf.ParticipationLedger.from_csv(
        run.path / "participation.csv", rounds=len(released_means), cohort_size=6
    )
    cohorts = [ledger.cohort(t).tolist() for t in range(len(released_means))]
    for t, mean in enumerate(released_means):
        remaining_clients = list(cohorts[t])
        for _, leaves, clients, clipped in (group_sum for group_sum in sums if group_sum[0] == t):
            group = remaining_clients[:clients]
            remaining_clients = remaining_clients[clients:]
            server.add_sum([np.asarray(leaf) for leaf in leaves], clients=group, clipped=clipped)
        assert not remaining_clients
        server_release = np.concatenate([np.ravel(array) for array in server.release()])
        np.testing.assert_array_equal(server_release, mean)
    assert server.round == len(released_means) == plan.participation.rounds
    assert server.audit().epsilon == audit_run(run).epsilon


@pytest.mark.usefixtures("tff")
def test_the_query_and_a_server_have_equal_releases():
    from fedmf.federated.tff.query import MatrixFactorizationQuery

    participation = fedmf.Participation(rounds=8, schema="min_sep", min_sep=2)
    mechanism = fedmf.fit(fedmf.prefix_sum(8), participation, family="banded")
    plan = fedmf.Plan(
        mechanism=mechanism,
        participation=participation,
        noise_multiplier=0.5,
        clip_norm=0.7,
        delta=1e-6,
        quantile_clipping=fedmf.QuantileClipping(every=3),
    )
    specs = [tf.TensorSpec([3, 2]), tf.TensorSpec([5])]
    shapes = [(3, 2), (5,)]
    query = MatrixFactorizationQuery(
        plan,
        specs,
        divisor=4,
        noise_seed=3,
        zeroing_norm=50.0,
        noise_strategy="precomputed",
    )
    noise = HostNoise(plan, 11, noise_seed=3)
    state = query.initial_global_state()
    server = fedmf.Server(plan, shapes=shapes, clients_per_round=4, noise_seed=3, zeroing_norm=50.0)
    rng = np.random.default_rng(2)
    for t in range(8):
        state = noise.hand_in(state)
        sample = query.initial_sample_state()
        params = query.derive_sample_params(state)
        for i in range(4):
            size = (0.01, 1.0, 10.0, 1000.0)[(i + t) % 4]  # kept, clipped, clipped, zeroed
            update = [rng.normal(size=shape, scale=size).astype(np.float32) for shape in shapes]
            sample = query.accumulate_record(
                params, sample, [tf.constant(array) for array in update]
            )
            server.add(update, client=4 * t + i)
        counts = dict(server.counts)
        result, state, _ = query.get_noised_result(sample, state)
        for server_leaf, query_leaf in zip(server.release(), result, strict=True):
            np.testing.assert_allclose(server_leaf, query_leaf, rtol=1e-5, atol=1e-6)
        names = ("clients", "clipped", "zeroed")
        assert counts == {name: int(getattr(state, name)) for name in names}
        assert server.client_params().clip_norm == pytest.approx(float(state.clip.norm), rel=1e-6)
