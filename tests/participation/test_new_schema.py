"""A participation schema that is added from outside works in every part of fedmf.

The parts are fit, calibration, controller, server, audit, statement, configuration and commands.
"""

import dataclasses
import json
from typing import ClassVar

import numpy as np
import pytest

import fedmf
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.participation.schema import SCHEMAS
from fedmf.privacy.statement import markdown
from fedmf.privacy.stopping import stopped_after
from tests.cli.program import printed_by
from tests.cohorts.controllers import cohorts_of_run, rounds_of_clients
from tests.oracles import attained_by_sets
from tests.privacy.plans import ledger_of
from tests.refusals import refusal

ROUNDS = 12
EPOCHS = 3


@pytest.fixture(autouse=True)
def once_an_epoch():
    """Registers a schema with at most one round in each of max_participations epochs of equal
    length.
    """

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class OnceAnEpoch(fedmf.Participation):
        settings: ClassVar[tuple[str, ...]] = ("max_participations",)
        assumption: ClassVar[str] = "One round in each of {{ max_participations }} epochs."

        schema: str = "once_an_epoch"

        def implied_limits(self):
            return 1, self.max_participations

        def allows_sorted(self, sorted_rounds):
            epochs = [t * self.max_participations // self.rounds for t in sorted_rounds]
            return len(set(epochs)) == len(epochs)

    yield OnceAnEpoch
    del SCHEMAS["once_an_epoch"]


@pytest.fixture
def participation():
    return fedmf.Participation(rounds=ROUNDS, schema="once_an_epoch", max_participations=EPOCHS)


@pytest.fixture
def plan(participation):
    mechanism = fedmf.fit(fedmf.prefix_sum(ROUNDS), participation, family="toeplitz", bands=3)
    return fedmf.calibrate(mechanism, participation, epsilon=4.0, delta=1e-6)


def test_participation_returns_an_object_of_its_class(once_an_epoch, participation):
    assert type(participation) is once_an_epoch
    assert repr(participation) == (
        "Participation(rounds=12, schema='once_an_epoch', min_sep=1, max_participations=3)"
    )
    assert participation == fedmf.Participation.from_limits(participation.limits())
    assert participation != fedmf.Participation(
        rounds=ROUNDS, schema="min_sep", min_sep=1, max_participations=EPOCHS
    )


def test_patterns_are_a_round_of_each_epoch(participation):
    patterns = sorted(participation.patterns())
    assert len(patterns) == 4**3
    assert patterns[:2] == [(0, 4, 8), (0, 4, 9)]


def test_sensitivity_is_an_upper_bound(participation, plan):
    C = plan.mechanism.encoder()
    attained_value = attained_by_sets(C, list(participation.patterns()), np.random.default_rng(0))
    assert not plan.sensitivity.exact
    assert attained_value <= plan.sensitivity.value <= fedmf.sensitivity(
        C, fedmf.Participation(rounds=ROUNDS, schema="every_round")
    ).value  # fmt: skip


def test_controller_satisfies_it_and_the_audit_checks_it(participation, plan):
    options = {"population": 20, "cohort_size": 4, "seed": 3}
    controller = fedmf.ParticipationController(participation, **options)
    cohorts_of_run(controller)
    assert all(map(participation.allows, rounds_of_clients(controller.ledger).values()))
    assert controller.ledger.observed().min_separation < 4
    audit = controller.audit(plan)
    assert audit.contradictions == ()
    assert audit.epsilon <= plan.epsilon
    twice_in_an_epoch = ledger_of([[1], [1]], 4)
    (contradiction,) = fedmf.audit_ledger(twice_in_an_epoch, plan).contradictions
    assert contradiction.startswith("a client took part in rounds that Participation(")
    assert twice_in_an_epoch.noncompliant(participation).tolist() == [1]
    with refusal("round 1 has client 1, who may not take part"):
        fedmf.ParticipationController(participation, **options).resume_from(twice_in_an_epoch)


def test_server_refuses_a_second_round_in_an_epoch(plan):
    server = fedmf.Server(plan, shapes=[(2,)], clients_per_round=2, noise_seed=5)
    rounds_taken = []
    for t in range(ROUNDS):
        if server.cohort(available=["ann"]):
            server.add([np.ones(2)], client="ann")
            rounds_taken.append(t)
        else:
            with refusal("client='ann' took part in"):
                server.add([np.ones(2)], client="ann")
        server.release()
    assert rounds_taken == [0, 4, 8]


def test_statement_contains_its_assumption(plan):
    text = fedmf.statement(plan)
    assert "One round in each of 3 epochs." in text


def test_a_statement_of_saved_values_needs_no_class(once_an_epoch, plan):
    values = json.loads(json.dumps(fedmf.privacy.describe.statement_values(plan)))
    del SCHEMAS["once_an_epoch"]
    text = " ".join(markdown(values).split())
    SCHEMAS["once_an_epoch"] = once_an_epoch
    assert "takes part in at most 3 of the 12 rounds" in text


def test_config_plans_with_it(plan):
    config = fedmf.PlanConfig.of(plan)
    assert (config.schema, config.min_sep, config.max_participations) == ("once_an_epoch", None, 3)
    fitted_mechanism = fedmf.PlanConfig(
        rounds=ROUNDS, schema="once_an_epoch", max_participations=EPOCHS, family="toeplitz",
        bands=3, epsilon=4.0, delta=1e-6,
    )  # fmt: skip
    assert fedmf.PlanConfig.from_json(fitted_mechanism.to_json()).plan().stddev == plan.stddev


def test_commands_take_it(plan, tmp_path):
    plan.mechanism.save(tmp_path / "toeplitz.npz")
    limits = f"--rounds {ROUNDS} --schema once_an_epoch --max-participations {EPOCHS}"
    calibrated = printed_by(f"calibrate {tmp_path}/toeplitz.npz {limits} --epsilon 4 --delta 1e-6")
    assert calibrated["stddev"] == plan.stddev
    forecast = printed_by(f"plan participation {limits} --population 20 --cohort-size 4")
    assert forecast["max_participations_observed"] <= EPOCHS


def schema_class(name, *bases, **members):
    """Returns a frozen dataclass of a schema, as a class statement would define it."""
    namespace = {"__module__": __name__, "__qualname__": members.pop("qualname", name), **members}
    namespace |= {"schema": name, "__annotations__": {"schema": str}}
    new_class = type(name, bases or (fedmf.Participation,), namespace)
    return dataclasses.dataclass(frozen=True, kw_only=True)(new_class)


@pytest.fixture
def any_rounds():
    """Registers a schema whose own rule allows all rounds, and whose limits are chosen."""
    members = {
        "settings": ("min_sep", "max_participations"),
        "allows_sorted": lambda self, sorted_rounds: True,
    }
    yield schema_class("any_rounds", **members)
    del SCHEMAS["any_rounds"]


@pytest.mark.usefixtures("any_rounds")
def test_the_limits_hold_although_the_rule_allows_all_rounds():
    """Compares with min_sep, since the rule alone would have a larger sensitivity."""
    free_participation = fedmf.Participation(rounds=9, schema="any_rounds", min_sep=4)
    min_sep_participation = fedmf.Participation(rounds=9, schema="min_sep", min_sep=4)
    assert (
        fedmf.sensitivity(np.eye(9), free_participation).value
        == fedmf.sensitivity(np.eye(9), min_sep_participation).value
    )
    assert sorted(free_participation.patterns()) == sorted(min_sep_participation.patterns())
    controller = fedmf.ParticipationController(
        free_participation, population=5, cohort_size=1, seed=0
    )
    cohorts_of_run(controller)
    assert all(map(min_sep_participation.allows, rounds_of_clients(controller.ledger).values()))


@pytest.mark.usefixtures("any_rounds")
def test_controller_refuses_timer_jitter_without_a_timer():
    free_participation = fedmf.Participation(rounds=9, schema="any_rounds", min_sep=4)
    jitter = DeviceBehavior(timer_jitter=1)
    with refusal("timer_jitter=1 .*schema='any_rounds' has none; leave it out"):
        fedmf.ParticipationController(
            free_participation, population=5, cohort_size=1, seed=0, behavior=jitter
        )


def test_the_first_rounds_alone_have_no_guarantee(plan, participation):
    with refusal("schema=once_an_epoch does not limit .* in the first 6 rounds.* state that"):
        stopped_after(plan, 6)
    with refusal("schema=once_an_epoch has no form for"):
        participation.shortened(6)


@pytest.mark.parametrize("max_participations", [0, -1, 2.5, "3", None, ROUNDS + 1])
def test_implied_limits_are_checked(max_participations):
    with refusal("max_participations=", (TypeError, ValueError)):
        fedmf.Participation(
            rounds=ROUNDS, schema="once_an_epoch", max_participations=max_participations
        )


def test_register_refuses_a_used_name_and_a_derived_schema(once_an_epoch):
    with refusal("schema='once_an_epoch' is that of .*OnceAnEpoch: use another name"):
        schema_class("once_an_epoch")
    with refusal("schema='min_sep' is that of MinSep"):
        schema_class("min_sep")
    with refusal("inherits from the schema MinSep: derive it from", TypeError):
        schema_class("even", SCHEMAS["min_sep"])
    bare = type("Slotted", (fedmf.Participation,), {"__annotations__": {"schema": str}})
    bare.schema = "slotted"
    with refusal("is not a str: .* no slots", TypeError):
        dataclasses.dataclass(frozen=True, kw_only=True, slots=True)(bare)
    assert SCHEMAS["once_an_epoch"] is once_an_epoch
    # A notebook cell that runs again replaces its class.
    classes = [schema_class("again", qualname="Again") for _ in range(2)]
    assert SCHEMAS.pop("again") is classes[1]


@pytest.mark.parametrize("schema", ["single", "fixed_epoch", "min_sep", "every_round"])
def test_no_client_is_eligible_after_the_last_round(schema):
    limits = {"min_sep": 2} if schema in ("fixed_epoch", "min_sep") else {}
    participation = fedmf.Participation(rounds=4, schema=schema, **limits)
    history = participation.new_history(2)
    assert participation.is_eligible(3, history, slice(0, 2)).all()
    for t in (4, 5, 100):
        assert not participation.is_eligible(t, history, slice(0, 2)).any()
