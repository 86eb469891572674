"""The Gaussian source and the rows of N Z on tensors."""

import concurrent.futures
import copy
import pickle
from typing import Any

import mpmath
import numpy as np
import pytest
import tensorflow as tf

from fedmf.federated.noise.rows import NoiseRows
from fedmf.federated.noise.source import RunSeeds, source_of_key
from fedmf.mechanisms import IdentityMechanism
from fedmf.noise.strategies import GRAPH_STRATEGIES
from fedmf.server.source import noise_key
from fedmf.server.state import NoiseState
from tests.mechanisms.registry import every_form
from tests.power import distributed, unrelated

pytestmark = pytest.mark.tensorflow
KEY = noise_key(5)


def rows_of(
    rows: NoiseRows, count: int, state: NoiseState | None = None, step: Any = None
) -> tuple[np.ndarray, NoiseState]:
    step = tf.function(rows.next) if step is None else step
    state = rows.initial_state(KEY) if state is None else state
    out = []
    for _ in range(count):
        row, state = step(state)
        out.append(row.numpy())
    return np.array(out), state


def noise_rows(stream, size, strategy=None):
    return NoiseRows(stream=stream, size=size, strategy=strategy)


def causal(mechanism):
    """L of N = L Q by a road of its own, (rounds, rounds): N itself where N is causal."""
    N = mechanism.noising()
    if N.shape[0] == N.shape[1] and not np.triu(N, 1).any():
        return N
    with mpmath.workdps(40):
        return np.array(
            mpmath.cholesky(mpmath.matrix(N) * mpmath.matrix(N).T).tolist(), dtype=np.float64
        )


@every_form
@pytest.mark.parametrize("rounds", [1, 11])
def test_basis_vectors_write_out_the_causal_noising_matrix(build, rounds):
    mechanism, basis = build(rounds), tf.eye(rounds)
    rows = NoiseRows(
        stream=mechanism.stream(), size=rounds, source=lambda key, size: lambda i: basis[i]
    )
    np.testing.assert_allclose(rows_of(rows, rounds)[0], causal(mechanism), rtol=2e-6, atol=2e-6)


@every_form
def test_stopping_anywhere_changes_nothing(build):
    rows = noise_rows(build(40).stream(), 3)
    again = noise_rows(build(40).stream(), 3)
    step, step_again = tf.function(rows.next), tf.function(again.next)
    whole, _ = rows_of(rows, 40, step=step)
    for stop in (1, 33):
        first, state = rows_of(rows, stop, step=step)
        state = NoiseState(*(tf.constant(np.asarray(part)) for part in state))
        rest, _ = rows_of(again, 40 - stop, state, step=step_again)
        np.testing.assert_array_equal(np.concatenate([first, rest]), whole)


@pytest.mark.parametrize("strategy", GRAPH_STRATEGIES)
def test_past_the_last_round_is_refused(strategy):
    rows = noise_rows(IdentityMechanism(rounds=3).stream(), 2, strategy)
    late = rows.initial_state(KEY)._replace(next_round=tf.constant(3), made_for=tf.constant(3))
    with pytest.raises(tf.errors.InvalidArgumentError, match="planned for rounds=3"):
        tf.function(rows.next)(late)


def test_a_row_is_handed_in_for_its_round_only():
    rows = noise_rows(IdentityMechanism(rounds=3).stream(), 2, "precomputed")
    state = rows.initial_state(KEY)
    row, later = tf.function(rows.next)(state)  # as TFF does when it initialises
    assert np.isnan(row).all()
    for wrong in (
        later,
        later._replace(made_for=tf.constant(0)),
        later._replace(made_for=tf.constant(2)),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="no noise was handed in"):
            tf.function(rows.next)(wrong)
    row, state = tf.function(rows.next)(
        state._replace(made_for=tf.constant(0), rows=tf.constant([[1.5, -2.5]]))
    )
    np.testing.assert_array_equal(row, [1.5, -2.5])
    with pytest.raises(tf.errors.InvalidArgumentError, match="no noise was handed in"):
        tf.function(rows.next)(state)


def test_source_is_standard_normal_and_the_test_can_fail():
    size = 2**22
    values = source_of_key(noise_key(8), size)(3).numpy().astype(np.float64)
    # A scale off by 2% is 0.48% away at 1, a mean of 0.01 is 0.4% away at 0.
    assert distributed(values, "norm", departure=0.0039)
    assert not distributed(1.02 * values, "norm", departure=0.0039)
    assert not distributed(values + 0.01, "norm", departure=0.0039)


def test_rows_seeds_and_coordinates_are_independent_and_the_test_can_fail():
    draw = source_of_key(noise_key(8), 200_000)  # correlations of 0.025 are seen
    row = draw(0).numpy()
    others = [
        draw(1),
        draw(2**31 - 1),
        source_of_key(noise_key(9), 200_000)(0),
        source_of_key(noise_key(8 + 2**64), 200_000)(0),
    ]
    for other in others:
        assert unrelated(row, other.numpy(), departure=0.025)
    for lag in (1, 2, 3, 4, 8, 1024):
        assert unrelated(row[lag:], row[:-lag], departure=0.025)
    assert not unrelated(row, row + 20 * draw(1).numpy(), departure=0.025)


def test_a_row_is_a_function_of_seed_and_index_alone():
    eager = source_of_key(noise_key(8), 1000)(7).numpy()
    np.testing.assert_array_equal(
        tf.function(source_of_key(noise_key(8), 1000))(tf.constant(7)).numpy(), eager
    )
    # Eigen computes the last entries of an array one by one, to the last digit but one.
    np.testing.assert_allclose(
        source_of_key(noise_key(8), 5000)(7).numpy()[:1000], eager, rtol=1e-6, atol=1e-7
    )


class TestSeedsOfRuns:
    def test_each_run_has_its_own_and_copies_share_them(self):
        for noise_seed in (3, "os"):
            seeds = RunSeeds(noise_seed)
            made = [
                each.next_key().numpy().tobytes()
                for each in (seeds, copy.copy(seeds), copy.deepcopy(seeds), seeds)
            ]
            assert len(set(made)) == 4
        assert (
            RunSeeds(3).next_key().numpy().tobytes()
            == noise_key(3).tobytes()
            == RunSeeds(3).next_key().numpy().tobytes()
        )

    def test_a_seed_of_ones_own_goes_to_no_other_process(self):
        assert pickle.loads(pickle.dumps(RunSeeds("os"))).next() == "os"
        with pytest.raises(TypeError, match="is not pickled"):
            pickle.dumps(RunSeeds(3))

    def test_a_graph_begins_another_run_in_each_call(self):
        for seeds in (RunSeeds("os"), RunSeeds(3)):
            begin = tf.function(lambda seeds=seeds: seeds.next_key())
            assert len({begin().numpy().tobytes() for _ in range(20)}) == 20
        repeated = tf.function(lambda: tf.constant(noise_key(3)))
        assert len({repeated().numpy().tobytes() for _ in range(3)}) == 1  # the control

    def test_of_a_graph_with_a_seed_the_first_call_alone_has_it(self):
        begins = [tf.function(RunSeeds(3).next_key) for _ in range(2)]
        keys = [[begin().numpy().tobytes() for _ in range(3)] for begin in begins]
        assert keys[0][0] == keys[1][0] == noise_key(3).tobytes()
        assert len({key for run in keys for key in run}) == 5

    def test_calls_side_by_side_do_not_share_it(self):
        for _ in range(10):
            begin = tf.function(RunSeeds(3).next_key).get_concrete_function()
            with concurrent.futures.ThreadPoolExecutor(8) as threads:
                keys = [
                    made.result().numpy().tobytes()
                    for made in [threads.submit(begin) for _ in range(16)]
                ]
            assert len(set(keys)) == 16
