"""What else a run folder holds beside its plan and its record, and what an audit makes of files that do not agree."""

import dataclasses
import json

import numpy as np
import pytest

import fedmf
from fedmf.files import write_atomically
from fedmf.participation.ledger import ParticipationLedger
from fedmf.runs.audit import audit_run
from fedmf.runs.checkpoint import Checkpoint
from fedmf.runs.config import TrainConfig
from fedmf.runs.folder import RunFolder
from tests.cli.test_commands import fedmf as command
from tests.cli.test_commands import refused

COHORT = 4
CONFIG = TrainConfig(
    rounds=12, cohort_size=COHORT, schema="fixed_epoch", min_sep=3, family="identity", epsilon=4.887, checkpoint_every=6
)
PLAN = CONFIG.plan()


def folder_of(path, *, config=CONFIG, plan=PLAN, given=False, cohorts=None, recorded=12, run=12):
    """A folder as `federated.train` leaves it after `run` rounds, the first `recorded` of which are in a checkpoint."""
    folder = RunFolder.create(path)
    plan.mechanism.save(path / "mechanism.npz")
    task = {"task": {"name": "x", "clients": 12}, "versions": {"fedmf": "0.1.0"}}
    folder.write_json("plan", plan.summary() | {"given": given} | task)
    write_atomically(path / "statement.md", plan.statement())
    write_atomically(path / "private" / "noise_seed", "17\n", mode=0o600)
    write_atomically(path / "config.json", config.to_json())
    if cohorts is None:
        cohorts = [np.arange(COHORT) + t % 3 * COHORT for t in range(12)]
    ledger = ParticipationLedger(cohort_size=COHORT, cohorts=cohorts)
    state = [np.zeros(3, np.float32)]
    folder.save_checkpoint(
        Checkpoint(rounds_done=recorded, config_digest=folder.digest(), state=state, ledger=ledger.first(recorded))
    )
    with folder.rows("metrics") as write:
        for t in range(run):
            # The row has the float32 that TensorFlow had.
            write({"round": t, "clients": len(cohorts[t]), "noise_stddev": float(np.float32(plan.stddev))})
    if run == recorded == config.rounds:
        folder.write_json("result", {"participation": ledger.observed().summary()})
    return path


@pytest.fixture
def finished(tmp_path):
    return folder_of(tmp_path / "run")


@pytest.fixture
def interrupted(tmp_path):
    """Killed after 11 rounds, with a checkpoint of 6."""
    return folder_of(tmp_path / "run", recorded=6, run=11)


def changed(path, **changes):
    content = json.loads(path.read_text())
    write_atomically(path, json.dumps(content | changes))


def multiplied(path, **factors):
    plan = json.loads(path.read_text())
    changed(path, **{name: plan[name] * factor for name, factor in factors.items()})


def rows_changed(run, change):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    write_atomically(run / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in change(rows)))


def without(run, *names):
    """As if the format of the rows had been older."""
    rows_changed(run, lambda rows: [{k: v for k, v in row.items() if k not in names} for row in rows])


def record_cut(run, participations):
    lines = (run / "participation.csv").read_text().splitlines(keepends=True)
    write_atomically(run / "participation.csv", "".join(lines[: 1 + participations]))


class TestRoundsBeyondTheRecord:
    def test_are_not_counted_as_nothing(self, interrupted):
        audit = audit_run(interrupted)
        assert audit.observed.rounds == 6
        assert audit.epsilon == PLAN.epsilon
        assert audit.rho == PLAN.rho
        assert audit.contradictions == ()
        assert audit.unrecorded.startswith("rounds 6 to 10 are not in the record of participations")
        assert "resume the run, and audit it when it is done" in audit.unrecorded

    def test_are_named_on_the_command_line_and_in_the_statement(self, interrupted, tmp_path):
        out = tmp_path / "statement.md"
        said = dict(
            line.split(maxsplit=1) for line in command("audit", interrupted, "--statement", out).stdout.splitlines()
        )
        assert said["epsilon_achieved"] == said["epsilon_planned"]
        assert said["not_in_the_record"].startswith("rounds 6 to 10 are not")
        assert said["keeps_to_the_plan"] == "yes, as far as it is recorded"
        text = " ".join(out.read_text().replace("\n> ", " ").split())
        assert "**Not all is recorded.** Rounds 6 to 10 are not in the record of participations" in text
        assert "and, as said above, for the rounds that are not in the record, the same noise gives" in text
        assert "**Not all is recorded.**" in audit_run(interrupted).statement()
        shown = json.loads(command("audit", interrupted, "--json").stdout)
        assert shown["epsilon_achieved"] == PLAN.epsilon
        assert shown["not_in_the_record"] == audit_run(interrupted).unrecorded

    def test_of_an_older_format_count_too(self, interrupted):
        without(interrupted, "clients", "noise_stddev")
        assert audit_run(interrupted).epsilon == PLAN.epsilon

    def test_one_alone(self, tmp_path):
        audit = audit_run(folder_of(tmp_path / "run", recorded=6, run=7))
        assert audit.unrecorded.startswith("round 6 is not in the record of participations, and counts")

    def test_are_known_from_the_checkpoint_too(self, tmp_path):
        # As earlier versions wrote them: killed after the checkpoint and before participation.csv; the rows were lost with the machine.
        run = folder_of(tmp_path / "run", recorded=9, run=9)
        record_cut(run, 6 * COHORT)
        rows_changed(run, lambda rows: rows[:6])
        assert audit_run(run).unrecorded.startswith("rounds 6 to 8 are not")
        assert audit_run(run).epsilon == PLAN.epsilon

    def test_nobody_in_the_record_is_not_nobody_in_the_run(self, interrupted):
        write_atomically(interrupted / "participation.csv", "round,client\n")
        assert audit_run(interrupted).epsilon == PLAN.epsilon

    def test_without_clients_hide_nothing(self, tmp_path):
        cohorts = [np.arange(COHORT) + t % 3 * COHORT for t in range(12)]
        cohorts[6] = cohorts[5] = cohorts[7] = np.zeros(0, np.int64)
        audit = audit_run(folder_of(tmp_path / "run", cohorts=cohorts, recorded=6, run=8))
        assert audit.unrecorded is None
        assert (audit.observed.rounds, audit.observed.empty_rounds) == (8, 3)

    def test_after_a_broken_plan_may_be_anything(self, tmp_path):
        cohorts = [np.arange(COHORT) for _ in range(12)]
        audit = audit_run(folder_of(tmp_path / "run", cohorts=cohorts, recorded=6, run=11))
        every = fedmf.Participation(rounds=12, schema="every_round")
        of_all = fedmf.sensitivity(PLAN.mechanism, every).value
        assert audit.contradictions
        assert audit.achieved.sensitivity.value == of_all
        assert audit.achieved.stddev == pytest.approx(PLAN.stddev, rel=1e-12)
        assert "as if every client had taken part in every round" in audit.unrecorded

    def test_with_sampling_rest_on_no_chance(self, tmp_path):
        config = dataclasses.replace(
            CONFIG, family="banded", bands=2, sampling="poisson", population=12, schema="min_sep", min_sep=None
        )
        plan = config.plan()
        cohorts = [np.arange(t % 2, 4, 2) for t in range(12)]
        audit = audit_run(folder_of(tmp_path / "run", config=config, plan=plan, cohorts=cohorts, recorded=6, run=11))
        assert audit.epsilon == plan.unamplified_epsilon
        assert audit.amplified_epsilon == plan.epsilon

    def test_there_are_none_after_ctrl_c(self, tmp_path):
        run = folder_of(tmp_path / "run", recorded=6, run=6)
        assert audit_run(run).unrecorded is None
        assert audit_run(run).epsilon < PLAN.epsilon
        assert json.loads(command("audit", run, "--json").stdout)["not_in_the_record"] is None
        assert "not_in_the_record" not in command("audit", run).stdout

    def test_a_record_may_be_ahead_of_the_metrics(self, tmp_path):
        # A damaged checkpoint was deleted, the run resumed from the one before and was killed.
        run = folder_of(tmp_path / "run", recorded=9, run=9)
        rows_changed(run, lambda rows: rows[:7])
        assert audit_run(run).observed.rounds == 9
        assert audit_run(run).unrecorded is None


def honest_rows_of(t, **changes):
    return lambda rows: [row | (changes if row["round"] == t else {}) for row in rows]


# What is done to a finished run -> words of the refusal.
CHANGES = {
    "four times the noise in plan.json": (
        lambda run: multiplied(run / "plan.json", noise_multiplier=4, stddev=4),
        [
            "plan.json has rho=",
            "noise_stddev=",
            "rounds 0 to 11",
            "config.json asks for epsilon=4.887",
            "belongs to another run",
        ],
    ),
    "four times the noise, and rho and epsilon with it": (
        lambda run: changed(
            run / "plan.json", **dataclasses.replace(PLAN, noise_multiplier=4 * PLAN.noise_multiplier).summary()
        ),
        ["noise_stddev=", "config.json asks for epsilon=4.887"],
    ),
    "a quarter of the clip norm in plan.json": (
        lambda run: multiplied(run / "plan.json", clip_norm=0.25, noise_multiplier=4),
        ["config.json asks for clip_norm=1.0 where plan.json has 0.25"],
    ),
    "another clip norm in config.json": (
        lambda run: changed(run / "config.json", clip_norm=50.0),
        ["config.json asks for clip_norm=50.0 where plan.json has 1.0", "belongs to another run"],
    ),
    "another epsilon in config.json": (
        lambda run: changed(run / "config.json", epsilon=2.0),
        ["config.json asks for epsilon=2.0 where plan.json has 4.88"],
    ),
    "a noise multiplier in config.json": (
        lambda run: changed(run / "config.json", epsilon=None, noise_multiplier=7.0),
        ["config.json asks for noise_multiplier=7.0 where plan.json has"],
    ),
    "another delta": (lambda run: changed(run / "config.json", delta=1e-3), ["asks for delta=0.001 where"]),
    "another participation": (lambda run: changed(run / "config.json", min_sep=4), ["asks for participation="]),
    "half of the record": (
        lambda run: record_cut(run, 6 * COHORT),
        ["clients=4 in round 6 where participation.csv has 0", "result.json has 48", "other clients in rounds 6 to 11"],
    ),
    "the end of a round": (lambda run: record_cut(run, 12 * COHORT - 1), ["in round 11 where participation.csv has 3"]),
    "the noise of one round": (
        lambda run: rows_changed(run, honest_rows_of(3, noise_stddev=PLAN.stddev / 2)),
        ["metrics.jsonl has noise_stddev=", "in round 3 where the plan"],
    ),
    "noise that is no number": (
        lambda run: rows_changed(run, honest_rows_of(3, noise_stddev="much")),
        ["noise_stddev=much in round 3"],
    ),
    "the clients of one round": (
        lambda run: rows_changed(run, honest_rows_of(3, clients=5)),
        ["clients=5 in round 3 where participation.csv has 4"],
    ),
    "rows cut": (lambda run: rows_changed(run, lambda rows: rows[:-2]), ["has no row of rounds 10 to 11"]),
    "a row left out": (lambda run: rows_changed(run, lambda rows: rows[:4] + rows[5:]), ["no row of round 4"]),
    "a row twice": (lambda run: rows_changed(run, lambda rows: rows[:4] + rows[3:]), ["more than one row of round 3"]),
    "a row too many": (
        lambda run: rows_changed(run, lambda rows: [*rows, rows[-1] | {"round": 12}]),
        ["rows beyond the rounds=12 of config.json, of round 12"],
    ),
    "another client": (
        lambda run: write_atomically(
            run / "participation.csv", (run / "participation.csv").read_text().replace("\n4,7\n", "\n4,11\n")
        ),
        ["participation.csv has other clients in round 4 than the newest checkpoint"],
    ),
    "a client beyond the task": (
        lambda run: write_atomically(
            run / "participation.csv", (run / "participation.csv").read_text().replace("\n4,7\n", "\n4,12\n")
        ),
        ["has client 12 where plan.json has a task of 12 clients"],
    ),
    "another summary": (
        lambda run: changed(run / "result.json", participation={"participations": 40}),
        ["participation.csv has participations=48 where result.json has 40"],
    ),
    "another seed": (
        lambda run: write_atomically(run / "private" / "noise_seed", "18\n"),
        ["round-000012.ckpt belongs to another run"],
    ),
}


class TestFilesThatDoNotAgree:
    def test_those_of_a_run_do(self, finished):
        audit = audit_run(finished)
        assert audit.contradictions == ()
        assert audit.unrecorded is None
        assert audit.epsilon == pytest.approx(4.887, rel=1e-6)

    @pytest.mark.parametrize("name", CHANGES)
    def test_are_refused_by_name_and_value(self, finished, name):
        change, words = CHANGES[name]
        change(finished)
        said = refused("audit", finished, status=1, words=["does not keep to what it records", *words])
        assert "put the run's own files back" in said

    def test_also_in_a_run_that_goes_on(self, interrupted):
        record_cut(interrupted, 6 * COHORT - 1)
        refused("audit", interrupted, status=1, words=["clients=4 in round 5 where participation.csv has 3"])

    def test_a_plan_of_the_caller_is_not_what_the_config_asks_for(self, tmp_path):
        plan = dataclasses.replace(PLAN, noise_multiplier=2 * PLAN.noise_multiplier, delta=1e-5)
        assert audit_run(folder_of(tmp_path / "run", plan=plan, given=True)).epsilon == plan.epsilon
        with pytest.raises(ValueError, match="asks for delta="):
            audit_run(folder_of(tmp_path / "other", plan=plan, given=False))

    @pytest.mark.parametrize(
        ("change", "words"),
        [({"population": 24}, "population=24"), ({"sampling": "fixed_size"}, "sampling=CyclicFixedSize")],
    )
    def test_sampling_is_compared(self, tmp_path, change, words):
        config = dataclasses.replace(
            CONFIG, family="banded", bands=2, sampling="poisson", population=12, schema="min_sep", min_sep=3
        )
        cohorts = [np.arange(t % 2, 4, 2) for t in range(12)]
        run = folder_of(tmp_path / "run", config=config, plan=config.plan(), cohorts=cohorts)
        assert audit_run(run).contradictions == ()
        changed(run / "config.json", **change)
        with pytest.raises(ValueError, match=rf"config.json asks for {words} where plan.json has"):
            audit_run(run)


class TestWithoutTheEvidence:
    def test_a_run_of_an_older_format(self, finished):
        without(finished, "clients", "noise_stddev")
        plan = json.loads((finished / "plan.json").read_text())
        for name in ("given", "rho", "sensitivity", "epsilon"):
            del plan[name]
        write_atomically(finished / "plan.json", json.dumps(plan))  # and with it the checkpoint's digest is another one
        write_atomically(finished / "result.json", "{}")
        audit = audit_run(finished)
        assert (audit.contradictions, audit.unrecorded) == ((), None)
        record_cut(finished, 6 * COHORT)
        with pytest.raises(
            ValueError, match=r"nobody in rounds 6 to 11 of a finished run whose cohorts are never empty"
        ):
            audit_run(finished)

    def test_a_damaged_checkpoint_is_named_and_one_that_was_deleted_is_not_missed(self, finished):
        (path,) = (finished / "checkpoints").iterdir()
        path.write_bytes(path.read_bytes()[:-1])
        words = ["round-000012.ckpt is damaged or half-written", "take out what is damaged"]
        refused("audit", finished, status=1, words=words)
        path.unlink()
        assert audit_run(finished).contradictions == ()

    def test_a_folder_without_its_private_files(self, finished):
        (finished / "private" / "noise_seed").unlink()
        assert audit_run(finished).contradictions == ()
        for path in (finished / "checkpoints").iterdir():
            path.unlink()
        assert audit_run(finished).contradictions == ()

    def test_a_plan_given_to_the_audit_is_held_against_the_noise(self, finished):
        write_atomically(finished / "plan.json", json.dumps({"task": {"clients": 12}, "given": False}))
        for path in (finished / "checkpoints").iterdir():
            path.unlink()
        assert audit_run(finished, plan=PLAN).epsilon == PLAN.epsilon
        with pytest.raises(ValueError, match="noise_stddev"):
            audit_run(finished, plan=dataclasses.replace(PLAN, noise_multiplier=9.0))


class Crash(Exception):
    pass


KINDS = {
    "banded": {},
    "no noise": {"family": "none", "noise_multiplier": None},
    "epochs": {"schema": "fixed_epoch", "min_sep": 3, "family": "dense", "noise_multiplier": None, "epsilon": 8.0},
    "simulated": {"claimed_cohort": 40, "noise_multiplier": None, "epsilon": 8.0},
    "dropout": {"dropout": 0.6, "availability": "independent:0.5"},
    "sampled": {"bands": 2, "sampling": "poisson", "population": 12, "cohort_size": 1, "min_sep": None, "dropout": 0.3},
}


@pytest.mark.tensorflow
class TestRunsThatWereTrained:
    @pytest.mark.parametrize("kind", KINDS)
    def test_agree_with_themselves_interrupted_resumed_and_finished(self, tmp_path, kind):
        from fedmf import federated
        from tests.federated.run_small import config
        from tests.federated.small_task import small_task

        settings = config(checkpoint_every=2, **KINDS[kind])

        def crash(t):
            if t == 4:
                raise Crash

        arguments = {"folder": tmp_path / "run", "progress": False}
        with pytest.raises(Crash):
            federated.train(small_task(), settings, noise_seed=9, on_round=crash, **arguments)
        audit = audit_run(tmp_path / "run")
        assert audit.contradictions == ()
        if json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[4])["clients"]:
            assert audit.unrecorded.startswith("round 4 is not")
            assert audit.epsilon == audit.planned.unamplified_epsilon
        federated.train(small_task(), settings, resume=True, **arguments)
        audit = audit_run(tmp_path / "run")
        assert (audit.contradictions, audit.unrecorded, audit.observed.rounds) == ((), None, 6)
        final = json.loads((tmp_path / "run" / "final_statement.json").read_text())
        if settings.claimed_cohort is None:
            assert final["achieved"]["rho"] == audit.values()["rho_achieved"]
        else:
            assert final["achieved"] is audit.values()["rho_achieved"] is None
            said = command("audit", tmp_path / "run").stdout
            assert "not known: the run that the simulation stands for was not observed" in said
            assert "_achieved" not in said

    def test_with_a_plan_of_their_own(self, tmp_path):
        from fedmf import federated
        from tests.federated.run_small import config
        from tests.federated.small_task import small_task

        plan = dataclasses.replace(config().plan(), noise_multiplier=2.5, delta=1e-5)
        run = federated.train(small_task(), config(), folder=tmp_path / "run", noise_seed=9, plan=plan, progress=False)
        assert audit_run(run).contradictions == ()
        multiplied(run.path / "plan.json", noise_multiplier=4, stddev=4)
        with pytest.raises(ValueError, match=r"noise_stddev=\S+ in rounds 0 to 5 where the plan"):
            audit_run(run.path)
