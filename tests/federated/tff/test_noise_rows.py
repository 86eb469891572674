"""The rows of N Z on tensors, and the seeds of runs."""

import concurrent.futures
import copy
import os
import pickle
import shutil
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.tff.noise import NoiseRows, RunSeeds
from fedmf.mechanisms import IdentityMechanism
from fedmf.server.source import noise_key
from tests.mechanisms.registry import every_form
from tests.refusals import refusal

KEY = noise_key(5)


@every_form
@pytest.mark.parametrize("rounds", [1, 11])
def test_basis_vectors_write_out_the_causal_noising_matrix(build, rounds):
    stream, basis = build(rounds).stream(), tf.eye(rounds)
    rows = NoiseRows(stream=stream, size=rounds, source=lambda key, size: lambda i: basis[i])
    step, state = tf.function(rows.next), rows.initial_state(KEY)
    L = stream.causal().as_contraction().contraction
    for t in range(rounds):
        row, state = step(tf.nest.map_structure(np.asarray, state))  # as of a checkpoint
        np.testing.assert_allclose(row, L[t], rtol=2e-6, atol=2e-6)


def test_a_row_is_handed_in_for_its_round_only():
    stream = IdentityMechanism(rounds=3).stream()
    rows = NoiseRows(stream=stream, size=2, strategy="precomputed")
    step, state = tf.function(rows.next), rows.initial_state(KEY)
    row, later = step(state)  # as TFF does when it initialises
    assert np.isnan(row).all()
    handed = state._replace(made_for=tf.constant(0), rows=tf.constant([[1.5, -2.5]]))
    row, after = step(handed)
    np.testing.assert_array_equal(row, [1.5, -2.5])
    others = (later._replace(made_for=tf.constant(t)) for t in (0, 2))
    for wrong in (later, after, *others):
        with pytest.raises(tf.errors.InvalidArgumentError, match="no noise was handed in"):
            step(wrong)


class TestSeedsOfRuns:
    def keys(self, begins):
        return [begin().numpy().tobytes() for begin in begins]

    @pytest.mark.parametrize("noise_seed", [3, "os"])
    def test_each_run_has_its_own_and_copies_share_them(self, noise_seed):
        seeds = RunSeeds(noise_seed)
        each = seeds, copy.copy(seeds), copy.deepcopy(seeds), seeds
        found = self.keys(seeds.next_key for seeds in each)
        assert len(set(found)) == 4
        again = self.keys([RunSeeds(noise_seed).next_key])
        assert (again == found[:1] == [noise_key(3).tobytes()]) is (noise_seed == 3)

    def test_a_seed_of_ones_own_goes_to_no_other_process(self):
        assert pickle.loads(pickle.dumps(RunSeeds("os"))).next() == "os"
        with refusal("is not pickled", TypeError):
            pickle.dumps(RunSeeds(3))

    def test_a_graph_begins_another_run_in_each_call(self):
        """With a seed the first call alone has it."""
        for noise_seed in ("os", 3):
            begin = tf.function(RunSeeds(noise_seed).next_key)
            found = self.keys([begin] * 20)
            assert len(set(found)) == 20
        again = self.keys([tf.function(RunSeeds(3).next_key)] * 3)
        assert again[0] == found[0] == noise_key(3).tobytes()
        assert len({*again, *found}) == 22
        repeated = tf.function(lambda: tf.constant(noise_key(3)))
        assert len(set(self.keys([repeated] * 3))) == 1  # the control

    def test_no_call_has_it_where_marks_of_others_may_be_gone(self, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        begin = tf.function(RunSeeds(3).next_key).get_concrete_function()
        (folder,) = tmp_path.iterdir()
        shutil.rmtree(folder)
        assert noise_key(3).tobytes() not in self.keys([begin] * 3)

    def test_a_forked_process_has_none(self, monkeypatch):
        own, fresh = RunSeeds(3), RunSeeds("os")
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with refusal("was forked"):
            own.next()
        assert fresh.next() == "os"

    def test_calls_side_by_side_do_not_share_it(self):
        for _ in range(3):
            begin = tf.function(RunSeeds(3).next_key).get_concrete_function()
            with concurrent.futures.ThreadPoolExecutor(8) as threads:
                made = [threads.submit(begin) for _ in range(16)]
            assert len(set(self.keys(each.result for each in made))) == 16
