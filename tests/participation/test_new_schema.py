"""A participation schema is one class: one that only this file knows goes through fit, calibration,
controller, server, audit, statement, config and CLI.
"""

import dataclasses
import json
from typing import ClassVar

import numpy as np
import pytest

import fedmf
from fedmf.participation.base import checked_rounds
from fedmf.participation.schema import SCHEMAS
from fedmf.privacy.statement import markdown
from tests.cli.program import printed_by
from tests.cohorts.controllers import rounds_of_clients, run
from tests.oracles import attained_by_sets
from tests.privacy.plans import ledger_of
from tests.refusals import refusal

ROUNDS, EPOCHS = 12, 3


@pytest.fixture(autouse=True)
def once_an_epoch():
    """At most one round in each of max_participations epochs of equal length, in any place."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class OnceAnEpoch(fedmf.Participation):
        settings: ClassVar[tuple[str, ...]] = ("max_participations",)
        assumption: ClassVar[str] = "One round in each of {{ max_participations }} epochs."

        schema: str = "once_an_epoch"

        def implied_limits(self):
            return 1, self.max_participations

        def allows(self, rounds_of_one_client):
            taken = checked_rounds(rounds_of_one_client)
            if any(not 0 <= t < self.rounds for t in taken):
                return False
            epochs = [t * self.max_participations // self.rounds for t in taken]
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


def test_the_factory_makes_it(once_an_epoch, participation):
    assert type(participation) is once_an_epoch
    assert repr(participation) == (
        "Participation(rounds=12, schema='once_an_epoch', min_sep=1, max_participations=3)"
    )
    assert participation == fedmf.Participation.of_limits(participation.limits())
    assert participation != fedmf.Participation(
        rounds=ROUNDS, schema="min_sep", min_sep=1, max_participations=EPOCHS
    )


def test_its_patterns_are_a_round_of_each_epoch(participation):
    patterns = sorted(participation.patterns())
    assert len(patterns) == 4**3
    assert patterns[:2] == [(0, 4, 8), (0, 4, 9)]


def test_its_sensitivity_is_an_upper_bound(participation, plan):
    C = plan.mechanism.encoder()
    attained = attained_by_sets(C, list(participation.patterns()), np.random.default_rng(0))
    assert not plan.sensitivity.exact
    assert attained <= plan.sensitivity.value <= fedmf.sensitivity(
        C, fedmf.Participation(rounds=ROUNDS, schema="every_round")
    ).value  # fmt: skip


def test_controller_and_audit(participation, plan):
    options = {"population": 20, "cohort_size": 4, "seed": 3}
    controller = fedmf.ParticipationController(participation, **options)
    run(controller)
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
        fedmf.ParticipationController(participation, **options).go_on_from(twice_in_an_epoch)


def test_server(plan):
    server = fedmf.Server(plan, shapes=[(2,)], clients_per_round=2, noise_seed=5)
    taken = []
    for t in range(ROUNDS):
        if server.cohort(available=["ann"]):
            server.add([np.ones(2)], client="ann")
            taken.append(t)
        else:
            with refusal("client='ann' took part in"):
                server.add([np.ones(2)], client="ann")
        server.release()
    assert taken == [0, 4, 8]


def test_statement(plan):
    text = fedmf.statement(plan)
    assert "One round in each of 3 epochs." in text


def test_a_statement_s_values_need_no_class(once_an_epoch, plan):
    values = json.loads(json.dumps(fedmf.privacy.describe.statement_values(plan)))
    del SCHEMAS["once_an_epoch"]
    text = " ".join(markdown(values).split())
    SCHEMAS["once_an_epoch"] = once_an_epoch
    assert "takes part in at most 3 of the 12 rounds" in text


def test_config(plan):
    config = fedmf.PlanConfig.of(plan)
    assert (config.schema, config.min_sep, config.max_participations) == ("once_an_epoch", None, 3)
    fitted = fedmf.PlanConfig(
        rounds=ROUNDS, schema="once_an_epoch", max_participations=EPOCHS, family="toeplitz",
        bands=3, epsilon=4.0, delta=1e-6,
    )  # fmt: skip
    assert fedmf.PlanConfig.from_json(fitted.to_json()).plan().stddev == plan.stddev


def test_command_line(plan, tmp_path):
    plan.mechanism.save(tmp_path / "toeplitz.npz")
    limits = f"--rounds {ROUNDS} --schema once_an_epoch --max-participations {EPOCHS}"
    shown = printed_by(f"calibrate {tmp_path}/toeplitz.npz {limits} --epsilon 4 --delta 1e-6")
    assert shown["stddev"] == plan.stddev
    forecast = printed_by(f"plan participation {limits} --population 20 --cohort-size 4")
    assert forecast["max_participations_observed"] <= EPOCHS
