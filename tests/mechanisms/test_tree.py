"""Tree mechanisms: nodes, decoders, completions and fits."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose

import fedmf
from fedmf.mechanisms import IdentityMechanism, TreeMechanism, stamp
from fedmf.mechanisms.error import squared_rows
from fedmf.mechanisms.sensitivity import sensitivity
from fedmf.privacy.config import PlanConfig
from fedmf.privacy.stopping import stopped_after
from fedmf.server.audit import audit_mechanism
from fedmf.workloads import identity, momentum_sgd, prefix_sum
from tests.mechanisms.schemas import epochs, fitted, separated, single
from tests.paper_figures import BANDED_TABLE_2, DENISOV_TABLE_2
from tests.refusals import refusal


@pytest.mark.parametrize("rounds", [1, 2, 7, 16, 19])
def test_nodes_are_the_dyadic_intervals_of_rounds(rounds):
    expected = {
        tuple(range(first_round, first_round + size))
        for size in (1, 2, 4, 8, 16)
        for first_round in range(0, rounds - size + 1, size)
    }
    rows = [tuple(np.flatnonzero(row)) for row in TreeMechanism(rounds=rounds).encoder()]
    assert len(rows) == len(expected)
    assert set(rows) == expected
    assert [row[-1] for row in rows] == sorted(row[-1] for row in rows)


@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 13])
def test_online_decoder_is_the_best_that_waits_for_nodes(rounds):
    # Denisov et al. 2022, Prop. C.1: row by row, the least-norm solution of B C = S over the nodes
    # finished by then.
    mechanism = TreeMechanism(rounds=rounds, decoder="online")
    C = mechanism.encoder()
    S = np.tri(rounds)
    last_rounds = np.array([np.flatnonzero(row)[-1] for row in C])
    B = np.zeros((rounds, len(C)))
    for t in range(rounds):
        B[t, last_rounds <= t] = S[t] @ np.linalg.pinv(C[last_rounds <= t])
    assert_allclose(S @ mechanism.noising(), B, atol=1e-12)


@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 13])
def test_full_decoder_is_the_pseudoinverse(rounds):
    mechanism = TreeMechanism(rounds=rounds, decoder="full")
    assert_allclose(mechanism.noising(), np.linalg.pinv(mechanism.encoder()), atol=1e-12)


@pytest.mark.parametrize("n", DENISOV_TABLE_2)
def test_online_error_is_that_of_denisov_table_2(n):
    error = np.sqrt(fedmf.loss(TreeMechanism(rounds=n, decoder="online"), prefix_sum(n), single(n)))
    assert abs(error - DENISOV_TABLE_2[n][0]) <= 0.05


def squared_sensitivity_of_large_separations(n, b, k):
    """Returns the largest sum of X over k rounds at least b apart, for a tree without completion,
    where 256 < b < 512.

    Such rounds meet in nodes of 512 rounds and more only, so that X depends on their blocks of 512.
    A nondecreasing sequence of blocks is possible if every round can be put as early as its block
    and its predecessor allow.
    """

    def shared(i, j):
        return sum(
            i >> level == j >> level and ((i >> level) + 1) << level <= n
            for level in range(n.bit_length())
        )

    largest_sum = 0
    for blocks in itertools.combinations_with_replacement(range(-(-n // 512)), k):
        rounds = []
        for block in blocks:
            earliest = 512 * block
            if rounds:
                earliest = max(earliest, rounds[-1] + b)
            if earliest >= min(512 * (block + 1), n):
                break
            rounds.append(earliest)
        else:
            largest_sum = max(largest_sum, sum(shared(i, j) for i in rounds for j in rounds))
    return largest_sum


@pytest.mark.slow
def test_min_sep_sensitivity_is_that_of_banded_table_2():
    # The square is 118 in both: columns (A) and (B) of the banded paper's Table 2
    # are the same for the tree, as printed.
    n = 2052
    assert squared_sensitivity_of_large_separations(n, 342, 6) == 118
    for participation in (epochs(n, 342), separated(n, 342)):
        tree_sensitivity = sensitivity(TreeMechanism(rounds=n), participation)
        assert tree_sensitivity.exact
        assert_allclose(tree_sensitivity.value**2, 118, rtol=1e-12)


@pytest.mark.slow
def test_error_relative_to_the_identity_is_that_of_banded_table_2():
    # The table's unit is the best matrix under (k = 6, b = 342), which is not ours: so the two
    # rows' ratio is compared, over the range that rounding to two decimals leaves.
    n = 2052
    workload = prefix_sum(n)
    participation = epochs(n, 342)
    tree = TreeMechanism(rounds=n, decoder="full")
    identity = IdentityMechanism(rounds=n)
    printed_ratio, printed_error = BANDED_TABLE_2["tree full"]
    ratio = sensitivity(tree, single(n)).value / sensitivity(tree, participation).value
    assert abs(ratio - printed_ratio) <= 0.005
    error, unit = (fedmf.rmse(mechanism, workload, participation) for mechanism in (tree, identity))
    assert abs(unit - 78.48) < 0.005
    identity_error = BANDED_TABLE_2["identity"][1]
    low = (printed_error - 0.005) / (identity_error + 0.005)
    high = (printed_error + 0.005) / (identity_error - 0.005)
    assert low <= error / unit <= high


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 6, 8, 11, 13])
def test_virtual_completion_is_that_of_the_multi_epoch_paper(rounds):
    # App. D.3: S = (P_j B_Hon Pi) (Pi C_tree E), of a complete tree over all leaves, with its last
    # row as the last sum.
    leaves = 1 << (rounds - 1).bit_length()
    complete_tree = TreeMechanism(rounds=leaves, decoder="online")
    B_Hon = np.tri(leaves) @ complete_tree.noising()
    C_tree = complete_tree.encoder()
    embedded_encoder = C_tree[:, :rounds]
    has_rounds = embedded_encoder.any(axis=1)
    B = np.concatenate([B_Hon[: rounds - 1], B_Hon[-1:]])[:, has_rounds]
    mechanism = TreeMechanism(rounds=rounds, decoder="online", completion="virtual")
    assert np.array_equal(mechanism.encoder(), embedded_encoder[has_rounds])
    assert_allclose(np.tri(rounds) @ mechanism.noising(), B, atol=1e-12)


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 6, 8, 11, 13])
def test_optimal_completion_is_the_best_that_knows_virtual_rounds_are_zero(rounds):
    optimal_mechanism, virtual_mechanism = (
        TreeMechanism(rounds=rounds, decoder="online", completion=name)
        for name in ("optimal", "virtual")
    )
    C = optimal_mechanism.encoder()
    S = np.tri(rounds)
    assert np.array_equal(C, virtual_mechanism.encoder())
    whole_file = TreeMechanism(rounds=1 << (rounds - 1).bit_length()).encoder()
    last_rounds = np.array([np.flatnonzero(row)[-1] for row in whole_file if row[:rounds].any()])
    last_rounds[last_rounds >= rounds] = rounds - 1  # These nodes are known with the last round.
    B = np.zeros((rounds, len(C)))
    for t in range(rounds):
        B[t, last_rounds <= t] = S[t] @ np.linalg.pinv(C[last_rounds <= t])
    assert_allclose(S @ optimal_mechanism.noising(), B, atol=1e-12)


@pytest.mark.parametrize(("restarts", "decoder"), [(1, "online"), (2, "full"), (3, "online")])
@pytest.mark.parametrize("participation", [single(42), epochs(42, 6), separated(42, 2)], ids=str)
def test_fit_takes_the_completion_with_the_smallest_loss(restarts, decoder, participation):
    def loss_of(**completion):
        options = {"decoder": decoder, "restarts": restarts, **completion}
        mechanism = fedmf.fit(momentum_sgd(42), participation, family="tree", **options)
        return fedmf.loss(mechanism, momentum_sgd(42), participation)

    smallest_loss = min(loss_of(completion=name) for name in ("none", "virtual", "optimal"))
    assert_allclose(loss_of(), smallest_loss, rtol=1e-12)


def test_restarts_stamp_a_tree():
    mechanism = fitted(separated(12, 4), "tree", decoder="full", restarts=3)
    assert (mechanism.family, mechanism.times, mechanism.part.decoder) == ("stamped", 3, "full")


def test_the_full_decoder_is_the_default():
    participation = single(6)
    mechanisms = [
        TreeMechanism(rounds=6),
        fitted(participation, "tree"),
        PlanConfig(family="tree", rounds=6, schema="single", epsilon=8.0).fit(),
    ]
    assert {mechanism.decoder for mechanism in mechanisms} == {"full"}


@pytest.mark.parametrize("decoder", ["full", "online"])
def test_matrices_of_very_many_rounds_are_refused_and_all_else_works(decoder):
    n = 1_000_000
    mechanism = fitted(separated(n, 1000), "tree", decoder=decoder)
    for form_matrix in (mechanism.encoder, mechanism.noising):
        with refusal("of this tree would take .* GiB.*: for so many rounds use .*toeplitz or blt"):
            form_matrix()
    assert mechanism.stream().causal().width == 19
    errors = fedmf.per_round_error(mechanism, prefix_sum(n), single(n))
    # The released sum is the estimate of the nodes of 2^l rounds, of variance 2^l / (2^(l+1) - 1).
    if decoder == "online":
        for t in (0, 1023, 999_999):
            levels = [level for level in range(20) if t + 1 >> level & 1]
            variance = sum(2**level / (2 ** (level + 1) - 1) for level in levels)
            assert_allclose(errors[t] ** 2, 20 * variance, rtol=1e-10)
    assert errors.max() < 15


@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 13, 33])
@pytest.mark.parametrize("num_trees", [1, 2, 5])
@pytest.mark.parametrize("decoder", ["full", "online"])
@pytest.mark.parametrize("completion", ["none", "virtual", "optimal"])
def test_errors_are_those_of_the_noising_matrix(rounds, num_trees, decoder, completion):
    tree = TreeMechanism(rounds=rounds, decoder=decoder, completion=completion)
    mechanism = stamp(tree, num_trees, decoder="restarted")
    n = mechanism.rounds
    rng = np.random.default_rng(n)
    for workload in (
        identity(n),
        prefix_sum(n),
        momentum_sgd(n, 0.5, rng.uniform(0.5, 2.0, n)),
        momentum_sgd(n, 0.5) @ momentum_sgd(n, 0.2),
    ):
        AN = workload.matrix @ mechanism.noising()
        assert_allclose(squared_rows(mechanism, workload), np.sum(AN**2, axis=1), rtol=1e-9)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda plan: fedmf.Budget.of(plan.mechanism, plan.participation), "schema=min_sep"),
        (lambda plan: stopped_after(plan, 9), r"of shape \(1999993, 1000000\) .*state that"),
        (lambda plan: audit_mechanism(plan, seed=1), "plan of the same family with fewer rounds"),
        (
            lambda plan: fedmf.CyclicPoisson(population=99, cohort_size=3).for_mechanism(
                plan.mechanism
            ),
            "no square lower-triangular encoder.*leave sampling out",
        ),
    ],
)
def test_what_needs_the_matrices_of_a_million_rounds_is_refused_without_them(use, words):
    n = 1_000_000
    plan = fedmf.Plan(
        mechanism=TreeMechanism(rounds=n, decoder="online"),
        participation=separated(n, 1000),
        noise_multiplier=1.0,
        clip_norm=1.0,
        delta=1e-6,
    )
    with refusal(words):
        use(plan)
