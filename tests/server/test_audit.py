"""The audit of a server: correct mechanisms pass, and mistakes in the audited code are detected."""

import dataclasses

import numpy as np
import pytest

import fedmf
from fedmf.audits.whitening import causal_factor
from fedmf.audits.worst_case import worst_case
from fedmf.server.audit import _MAX_TESTS, SEEN_CUT, audit_mechanism
from fedmf.server.audited_code import ServerMeans
from fedmf.server.clipping import UpdateSum
from fedmf.server.host_noise import HostNoise
from fedmf.server.source import GaussianSource
from tests.audits.controls import mistakes_over_rounds
from tests.mechanisms.registry import MECHANISMS, every_form
from tests.power import FALSE_POSITIVE_RATE, MISS_RATE, missed_by_noise_audit
from tests.refusals import refusal
from tests.server.audited import COORDINATES, ROUNDS, judged, run, run_attack
from tests.server.plans import plan_of


@pytest.fixture(scope="module")
def claim():
    return plan_of(MECHANISMS["banded"](ROUNDS))


@every_form
def test_every_mechanism_passes_the_audit(build):
    plan = plan_of(build(ROUNDS))
    assert judged(plan, run(plan, seed=99, resume_at=6)).contradictions == ()


def test_audit_has_two_runs_and_an_attack():
    progress = []
    result = audit_mechanism(
        plan_of(MECHANISMS["tree online"](4)), seed=3, coordinates=300, trials=20,
        progress=lambda step_number, total: progress.append((step_number, total)),
    )  # fmt: skip
    assert result.verdict.consistent
    assert (result.rounds, result.coordinates, result.trials) == (4, 300, 20)
    assert (result.attack.present, result.attack.absent) == (10, 10)
    assert progress == [(step_number, 12) for step_number in range(1, 13)]


@pytest.fixture(scope="module")
def resumed_audit(claim):
    return judged(claim, run(claim, resume_at=5))


def test_audit_detects_noise_that_a_resume_repeats(monkeypatch, claim, resumed_audit):
    honest_release = ServerMeans.release
    audited_objects = []

    def forgetful(self, state, *clients):
        if self not in audited_objects:
            audited_objects.append(self)
        t = int(state.next_round) - 5 * (len(audited_objects) == 2)
        next_state, row = honest_release(self, state._replace(next_round=np.array(t)), *clients)
        return next_state._replace(next_round=state.next_round + 1), row

    assert resumed_audit.consistent
    mistakes = mistakes_over_rounds(causal_factor(claim.mechanism.noising()))
    M = mistakes["noise not advanced by a resume"]
    assert missed_by_noise_audit(M @ M.T, COORDINATES, resumed_audit.threshold) <= MISS_RATE
    monkeypatch.setattr(ServerMeans, "release", forgetful)
    assert not judged(claim, run(claim, resume_at=5)).consistent


def test_attack_reaches_the_claimed_signal_to_noise_ratio():
    plan = plan_of(MECHANISMS["banded"](12))
    case = worst_case(plan)
    result = run_attack(plan, plan, case, 1.5)
    assert all(finding.p_value > FALSE_POSITIVE_RATE for finding in result.findings)
    assert result.snr_lower <= case.snr <= result.snr_upper


def test_audit_detects_less_noise_and_missing_clipping(monkeypatch):
    claim = plan_of(MECHANISMS["banded"](12))
    case = worst_case(claim)
    less = dataclasses.replace(claim, noise_multiplier=claim.noise_multiplier * 2 / 3)
    assert run_attack(less, claim, case, 1.5).findings[2].p_value < FALSE_POSITIVE_RATE
    honest_add = UpdateSum.add

    def lenient(self, leaves, *, clip_norm, **norms):
        honest_add(self, leaves, clip_norm=1.5 * clip_norm, **norms)

    monkeypatch.setattr(UpdateSum, "add", lenient)
    assert run_attack(claim, claim, case, 1.5).findings[0].p_value < FALSE_POSITIVE_RATE


def test_audit_detects_shared_noise_of_adaptive_clipping(monkeypatch):
    clipping = fedmf.QuantileClipping(every=1)
    plan = plan_of(MECHANISMS["banded"](ROUNDS), quantile_clipping=clipping)
    honest_audit = audit_mechanism(plan, seed=3, trials=400)
    assert honest_audit.verdict.consistent
    # No audit makes more tests than the default size counts on.
    assert len(honest_audit.verdict.findings) <= _MAX_TESTS
    # Negative control: the bits have the noise of an update's entry, and not their own.
    row_of = HostNoise.row

    def shared(self, t):
        row = row_of(self, t)
        return np.append(row[:-1], row[:1])

    monkeypatch.setattr(HostNoise, "row", shared)
    assert not audit_mechanism(plan, seed=3, trials=0).verdict.consistent


def test_audit_of_default_size_detects_noise_that_is_cut_off(monkeypatch):
    """A cut at 4 standard deviations is detected with certainty."""
    plan = plan_of(MECHANISMS["identity"](ROUNDS))
    honest_audit = audit_mechanism(plan, seed=3, trials=0)
    assert honest_audit.verdict.consistent
    assert SEEN_CUT <= honest_audit.smallest_unseen_cut < SEEN_CUT + 0.02
    honest_fill = GaussianSource.fill

    def ended(self, out, row, start=0):
        honest_fill(self, out, row, start)
        np.clip(out, -4, 4, out=out)

    monkeypatch.setattr(GaussianSource, "fill", ended)
    assert not audit_mechanism(plan, seed=3, trials=0).verdict.consistent


def test_audit_checks_the_noise_of_a_simulated_cohort(claim):
    plan = claim.simulating(simulated=5, claimed=50)
    assert judged(plan, run(plan)).consistent
    with refusal("guarantees nothing of what runs"):
        audit_mechanism(plan, seed=1)


def test_a_plan_of_too_many_rounds_is_refused_before_its_matrices_are_formed():
    with refusal("fewer rounds"):
        audit_mechanism(plan_of(MECHANISMS["identity"](50_000)), seed=1)


@pytest.mark.parametrize("change", [{"plan": 3}, {"seed": -1}, {"coordinates": 3}, {"trials": 5}])
def test_audit_mechanism_refuses_invalid_arguments_by_name(claim, change):
    [(name, value)] = change.items()
    with refusal(f"{name}={value}", (TypeError, ValueError)):
        audit_mechanism(**{"plan": claim, "seed": 1} | change)
