"""A run with a participation budget is resumed, audited and stated as any other run."""

import dataclasses

import pytest

import fedmf
from fedmf.reports import write_report
from fedmf.runs.plan_record import recorded_plan
from tests.federated.small_runs import assert_same_run, config, train


@pytest.mark.slow
def test_a_run_respects_its_budget_resumed_or_not(tmp_path):
    settings = config(schema="budget", availability="independent:0.6")
    whole_run = train(tmp_path / "whole", settings)
    train(tmp_path / "parts", settings, stop_after=3)
    assert_same_run(whole_run, train(tmp_path / "parts", settings, resume=True))
    audit = fedmf.audit_run(whole_run.path)
    assert audit.contradictions == ()
    assert audit.planned.participation == recorded_plan(whole_run).participation
    assert audit.planned.participation.schema == "budget"
    assert 0 < audit.achieved.sensitivity.value <= audit.planned.sensitivity.value
    assert "participation budget S" in (whole_run.path / "final_statement.md").read_text()
    spent = whole_run.result["participation"]["clients_by_share_spent"]
    assert spent == audit.values()["clients_by_share_spent"]
    assert sum(spent.values()) == audit.observed.clients > 0
    page = write_report([whole_run], tmp_path / "report", title="budget").read_text()
    assert all(f"{share}: {clients} clients" in page for share, clients in spent.items() if clients)
    assert (tmp_path / "report" / "plots" / "spending.png").exists()
    # The noise is that of the schema from which the budget is derived.
    min_sep_plan = dataclasses.replace(settings, schema="min_sep").plan()
    assert audit.planned.stddev == pytest.approx(min_sep_plan.stddev, rel=1e-11)
