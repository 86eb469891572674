"""Runs that stop before the end of their plan, and runs that would continue beyond it."""

import dataclasses
import json

import pytest

import fedmf
from fedmf import federated
from fedmf.privacy.stopping import stopped_after
from fedmf.reports import write_report
from tests.federated.small_runs import assert_same_run, config, train
from tests.refusals import refusal


@pytest.mark.slow
def test_a_run_stops_before_it_exceeds_an_epsilon_or_its_plan(tmp_path):
    settings = config()
    plan = settings.plan()
    epsilons = [stopped_after(plan, rounds).epsilon for rounds in range(1, settings.rounds + 1)]
    # The limit is before a round that increases epsilon; single rounds may cost nothing more.
    rounds = next(
        round_count
        for round_count in range(2, settings.rounds)
        if epsilons[round_count - 1] < epsilons[round_count]
    )
    target = (epsilons[rounds - 1] + epsilons[rounds]) / 2

    ending = dataclasses.replace(settings, stop_at_epsilon=target)
    run = train(tmp_path / "run", ending)
    assert run.ended_after == rounds == run.num_rounds() == len(run.metrics)
    assert "validation" in run.metrics[-1]
    assert run.result["achieved"]["epsilon"] <= target
    audit = fedmf.audit_run(run.path)
    assert audit.planned.participation.rounds == rounds
    assert audit.planned.epsilon == pytest.approx(epsilons[rounds - 1], rel=1e-9)
    assert audit.epsilon <= audit.planned.epsilon <= target < plan.epsilon
    assert audit.contradictions == ()
    for text in (audit.statement(), (run.path / "final_statement.md").read_text()):
        assert f"this is about the first {rounds} of them" in " ".join(text.split())
    page = write_report([run], tmp_path / "report", title="ended").read_text()
    assert f"ended after {rounds} of {settings.rounds} rounds" in page
    # Trained in two parts it is the same run, and then it has ended.
    resumed_folder = tmp_path / "parts"
    train(resumed_folder, ending, stop_after=rounds - 1)
    assert_same_run(run, train(resumed_folder, ending, resume=True))
    longer_settings = dataclasses.replace(ending, rounds=settings.rounds + 2)
    for other_settings, match in (
        (ending, f"ended after {rounds} rounds"),
        (longer_settings, rf"the run has {settings.rounds}\).* for all rounds"),
    ):
        with refusal(match):
            train(resumed_folder, other_settings, resume=True)
    with refusal("with canaries=2"):
        dataclasses.replace(ending, canaries=2)
    # Releases beyond a smaller number of rounds still count, and the record is that of a finished
    # run.
    result = json.loads((run.path / "result.json").read_text())
    (run.path / "result.json").write_text(json.dumps(result | {"ended_after": rounds - 1}))
    assert fedmf.audit_run(run.path).planned.participation.rounds == settings.rounds
    assert "not in the record" in fedmf.audit_run(run.path).unrecorded
    (run.path / "result.json").write_text(json.dumps(result))
    ledger = run.path / "participation.csv"
    ledger.write_text("\n".join(ledger.read_text().splitlines()[:-1]) + "\n")
    with refusal("participation.csv changed after the run had finished"):
        fedmf.audit_run(run.path)


class Early(federated.Callback):
    """A callback that stops a run after its second round."""

    def __init__(self, **by_data):
        self._by_data = by_data

    def on_round(self, training, row):
        if training.done == 2:
            training.stop(**self._by_data)


def test_an_end_chosen_by_data_states_the_epsilon_of_all_rounds(tmp_path):
    plan = config().plan()
    run = train(tmp_path / "data", callbacks=[Early()])
    assert run.result is None
    assert len(run.metrics) == run.num_rounds() == 2
    audit = fedmf.audit_run(run.path)
    assert audit.epsilon == plan.epsilon
    assert "the run was stopped before them because of its results" in audit.unrecorded
    train(tmp_path / "clock", callbacks=[Early(by_data=False)])
    assert fedmf.audit_run(tmp_path / "clock").epsilon < plan.epsilon
    finished_audit = fedmf.audit_run(train(run.path, resume=True).path)
    assert (finished_audit.epsilon, finished_audit.unrecorded) == (plan.epsilon, None)


@pytest.mark.parametrize("rounds", ["3", 2.5, -1, 0, True, 6])
def test_an_impossible_end_is_refused(rounds, tmp_path):
    run = object.__new__(fedmf.Run)
    vars(run).update(path=tmp_path, config=config(), result={"ended_after": rounds})
    with refusal(r"result\.json has ended_after="):
        run.ended_after  # noqa: B018
