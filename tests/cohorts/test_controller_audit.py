import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.audits.guarantee import audit_ledger
from fedmf.cohorts.availability import Independent
from fedmf.cohorts.controller import ParticipationController
from fedmf.mechanisms import BandedMechanism, DenseMechanism, IdentityMechanism, TreeMechanism
from fedmf.participation.schema import Participation
from fedmf.privacy.gaussian import gaussian_epsilon
from tests.cohorts.controllers import (
    controllers_that_work,
    rounds_of_clients,
    run,
)
from tests.oracles import allowed_sets
from tests.paper_figures import BANDED_SECTION_6
from tests.privacy.plans import ledger_of, plan


def banded(rounds, bands, seed=0):
    """A banded C with columns of norm 1 and positive entries."""
    C = np.tril(np.random.default_rng(seed).uniform(0.1, 1.0, (rounds, rounds)))
    C[np.subtract.outer(np.arange(rounds), np.arange(rounds)) >= bands] = 0
    C /= np.linalg.norm(C, axis=0)
    diagonals = np.zeros((rounds, bands))
    for j in range(bands):
        diagonals[j:, j] = np.diagonal(C, -j)
    return BandedMechanism(diagonals=diagonals)


def plan_of(mechanism, participation):
    return plan(participation, mechanism, noise_multiplier=1.3)


def worst_client(C, ledger):
    """The largest ||C u|| over the clients of the ledger, all updates along one line: for C >= 0 no
    update does more.
    """
    rounds = rounds_of_clients(ledger).values()
    return max(np.linalg.norm(C[:, taken].sum(axis=1)) for taken in rounds)


class TestAudit:
    @settings(max_examples=60)
    @given(
        controllers_that_work(),
        st.sampled_from(
            [IdentityMechanism, TreeMechanism, lambda rounds: banded(rounds, min(3, rounds))]
        ),
        st.sampled_from([1.0, 0.6]),
    )
    def test_obeyed_is_never_worse_than_planned(self, given, family, probability):
        plan = plan_of(family(rounds=given["participation"].rounds), given["participation"])
        controller = ParticipationController(
            **given, availability=Independent(probability=probability)
        )
        run(controller)
        audit = controller.audit(plan)
        assert audit.planned is plan
        assert audit.epsilon <= plan.epsilon
        assert audit.rho <= plan.rho
        if audit.achieved is None:
            assert controller.ledger.observed().participations == 0
            return
        # Nor does it claim more than the worst client of this very ledger allows.
        exposed = 0.5 * worst_client(plan.mechanism.encoder(), controller.ledger) / plan.stddev
        assert audit.rho >= exposed**2 / 2 * (1 - 1e-9)

    @pytest.mark.parametrize(
        ("cohorts", "seen"),
        [
            (
                [[0], [1], [0], [2], [3], [4], [5], [6]],
                (2, 2),
            ),  # client 0 after 2 rounds instead of 4
            ([[0], [0], [1], [2], [3], [4], [5], [6]], (1, 2)),
            ([[0], [1], [2], [0], [3], [4], [0], [5]], (3, 3)),  # too soon and too often
        ],
    )
    def test_broken_on_purpose(self, cohorts, seen):
        participation = Participation(rounds=8, schema="min_sep", min_sep=4)
        plan = plan_of(banded(8, 4), participation)
        ledger = ledger_of(cohorts)
        audit = audit_ledger(ledger, plan)
        assert (audit.observed.min_separation, audit.observed.max_participations) == seen
        assert audit.epsilon > plan.epsilon
        assert audit.rho > plan.rho
        # Independently: client 0, who broke it, from its own rounds alone, and the others from
        # theirs.
        C = plan.mechanism.encoder()
        worst = worst_client(C, ledger)
        planned = max(
            np.linalg.norm(C[:, list(taken)].sum(axis=1)) for taken in allowed_sets(participation)
        )
        multiplier = 1.3 * planned / worst
        assert audit.achieved.sensitivity.exact
        assert audit.achieved.noise_multiplier == pytest.approx(multiplier, rel=1e-12)
        assert audit.epsilon == pytest.approx(gaussian_epsilon(multiplier, 1e-6), rel=1e-6)
        assert audit.offenders.clients == 1
        (offender,) = audit.offenders.first
        taken = tuple(t for t, cohort in enumerate(cohorts) if cohort == [0])
        assert (offender.client, offender.rounds, offender.achieved.epsilon) == (
            0,
            taken,
            audit.epsilon,
        )
        others = max(np.linalg.norm(C[:, t]) for t, cohort in enumerate(cohorts) if cohort != [0])
        assert audit.offenders.others.sensitivity.value == pytest.approx(others, rel=1e-12)
        assert ledger.noncompliant(participation).tolist() == [0]

    def test_a_fixed_order_broken_only_in_its_turn(self):
        # Five rounds apart instead of four: far enough for min_sep, and yet not what fixed_epoch
        # was accounted for.
        participation = Participation(rounds=12, schema="fixed_epoch", min_sep=4)
        C = np.eye(12)
        C[9, 0] = C[9, 5] = 3.0  # rounds 0 and 5 add up; rounds 0, 4, 8 do not
        plan = plan_of(DenseMechanism(matrix=np.tril(C)), participation)
        cohorts = [[]] * 12
        cohorts[0] = cohorts[5] = [0]
        ledger = ledger_of(cohorts)
        audit = audit_ledger(ledger, plan)
        assert audit.observed.min_separation == 5
        expected = 1.3 * plan.sensitivity.value / np.linalg.norm(C[:, 0] + C[:, 5])
        assert audit.achieved.noise_multiplier == pytest.approx(expected, rel=1e-12)
        assert audit.epsilon > plan.epsilon

    def test_one_participation_each_achieves_more_than_planned(self):
        plan = plan_of(
            IdentityMechanism(rounds=9), Participation(rounds=9, schema="min_sep", min_sep=3)
        )
        ledger = ledger_of([[t] for t in range(9)])
        audit = audit_ledger(ledger, plan)
        # sqrt(3) times the noise that single participation needs.
        assert audit.achieved.noise_multiplier == pytest.approx(1.3 * math.sqrt(3))
        assert audit.rho == pytest.approx(plan.rho / 3)

    def test_the_papers_story(self):
        # Banded paper, Sec. 6: 400 bands, planned separation 400, achieved 385, so that columns of
        # one client overlap and Alg. 4 has to be used. A tenth of the size, same proportions: 200
        # rounds, 40 bands, planned 40, achieved 38.
        figures = {name: round(value / 10) for name, value in BANDED_SECTION_6.items()}
        rounds, planned, achieved = figures["rounds"], figures["planned"], figures["achieved"]
        participation = Participation(rounds=rounds, schema="min_sep", min_sep=planned)
        mechanism = banded(rounds, figures["bands"])
        plan = plan_of(mechanism, participation)
        assert plan.sensitivity.exact
        assert plan.sensitivity.value == pytest.approx(
            math.sqrt(5)
        )  # 5 participations, columns of norm 1
        ledger = ledger_of(
            [[t % achieved if t < 2 * achieved else 1000 + t] for t in range(rounds)]
        )
        audit = audit_ledger(ledger, plan)
        assert audit.observed.min_separation == achieved == 38
        assert audit.observed.max_participations == 2
        # Two participations 38 apart: of the very clients that had them.
        C = mechanism.encoder()
        worst = max(np.linalg.norm(C[:, t] + C[:, t + achieved]) for t in range(achieved))
        assert audit.achieved.sensitivity.value == pytest.approx(worst, rel=1e-12)
        assert worst > math.sqrt(2)  # the overlap costs something
        # Counting participations alone, as if the separation had been kept, would have claimed too
        # much.
        assert audit.achieved.noise_multiplier < 1.3 * math.sqrt(5) / math.sqrt(2)

        # All five participations at the achieved separation: more epsilon than planned, exactly.
        often = ledger_of([[t % achieved] for t in range(5 * achieved)])
        audit = audit_ledger(often, plan)
        assert audit.observed.max_participations == 5
        assert audit.achieved.sensitivity.exact
        assert audit.epsilon > plan.epsilon
        assert audit.achieved.sensitivity.value == pytest.approx(worst_client(C, often), rel=1e-12)
