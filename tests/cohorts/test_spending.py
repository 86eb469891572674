"""Budgets in the controller: exact spending, and no fewer participations than min_sep."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import fedmf
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.mechanisms import DenseMechanism, ToeplitzMechanism
from fedmf.mechanisms.budget import Budget, Spending
from tests.cohorts.controllers import FunctionAvailability, cohorts_of_run, rounds_of_clients
from tests.mechanisms.registry import both_signs
from tests.mechanisms.schemas import fitted, separated
from tests.privacy.plans import ledger_of, plan
from tests.refusals import refusal


def rounds_of_greedy_devices(rule, checks_in):
    """Returns the rounds of devices that take part whenever they check in and the rule allows it.

    There is a list of rounds for each row of checks_in.
    """
    rounds_by_device = [[] for _ in checks_in]
    for t in range(checks_in.shape[1]):
        devices = np.flatnonzero(checks_in[:, t])
        devices = devices[rule.allows(t, devices)]
        rule.record(t, devices)
        for device in devices:
            rounds_by_device[device].append(t)
    return rounds_by_device


class Timers:
    """Rule min_sep for devices."""

    def __init__(self, participation, num_devices):
        self.participation = participation
        self.rounds = [[] for _ in range(num_devices)]

    def allows(self, t, clients):
        is_allowed = [self.participation.allows([*self.rounds[client], t]) for client in clients]
        return np.array(is_allowed, bool)

    def record(self, t, clients):
        for client in clients:
            self.rounds[client].append(t)


def rounds_by_definition(budget, checks_in):
    """Returns the rounds of devices by the definition of the rule, for one check-in at a time."""
    n = budget.participation.rounds
    X = budget.costs

    def cost(rounds):
        return X[np.ix_(rounds, rounds)].sum()

    new_device_rounds = [list(range(0, n, budget.pace))[:m] for m in range(1, n + 1)]
    affordable = [
        rounds for rounds in new_device_rounds if budget.participation.affords(cost(rounds))
    ]
    max_rounds = max(map(len, affordable))
    rounds_by_device = [[] for _ in checks_in]
    for rounds, row in zip(rounds_by_device, checks_in, strict=True):
        for t in np.flatnonzero(row).tolist():
            reserved = list(range(t, n, budget.pace))[: max(1, max_rounds - len(rounds))]
            if budget.participation.affords(cost(rounds + reserved)):
                rounds.append(t)
    return rounds_by_device


@st.composite
def budgets(draw, monotone=False):
    n = draw(st.integers(2, 14))
    b = draw(st.integers(1, n))
    participation = separated(n, b, draw(st.integers(1, -(-n // b))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if monotone and draw(st.booleans()):
        # Columns of one norm and at most b bands.
        C = np.tril(np.triu(rng.standard_normal((n, n)), 1 - b), -1) + np.eye(n)
        C = np.tril(C) * (np.subtract.outer(np.arange(n), np.arange(n)) < b)
        mechanism = DenseMechanism(matrix=C / np.linalg.norm(C, axis=0))
    elif monotone or draw(st.booleans()):
        mechanism = ToeplitzMechanism(rounds=n, coefficients=np.sort(rng.random(n))[::-1])
    else:
        mechanism = both_signs(n, draw(st.integers(0, 2**32 - 1)))
    budget = Budget.of(mechanism, participation)
    pace = budget.pace if monotone else draw(st.integers(1, n))
    return dataclasses.replace(budget, pace=pace), participation


@given(budgets(), st.integers(0, 2**32 - 1), st.floats(0.05, 1.0))
@settings(max_examples=60)
def test_devices_follow_the_rule_and_never_overspend(budget_and_participation, seed, rate):
    budget, _ = budget_and_participation
    checks_in = np.random.default_rng(seed).random((6, budget.participation.rounds)) < rate
    rounds_by_device = rounds_of_greedy_devices(Spending(budget, 6), checks_in)
    assert all(budget.allows(rounds) for rounds in rounds_by_device)
    assert rounds_by_device == rounds_by_definition(budget, checks_in)


@given(budgets(monotone=True), st.integers(0, 2**32 - 1), st.floats(0.05, 1.0))
@settings(max_examples=100)
def test_each_participation_comes_no_later_than_under_min_sep(budget_and_participation, seed, rate):
    # The docstring of Budget.of proves it for all check-ins.
    budget, min_sep_schema = budget_and_participation
    checks_in = np.random.default_rng(seed).random((6, min_sep_schema.rounds)) < rate
    by_budget = rounds_of_greedy_devices(Spending(budget, 6), checks_in)
    by_timer = rounds_of_greedy_devices(Timers(min_sep_schema, 6), checks_in)
    for budget_rounds, timer_rounds in zip(by_budget, by_timer, strict=True):
        assert len(budget_rounds) >= len(timer_rounds)
        assert all(t <= timer_t for t, timer_t in zip(budget_rounds, timer_rounds, strict=False))


def test_without_a_reserve_frequent_devices_take_part_less_often():
    # Negative control of the previous test: a pace of all rounds reserves nothing.
    min_sep_schema = separated(60, 10)
    budget = Budget.of(
        ToeplitzMechanism(rounds=60, coefficients=(1 + np.arange(60)) ** -0.5), min_sep_schema
    )
    all_checks_in = np.ones((1, 60), bool)
    assert len(rounds_of_greedy_devices(Spending(budget, 1), all_checks_in)[0]) == 6
    greedy = dataclasses.replace(budget, pace=60)
    assert len(rounds_of_greedy_devices(Spending(greedy, 1), all_checks_in)[0]) < 6


def budgeted_controller(**changes):
    """Returns a controller of a budget, with some arguments changed, and the mechanism."""
    min_sep_schema = separated(40, 8)
    mechanism = fitted(min_sep_schema, "toeplitz", coefficients="sqrt")
    availability = FunctionAvailability(lambda t, clients: clients % 4 != t % 4)
    arguments = {
        "population": 60, "cohort_size": 5, "seed": 3, "availability": availability, **changes
    }  # fmt: skip
    controller = fedmf.ParticipationController(Budget.of(mechanism, min_sep_schema), **arguments)
    return controller, mechanism


class TestController:
    def test_the_ledger_spends_no_more_than_the_budget_and_the_audit_is_exact(self):
        controller, mechanism = budgeted_controller()
        cohorts_of_run(controller)
        budget = controller.participation
        audit = controller.audit(plan(budget, mechanism))
        assert audit.contradictions == ()
        C = mechanism.encoder()
        worst_norm = max(
            np.linalg.norm(C[:, rounds].sum(axis=1))
            for rounds in rounds_of_clients(controller.ledger).values()
        )
        assert_allclose(audit.achieved.sensitivity.value, worst_norm, rtol=1e-11)
        assert audit.epsilon <= audit.planned.epsilon
        shares = audit.values()["clients_by_share_spent"]
        assert sum(shares.values()) == audit.observed.clients

    def test_a_resumed_controller_returns_the_same_cohorts(self):
        whole_cohorts = cohorts_of_run(budgeted_controller()[0])
        first_controller, _ = budgeted_controller()
        cohorts_of_run(first_controller, 17)
        text = first_controller.ledger.to_csv()
        resumed_controller, _ = budgeted_controller()
        resumed_controller.resume_from(
            fedmf.ParticipationLedger.from_csv(text, rounds=17, cohort_size=5)
        )
        assert cohorts_of_run(resumed_controller) == whole_cohorts

    def test_a_ledger_that_overspends_is_refused(self):
        controller, _ = budgeted_controller()
        with refusal("round 1 has client 1, who may not take part"):
            controller.resume_from(ledger_of([[1]] * 8, 5))

    def test_dropped_clients_spend_and_noncompliant_ones_do_not_affect_others(self):
        behavior = DeviceBehavior(dropout=0.3, noncompliant_fraction=0.1, seed=2)
        controller, mechanism = budgeted_controller(
            population=40, availability=None, behavior=behavior
        )
        cohorts_of_run(controller)
        of_plan = plan(controller.participation, mechanism)
        assert controller.audit(of_plan).contradictions == ()
        planned_ledger = controller.ledger.planned()
        assert fedmf.audit_ledger(
            planned_ledger, of_plan
        ).contradictions  # Noncompliant clients overspend.
        compliant_ledger = controller.ledger.compliant().planned()
        assert fedmf.audit_ledger(compliant_ledger, of_plan).contradictions == ()


def test_an_overspent_ledger_contradicts_the_plan_and_has_its_own_guarantee(tmp_path):
    mechanism = ToeplitzMechanism(rounds=8, coefficients=0.7 ** np.arange(8))
    budget = plan(Budget.of(mechanism, separated(8, 4)).participation, mechanism)
    ledger = ledger_of([[1], [1, 2], [1], [], [], [2], [], [3]], None)
    (tmp_path / "log.csv").write_text(ledger.to_csv())
    worst_norm = np.linalg.norm(mechanism.encoder()[:, :3].sum(axis=1))
    of_log = fedmf.audit_log(tmp_path / "log.csv", budget)
    for audit in (fedmf.audit_ledger(ledger, budget), of_log):
        (contradiction,) = audit.contradictions
        assert f"cost a sensitivity of {worst_norm:.6g} where a budget" in contradiction
        assert_allclose(audit.achieved.sensitivity.value, worst_norm, rtol=1e-11)
        (bad_client,) = audit.noncompliant_clients.first
        assert (str(bad_client.client), bad_client.rounds) == ("1", (0, 1, 2))
        assert audit.epsilon > audit.planned.epsilon
