"""The Gaussian source, the keys of runs, and the rows of N Z on tensors."""

import concurrent.futures
import copy
import os
import pickle
import shutil
import tempfile

import mpmath
import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.tff.noise import GraphNoise
from fedmf.federated.tff.noise_source import RunSeeds, source_of_key
from fedmf.mechanisms import IdentityMechanism
from fedmf.noise.graph_strategies import GRAPH_STRATEGIES
from fedmf.server.source import noise_key
from tests.mechanisms.registry import every_form
from tests.power import has_distribution, is_uncorrelated
from tests.refusals import refusal

KEY = noise_key(5)


def rows_of(step, num_rounds, state):
    """Returns the rows of so many rounds, and the state after them."""
    rows = []
    for _ in range(num_rounds):
        row, state = step(state)
        rows.append(row.numpy())
    return np.array(rows), state


def causal(mechanism):
    """Returns L of N = L Q, (rounds, rounds), by another computation; N itself if it is causal."""
    N = mechanism.noising()
    if N.shape[0] == N.shape[1] and not np.triu(N, 1).any():
        return N
    with mpmath.workdps(40):
        return np.array(
            mpmath.cholesky(mpmath.matrix(N) * mpmath.matrix(N).T).tolist(), dtype=np.float64
        )


@every_form
@pytest.mark.parametrize("rounds", [1, 11])
def test_noise_of_basis_vectors_is_the_causal_noising_matrix(build, rounds):
    mechanism = build(rounds)
    basis = tf.eye(rounds)
    noise = GraphNoise(
        stream=mechanism.stream(), size=rounds, source=lambda key, size: lambda i: basis[i]
    )
    rows, _ = rows_of(tf.function(noise.next), rounds, noise.initial_state(KEY))
    np.testing.assert_allclose(rows, causal(mechanism), rtol=2e-6, atol=2e-6)


@every_form
def test_a_restored_state_has_the_same_noise(build):
    noise = GraphNoise(stream=build(40).stream(), size=3)
    resumed_noise = GraphNoise(stream=build(40).stream(), size=3)
    step = tf.function(noise.next)
    resumed_step = tf.function(resumed_noise.next)
    initial_state = noise.initial_state(KEY)
    expected_rows, _ = rows_of(step, 40, initial_state)
    for stop in (1, 33):
        rows, state = rows_of(step, stop, initial_state)
        state = tf.nest.map_structure(np.asarray, state)
        resumed_rows, _ = rows_of(resumed_step, 40 - stop, state)
        np.testing.assert_array_equal(np.concatenate([rows, resumed_rows]), expected_rows)


@pytest.mark.parametrize("strategy", GRAPH_STRATEGIES)
def test_noise_past_the_last_round_is_refused(strategy):
    noise = GraphNoise(stream=IdentityMechanism(rounds=3).stream(), size=2, strategy=strategy)
    state = noise.initial_state(KEY)._replace(next_round=tf.constant(3), made_for=tf.constant(3))
    with pytest.raises(tf.errors.InvalidArgumentError, match="planned for rounds=3"):
        tf.function(noise.next)(state)


def test_a_row_is_handed_in_for_its_round_only():
    stream = IdentityMechanism(rounds=3).stream()
    noise = GraphNoise(stream=stream, size=2, strategy="precomputed")
    step = tf.function(noise.next)
    initial_state = noise.initial_state(KEY)
    row, state_without_row = step(initial_state)  # TFF does so when it initialises.
    assert np.isnan(row).all()
    state = initial_state._replace(made_for=tf.constant(0), rows=tf.constant([[1.5, -2.5]]))
    row, next_state = step(state)
    np.testing.assert_array_equal(row, [1.5, -2.5])
    states_of_other_rounds = [state_without_row._replace(made_for=tf.constant(t)) for t in (0, 2)]
    for wrong_state in (state_without_row, next_state, *states_of_other_rounds):
        with pytest.raises(tf.errors.InvalidArgumentError, match="no noise was handed in"):
            step(wrong_state)


@pytest.mark.slow
def test_the_source_is_standard_normal():
    size = 2**21
    values = source_of_key(noise_key(8), size)(3).numpy().astype(np.float64)
    # A scale off by 2% is 0.48% away at 1, a mean of 0.01 is 0.4% away at 0.
    assert has_distribution(values, "norm", departure=0.0039)
    assert not has_distribution(1.02 * values, "norm", departure=0.0039)
    assert not has_distribution(values + 0.01, "norm", departure=0.0039)


def test_rows_seeds_and_coordinates_are_independent():
    def draw(index, seed=8):
        # With so many coordinates the test detects correlations of 0.025.
        return source_of_key(noise_key(seed), 200_000)(index)

    row = draw(0).numpy()
    for other_row in (draw(1), draw(2**31 - 1), draw(0, 9), draw(0, 8 + 2**64)):
        assert is_uncorrelated(row, other_row.numpy(), departure=0.025)
    for lag in (1, 2, 3, 4, 8, 1024):
        assert is_uncorrelated(row[lag:], row[:-lag], departure=0.025)
    assert not is_uncorrelated(row, row + 20 * draw(1).numpy(), departure=0.025)


def test_a_row_is_a_function_of_seed_and_index_alone():
    draw = source_of_key(noise_key(8), 1000)
    longer_draw = source_of_key(noise_key(8), 5000)
    np.testing.assert_array_equal(tf.function(draw)(tf.constant(7)), draw(7))
    # Eigen computes the last entries of an array one by one, to the last digit but one.
    np.testing.assert_allclose(longer_draw(7)[:1000], draw(7), rtol=1e-6, atol=1e-7)


class TestSeedsOfRuns:
    """`RunSeeds`: the seeds and keys of runs."""

    def keys(self, begin_functions):
        return [begin().numpy().tobytes() for begin in begin_functions]

    @pytest.mark.parametrize("noise_seed", [3, "os"])
    def test_each_run_has_a_seed_of_its_own_and_copies_share_the_sequence(self, noise_seed):
        seeds = RunSeeds(noise_seed)
        copies = (seeds, copy.copy(seeds), copy.deepcopy(seeds), seeds)
        keys = self.keys(seeds.next_key for seeds in copies)
        assert len(set(keys)) == 4
        new_keys = self.keys([RunSeeds(noise_seed).next_key])
        assert (new_keys == keys[:1] == [noise_key(3).tobytes()]) is (noise_seed == 3)

    def test_an_int_seed_is_not_pickled(self):
        assert pickle.loads(pickle.dumps(RunSeeds("os"))).next() == "os"
        with refusal("is not pickled", TypeError):
            pickle.dumps(RunSeeds(3))

    def test_a_graph_begins_another_run_in_each_call(self):
        """With an int only the first call has that seed."""
        for noise_seed in ("os", 3):
            begin = tf.function(RunSeeds(noise_seed).next_key)
            keys = self.keys([begin] * 20)
            assert len(set(keys)) == 20
        keys_of_another_graph = self.keys([tf.function(RunSeeds(3).next_key)] * 3)
        assert keys_of_another_graph[0] == keys[0] == noise_key(3).tobytes()
        assert len({*keys_of_another_graph, *keys}) == 22
        repeated_key = tf.function(lambda: tf.constant(noise_key(3)))
        assert len(set(self.keys([repeated_key] * 3))) == 1  # The negative control.

    def test_no_call_has_the_first_key_where_files_of_other_calls_may_be_gone(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        begin = tf.function(RunSeeds(3).next_key).get_concrete_function()
        (folder,) = tmp_path.iterdir()
        shutil.rmtree(folder)
        assert noise_key(3).tobytes() not in self.keys([begin] * 3)

    def test_a_forked_process_begins_no_run(self, monkeypatch):
        int_seeds = RunSeeds(3)
        os_seeds = RunSeeds("os")
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with refusal("was forked"):
            int_seeds.next()
        assert os_seeds.next() == "os"

    def test_parallel_calls_do_not_share_a_key(self):
        for _ in range(3):
            begin = tf.function(RunSeeds(3).next_key).get_concrete_function()
            with concurrent.futures.ThreadPoolExecutor(8) as threads:
                jobs = [threads.submit(begin) for _ in range(16)]
            assert len(set(self.keys(job.result for job in jobs))) == 16
