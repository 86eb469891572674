"""The audit of a run folder, and the statement of the finished run."""

import dataclasses
import json

import pytest

from fedmf.files import write_atomically
from fedmf.mechanisms import DenseMechanism
from fedmf.privacy.statement import as_text
from fedmf.runs.audit import audit_run, run_statement_values, write_final_statement
from fedmf.runs.folder import Run
from tests.cli.test_commands import fedmf, refused
from tests.runs.test_folder import CONFIG, new_run

VERSIONS = {"fedmf": "0.1.0", "python": "3.11.7"}


@pytest.fixture
def run(tmp_path):
    """A run that was never trained: its participation is what a controller could have handed out."""
    folder = new_run(tmp_path / "run")
    described = {"task": {"name": "x", "clients": 500}, "versions": VERSIONS}
    folder.write_json("plan", CONFIG.plan().summary() | described)
    n, b = CONFIG.rounds, CONFIG.participation().min_sep
    rows = "".join(
        f"{t},{t % b * CONFIG.cohort_size + place}\n" for t in range(n) for place in range(CONFIG.cohort_size)
    )
    write_atomically(folder.path / "participation.csv", "round,client\n" + rows)
    write_atomically(folder.path / "metrics.jsonl", "".join(f'{{"round": {t}}}\n' for t in range(n)))
    folder.write_json("result", {})
    return folder.path


def test_the_final_statement(run):
    write_final_statement(run)
    values = json.loads((run / "final_statement.json").read_text())
    plan = CONFIG.plan()
    assert values["subject"] == "run"
    assert values["guarantee"]["epsilon"] == plan.epsilon
    assert values["observed"]["min_separation"] == plan.participation.min_sep
    assert values["observed"]["population"] == 500
    assert values["observed"]["short_rounds"] == values["observed"]["empty_rounds"] == 0
    assert values["contradictions"] == []
    assert values["versions"] == VERSIONS
    assert values["commands"][0].startswith("fedmf train --config config.json")
    assert values["pretraining"].startswith("none")
    assert (run / "final_statement.md").read_text() == as_text(values, ".md")


def test_rounds_after_the_last_checkpoint_are_not_called_empty(run):
    # A run that was stopped: metrics of every round, participation up to the checkpoint.
    (run / "result.json").unlink()
    rows = (run / "participation.csv").read_text().splitlines(keepends=True)
    last = CONFIG.rounds - 2
    write_atomically(run / "participation.csv", "".join(r for r in rows if not r.startswith(f"{CONFIG.rounds - 1},")))
    assert audit_run(run).observed.rounds == last + 1
    assert audit_run(run).observed.empty_rounds == 0


def weaker(run, part=0.5):
    """As if the run had been given a plan of its own, of half the noise that its config asks for."""
    plan = CONFIG.plan()
    plan = dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * part)
    described = {name: json.loads((run / "plan.json").read_text())[name] for name in ("task", "versions")}
    write_atomically(run / "plan.json", json.dumps(plan.summary() | described | {"given": True}))
    return plan


def test_the_noise_that_ran_counts_and_not_what_the_config_asks_for(run):
    plan = weaker(run)
    assert plan.epsilon > 1.5 * CONFIG.plan().epsilon
    assert audit_run(run).planned.epsilon == plan.epsilon
    write_final_statement(run)
    values = json.loads((run / "final_statement.json").read_text())
    assert values["guarantee"]["epsilon"] == plan.epsilon
    assert f"--noise-multiplier {plan.noise_multiplier!r} " in values["commands"][0]
    shown = json.loads(fedmf("audit", run, "--json").stdout)
    assert shown["epsilon_planned"] == shown["epsilon_achieved"] == plan.epsilon


def test_without_noise_the_audit_says_that_epsilon_is_infinite(run):
    weaker(run, part=0.0)
    said = dict(line.split(maxsplit=1) for line in fedmf("audit", run).stdout.splitlines())
    assert said["epsilon_planned"] == said["epsilon_achieved"] == said["rho_achieved"] == "infinite"
    assert "epsilon_achieved_of_all_clients" not in said
    assert json.loads(fedmf("audit", run, "--json").stdout)["epsilon_achieved"] is None


def test_noise_of_another_mechanism_is_refused(run):
    plan = CONFIG.plan()
    twice = DenseMechanism(matrix=2 * plan.mechanism.encoder())
    twice.save(run / "mechanism.npz")
    with pytest.raises(ValueError, match=r"plan.json records noise of standard deviation .*mechanism.npz needs"):
        audit_run(run)


@pytest.mark.parametrize("change", [{"noise_multiplier": None}, {"participation": {"rounds": 3}}, {"delta": -1}])
def test_a_damaged_plan_is_refused(run, change):
    write_atomically(run / "plan.json", json.dumps(json.loads((run / "plan.json").read_text()) | change))
    with pytest.raises(ValueError, match=r"plan.json is damaged"):
        audit_run(run)


def test_the_command_line(run, tmp_path):
    out = tmp_path / "statement.md"
    shown = json.loads(fedmf("audit", run, "--statement", out, "--json").stdout)
    assert shown["contradictions"] == []
    loaded = Run.load(run)
    assert out.read_text() == as_text(run_statement_values(loaded, audit_run(loaded)), ".md")
    refused("audit", run, "--statement", tmp_path / "x.txt", words=["does not end in .md or .json"])
    (run / "participation.csv").unlink()
    refused("audit", run, status=1, words=["has no participation.csv yet"])
