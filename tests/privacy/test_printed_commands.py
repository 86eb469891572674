"""Every command that a statement prints runs in the situation that the statement describes."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

import fedmf
from fedmf.audits.guarantee import audit_ledger
from fedmf.files import shell_word
from fedmf.privacy.describe import statement_values
from fedmf.privacy.statement import markdown
from fedmf.privacy.stopping import stopped_after
from fedmf.runs.audit import audit_run
from fedmf.runs.folder import Run
from fedmf.runs.statement import subject_of_run
from tests.cli.program import fedmf as program
from tests.privacy.plans import ledger_of, plan
from tests.runs.test_audit import CONFIG, cyclic_cohorts, make_run
from tests.runs.test_folder import new_run

ROUNDS = 12
APART = fedmf.Participation(rounds=ROUNDS, schema="min_sep", min_sep=3)
# Numbers of finished rounds when the statement is written.
SITUATIONS = {"before the first release": 0, "part way": 5, "finished": ROUNDS, "without noise": 5}
COHORTS = [[t % 3, 3 + t % 3] for t in range(ROUNDS)]


def served(tested_plan, rounds, folder=None, *, is_empty=False):
    """Returns a server after so many rounds; in empty rounds nobody takes part."""
    options = {"shapes": [(1,)], "clients_per_round": 2, "noise_seed": "os", "folder": folder}
    server = fedmf.Server(tested_plan, **options)
    for t in range(rounds):
        if not is_empty:
            for client in server.cohort(available=[f"ann{t % 3}", f"bo{t % 3}"]):
                server.add([np.ones(1)], client=client)
        server.release()
    return server


def of_server(tested_plan, rounds, here):
    with served(tested_plan, rounds, here / "server") as server:
        return server.statement()


def of_empty_rounds(tested_plan, rounds, here):
    with served(tested_plan, rounds, here / "server", is_empty=True) as server:
        return server.statement()


def of_server_in_memory(tested_plan, rounds, here):
    return served(tested_plan, rounds).statement()


def of_controller(tested_plan, rounds, here):
    controller = fedmf.ParticipationController(APART, population=9, cohort_size=2, seed=1)
    for t in range(rounds):
        controller.cohort(t)
    return controller.audit(tested_plan).statement()


def of_pipeline(tested_plan, rounds, here):
    return audit_ledger(ledger_of(COHORTS[:rounds], 2), tested_plan).statement(system="pipeline")


def of_ledger(tested_plan, rounds, here):
    return audit_ledger(ledger_of(COHORTS[:rounds], 2), tested_plan).statement()


def written_log(rounds, here):
    rows = [
        f"c{client},{t + 1}\n" for t, cohort in enumerate(COHORTS[:rounds]) for client in cohort
    ]
    log_path = here / "a log.csv"
    log_path.write_text("device,round\n" + "".join(rows))
    return log_path


def of_log(tested_plan, rounds, here):
    log_path = written_log(max(rounds, 1), here)  # a log without a row is no log
    form = fedmf.LogForm(client_column="device", first_round=1)
    return fedmf.audit_log(log_path, tested_plan, form=form, rounds_run=max(rounds, 1)).statement()


def of_log_in_a_shell(tested_plan, rounds, here):
    log_path = written_log(max(rounds, 1), here)
    clip_norm = tested_plan.clip_norm
    noise = f"--noise-multiplier {tested_plan.noise_multiplier} --clip-norm {clip_norm}"
    options = f"--client-column device --first-round 1 --rounds-run {max(rounds, 1)}"
    statement = here / "its statement.md"
    program(
        f"audit log '{log_path}' mechanism.npz --rounds {ROUNDS} --min-sep 3 {noise} {options}",
        f"--statement '{statement}'",
    )
    return statement.read_text()


def of_run(tested_plan, rounds, here, **changes):
    noise = {"epsilon": None, "noise_multiplier": tested_plan.noise_multiplier}
    config = dataclasses.replace(CONFIG, **noise, **changes)
    folder = here / "a run"
    run = make_run(
        folder, config=config, plan=config.plan(), cohorts=cyclic_cohorts(), num_rounds=rounds
    )
    return audit_run(run).statement()


def of_run_with_canaries(tested_plan, rounds, here):
    # Canaries need a trained run; the tests of canaries have one.
    text = of_run(tested_plan, min(rounds, 5), here, canaries=3)
    assert "fedmf audit canaries" not in text
    return text


def of_begun_run(tested_plan, rounds, here):
    config = dataclasses.replace(
        CONFIG, epsilon=None, noise_multiplier=tested_plan.noise_multiplier
    )
    task = {"name": "x", "description": "y", "clients": 12}
    folder = new_run(here / "run", config, tested_plan, versions={}, date="2026-11-28", task=task)
    values = statement_values(
        tested_plan, subject=subject_of_run(config, Run.load(folder.path).plan)
    )
    return markdown(values)


def of_plan(tested_plan, rounds, here):
    return fedmf.statement(tested_plan)


def of_stopped_plan(tested_plan, rounds, here):
    return fedmf.statement(stopped_after(tested_plan, max(rounds, 1)))


SYSTEMS = [
    of_plan, of_stopped_plan, of_server, of_empty_rounds, of_server_in_memory, of_controller,
    of_pipeline, of_ledger, of_log, of_log_in_a_shell, of_begun_run, of_run, of_run_with_canaries,
]  # fmt: skip


def printed_commands(text):
    """Returns the commands of a statement's section "How to check it"."""
    section = text.partition("\n## How to check it\n")[2]
    return [line.strip() for line in section.splitlines() if line.startswith("    fedmf ")]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_printed_command_runs(system, situation, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noise = 0.0 if situation == "without noise" else 2.0
    tested_plan = plan(APART, noise_multiplier=noise)
    tested_plan.mechanism.save("mechanism.npz")
    text = system(tested_plan, SITUATIONS[situation], tmp_path)
    commands = printed_commands(text)
    assert commands
    for command in commands:
        program(command)
    # Point 4 names the commands that are printed, and says whether one reads the record.
    flat = " ".join(text.split())
    names = {" ".join(command.split()[: 2 + ("audit" in command)]) for command in commands}
    assert all(f"`{name}`, as printed below," in flat for name in names)
    reads_record = any(name.startswith("fedmf audit") for name in names)
    is_observed = "## What was observed" in text
    assert ("No command below checks the observed participation." in flat) == (
        is_observed and not reads_record
    )


def test_a_command_for_an_odd_folder_works_when_it_is_pasted(tmp_path):
    name = "-it's `two` $HOME\nlines\u2028 \x85c"
    tested_plan = plan(APART)
    with served(tested_plan, 1, tmp_path / name) as server:
        command, _ = printed_commands(server.statement())
    assert "participation.jsonl" in command
    words = "from fedmf.cli import main; main()"
    script = f"fedmf() {{ {shell_word(sys.executable)} -c '{words}' \"$@\"; }}\n{command} --json\n"
    finished_process = subprocess.run(
        ["bash"], input=script.encode(), cwd=tmp_path, capture_output=True
    )
    assert finished_process.returncode == 0, finished_process.stderr
    assert b'"epsilon_achieved"' in finished_process.stdout


def test_a_word_of_a_shell_stays_one_line_whatever_it_holds():
    text = "".join(map(chr, range(1, 256))) + "\u2028\udcff"
    assert shell_word(text).isprintable()
    finished_process = subprocess.run(
        ["bash"], input=f"printf %s {shell_word(text)}".encode(), capture_output=True, check=True
    )
    assert finished_process.stdout == os.fsencode(text)
