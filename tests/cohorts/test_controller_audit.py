import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmf
from fedmf.cohorts.availability import Independent
from fedmf.mechanisms import BandedMechanism, IdentityMechanism, TreeMechanism
from fedmf.privacy.gaussian import gaussian_epsilon
from tests.cohorts.controllers import (
    controllers_that_work,
    rounds_of_clients,
    run,
)
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
        controller = fedmf.ParticipationController(
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

    def test_the_papers_story(self):
        # Banded paper, Sec. 6: 400 bands, planned separation 400, achieved 385, so that columns of
        # one client overlap. A tenth of the size, same proportions: 200 rounds, 40 bands, planned
        # 40, achieved 38.
        figures = {name: round(value / 10) for name, value in BANDED_SECTION_6.items()}
        rounds, planned, achieved = figures["rounds"], figures["planned"], figures["achieved"]
        participation = fedmf.Participation(rounds=rounds, schema="min_sep", min_sep=planned)
        plan = plan_of(banded(rounds, figures["bands"]), participation)
        assert plan.sensitivity.exact
        # 5 participations, columns of norm 1
        assert plan.sensitivity.value == pytest.approx(math.sqrt(5))
        twice = [[t % achieved if t < 2 * achieved else 1000 + t] for t in range(rounds)]
        often = [[t % achieved] for t in range(5 * achieved)]
        for cohorts, times in ((twice, 2), (often, 5)):
            ledger = ledger_of(cohorts)
            audit = fedmf.audit_ledger(ledger, plan)
            assert audit.observed.min_separation == achieved == 38
            assert audit.observed.max_participations == times
            worst = worst_client(plan.mechanism.encoder(), ledger)
            assert worst > math.sqrt(times)  # the overlap costs something
            assert audit.achieved.sensitivity.value == pytest.approx(worst, rel=1e-12)
            multiplier = 1.3 * math.sqrt(5) / worst
            assert audit.epsilon == pytest.approx(gaussian_epsilon(multiplier, 1e-6), rel=1e-6)
        assert audit.epsilon > plan.epsilon
