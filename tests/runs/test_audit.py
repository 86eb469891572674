"""The audit of a run folder, finished or not, and the statement of the finished run."""

import dataclasses
import hashlib
import json
import shutil

import numpy as np
import pytest

import fedmf
from fedmf.files import write_atomically
from fedmf.mechanisms import DenseMechanism
from fedmf.privacy.plan import unamplified_epsilon
from fedmf.privacy.statement import as_text
from fedmf.runs.audit import audit_run
from fedmf.runs.folder import RunFolder
from fedmf.runs.statement import run_statement_values, write_final_statement
from tests.cli.program import fedmf as command
from tests.cli.program import printed_by, refused
from tests.refusals import refusal
from tests.runs.test_folder import commit_rounds, new_run

VERSIONS = {"fedmf": "0.1.0", "python": "3.11.7"}
COHORT = 4
CONFIG = fedmf.TrainConfig(
    rounds=12, cohort_size=COHORT, schema="fixed_epoch", min_sep=3, family="identity",
    epsilon=4.887,
)  # fmt: skip
PLAN = CONFIG.plan()


def cyclic_cohorts(rounds=12):
    """Returns cohorts in which each client takes part in every third round."""
    return [np.arange(COHORT) + t % 3 * COHORT for t in range(rounds)]


def printed_values(arguments):
    """Returns the names and values that a command prints without --json."""
    return dict(line.split(maxsplit=1) for line in command(arguments).stdout.splitlines())


def make_run(
    path,
    *,
    config=CONFIG,
    plan=PLAN,
    is_callers_plan=False,
    cohorts=None,
    num_rounds=12,
    published_rounds=0,
):
    """Writes a folder as `federated.train` does in `num_rounds` rounds, and returns its path.

    With `published_rounds` it is a copy for publication: it has no journal, and participation.csv
    has these rounds only.
    """
    folder = new_run(
        path, config, plan, is_callers_plan=is_callers_plan, versions=VERSIONS, date="2026-11-28",
        task={
            "name": "x", "description": "12 | clients", "clients": 12,
        },
    )  # fmt: skip
    cohorts = (cohorts or cyclic_cohorts())[:num_rounds]
    commit_rounds(folder, cohorts)
    ledger = fedmf.ParticipationLedger(cohort_size=COHORT, cohorts=cohorts)
    if published_rounds:
        shutil.rmtree(path / "private")
        write_atomically(path / "participation.csv", ledger.first(published_rounds).to_csv())
    elif num_rounds == config.rounds:
        folder.write_weights("model", [np.zeros(3, np.float32)])
        result = {"participation": ledger.observed().summary(), "date": "2026-11-29"}
        folder.write_json("result", result)
    return path


@pytest.fixture
def finished_folder(tmp_path):
    return make_run(tmp_path / "run")


@pytest.fixture
def interrupted_folder(tmp_path):
    """Returns the path of a run that was stopped after 11 rounds."""
    return make_run(tmp_path / "run", num_rounds=11)


@pytest.fixture
def copied_folder(tmp_path):
    """Returns the path of a copy without a journal, with 6 of 11 rounds in participation.csv."""
    return make_run(tmp_path / "run", num_rounds=11, published_rounds=6)


class TestUnrecordedRounds:
    def test_unrecorded_rounds_count_as_full_participation(self, copied_folder, tmp_path):
        audit = audit_run(copied_folder)
        assert audit.observed.rounds == 6
        assert (audit.epsilon, audit.rho) == (PLAN.epsilon, PLAN.rho)
        assert audit.contradictions == ()
        assert audit.unrecorded.startswith("rounds 6 to 10 are not in the record of participations")
        assert "resume the run, and audit it when it is done" in audit.unrecorded
        statement_path = tmp_path / "statement.md"
        audit_values = printed_values(f"audit {copied_folder} --statement {statement_path}")
        assert audit_values["epsilon_achieved"] == audit_values["epsilon_planned"]
        assert audit_values["not_in_the_record"] == audit.unrecorded
        assert audit_values["keeps_to_the_plan"] == "yes, as far as it is recorded"
        text = " ".join(statement_path.read_text().replace("\n> ", " ").split())
        assert "**Not all is recorded.** Rounds 6 to 10 are not in the record of part" in text
        assert "for the rounds that are not in the record, the same noise gives" in text

    def test_unrecorded_rounds_count_if_the_record_is_empty(self, copied_folder):
        write_atomically(copied_folder / "participation.csv", "round,client\n")
        assert audit_run(copied_folder).epsilon == PLAN.epsilon

    def test_no_round_is_unrecorded_if_the_missing_ones_had_no_clients(self, tmp_path):
        cohorts = cyclic_cohorts()
        for t in (5, 6, 7):
            cohorts[t] = np.zeros(0, np.int64)
        audit = audit_run(
            make_run(tmp_path / "run", cohorts=cohorts, num_rounds=8, published_rounds=6)
        )
        assert audit.unrecorded is None
        assert (audit.observed.rounds, audit.observed.empty_rounds) == (8, 3)

    def test_unrecorded_rounds_count_for_every_client_if_the_plan_was_violated(self, tmp_path):
        cohorts = [np.arange(COHORT) for _ in range(12)]
        audit = audit_run(
            make_run(tmp_path / "run", cohorts=cohorts, num_rounds=11, published_rounds=6)
        )
        # Six recorded rounds of each client, and five unrecorded ones. The twelfth was not run.
        assert audit.achieved.sensitivity.value == pytest.approx(np.sqrt(11), rel=1e-12)
        assert audit.contradictions
        assert "as if every client had taken part in all of them" in audit.unrecorded

    def test_unrecorded_rounds_are_not_amplified_by_sampling(self, tmp_path):
        sampling_options = {"family": "banded", "bands": 2, "sampling": "poisson", "population": 12}
        config = dataclasses.replace(CONFIG, schema="min_sep", min_sep=None, **sampling_options)
        plan = config.plan()
        path = make_run(
            tmp_path / "run",
            config=config,
            plan=plan,
            cohorts=[np.arange(t % 2, 4, 2) for t in range(12)],
            num_rounds=11,
            published_rounds=6,
        )
        audit = audit_run(path)
        assert audit.epsilon == unamplified_epsilon(plan)
        assert audit.amplified_epsilon == plan.epsilon

    def test_no_round_is_unrecorded_if_the_journal_exists(self, tmp_path):
        run = make_run(tmp_path / "run", num_rounds=6)
        assert audit_run(run).unrecorded is None
        assert audit_run(run).epsilon < PLAN.epsilon
        # After a kill behind the commit of the newest round, the readable files lack its rows.
        for name in ("participation.csv", "metrics.jsonl"):
            rows = (run / name).read_text().splitlines(keepends=True)
            num_newest = COHORT if name == "participation.csv" else 1
            write_atomically(run / name, "".join(rows[:-num_newest]))
        assert audit_run(run).observed.rounds == 6
        assert audit_run(run).unrecorded is None

    def test_rounds_in_participation_csv_but_not_in_the_journal_are_refused(self, tmp_path):
        run = make_run(tmp_path / "run", num_rounds=6)
        with open(run / "participation.csv", "a") as rows:
            rows.write("6,1\n")
        with refusal("participation.csv does not agree with the run's journal"):
            audit_run(run)

    def test_unrecorded_rounds_that_were_empty_count_for_the_plan(self, tmp_path):
        # The releases of rounds without clients depend on the clients of earlier rounds.
        cohorts = cyclic_cohorts(9) + [np.zeros(0, np.int64)] * 3
        run = make_run(tmp_path / "run", cohorts=cohorts, num_rounds=11)
        write_atomically(run / "metrics.jsonl", "")
        assert audit_run(run).planned.participation.rounds == 11


class TestChangedFiles:
    @pytest.mark.parametrize(
        "name",
        "config.json plan.json mechanism.npz metrics.jsonl participation.csv selected.csv "
        "statement.md model.npz final_statement.md".split(),
    )
    def test_changed_files_of_a_finished_run_are_refused_by_name(self, finished_folder, name):
        shutil.rmtree(finished_folder / "private")  # No audit of a finished run reads it.
        assert audit_run(finished_folder).epsilon == pytest.approx(4.887, rel=1e-6)
        added_content = {
            "selected.csv": b"round,client\n0,9\n",
            "final_statement.md": b"All is well.",
        }
        content = (
            added_content[name] if name in added_content else (finished_folder / name).read_bytes()
        )
        # Each changed file can still be read: it has a row less, another number, or bytes that the
        # reader of archives ignores.
        changed_content = content + b"\n"
        if name == "metrics.jsonl":
            changed_content = content[: content.rindex(b"{")]
        if name == "participation.csv":
            changed_content = content.replace(b"\n4,7\n", b"\n4,8\n")
        if name == "plan.json":
            changed_content = content.replace(
                b'"is_callers_plan": false', b'"is_callers_plan": true '
            )
        (finished_folder / name).write_bytes(changed_content)
        refused(f"audit {finished_folder}", f"{name} changed after the run had finished", status=1)

    def test_changed_files_of_an_unfinished_run_are_refused(self, tmp_path):
        run = make_run(tmp_path / "run", num_rounds=11)
        record = (run / "participation.csv").read_text().splitlines(keepends=True)
        # Each client takes part once, and the record ends with the newest round.
        write_atomically(run / "participation.csv", "".join([*record[: 1 + 2 * COHORT], "10,8\n"]))
        with refusal("participation.csv does not agree with the run's journal"):
            audit_run(run)
        shutil.rmtree(run / "private")
        with refusal(
            r"participation.csv has other .* than metrics.jsonl in rounds 2 to 10: no guar"
        ):
            audit_run(run)

    def test_files_with_noise_of_another_mechanism_are_refused(self, interrupted_folder):
        DenseMechanism(matrix=2 * PLAN.mechanism.encoder()).save(
            interrupted_folder / "mechanism.npz"
        )
        with refusal(r"plan.json records noise of standard deviation .*mechanism.npz needs"):
            audit_run(interrupted_folder)

    @pytest.mark.parametrize(
        "change",
        [
            *({"noise_multiplier": None}, {"rounds": 3}, {"delta": -1}, {"unknown": 1}),
            # These plans have other guarantees than config.json, for the same noise.
            *({"delta": 0.5}, {"noise_multiplier": 10.0, "clip_norm": PLAN.clip_norm / 10}),
            {"schema": "single", "min_sep": None, "max_participations": None},
        ],
    )
    def test_files_with_a_damaged_plan_are_refused(self, interrupted_folder, change):
        plan = json.loads((interrupted_folder / "plan.json").read_text())
        write_atomically(
            interrupted_folder / "plan.json", json.dumps(plan | {"config": plan["config"] | change})
        )
        with refusal(r"plan.json is damaged"):
            audit_run(interrupted_folder)


class TestTheFinalStatement:
    def test_the_final_statement_agrees_with_the_audit_and_its_commands_check_it(
        self, finished_folder, tmp_path, monkeypatch
    ):
        write_final_statement(finished_folder, audit_run(finished_folder))
        values = json.loads((finished_folder / "final_statement.json").read_text())
        assert values["system"] == "run"
        model = hashlib.sha256((finished_folder / "model.npz").read_bytes()).hexdigest()
        dates = {"begun": "2026-11-28", "finished": "2026-11-29"}
        facts = {"task": "x", "data": "12 | clients", "folder": "run", "model_sha256": model}
        assert values["subject"] == dates | facts
        assert values["date"] == "2026-11-29"
        assert values["guarantee"]["epsilon"] == PLAN.epsilon
        observed_values = {
            "min_separation": 3,
            "population": 12,
            "short_rounds": 0,
            "empty_rounds": 0,
        }
        assert values["observed"].items() >= observed_values.items()
        assert values["contradictions"] == []
        assert values["versions"] == VERSIONS
        assert values["commands"][0] == "fedmf audit run run"
        assert values["commands"][1].startswith("fedmf calibrate run/mechanism.npz --rounds 12 ")
        assert values["pretraining"].startswith("the initial weights are those that the task makes")
        assert (finished_folder / "final_statement.md").read_text() == as_text(values, ".md")
        RunFolder(finished_folder).write_json("result", fedmf.Run.load(finished_folder).result)
        # A statement that is made later has the date that the run recorded, and the same text.
        monkeypatch.setattr("fedmf.privacy.statement.today", lambda: "2031-01-01")
        statement_path = tmp_path / "statement.md"
        assert (
            printed_by(f"audit {finished_folder} --statement {statement_path}")["contradictions"]
            == []
        )
        assert statement_path.read_text() == as_text(values, ".md")
        refused(f"audit {finished_folder} --statement {finished_folder}/statement.md", "elsewhere")
        # The commands of the statement check this folder.
        monkeypatch.chdir(tmp_path)
        audit, calibrate = values["commands"]
        assert printed_by(audit)["contradictions"] == []
        assert printed_by(calibrate)["epsilon"] == PLAN.epsilon
        for name in ("participation.csv", "result.json"):
            (finished_folder / name).unlink()
        assert audit_run(finished_folder).observed.rounds == 12  # Read from the journal.
        shutil.rmtree(finished_folder / "private")
        refused(f"audit {finished_folder}", "has no participation.csv", status=1)

    def test_the_final_statement_has_the_noise_that_was_added_if_the_config_differs(self, tmp_path):
        no_noise = dataclasses.replace(PLAN, noise_multiplier=0.0)
        run = make_run(tmp_path / "no_noise", plan=no_noise, is_callers_plan=True)
        audit_values = printed_values(f"audit {run}")
        for name in ("epsilon_planned", "epsilon_achieved", "rho_achieved"):
            assert audit_values[name] == "infinite"
        plan = dataclasses.replace(PLAN, noise_multiplier=PLAN.noise_multiplier / 2, delta=1e-7)
        run = make_run(tmp_path / "run", plan=plan, is_callers_plan=True)
        audit = audit_run(run)
        assert audit.epsilon == audit.planned.epsilon == plan.epsilon > 1.5 * PLAN.epsilon
        values = run_statement_values(fedmf.Run.load(run), audit)
        assert values["guarantee"]["epsilon"] == plan.epsilon
        assert f"--noise-multiplier {plan.noise_multiplier!r} " in values["commands"][1]


CHANGES_BY_KIND = {
    "banded": {},
    "no noise": {"family": "none", "noise_multiplier": None},
    "simulated": {
        "schema": "fixed_epoch", "min_sep": 3, "claimed_cohort": 40, "noise_multiplier": None,
        "epsilon": 8.0,
    },
    "dropout": {"dropout": 0.6, "availability": "independent:0.5"},
    "sampled": {
        "bands": 2, "sampling": "poisson", "population": 12, "cohort_size": 1, "min_sep": None,
        "dropout": 0.3,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.usefixtures("clients_in_turn")
@pytest.mark.parametrize("kind", CHANGES_BY_KIND)
def test_audits_of_a_run_agree_with_its_plan_before_and_after_a_resume(tmp_path, kind):
    from tests.federated.small_runs import broken_off, config, train

    settings = config(**CHANGES_BY_KIND[kind])
    audit = audit_run(broken_off(tmp_path / "run", 5, settings))
    assert audit.contradictions == ()
    assert audit.unrecorded is None
    assert audit.observed.rounds == 5
    train(tmp_path / "run", settings, resume=True)
    run = fedmf.Run.load(tmp_path / "run")
    audit = audit_run(run)
    assert audit.contradictions == ()
    assert audit.unrecorded is None
    assert audit.observed.rounds == 6
    # The added noise is the planned one, up to float32 rounding.
    stddevs = [row["noise_stddev"] for row in run.metrics]
    assert stddevs == pytest.approx([audit.planned.stddev] * 6, rel=1e-6)
    statement = json.loads((tmp_path / "run" / "final_statement.json").read_text())
    if settings.claimed_cohort is None:
        assert statement["achieved"]["rho"] == audit.values()["rho_achieved"]
    else:
        assert statement["achieved"] is None
        assert audit.values()["rho_achieved"] is None
        printed_text = command(f"audit {tmp_path}/run").stdout
        assert "not known: the simulated run was not observed" in printed_text
        assert "_achieved" not in printed_text
