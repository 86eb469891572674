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
from fedmf.runs.audit import audit_run, run_statement_values, write_final_statement
from fedmf.runs.folder import RunFolder
from tests.cli.program import fedmf as command
from tests.cli.program import printed_by, refused
from tests.refusals import refusal
from tests.runs.test_folder import new_run, trained

VERSIONS = {"fedmf": "0.1.0", "python": "3.11.7"}
COHORT = 4
CONFIG = fedmf.TrainConfig(
    rounds=12, cohort_size=COHORT, schema="fixed_epoch", min_sep=3, family="identity",
    epsilon=4.887,
)  # fmt: skip
PLAN = CONFIG.plan()


def in_turn(rounds=12):
    """Cohorts in which each client waits three rounds."""
    return [np.arange(COHORT) + t % 3 * COHORT for t in range(rounds)]


def said_of(arguments):
    """What a command prints for people, as a dictionary."""
    return dict(line.split(maxsplit=1) for line in command(arguments).stdout.splitlines())


def folder_of(path, *, config=CONFIG, plan=PLAN, given=False, cohorts=None, run=12, published=0):
    """A folder as `federated.train` leaves it after `run` rounds.

    Of a copy that was made to be published the journal is missing, and participation.csv has so
    many rounds.
    """
    folder = new_run(
        path, config, plan, given=given, versions=VERSIONS, date="2026-11-28",
        task={"name": "x", "description": "12 | clients", "clients": 12},
    )  # fmt: skip
    cohorts = (cohorts or in_turn())[:run]
    trained(folder, cohorts)
    ledger = fedmf.ParticipationLedger(cohort_size=COHORT, cohorts=cohorts)
    if published:
        shutil.rmtree(path / "private")
        write_atomically(path / "participation.csv", ledger.first(published).to_csv())
    elif run == config.rounds:
        folder.write_weights("model", [np.zeros(3, np.float32)])
        result = {"participation": ledger.observed().summary(), "date": "2026-11-29"}
        folder.write_json("result", result)
    return path


@pytest.fixture
def finished(tmp_path):
    return folder_of(tmp_path / "run")


@pytest.fixture
def interrupted(tmp_path):
    """Stopped after 11 rounds."""
    return folder_of(tmp_path / "run", run=11)


@pytest.fixture
def copied(tmp_path):
    """A copy without its journal, of 11 rounds, of which participation.csv has 6."""
    return folder_of(tmp_path / "run", run=11, published=6)


class TestRoundsBeyondTheRecord:
    def test_are_not_counted_as_nothing(self, copied, tmp_path):
        audit = audit_run(copied)
        assert audit.observed.rounds == 6
        assert (audit.epsilon, audit.rho) == (PLAN.epsilon, PLAN.rho)
        assert audit.contradictions == ()
        assert audit.unrecorded.startswith("rounds 6 to 10 are not in the record of participations")
        assert "resume the run, and audit it when it is done" in audit.unrecorded
        out = tmp_path / "statement.md"
        said = said_of(f"audit {copied} --statement {out}")
        assert said["epsilon_achieved"] == said["epsilon_planned"]
        assert said["not_in_the_record"] == audit.unrecorded
        assert said["keeps_to_the_plan"] == "yes, as far as it is recorded"
        text = " ".join(out.read_text().replace("\n> ", " ").split())
        assert "**Not all is recorded.** Rounds 6 to 10 are not in the record of part" in text
        assert "for the rounds that are not in the record, the same noise gives" in text

    def test_nobody_in_the_record_is_not_nobody_in_the_run(self, copied):
        write_atomically(copied / "participation.csv", "round,client\n")
        assert audit_run(copied).epsilon == PLAN.epsilon

    def test_without_clients_hide_nothing(self, tmp_path):
        cohorts = in_turn()
        cohorts[6] = cohorts[5] = cohorts[7] = np.zeros(0, np.int64)
        audit = audit_run(folder_of(tmp_path / "run", cohorts=cohorts, run=8, published=6))
        assert audit.unrecorded is None
        assert (audit.observed.rounds, audit.observed.empty_rounds) == (8, 3)

    def test_after_a_broken_plan_may_be_anything(self, tmp_path):
        cohorts = [np.arange(COHORT) for _ in range(12)]
        audit = audit_run(folder_of(tmp_path / "run", cohorts=cohorts, run=11, published=6))
        # The six rounds of each client and the five that nothing is known of;
        # the twelfth was not run.
        assert audit.achieved.sensitivity.value == pytest.approx(np.sqrt(11), rel=1e-12)
        assert audit.contradictions
        assert "as if every client had taken part in all of them" in audit.unrecorded

    def test_with_sampling_rest_on_no_chance(self, tmp_path):
        sampled = {"family": "banded", "bands": 2, "sampling": "poisson", "population": 12}
        config = dataclasses.replace(CONFIG, schema="min_sep", min_sep=None, **sampled)
        plan, cohorts = config.plan(), [np.arange(t % 2, 4, 2) for t in range(12)]
        shape = {"cohorts": cohorts, "run": 11, "published": 6}
        audit = audit_run(folder_of(tmp_path / "run", config=config, plan=plan, **shape))
        assert audit.epsilon == unamplified_epsilon(plan)
        assert audit.amplified_epsilon == plan.epsilon

    def test_there_are_none_where_the_journal_is(self, tmp_path):
        run = folder_of(tmp_path / "run", run=6)
        assert audit_run(run).unrecorded is None
        assert audit_run(run).epsilon < PLAN.epsilon
        # As after a kill behind the commit of the newest round.
        for name in ("participation.csv", "metrics.jsonl"):
            rows = (run / name).read_text().splitlines(keepends=True)
            newest = COHORT if name == "participation.csv" else 1
            write_atomically(run / name, "".join(rows[:-newest]))
        assert audit_run(run).observed.rounds == 6
        assert audit_run(run).unrecorded is None

    def test_behind_those_of_the_journal_show_that_it_is_an_older_one(self, tmp_path):
        run = folder_of(tmp_path / "run", run=6)
        with open(run / "participation.csv", "a") as rows:
            rows.write("6,1\n")
        with refusal("participation.csv is not what the run's journal has"):
            audit_run(run)

    def test_that_were_empty_count(self, tmp_path):
        # Nobody came in the last three rounds; their releases say something of those
        # before all the same.
        cohorts = in_turn(9) + [np.zeros(0, np.int64)] * 3
        run = folder_of(tmp_path / "run", cohorts=cohorts, run=11)
        write_atomically(run / "metrics.jsonl", "")
        assert audit_run(run).planned.participation.rounds == 11


class TestFilesThatChanged:
    @pytest.mark.parametrize(
        "name",
        "config.json plan.json mechanism.npz metrics.jsonl participation.csv selected.csv "
        "statement.md model.npz final_statement.md".split(),
    )
    def test_after_the_run_are_refused_by_name(self, finished, name):
        shutil.rmtree(finished / "private")  # nothing rests on it
        assert audit_run(finished).epsilon == pytest.approx(4.887, rel=1e-6)
        added = {"selected.csv": b"round,client\n0,9\n", "final_statement.md": b"All is well."}
        content = added[name] if name in added else (finished / name).read_bytes()
        # A change that can be read as something else: a row less, another number, or bytes that an
        # archive does not look at.
        change = {
            "metrics.jsonl": lambda b: b[: b.rindex(b"{")],
            "participation.csv": lambda b: b.replace(b"\n4,7\n", b"\n4,8\n"),
        }
        change |= {"plan.json": lambda b: b.replace(b'"given": false', b'"given": true ')}
        (finished / name).write_bytes(change.get(name, lambda b: b + b"\n")(content))
        refused(f"audit {finished}", f"{name} changed after the run had finished", status=1)

    def test_before_the_run_has_finished(self, tmp_path):
        run = folder_of(tmp_path / "run", run=11)
        record = (run / "participation.csv").read_text().splitlines(keepends=True)
        # Every client once, and the record ends with the last round that ran.
        write_atomically(run / "participation.csv", "".join([*record[: 1 + 2 * COHORT], "10,8\n"]))
        with refusal("participation.csv is not what the run's journal has"):
            audit_run(run)
        shutil.rmtree(run / "private")
        with refusal(
            r"participation.csv has other .* than metrics.jsonl in rounds 2 to 10: no guar"
        ):
            audit_run(run)

    def test_noise_of_another_mechanism(self, interrupted):
        DenseMechanism(matrix=2 * PLAN.mechanism.encoder()).save(interrupted / "mechanism.npz")
        with refusal(r"plan.json records noise of standard deviation .*mechanism.npz needs"):
            audit_run(interrupted)

    @pytest.mark.parametrize(
        "change",
        [
            *({"noise_multiplier": None}, {"rounds": 3}, {"delta": -1}, {"unknown": 1}),
            # Claims for the same noise that config.json does not make.
            *({"delta": 0.5}, {"noise_multiplier": 10.0, "clip_norm": PLAN.clip_norm / 10}),
            {"schema": "single", "min_sep": None, "max_participations": None},
        ],
    )
    def test_a_damaged_plan(self, interrupted, change):
        plan = json.loads((interrupted / "plan.json").read_text())
        write_atomically(
            interrupted / "plan.json", json.dumps(plan | {"config": plan["config"] | change})
        )
        with refusal(r"plan.json is damaged"):
            audit_run(interrupted)


class TestTheFinalStatement:
    def test_of_a_run(self, finished, tmp_path, monkeypatch):
        write_final_statement(finished, audit_run(finished))
        values = json.loads((finished / "final_statement.json").read_text())
        assert values["system"] == "run"
        model = hashlib.sha256((finished / "model.npz").read_bytes()).hexdigest()
        days = {"begun": "2026-11-28", "finished": "2026-11-29"}
        about = {"task": "x", "data": "12 | clients", "folder": "run", "model_sha256": model}
        assert values["subject"] == days | about
        assert values["guarantee"]["epsilon"] == PLAN.epsilon
        observed = {"min_separation": 3, "population": 12, "short_rounds": 0, "empty_rounds": 0}
        assert values["observed"].items() >= observed.items()
        assert values["contradictions"] == []
        assert values["versions"] == VERSIONS
        assert values["commands"][0] == "fedmf audit run run"
        assert values["commands"][1].startswith("fedmf calibrate run/mechanism.npz --rounds 12 ")
        assert values["pretraining"].startswith("none")
        assert (finished / "final_statement.md").read_text() == as_text(values, ".md")
        RunFolder(finished).write_json("result", fedmf.Run.load(finished).result)
        out = tmp_path / "statement.md"
        assert printed_by(f"audit {finished} --statement {out}")["contradictions"] == []
        assert out.read_text() == as_text(values, ".md")
        refused(f"audit {finished} --statement {finished}/statement.md", "elsewhere")
        # Its commands check this folder.
        monkeypatch.chdir(tmp_path)
        audit, calibrate = values["commands"]
        assert printed_by(audit)["contradictions"] == []
        assert printed_by(calibrate)["epsilon"] == PLAN.epsilon
        for name in ("participation.csv", "result.json"):
            (finished / name).unlink()
        assert audit_run(finished).observed.rounds == 12  # by the journal
        shutil.rmtree(finished / "private")
        refused(f"audit {finished}", "has no participation.csv", status=1)

    def test_the_noise_that_ran_counts_and_not_what_the_config_asks_for(self, tmp_path):
        without = dataclasses.replace(PLAN, noise_multiplier=0.0)
        said = said_of(f"audit {folder_of(tmp_path / 'silent', plan=without, given=True)}")
        for name in ("epsilon_planned", "epsilon_achieved", "rho_achieved"):
            assert said[name] == "infinite"
        plan = dataclasses.replace(PLAN, noise_multiplier=PLAN.noise_multiplier / 2, delta=1e-7)
        run = folder_of(tmp_path / "run", plan=plan, given=True)
        audit = audit_run(run)
        assert audit.epsilon == audit.planned.epsilon == plan.epsilon > 1.5 * PLAN.epsilon
        values = run_statement_values(fedmf.Run.load(run), audit)
        assert values["guarantee"]["epsilon"] == plan.epsilon
        assert f"--noise-multiplier {plan.noise_multiplier!r} " in values["commands"][1]


KINDS = {
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
@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_run_agrees_with_itself_interrupted_resumed_and_finished(tmp_path, kind):
    from tests.federated.small_runs import broken_off, config, train

    settings = config(**KINDS[kind])
    audit = audit_run(broken_off(tmp_path / "run", 5, settings))
    assert audit.contradictions == ()
    assert (audit.unrecorded, audit.observed.rounds) == (None, 5)
    train(tmp_path / "run", settings, resume=True)
    run = fedmf.Run.load(tmp_path / "run")
    audit = audit_run(run)
    assert (audit.contradictions, audit.unrecorded, audit.observed.rounds) == ((), None, 6)
    # What was added is what the plan says, to the rounding of float32.
    stddevs = [row["noise_stddev"] for row in run.metrics]
    assert stddevs == pytest.approx([audit.planned.stddev] * 6, rel=1e-6)
    final = json.loads((tmp_path / "run" / "final_statement.json").read_text())
    if settings.claimed_cohort is None:
        assert final["achieved"]["rho"] == audit.values()["rho_achieved"]
    else:
        assert final["achieved"] is audit.values()["rho_achieved"] is None
        said = command(f"audit {tmp_path}/run").stdout
        assert "not known: the run that the simulation stands for was not observed" in said
        assert "_achieved" not in said
