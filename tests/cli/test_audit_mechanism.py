"""`fedmf audit mechanism`: of the noise that a mechanism makes."""

import dataclasses

import pytest

from tests.cli.program import fedmf, printed_by, refused

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("tff")]
PLAN = "--rounds 12 --min-sep 4 --epsilon 8"


@pytest.mark.slow
def test_honest_noise(identity):
    text = fedmf(f"audit mechanism {identity} {PLAN} --quiet --trials 20").stdout
    assert "consistent with the claim" in text
    assert "proved at 95%" in text


@pytest.mark.slow
def test_honest_noise_for_programs(identity):
    result = printed_by(f"audit mechanism {identity} {PLAN} --quiet --trials 1000")
    assert result["consistent"] is True
    assert len(result["findings"]) > 40
    assert all(finding["p_value"] >= result["threshold"] for finding in result["findings"])
    assert result["game"]["epsilon_lower"] <= result["game"]["epsilon_claimed"] <= 8


def test_a_contradiction_is_exit_status_1(identity, monkeypatch):
    from fedmf.federated.tff import audit

    honest = audit.mean_query

    def weak(plan, *args, **kwargs):
        return honest(
            dataclasses.replace(plan, noise_multiplier=0.9 * plan.noise_multiplier), *args, **kwargs
        )

    monkeypatch.setattr(audit, "mean_query", weak)
    text = fedmf(f"audit mechanism {identity} {PLAN} --trials 0 --quiet", status=1).stdout
    assert "NOT WHAT THE PLAN CLAIMS" in text
    assert "CONTRADICTS THE CLAIM" in text


@pytest.mark.parametrize("option", ["--coordinates", "--trials"])
def test_refused_without_a_progress_bar(identity, option):
    refused(f"audit mechanism {identity} {PLAN} {option} 3", f"{option} 3")
