"""`fedmf audit mechanism`: of the noise that a mechanism makes."""

import dataclasses

import pytest

from fedmf.server import audited_code
from tests.cli.program import fedmf, printed_by

PLAN = "--rounds 12 --min-sep 4 --epsilon 8"


def test_honest_noise_is_consistent(identity_file):
    result = printed_by(f"audit mechanism {identity_file} {PLAN} --quiet --trials 1000")
    assert result["consistent"] is True
    assert len(result["findings"]) > 40
    assert 4 <= result["smallest_unseen_cut"] < 4.02
    assert all(finding["p_value"] >= result["threshold"] for finding in result["findings"])
    assert result["attack"]["epsilon_lower"] <= result["attack"]["epsilon_claimed"] <= 8


def test_a_contradiction_sets_exit_status_1(identity_file, monkeypatch):
    honest_means = audited_code.NoisyMeans

    def weak(plan, **options):
        weaker = dataclasses.replace(plan, noise_multiplier=0.9 * plan.noise_multiplier)
        return honest_means(plan=weaker, **options)

    monkeypatch.setattr(audited_code, "NoisyMeans", weak)
    text = fedmf(f"audit mechanism {identity_file} {PLAN} --trials 0 --quiet", status=1).stdout
    assert "NOT WHAT THE PLAN CLAIMS" in text
    assert "CONTRADICTS THE CLAIM" in text
    assert "shows up to 4.00 standard deviations" in text


@pytest.mark.tensorflow
@pytest.mark.usefixtures("tff")
@pytest.mark.slow
def test_the_option_query_audits_the_query(identity_file, monkeypatch):
    from fedmf.federated.tff import audit

    honest_query = audit.MatrixFactorizationQuery
    queried_plans = []

    def told(plan, *args, **kwargs):
        queried_plans.append(plan)
        return honest_query(plan, *args, **kwargs)

    monkeypatch.setattr(audit, "MatrixFactorizationQuery", told)
    text = fedmf(f"audit mechanism {identity_file} {PLAN} --query --trials 0 --quiet").stdout
    assert "consistent with the claim" in text
    assert len(queried_plans) == 3  # two runs, one of them resumed
