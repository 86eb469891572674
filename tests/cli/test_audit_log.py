"""`fedmf audit log` and statements of runs: what users and scripts see."""

import json

import pytest

from tests.cli.program import fedmf, printed_by, refused

PLAN = "--rounds 12 --min-sep 4 --epsilon 8"


@pytest.fixture
def log_file(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("device,t\n" + "".join(f"d{t % 4},{t + 1}\n" for t in range(12)))
    return path


COLUMNS = "--client-column device --round-column t --first-round 1"


def test_the_achieved_epsilon_is_printed_beside_the_planned_one(log_file, identity_file, tmp_path):
    printed_values = printed_by(f"audit log {log_file} {identity_file} {PLAN} {COLUMNS}")
    assert (
        printed_values["min_separation_observed"],
        printed_values["max_participations_observed"],
    ) == (4, 3)
    assert printed_values["contradictions"] == []
    assert printed_values["epsilon_achieved"] <= printed_values["epsilon_planned"] <= 8


def test_the_printed_command_makes_the_same_statement_again(
    log_file, identity_file, tmp_path, monkeypatch
):
    log_path = tmp_path / "my log.csv"
    statement_path = tmp_path / "my statement.json"
    log_file.rename(log_path)
    statement_options = f"""--statement '{statement_path}' --pretraining "it's public" """
    fedmf(f"audit log '{log_path}' {identity_file} {PLAN} {COLUMNS} {statement_options}")
    values = json.loads(statement_path.read_text())
    assert (values["system"], values["pretraining"]) == ("log", "it's public")
    assert values["observed"]["rounds"] == 12
    # The printed command runs in the folder of its files.
    monkeypatch.chdir(tmp_path)
    (tmp_path / identity_file.name).write_bytes(identity_file.read_bytes())
    statement_path.unlink()
    fedmf(values["commands"][0])
    repeated_values = json.loads(statement_path.read_text())
    for name in ("guarantee", "achieved", "mechanism", "pretraining"):
        assert repeated_values[name] == values[name]


def test_a_log_of_fewer_rounds_than_planned_suggests_rounds_run(log_file, identity_file, tmp_path):
    statement_path = tmp_path / "statement.md"
    log_file.write_text("client,round\na,0\n")
    printed_text = fedmf(
        f"audit log {log_file} {identity_file} {PLAN} --statement {statement_path}"
    ).stdout
    for text in (printed_text, statement_path.read_text()):
        assert "or pass --rounds-run 1 if it ended there" in text


def test_a_violated_plan_sets_exit_status_1_after_all_files_are_written(
    log_file, identity_file, tmp_path
):
    log_file.write_text("client,round\na,0\na,1\n")
    statement_path = tmp_path / "statement.json"
    printed_text = fedmf(
        f"audit log {log_file} {identity_file} {PLAN} --statement {statement_path}", status=1
    ).stdout
    assert printed_text.splitlines()[-1].endswith(
        "no: two rounds of one client are 1 apart where at least 4 were planned"
    )
    assert len(json.loads(statement_path.read_text())["contradictions"]) == 1


def test_nothing_is_written_for_an_invalid_log(tmp_path, identity_file):
    bad_log = tmp_path / "bad.csv"
    statement_path = tmp_path / "statement.md"
    bad_log.write_text("client,round\nann,1\nann,x\n")
    refused(
        f"audit log {bad_log} {identity_file} {PLAN} --statement {statement_path}", "row 2", "'x'"
    )
    assert not statement_path.exists()
