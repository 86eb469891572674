"""Runs that end before their plan: the noise of their first rounds, and the guarantee of the
release.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import fedmf
from fedmf.mechanisms import (
    BLTMechanism,
    FFTMechanism,
    IdentityMechanism,
    ToeplitzMechanism,
    TreeMechanism,
)
from fedmf.mechanisms.leading import leading_block
from fedmf.privacy.describe import statement, statement_values
from fedmf.privacy.plan import unit_noise
from fedmf.privacy.sampling import CyclicPoisson
from fedmf.privacy.stopping import rounds_within, stopped_after, stopping_table
from tests.cli.program import fedmf as command
from tests.cli.program import printed_by, refused
from tests.mechanisms.registry import MECHANISMS, both_signs
from tests.mechanisms.schemas import fitted, separated
from tests.oracles import attained_sensitivity
from tests.participation.test_participation import participations
from tests.privacy.plans import ledger_of, plan
from tests.refusals import refusal

BLT = BLTMechanism(rounds=9, decays=[0.9, 0.5], inverse_decays=[0.7, 0.2])


@pytest.mark.parametrize(
    "mechanism",
    [
        IdentityMechanism(rounds=9),
        BLT,
        ToeplitzMechanism(rounds=9, noising_window=[1.0, -0.6]),
        MECHANISMS["banded, uneven"](9),
        both_signs(9, seed=1),
    ],
    ids=lambda m: m.family,
)
@pytest.mark.parametrize("rounds", [1, 2, 5, 9])
def test_the_noise_of_the_first_rounds_is_that_of_the_leading_block(mechanism, rounds):
    # Besides N being the block, these rounds contain no later draw.
    N = mechanism.noising()
    first_block = leading_block(mechanism, rounds)
    assert_allclose(first_block.noising(), N[:rounds, :rounds], atol=1e-12)
    assert not N[:rounds, rounds:].any()
    assert_allclose(first_block.encoder(), mechanism.encoder()[:rounds, :rounds], atol=1e-12)


@given(participations(max_rounds=7), st.integers(0, 2**32 - 1), st.integers(1, 7))
@settings(max_examples=40)
def test_contributions_to_the_first_rounds_are_within_the_sensitivity(participation, seed, rounds):
    n = participation.rounds
    whole_plan = plan(participation, both_signs(n, seed))
    stopped_plan = stopped_after(whole_plan, min(rounds, n))
    C = whole_plan.mechanism.encoder()[: min(rounds, n), : min(rounds, n)]
    attained_value = attained_sensitivity(
        C, stopped_plan.participation, np.random.default_rng(0), starts=2
    )
    # stddev / noise_multiplier is the accounted sensitivity.
    assert unit_noise(stopped_plan) / stopped_plan.noise_multiplier >= attained_value * (1 - 1e-9)
    assert stopped_plan.stddev == pytest.approx(whole_plan.stddev, rel=1e-12)


def test_the_shorter_run_is_accounted_like_one_that_was_planned_so():
    participation = separated(64, 16)
    blt = fitted(participation, "blt", buffers=2)
    whole_plan = fedmf.calibrate(blt, participation, epsilon=6.0, delta=1e-6)
    stopped_plan = stopped_after(whole_plan, 20)
    short = dataclasses.replace(blt, rounds=20, certificate=None, certificate_reason="shorter")
    value = fedmf.sensitivity(short, separated(20, 16)).value
    assert stopped_plan.stddev == pytest.approx(whole_plan.stddev, rel=1e-12)
    assert stopped_plan.noise_multiplier == pytest.approx(unit_noise(whole_plan) / value, rel=1e-12)
    text = " ".join(statement(stopped_plan).split())
    assert "The mechanism has 64 rounds, and this is about the first 20 of them." in text
    assert "guarantee of all 64 rounds" in text
    assert "The mechanism has" not in statement(whole_plan)


@pytest.mark.parametrize("change", [{"clip_norm": 0.1}, {"noise_multiplier": 9.0}])
def test_noise_that_is_not_that_of_all_rounds_is_refused(change):
    stopped_plan = stopped_after(plan(separated(8, 4)), 4)
    with refusal(f"{next(iter(change))} changed in a plan of the first"):
        dataclasses.replace(stopped_plan, **change)
    with refusal("simulation changed"):
        stopped_plan.simulating(simulated=1, claimed=9)


def test_fewer_participations_than_planned_achieve_a_smaller_epsilon():
    """The noise of all rounds is more for these clients: the audit of a stopped run failed."""
    all_rounds = plan(separated(6, 2), fitted(separated(6, 2), "banded", bands=2))
    audit = fedmf.audit_ledger(ledger_of([[0], [1], [2], [3]]), stopped_after(all_rounds, 4))
    assert audit.achieved.sensitivity.value < audit.planned.sensitivity.value
    assert audit.achieved.noise_multiplier == pytest.approx(
        unit_noise(all_rounds) / audit.achieved.sensitivity.value
    )
    assert audit.achieved.epsilon < audit.planned.epsilon


def test_the_longer_run_is_stated_for_the_same_delta():
    whole_plan = plan(separated(8, 4))
    longer_values = statement_values(dataclasses.replace(stopped_after(whole_plan, 4), delta=1e-9))[
        "longer"
    ]
    assert (
        longer_values["epsilon"]
        == dataclasses.replace(whole_plan, delta=1e-9).epsilon
        > whole_plan.epsilon
    )


class TestRoundsWithin:
    WHOLE = fedmf.calibrate(BLT, separated(9, 2), epsilon=6.0, delta=1e-6)

    @pytest.mark.parametrize("target", [2.6, 3.0, 4.0, 5.9])
    def test_rounds_within_includes_the_last_round_within_the_target(self, target):
        rounds = rounds_within(self.WHOLE, target)
        assert 1 <= rounds < 9
        assert (
            stopped_after(self.WHOLE, rounds).epsilon
            <= target
            < stopped_after(self.WHOLE, rounds + 1).epsilon
        )

    def test_rounds_within_are_all_rounds_if_the_plan_meets_the_target(self):
        assert rounds_within(self.WHOLE, 6.0) == 9

    def test_a_target_that_one_round_exceeds_is_refused(self):
        with refusal(r"epsilon=0\.5 is exceeded in round 0, .* use more noise"):
            rounds_within(self.WHOLE, 0.5)


@pytest.mark.parametrize(
    ("whole_plan", "rounds", "words"),
    [
        (plan(separated(8, 4)), 0, "before its plan and not after it"),
        (plan(separated(8, 4)), 9, "before its plan and not after it"),
        (
            plan(fedmf.Budget.of(BLT, separated(9, 3)).participation, BLT),
            5,
            "spend its whole budget in the first 5 rounds",
        ),
        (
            plan(separated(8, 4), TreeMechanism(rounds=8)),
            4,
            r"family=tree has an encoder of shape \(15, 8\)",
        ),
        (
            plan(separated(9000, 4500), FFTMechanism(rounds=9000)),
            4,
            "family=fft .* of its 9000 rounds from its dense encoder alone.*guarantee of all",
        ),
        (
            plan(
                None,
                IdentityMechanism(rounds=8),
                sampling=CyclicPoisson(population=90, cohort_size=3),
            ),
            4,
            "sampling=CyclicPoisson",
        ),
    ],
)
def test_rounds_and_plans_that_cannot_be_stopped_are_refused(whole_plan, rounds, words):
    with refusal(words):
        stopped_after(whole_plan, rounds)


@pytest.mark.parametrize(
    ("added_options", "words"),
    [
        ("--table --sampling poisson --population 90 --cohort-size 3", "--sampling poisson"),
        ("--stop-after 13 --min-sep 2", "--stop-after 13"),
        ("--min-sep 2 --clip-every 3", "--clip-every 3"),
    ],
)
def test_the_command_refuses_before_it_calibrates(tmp_path, monkeypatch, added_options, words):
    BLT.save(tmp_path / "blt.npz")
    monkeypatch.setattr(fedmf, "calibrate", lambda *args, **options: pytest.fail("calibrated"))
    refused(f"calibrate {tmp_path}/blt.npz --rounds 9 --epsilon 6 {added_options}", words)


def test_the_table_of_the_command_is_what_stops_guarantee(tmp_path):
    BLT.save(tmp_path / "blt.npz")
    calibrate_command = f"calibrate {tmp_path}/blt.npz --rounds 9 --min-sep 2 --epsilon 6 --table"
    stops = printed_by(calibrate_command)["stops"]
    assert [stop["rounds"] for stop in stops] == list(range(1, 10))
    assert stops == stopping_table(TestRoundsWithin.WHOLE)
    epsilons = [stop["epsilon"] for stop in stops]
    assert epsilons == sorted(epsilons)
    assert f"{5:>8}" in command(calibrate_command).stdout
