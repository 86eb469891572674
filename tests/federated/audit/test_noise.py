"""The audit of what really runs: honest mechanisms pass under every strategy, and mistakes in the code that runs are caught."""

import collections
import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

import fedmf
from fedmf.audits.distinguishing import audit_distinguishing, too_many_rounds, worst_case
from fedmf.audits.noise import FALSE_POSITIVE_RATE, audit_noise, causal_factor, whiten
from fedmf.federated.aggregation import query as queries
from fedmf.federated.audit import noise as audits
from fedmf.federated.audit import released
from fedmf.federated.audit.noise import audit_mechanism, play
from fedmf.federated.audit.released import STRATEGIES, divisor_of, model_of, released_rows
from fedmf.mechanisms import DenseMechanism
from tests.mechanisms.registry import MECHANISMS, every_form

pytestmark = pytest.mark.tensorflow

# An honest mechanism fails a test below with chance FALSE_POSITIVE_RATE, 1e-6; seeds are fixed, so that it says how surprising it is.
ROUNDS = 10
SHAPES = model_of(6_000)
LEAVES = [math.prod(shape) for shape in SHAPES.values()]


def plan_of(mechanism, noise_multiplier=0.7):
    participation = fedmf.Participation(rounds=mechanism.rounds, schema="min_sep", min_sep=min(3, mechanism.rounds))
    return fedmf.Plan(
        mechanism=mechanism,
        participation=participation,
        noise_multiplier=noise_multiplier,
        clip_norm=0.5,
        delta=1e-6,
    )


def whitened(claim, rows):
    L = causal_factor(claim.mechanism.noising())
    return whiten(L, np.stack(list(rows)), claim.stddev / divisor_of(claim))


def judged(claim, *runs):
    return audit_noise([whitened(claim, rows) for rows in runs], leaves=LEAVES)


def run(plan, seed=1, **options):
    return released_rows(plan, SHAPES, noise_seed=seed, **options)


def rows_or_none(plan, **options):
    """None where the mechanism cannot be run so: carried needs few rows in state, spilled a banded encoder."""
    try:
        return np.stack(list(run(plan, **options)))
    except ValueError as refused:
        words = str(refused)
    assert "strategy" in words
    return None


@every_form
def test_every_form_is_what_is_claimed(build):
    plan = plan_of(build(ROUNDS))
    assert judged(plan, run(plan, seed=99, resume_at=6)).contradictions == ()


@pytest.mark.slow
@every_form
def test_every_strategy_is_what_is_claimed(build):
    plan = plan_of(build(ROUNDS))
    first = whitened(plan, run(plan, seed=100))
    ran = set()
    for strategy in STRATEGIES:
        rows = rows_or_none(plan, seed=100, strategy=strategy, resume_at=7)
        if rows is not None:
            # The same seed is the same noise under every strategy, so that the one audit below serves all.
            np.testing.assert_allclose(whitened(plan, rows), first, rtol=0, atol=2e-4, err_msg=strategy)
            ran.add(strategy)
    assert {"regenerated", "host", "host_regenerated"} <= ran
    assert audit_noise([first], leaves=LEAVES).contradictions == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strategy"), [("banded", None), ("tree full", "regenerated"), ("blt", None), ("low rank", "host")]
)
def test_through_tff(name, strategy):
    plan = plan_of(MECHANISMS[name](ROUNDS))
    runs = [run(plan, seed, path="tff", strategy=strategy, resume_at=at) for seed, at in ((1, None), (2, 4))]
    assert judged(plan, *runs).contradictions == ()


def test_a_short_run_through_tff():
    result = audit_mechanism(plan_of(MECHANISMS["banded"](4)), seed=3, path="tff", coordinates=300, trials=20)
    assert result.consistent
    assert (result.coordinates, result.trials, result.game.present) == (300, 20, 10)


@pytest.mark.parametrize("name", ["banded", pytest.param("blt", marks=pytest.mark.slow)])
def test_audit_with_controls(name):
    seen = []
    result = audit_mechanism(
        plan_of(MECHANISMS[name](16)), seed=2, trials=4_000, controls=True, progress=lambda *done: seen.append(done)
    )
    assert result.consistent
    assert all(control.caught for control in result.controls)
    assert seen[-1] == (80, 80)
    assert len(seen) == 80
    assert result.game.epsilon_lower <= result.game.epsilon_claimed


# Mistakes in what runs. Each was honest noise first.


def test_a_scale_off_by_three_percent_is_caught():
    claim = plan_of(MECHANISMS["banded"](ROUNDS))
    assert judged(claim, run(claim)).consistent
    for factor in (0.97, 1.03):
        wrong = dataclasses.replace(claim, noise_multiplier=factor * claim.noise_multiplier)
        assert not judged(claim, run(wrong)).consistent


def run_wrong_encoder(claim, encoder):
    """The rows of another encoder with the claimed stddev of Z."""
    wrong = plan_of(DenseMechanism(matrix=encoder))
    wrong = dataclasses.replace(wrong, noise_multiplier=0.7 * claim.stddev / wrong.stddev)
    assert wrong.stddev == pytest.approx(claim.stddev)
    return run(wrong)


def column_normalised(rounds):
    C = np.tril(0.8 ** np.abs(np.subtract.outer(np.arange(rounds), np.arange(rounds))))
    return C, C / np.linalg.norm(C, axis=0)


def test_rows_normalised_in_place_of_columns_are_caught():
    C, columns = column_normalised(ROUNDS)
    claim = plan_of(DenseMechanism(matrix=columns))
    assert judged(claim, run_wrong_encoder(claim, columns)).consistent
    assert not judged(claim, run_wrong_encoder(claim, C / np.linalg.norm(C, axis=1, keepdims=True))).consistent


def test_an_unflipped_cholesky_factor_is_caught():
    _, columns = column_normalised(ROUNDS)
    claim = plan_of(DenseMechanism(matrix=columns))
    X = columns.T @ columns
    flipped = np.linalg.cholesky(X[::-1, ::-1]).T[::-1, ::-1]
    assert judged(claim, run_wrong_encoder(claim, flipped)).consistent
    assert not judged(claim, run_wrong_encoder(claim, np.linalg.cholesky(X))).consistent


def test_noise_reused_between_rounds_is_caught(monkeypatch):
    """A state that does not advance in one round, as one that is a constant of a graph."""
    claim = plan_of(MECHANISMS["banded"](ROUNDS))
    honest, times = released._QueryRun.round, []

    def forgetful(self, state, updates):
        after, row = honest(self, state, updates)
        times.append(int(state.noise.next_round))
        return (state if times.count(5) == 1 and times[-1] == 5 else after), row

    monkeypatch.setattr(released._QueryRun, "round", forgetful)
    assert not judged(claim, run(claim)).consistent
    assert times == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8]


def test_noise_shared_by_leaves_is_caught(monkeypatch):
    claim = plan_of(MECHANISMS["banded"](ROUNDS))
    honest = queries.MatrixFactorizationQuery.get_noised_result

    def shared(self, sample, state):
        result, state, event = honest(self, sample, state)
        result = collections.OrderedDict(result, kernel=result["bias"][: LEAVES[2]])
        return result, state, event

    monkeypatch.setattr(queries.MatrixFactorizationQuery, "get_noised_result", shared)
    assert not judged(claim, run(claim)).consistent


def test_noise_shared_by_runs_is_caught():
    claim = plan_of(MECHANISMS["banded"](ROUNDS))
    assert judged(claim, run(claim, 1), run(claim, 2)).consistent
    assert not judged(claim, run(claim, 1), run(claim, 1)).consistent


@pytest.mark.parametrize("lost", ["all", "round", "rows"])
def test_noise_not_advanced_by_a_resume_is_caught(monkeypatch, lost):
    """All of the state lost, or only its round number, or only its rows."""
    claim = plan_of(MECHANISMS["banded"](ROUNDS))
    assert judged(claim, run(claim, resume_at=5)).consistent
    honest, begun = tf.nest.map_structure, released._QueryRun(claim, SHAPES, 10, 1, None).begin()

    class Nest:
        flatten = staticmethod(tf.nest.flatten)

        @staticmethod
        def map_structure(function, state):
            state = honest(function, state)
            noise = {
                "all": lambda: begun.noise,
                "round": lambda: state.noise._replace(next_round=np.int32(0)),
                "rows": lambda: state.noise._replace(rows=np.zeros_like(state.noise.rows)),
            }[lost]()
            return state._replace(noise=noise)

    class TensorFlow:
        nest = Nest

        def __getattr__(self, name):
            return getattr(tf, name)

    monkeypatch.setattr(released, "tf", TensorFlow())
    assert not judged(claim, run(claim, resume_at=5)).consistent


@pytest.mark.parametrize("path", ["query", "tff"])
def test_every_round_sums_its_own_updates(path):
    """Lists that are made anew each round are freed each round, and their ids come again."""
    plan = plan_of(MECHANISMS["banded"](6), noise_multiplier=0)
    shapes = model_of(8)

    def updates(t):
        return [np.full(8, 0.01 * t, np.float32)]

    rows = released_rows(plan, shapes, noise_seed=1, updates=updates, path=path)
    values = np.stack(list(rows)) * divisor_of(plan)
    np.testing.assert_allclose(values, np.outer(0.01 * np.arange(6), np.ones(8)), rtol=1e-6)


# The game.


TRIALS = 4_000


def game(run_plan, claim, case, trials=TRIALS):
    def rows(plan, shapes, updates):
        return released_rows(plan, shapes, noise_seed=5, updates=updates)

    return audit_distinguishing(claim, case, *play(run_plan, case, trials, claim=claim, seed=1, rows=rows))


@pytest.mark.parametrize("name", ["banded", "tree online"])
def test_the_worst_client_is_seen_as_well_as_claimed_and_no_better(name):
    plan = plan_of(MECHANISMS[name](12))
    case = worst_case(plan)
    result = game(plan, plan, case)
    assert all(finding.p_value > FALSE_POSITIVE_RATE for finding in result.findings)
    assert result.snr == pytest.approx(case.snr, abs=6 * 2 / math.sqrt(TRIALS))
    assert result.epsilon_lower <= plan.epsilon
    # For these trials all but one in a thousand honest games prove so much; tests/test_distinguishing.py plays many.
    assert result.epsilon_lower >= 0.7 * result.epsilon_expected
    if plan.sensitivity.exact:
        assert case.snr == pytest.approx(1 / plan.noise_multiplier, rel=0.01)


def test_games_that_break_the_claim_are_caught():
    claim = plan_of(MECHANISMS["banded"](12))
    case = worst_case(claim)
    less = dataclasses.replace(claim, noise_multiplier=claim.noise_multiplier * 2 / 3)
    assert game(less, claim, case).findings[0].p_value < FALSE_POSITIVE_RATE
    broken = worst_case(claim, rounds=too_many_rounds(claim))
    assert game(claim, claim, broken).findings[0].p_value < FALSE_POSITIVE_RATE


def test_a_client_that_is_not_clipped_is_caught(monkeypatch):
    claim = plan_of(MECHANISMS["banded"](12))
    honest = queries.MatrixFactorizationQuery.__init__

    def lenient(self, plan, *args, **kwargs):
        honest(self, plan, *args, **kwargs)
        self._clip_norm *= 1.5

    monkeypatch.setattr(queries.MatrixFactorizationQuery, "__init__", lenient)
    assert game(claim, claim, worst_case(claim)).findings[0].p_value < FALSE_POSITIVE_RATE


def test_a_simulated_cohort_has_the_noise_it_says():
    plan = plan_of(MECHANISMS["banded"](ROUNDS)).simulating(simulated=5, claimed=50)
    assert judged(plan, run(plan)).consistent
    with pytest.raises(ValueError, match="guarantees nothing of what runs"):
        audit_mechanism(plan, seed=1)


def test_refusals_name_the_argument():
    plan = plan_of(MECHANISMS["banded"](4))
    with pytest.raises(TypeError, match="plan=3 must be a fedmf.Plan"):
        audit_mechanism(3, seed=1)
    for words, change in (("seed=-1", {"seed": -1}), ("path='x'", {"path": "x"}), ("trials=5", {"trials": 5})):
        with pytest.raises(ValueError, match=words):
            audit_mechanism(plan, **{"seed": 1, **change})
    with pytest.raises(ValueError, match="strategy='x'"):
        audits.audit_mechanism(plan, seed=1, strategy="x")
