"""What a run releases is what a `fedmf.Server` of its plan and seed does for the same updates, to
the bit.
"""

import numpy as np
import pytest

import fedmf
from fedmf.runs.audit import audit_run, recorded_plan
from fedmf.server.clipping import UpdateSum
from fedmf.server.means import NoisyMeans
from tests.federated.run_small import SEED, config
from tests.federated.small_runs import train

BOTH = {"clip_quantile": 0.5, "clip_every": 2}


@pytest.mark.parametrize("adaptive", [{}, BOTH], ids=["fixed", "adaptive"])
def test_a_run_releases_what_a_server_does(adaptive, tmp_path, monkeypatch):
    sums, means = [], []
    honest, added = NoisyMeans.release, UpdateSum.add_clipped

    def release(self, state, total, row):
        mean, state = honest(self, state, total, row)
        means.append(mean)
        return mean, state

    def add_clipped(self, leaves, clients, clipped, zeroed):
        sums.append(([np.asarray(leaf) for leaf in leaves], int(clipped)))
        added(self, leaves, clients, clipped, zeroed)

    with monkeypatch.context() as patch:
        patch.setattr(NoisyMeans, "release", release)
        patch.setattr(UpdateSum, "add_clipped", add_clipped)
        run = train(tmp_path / "run", config(cohort_size=6, **adaptive), noise_seed=SEED)
    shapes = [leaf.shape for leaf in sums[0][0]]
    server = fedmf.Server(recorded_plan(run), shapes=shapes, clients_per_round=6, noise_seed=SEED)
    ledger = fedmf.ParticipationLedger.from_csv(
        run.path / "participation.csv", rounds=6, cohort_size=6
    )
    # The clients of a round are one group
    for t, ((leaves, clipped), mean) in enumerate(zip(sums, means, strict=True)):
        server.add_sum(leaves, clients=ledger.cohort(t).tolist(), clipped=clipped)
        released = np.concatenate([np.ravel(array) for array in server.release()])
        np.testing.assert_array_equal(released, mean)
    assert server.round == 6
    assert server.audit().epsilon == audit_run(run).epsilon
