"""A participation budget in the controller: exact for each client, and never fewer participations
than min_sep.
"""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import fedmf
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.mechanisms import DenseMechanism, ToeplitzMechanism
from fedmf.mechanisms.budget import Budget, Spending
from tests.cohorts.controllers import WhoComes, rounds_of_clients, run
from tests.mechanisms.registry import both_signs
from tests.mechanisms.schemas import fitted, separated
from tests.privacy.plans import ledger_of, plan
from tests.refusals import refusal


def taken_by_greedy_devices(rule, checks_in):
    """The rounds of devices that come whenever they check in and the rule lets them: a list for
    each row of checks_in.
    """
    taken = [[] for _ in checks_in]
    for t in range(checks_in.shape[1]):
        come = np.flatnonzero(checks_in[:, t])
        come = come[rule.allows(t, come)]
        rule.record(t, come)
        for device in come:
            taken[device].append(t)
    return taken


class Timers:
    """min_sep as a rule of devices."""

    def __init__(self, participation, devices):
        self.participation, self.taken = participation, [[] for _ in range(devices)]

    def allows(self, t, clients):
        rested = [self.participation.allows([*self.taken[client], t]) for client in clients]
        return np.array(rested, bool)

    def record(self, t, clients):
        for client in clients:
            self.taken[client].append(t)


def naive(budget, checks_in):
    """The rule as it is described, a device and a check-in at a time."""
    n, X = budget.participation.rounds, budget.costs

    def cost(rounds):
        return X[np.ix_(rounds, rounds)].sum()

    fresh = [list(range(0, n, budget.pace))[:m] for m in range(1, n + 1)]
    most = max(len(rounds) for rounds in fresh if budget.participation.affords(cost(rounds)))
    taken = [[] for _ in checks_in]
    for rounds, row in zip(taken, checks_in, strict=True):
        for t in np.flatnonzero(row).tolist():
            kept = list(range(t, n, budget.pace))[: max(1, most - len(rounds))]
            if budget.participation.affords(cost(rounds + kept)):
                rounds.append(t)
    return taken


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
def test_devices_follow_the_rule_and_never_overspend(given_budget, seed, rate):
    budget, _ = given_budget
    checks_in = np.random.default_rng(seed).random((6, budget.participation.rounds)) < rate
    taken = taken_by_greedy_devices(Spending(budget, 6), checks_in)
    assert all(budget.allows(rounds) for rounds in taken)
    assert taken == naive(budget, checks_in)


@given(budgets(monotone=True), st.integers(0, 2**32 - 1), st.floats(0.05, 1.0))
@settings(max_examples=100)
def test_each_participation_comes_no_later_than_under_min_sep(given_budget, seed, rate):
    # For every device and every way to check in, as docs/budget.md proves.
    budget, apart = given_budget
    checks_in = np.random.default_rng(seed).random((6, apart.rounds)) < rate
    by_budget = taken_by_greedy_devices(Spending(budget, 6), checks_in)
    by_timer = taken_by_greedy_devices(Timers(apart, 6), checks_in)
    for ours, theirs in zip(by_budget, by_timer, strict=True):
        assert len(ours) >= len(theirs)
        assert all(one <= other for one, other in zip(ours, theirs, strict=False))


def test_keeping_nothing_is_worse_for_frequent_devices():
    # The control of the test before: what would be lost without a pace.
    apart = separated(60, 10)
    budget = Budget.of(
        ToeplitzMechanism(rounds=60, coefficients=(1 + np.arange(60)) ** -0.5), apart
    )
    everybody = np.ones((1, 60), bool)
    assert len(taken_by_greedy_devices(Spending(budget, 1), everybody)[0]) == 6
    greedy = dataclasses.replace(budget, pace=60)
    assert len(taken_by_greedy_devices(Spending(greedy, 1), everybody)[0]) < 6


def budgeted_controller(**changes):
    apart = separated(40, 8)
    mechanism = fitted(apart, "toeplitz", coefficients="sqrt")
    some = WhoComes(lambda t, clients: clients % 4 != t % 4)
    given = {"population": 60, "cohort_size": 5, "seed": 3, "availability": some, **changes}
    return fedmf.ParticipationController(Budget.of(mechanism, apart), **given), mechanism


class TestController:
    def test_the_ledger_spends_no_more_than_the_budget_and_the_audit_is_exact(self):
        controller, mechanism = budgeted_controller()
        run(controller)
        budget = controller.participation
        audit = controller.audit(plan(budget, mechanism))
        assert audit.contradictions == ()
        C = mechanism.encoder()
        worst = max(
            np.linalg.norm(C[:, rounds].sum(axis=1))
            for rounds in rounds_of_clients(controller.ledger).values()
        )
        assert_allclose(audit.achieved.sensitivity.value, worst, rtol=1e-11)
        assert audit.epsilon <= audit.planned.epsilon
        shares = audit.values()["clients_by_share_spent"]
        assert sum(shares.values()) == audit.observed.clients

    def test_a_resumed_controller_goes_on_as_the_first_would(self):
        whole = run(budgeted_controller()[0])
        first, _ = budgeted_controller()
        run(first, 17)
        text = first.ledger.to_csv()
        later, _ = budgeted_controller()
        later.resume_from(fedmf.ParticipationLedger.from_csv(text, rounds=17, cohort_size=5))
        assert run(later) == whole

    def test_a_ledger_that_overspends_is_refused(self):
        controller, _ = budgeted_controller()
        with refusal("round 1 has client 1, who may not take part"):
            controller.resume_from(ledger_of([[1]] * 8, 5))

    def test_dropped_clients_have_paid_and_those_that_disobey_harm_nobody(self):
        behavior = DeviceBehavior(dropout=0.3, noncompliant_fraction=0.1, seed=2)
        controller, mechanism = budgeted_controller(
            population=40, availability=None, behavior=behavior
        )
        run(controller)
        of_plan = plan(controller.participation, mechanism)
        assert controller.audit(of_plan).contradictions == ()
        planned = controller.ledger.planned()
        assert fedmf.audit_ledger(planned, of_plan).contradictions  # all clients together
        well_behaved = controller.ledger.compliant().planned()
        assert fedmf.audit_ledger(well_behaved, of_plan).contradictions == ()


def test_an_overspent_ledger_contradicts_and_gets_its_own_guarantee(tmp_path):
    mechanism = ToeplitzMechanism(rounds=8, coefficients=0.7 ** np.arange(8))
    budget = plan(Budget.of(mechanism, separated(8, 4)).participation, mechanism)
    ledger = ledger_of([[1], [1, 2], [1], [], [], [2], [], [3]], None)
    (tmp_path / "log.csv").write_text(ledger.to_csv())
    worst = np.linalg.norm(mechanism.encoder()[:, :3].sum(axis=1))
    of_log = fedmf.audit_log(tmp_path / "log.csv", budget)
    for audit in (fedmf.audit_ledger(ledger, budget), of_log):
        (contradiction,) = audit.contradictions
        assert f"cost a sensitivity of {worst:.6g} where a budget" in contradiction
        assert_allclose(audit.achieved.sensitivity.value, worst, rtol=1e-11)
        (bad,) = audit.noncompliant_clients.first
        assert (str(bad.client), bad.rounds) == ("1", (0, 1, 2))
        assert audit.epsilon > audit.planned.epsilon
