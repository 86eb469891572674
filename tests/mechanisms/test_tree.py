import numpy as np
import pytest

from fedmf.error import loss, rmse
from fedmf.mechanisms import IdentityMechanism, TreeMechanism
from fedmf.participation import Participation
from fedmf.sensitivity import sensitivity
from fedmf.workloads import momentum_sgd, prefix_sum
from tests.paper_figures import BANDED_TABLE_2, DENISOV_TABLE_2


def test_four_rounds_are_the_matrix_of_denisov_eq_12():
    expected = [[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1]]
    assert np.array_equal(TreeMechanism(rounds=4).encoder(), expected)


@pytest.mark.parametrize("rounds", range(1, 20))
def test_nodes_are_the_dyadic_intervals_of_rounds(rounds):
    expected = {
        tuple(range(first, first + size)) for size in (1, 2, 4, 8, 16) for first in range(0, rounds - size + 1, size)
    }
    rows = [tuple(np.flatnonzero(row)) for row in TreeMechanism(rounds=rounds).encoder()]
    assert len(rows) == len(expected)
    assert set(rows) == expected
    assert [row[-1] for row in rows] == sorted(row[-1] for row in rows)


@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 13])
def test_online_noise_uses_finished_nodes_only(rounds):
    mechanism = TreeMechanism(rounds=rounds, decoder="online")
    last = [np.flatnonzero(row)[-1] for row in mechanism.encoder()]
    for t, row in enumerate(mechanism.noising()):
        assert all(last[node] <= t for node in np.flatnonzero(row))


@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 13])
def test_online_decoder_is_the_best_that_waits_for_nodes(rounds):
    # Denisov et al. 2022, Prop. C.1: row by row, the least-norm solution of B C = S over the nodes finished by then.
    mechanism = TreeMechanism(rounds=rounds, decoder="online")
    C, S = mechanism.encoder(), np.tri(rounds)
    last = np.array([np.flatnonzero(row)[-1] for row in C])
    B = np.zeros((rounds, len(C)))
    for t in range(rounds):
        B[t, last <= t] = S[t] @ np.linalg.pinv(C[last <= t])
    np.testing.assert_allclose(S @ mechanism.noising(), B, atol=1e-12)


@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 13])
def test_full_decoder_is_the_pseudoinverse(rounds):
    mechanism = TreeMechanism(rounds=rounds, decoder="full")
    np.testing.assert_allclose(mechanism.noising(), np.linalg.pinv(mechanism.encoder()), atol=1e-12)


@pytest.mark.parametrize("workload", [prefix_sum(13), momentum_sgd(13)], ids=["prefix_sum", "momentum_sgd"])
def test_full_beats_online(workload):
    single = Participation(rounds=13, schema="single")
    online, full = (loss(TreeMechanism(rounds=13, decoder=name), workload, single) for name in ("online", "full"))
    assert full < online


@pytest.mark.parametrize("n", DENISOV_TABLE_2)
def test_denisov_table_2_honaker(n):
    found = np.sqrt(loss(TreeMechanism(rounds=n), prefix_sum(n), Participation(rounds=n, schema="single")))
    assert abs(found - DENISOV_TABLE_2[n][0]) <= 0.05


def test_banded_table_2_tree_against_identity():
    # The table's unit is the best matrix under (k = 6, b = 342), which is not ours: so the two rows' ratio is compared,
    # over the range that rounding to two decimals leaves.
    n, workload = 2052, prefix_sum(2052)
    participation = Participation(rounds=n, schema="fixed_epoch", min_sep=342)
    tree, identity = TreeMechanism(rounds=n, decoder="full"), IdentityMechanism(rounds=n)
    once, printed = BANDED_TABLE_2["tree full"]
    single = Participation(rounds=n, schema="single")
    ratio = sensitivity(tree, single).value / sensitivity(tree, participation).value
    assert abs(ratio - once) <= 0.005
    errors = rmse(tree, workload, participation), rmse(identity, workload, participation)
    assert abs(errors[1] - 78.48) < 0.005  # FACTS.md
    of_identity = BANDED_TABLE_2["identity"][1]
    assert (
        (printed - 0.005) / (of_identity + 0.005) <= errors[0] / errors[1] <= (printed + 0.005) / (of_identity - 0.005)
    )
