"""Plans that a source cannot serve, and fingerprints of plans."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats

import fedmf
from fedmf import CyclicPoisson, Participation, Plan, calibrate
from fedmf.mechanisms import IdentityMechanism
from fedmf.privacy.describe import group_values
from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.privacy.plan import Simulation
from fedmf.privacy.private_metrics import PrivateMetrics
from fedmf.privacy.quantile_clipping import QuantileClipping
from fedmf.privacy.sampling import BallsInBins, MinSepPoisson, Sampling
from fedmf.privacy.source_tail import GRAPH_END, HOST_END, _Shift, check_tail, tail_remark
from fedmf.privacy.trial_count import TrialCount
from fedmf.server.state import plan_fields, plan_fingerprint
from tests.refusals import refusal
from tests.server.plans import plan_of


def plan(noise_multiplier, delta):
    """Returns a plan in which a client's whole shift may be in one pair of draws."""
    once = Participation(rounds=4, schema="single")
    return plan_of(
        IdentityMechanism(rounds=4),
        participation=once,
        noise_multiplier=noise_multiplier,
        delta=delta,
    )


def chance(noise_multiplier, end, draws=2_000_000):
    """Returns the probability that a pair with the client's shift is beyond `end`: a mean over
    angles of the radius's tail.
    """
    a = 1 / noise_multiplier
    angle = (np.arange(draws) + 0.5) * np.pi / draws
    # Along a ray at this angle the density integrates to a Gaussian's tail and a boundary term.
    along = a * np.cos(angle)
    across = a * np.sin(angle)
    tail = np.exp(-((end - along) ** 2) / 2) + np.sqrt(2 * np.pi) * along * scipy.stats.norm.sf(
        end - along
    )
    return float(np.mean(np.exp(-(across**2) / 2) * tail))


@pytest.mark.parametrize("noise_multiplier", [0.2, 0.3, 0.5])
def test_delta_that_the_end_of_the_tail_would_break_is_refused(noise_multiplier):
    tail_end = 9.49
    exact_chance = chance(noise_multiplier, tail_end)
    # Of an entry alone it would be too little.
    assert exact_chance > 1.2 * scipy.stats.norm.sf(tail_end - 1 / noise_multiplier)
    # The bound is twice that of one pair.
    check_tail(plan(noise_multiplier, 20.01 * exact_chance), tail_end, entries=2)
    with refusal("draws of at most 9.49 standard deviations"):
        check_tail(plan(noise_multiplier, max(1e-15, 9.99 * exact_chance)), tail_end, entries=2)


def test_shift_that_is_spread_over_many_draws_counts():
    check_tail(plan(1.0, 1e-15), 9.49, entries=1000)
    with refusal("delta=1e-15"):
        check_tail(plan(1.0, 1e-15), 9.49, entries=4_000_000 * 2000)


@pytest.mark.parametrize("noise_multiplier", [0.02, 0.05, 0.1, 0.14])
def test_plan_whose_noise_reveals_a_client_has_no_noise_scale(noise_multiplier):
    # Its epsilon is finite, and its noise would reveal a client more often than delta says.
    revealing_plan = plan(noise_multiplier, 1e-6)
    assert math.isfinite(revealing_plan.epsilon)
    for call in (lambda: revealing_plan.stddev, lambda: fedmf.statement(revealing_plan)):
        with refusal("draws of at most 12.06 .*use a larger delta or more noise$"):
            call()
    with refusal("use a larger delta or more noise$"):
        calibrate(
            revealing_plan.mechanism,
            revealing_plan.participation,
            epsilon=revealing_plan.epsilon,
            delta=1e-6,
        )


def test_plan_that_promises_nothing_may_have_any_noise():
    assert plan(1e-3, 1e-6).epsilon == math.inf
    assert plan(1e-3, 1e-6).stddev > 0


def sampled_plan(row_noise, rounds=400, delta=1e-6):
    """Returns a plan of which a client may take part in every round, with this noise multiplier in
    each of them.
    """
    return Plan(
        mechanism=IdentityMechanism(rounds=rounds),
        noise_multiplier=row_noise / math.sqrt(rounds),
        clip_norm=0.5,
        delta=delta,
        sampling=CyclicPoisson(population=10_000, cohort_size=10),
    )


def test_sampled_plan_with_little_noise_in_all_rounds_together_is_served():
    served_plan = sampled_plan(0.5)
    assert served_plan.noise_multiplier < 0.03
    assert served_plan.epsilon < 10
    assert served_plan.stddev > 0
    check_tail(served_plan, HOST_END, entries=400 * 4_000_000)


def test_sampled_plan_is_refused_where_its_rounds_reveal_a_client():
    row_noise = 0.25
    exact_chance = 1 - (1 - chance(row_noise, GRAPH_END)) ** 400
    assert 1e-6 < exact_chance < 1e-3
    with refusal("draws of at most 9.49"):
        check_tail(sampled_plan(row_noise, delta=9.99 * exact_chance), GRAPH_END, entries=400)
    with refusal("draws of at most 12.06"):
        check_tail(sampled_plan(0.05), HOST_END)


def test_shift_of_several_rounds_is_not_in_one_row():
    # Each of both rounds has its own row, in which the shift is shorter by the root of 2.
    noise_multiplier = 0.2
    twice = plan_of(IdentityMechanism(rounds=4), noise_multiplier=noise_multiplier)
    chance_of_rounds = 2 * chance(math.sqrt(2) * noise_multiplier, GRAPH_END)
    assert chance_of_rounds < chance(noise_multiplier, GRAPH_END) / 100
    check_tail(dataclasses.replace(twice, delta=10.01 * chance_of_rounds), GRAPH_END)
    with refusal("draws of at most 9.49"):
        check_tail(dataclasses.replace(twice, delta=9.99 * chance_of_rounds), GRAPH_END)


@pytest.mark.parametrize("family", ["identity", "banded", "toeplitz", "blt", "dense"])
@pytest.mark.parametrize(("min_sep", "most"), [(1, 9), (1, 2), (3, 3), (4, 2), (9, 1)])
def test_no_client_shifts_a_row_by_more_than_its_bound(family, min_sep, most):
    participation = Participation(
        rounds=9, schema="min_sep", min_sep=min_sep, max_participations=most
    )
    fitted_for = Participation(rounds=9, schema="min_sep", min_sep=min_sep)
    mechanism = fedmf.fit(fedmf.prefix_sum(9), fitted_for, family=family)
    tested_plan = plan_of(mechanism, participation=participation)
    row_length = _Shift(plan=tested_plan, sensitivity=tested_plan.sensitivity.value).row_length()
    magnitudes = np.abs(mechanism.encoder())
    row_sums = [magnitudes[:, rounds].sum(axis=1).max() for rounds in participation.patterns()]
    exact_length = max(row_sums) / (0.7 * tested_plan.sensitivity.value)
    assert exact_length * (1 - 1e-12) <= row_length < 1.3 * exact_length


def test_user_whose_devices_the_noise_reveals_has_no_epsilon():
    epsilon_8 = plan(0.653, 1e-6)
    # At the epsilon that five devices would have, this is more than delta.
    assert chance(0.653 / 5, HOST_END) > 5e-6
    assert epsilon_8.group_epsilon(5) == math.inf
    assert chance(0.653 / 3, HOST_END) < 1e-9 < 1e-7 < chance(0.653 / 3, GRAPH_END)
    assert epsilon_8.group_epsilon(3) == gaussian_epsilon(0.653 / 3, 1e-6)
    on_host, in_graph = (group_values(epsilon_8, system) for system in ("server", "pipeline"))
    assert [row["epsilon"] is None for row in on_host] == [False, False, True]
    assert [row["epsilon"] is None for row in in_graph] == [False, True, True]
    assert "| 5 | infinity (no guarantee) | 1e-06 |" in fedmf.statement(epsilon_8)


def test_user_whose_devices_shift_different_rows_has_an_epsilon():
    every_round = Participation(rounds=100, schema="every_round")
    spread = plan_of(
        IdentityMechanism(rounds=100), participation=every_round, noise_multiplier=0.653
    )
    assert spread.group_epsilon(5) == gaussian_epsilon(0.653 / 5, 1e-6)


def test_host_source_serves_every_plan_with_privacy():
    for delta, noise_multiplier in ((1e-15, 0.3), (1e-10, 0.2), (1e-6, 0.16)):
        assert plan(noise_multiplier, delta).epsilon > 30
        check_tail(plan(noise_multiplier, delta), HOST_END, entries=10**12)


def test_statement_names_the_source_that_can_draw_the_noise():
    assert tail_remark(plan(1.0, 1e-6)) is None
    near = plan(0.23, 1e-6)
    with refusal("draws of at most 9.49"):
        check_tail(near, GRAPH_END, entries=2)
    check_tail(near, HOST_END, entries=10**9)
    assert 'noise_strategy="precomputed", elsewhere fedmf.Server' in tail_remark(near)
    words = " ".join(fedmf.statement(near).split())
    assert 'use noise_strategy="precomputed", elsewhere fedmf.Server.' in words
    assert "noise_strategy" not in fedmf.statement(plan(1.0, 1e-6))


def test_plan_refuses_noise_that_no_source_can_draw():
    impossible = plan(0.16, 1e-12)
    for call in (lambda: impossible.stddev, lambda: fedmf.statement(impossible)):
        with refusal("draws of at most 12.06 .*use a larger delta or more noise$"):
            call()
    with refusal("draws of at most 12.06"):
        calibrate(
            impossible.mechanism, impossible.participation, epsilon=impossible.epsilon, delta=1e-12
        )


FIELDS = {
    "mechanism": lambda plan: IdentityMechanism(rounds=5),
    "participation": lambda plan: Participation(rounds=4, schema="min_sep", min_sep=2),
    "noise_multiplier": lambda plan: 0.8,
    "clip_norm": lambda plan: 0.6,
    "delta": lambda plan: 1e-5,
    "sampling": lambda plan: CyclicPoisson(population=20, cohort_size=5),
    "simulation": lambda plan: Simulation(simulated=2, claimed=8),
    "quantile_clipping": lambda plan: QuantileClipping(),
    "private_metrics": lambda plan: PrivateMetrics(share=0.02),
    "selection": lambda plan: TrialCount(),
    "longer": lambda plan: plan,
}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Plan)])
def test_fingerprint_changes_with_every_field_of_a_plan(name):
    plan_before = plan(0.7, 1e-6)
    changes = {name: FIELDS[name](plan_before)}
    if name == "mechanism":
        changes["participation"] = Participation(rounds=5, schema="min_sep", min_sep=3)
    if name == "sampling":
        changes["participation"] = None
    changed_plan = dataclasses.replace(plan_before, **changes)
    assert name in {
        n for n, text in plan_fields(changed_plan).items() if text != plan_fields(plan_before)[n]
    }
    assert plan_fingerprint(changed_plan) != plan_fingerprint(plan_before)
    assert plan_fingerprint(dataclasses.replace(plan_before)) == plan_fingerprint(plan_before)


# A number or a name that each field inside of a plan's fields may have in place of its own.
INSIDE = [
    (Simulation(simulated=2, claimed=8), {"simulated": 3, "claimed": 9}),
    (QuantileClipping(), {"quantile": 0.6, "share": 0.05, "every": 9, "learning_rate": 0.5}),
    (
        TrialCount(mean_trials=2),
        {"mean_trials": 3.0, "distribution": "poisson", "shape": 0.5},
    ),
    (PrivateMetrics(share=0.02), {"share": 0.03, "largest_loss": 9.0}),
    (
        CyclicPoisson(population=20, cohort_size=5, partitions=2),
        {"population": 40, "cohort_size": 4, "partitions": 1},
    ),
    (BallsInBins(population=20, bins=2), {"population": 40, "bins": 4}),
    (
        MinSepPoisson(population=20, cohort_size=5, min_sep=2),
        {"population": 40, "cohort_size": 4, "min_sep": 3},
    ),
]


def plan_holding(value):
    fields = [name for name, make in FIELDS.items() if isinstance(value, type(make(None)))]
    if isinstance(value, Sampling):
        return dataclasses.replace(plan(0.7, 1e-6), participation=None, sampling=value)
    return dataclasses.replace(plan(0.7, 1e-6), **{fields[0]: value})


@pytest.mark.parametrize(("value", "changes"), INSIDE, ids=lambda x: type(x).__name__)
def test_fingerprint_changes_with_the_content_of_a_field(value, changes):
    assert set(changes) == {field.name for field in dataclasses.fields(value)}
    changed_values = [
        dataclasses.replace(value, **{name: change}) for name, change in changes.items()
    ]
    fingerprints = {plan_fingerprint(plan_holding(held)) for held in (value, *changed_values)}
    assert len(fingerprints) == 1 + len(changes)
