"""Runs that end before their plan does, and those that would go on beyond it."""

import dataclasses

import pytest

import fedmf
from fedmf import federated
from fedmf.privacy.stopping import stopped_after
from tests.federated.run_small import config
from tests.federated.small_task import small_task

pytestmark = pytest.mark.tensorflow


@pytest.mark.slow
def test_a_run_stops_before_the_round_that_would_pass_an_epsilon_and_not_beyond_its_plan(tmp_path):
    settings = config()
    plan = settings.plan()
    epsilons = [stopped_after(plan, rounds).epsilon for rounds in range(1, settings.rounds + 1)]
    # Before a round that counts; single rounds in between may cost nothing more.
    rounds = next(r for r in range(2, settings.rounds) if epsilons[r - 1] < epsilons[r])
    target = (epsilons[rounds - 1] + epsilons[rounds]) / 2

    def train(folder, settings=settings, **arguments):
        return federated.train(small_task(), settings, folder=tmp_path / folder, progress=False, **arguments)

    run = train("run", noise_seed=9, stop_at_epsilon=target)
    assert run.result is None
    assert run.saved_rounds() == rounds
    audit = fedmf.audit_run(run.path)
    assert audit.planned.participation.rounds == rounds
    assert audit.planned.epsilon == pytest.approx(epsilons[rounds - 1], rel=1e-9)
    assert audit.epsilon <= audit.planned.epsilon <= target < plan.epsilon
    assert audit.contradictions == ()
    said = " ".join(audit.statement().split())
    assert f"The noise was made for {settings.rounds} rounds, and this is about the first {rounds} of them" in said
    with pytest.raises(ValueError, match=rf"stop_at_epsilon=.* after {rounds - 1} rounds.* had {rounds}: leave it out"):
        train("run", resume=True, stop_at_epsilon=epsilons[rounds - 2])
    with pytest.raises(ValueError, match=rf"the run has {settings.rounds}\): whether to go on .* made for all rounds"):
        train("run", dataclasses.replace(settings, rounds=settings.rounds + 2), resume=True)
    with pytest.raises(ValueError, match="is passed in round 0"):
        train("none", noise_seed=9, stop_at_epsilon=1e-3)
    assert not (tmp_path / "none" / "config.json").exists()
