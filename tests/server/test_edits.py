"""Edits of a server's folder while it runs: each is refused at the next release or at `open`, and
no release signs it.
"""

import errno
import json
import os
import shutil

import pytest

import fedmf
from fedmf.privacy.stopping import stopped_after
from fedmf.server.appended_file import AppendedFile
from tests.mechanisms.registry import MECHANISMS
from tests.refusals import refusal
from tests.server.plans import make_server, plan_of, update

EDITED = "changed while it was in use: nothing was released; put back the server's own file"


def more_noise(content):
    content["plan"]["noise_multiplier"] *= 10
    content["stddev"] *= 10


def more_clients(content):
    content["server"]["clients_per_round"] *= 2


def another_warning(content):
    content["warning"] = ""


def edited(folder, change):
    path = folder / "server.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def another_mechanism(folder):
    MECHANISMS["identity"](12).save(folder / "mechanism.npz")


def another_seed(folder):
    (folder / "private" / "noise_seed").write_text("6\n")


def another_server(folder):
    """Copies all files of a server with the same clients in the same rounds."""
    with fedmf.Server.open(folder.with_name("other")):
        shutil.copytree(folder.with_name("other"), folder, dirs_exist_ok=True)


EDITS = {
    "noise": lambda folder: edited(folder, more_noise),
    "clients_per_round": lambda folder: edited(folder, more_clients),
    "warning": lambda folder: edited(folder, another_warning),
    "mechanism": another_mechanism,
    "seed": another_seed,
    "removed": lambda folder: (folder / "server.json").unlink(),
    "another server": another_server,
}
WORDS = {"another server": EDITED + "|was moved, replaced, closed or resumed elsewhere"}


@pytest.mark.parametrize("released", [0, 1])
@pytest.mark.parametrize("edit", EDITS)
def test_edit_of_a_running_server_is_refused(tmp_path, edit, released):
    folder = tmp_path / "server"
    with (
        make_server(tmp_path / "other", noise_seed=6) as other_server,
        make_server(folder) as server,
    ):
        for _ in range(released):
            other_server.add(update(), client="ann")
            server.add(update(), client="ann")
            other_server.release()
            server.release()
        other_server.close()
        shutil.copytree(folder, tmp_path / "own")
        EDITS[edit](folder)
        for _ in range(2):
            with refusal(WORDS.get(edit, EDITED)):
                server.release()
        assert server.round == released
    # These files are a complete other server, which nobody can detect.
    if edit != "another server":
        with refusal("since the server was begun|holds no server|is damaged or not of this"):
            fedmf.Server.open(folder)
    shutil.copytree(tmp_path / "own", folder, dirs_exist_ok=True)
    with fedmf.Server.open(folder) as server:
        server.release()
        assert server.round == released + 1


def test_release_succeeds_after_the_file_is_put_back(tmp_path):
    server = make_server(tmp_path / "server")
    server.add(update(), client="ann")
    path = tmp_path / "server" / "server.json"
    content = path.read_bytes()
    path.write_bytes(content + b" ")
    with refusal(EDITED):
        server.release()
    path.write_bytes(content)
    [*_] = server.release()
    assert (server.round, server.clients) == (1, ["ann"])


@pytest.mark.parametrize(
    "name",
    [
        "server.json",
        "mechanism.npz",
        "participation.jsonl",
        "private/rounds.jsonl",
        "private/noise_seed",
    ],
)
def test_removed_file_is_refused_until_it_is_put_back(tmp_path, name):
    folder = tmp_path / "server"
    aside = tmp_path / "aside"
    server = make_server(folder)
    for num_released, client in enumerate(("ann", "bo")):
        server.add(update(), client=client)
        (folder / name).rename(aside)
        for _ in range(2):
            with refusal(f"^{name} of the server's folder .*{EDITED}"):
                server.release()
        assert server.round == num_released
        assert not (folder / name).exists()
        aside.rename(folder / name)
        server.release()
    server.close()
    with fedmf.Server.open(folder) as server:
        assert (server.round, server.clients) == (2, ["ann", "bo"])


def test_removed_folder_is_refused_until_it_is_put_back(tmp_path):
    folder = tmp_path / "server"
    aside = tmp_path / "aside"
    server = make_server(folder)
    for client, removed_folder in {"ann": folder / "private", "bo": folder}.items():
        server.add(update(), client=client)
        removed_folder.rename(aside)
        with refusal("was moved, replaced|changed while it was in use"):
            server.release()
        aside.rename(removed_folder)
        server.release()
    assert server.round == 2


def test_edited_rows_are_refused_and_extra_bytes_are_removed(tmp_path):
    server = make_server(tmp_path / "server")
    path = tmp_path / "server" / "participation.jsonl"
    for client in ("ann", "bo"):
        server.add(update(), client=client)
        server.release()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"ann", b"eve"))
    with refusal(EDITED):
        server.release()
    path.write_bytes(content + b"\0\0rubbish\n")
    server.release()
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "rubbish",
    [bytes(100) + b"\n", bytes(4096), b"\n\n", b"\xff\xfe\n", b"[" * 9000 + b"\n", b"7\n", b"{}\n",
     b'{"round": "x"}\n', b'{"round": 2, "client"', b'\0{"round": 1, "client": "bo"}\n'],
)  # fmt: skip
def test_extra_bytes_after_the_newest_release_are_removed(tmp_path, rubbish):
    """A power failure leaves any bytes of the current round, which nobody has seen."""
    folder = tmp_path / "server"
    with make_server(folder) as server:
        server.add(update(), client="ann")
        server.release()
    path = folder / "participation.jsonl"
    content = path.read_bytes()
    path.write_bytes(content + rubbish)
    with fedmf.Server.open(folder) as server:
        assert path.read_bytes() == content
        server.release()
    with fedmf.Server.open(folder) as server:
        assert (server.round, server.clients) == (2, ["ann"])


def test_unwritable_log_loses_no_release(tmp_path, monkeypatch):
    server = make_server(tmp_path / "server")
    log_path = tmp_path / "server" / "participation.jsonl"

    def full(self, *, sync=False):
        if self.path == log_path and self._pending:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(self, sync=sync)

    flush = AppendedFile.flush
    for t, client in enumerate(("ann", "bo")):
        server.add(update(), client=client)
        with monkeypatch.context() as patch:
            patch.setattr(AppendedFile, "flush", full)
            server.release()
            assert server.round == 2 * t + 1
            with pytest.raises(OSError, match="No space left"):
                server.release()
        server.release()
    assert server.round == 4
    server.close()
    clients = [json.loads(line)["client"] for line in log_path.read_text().splitlines()]
    assert clients == ["ann", "bo"]


def test_open_restores_a_plan_of_the_first_rounds(tmp_path):
    whole_plan = plan_of(MECHANISMS["banded"](12))
    folder = tmp_path / "server"
    with make_server(folder, plan=stopped_after(whole_plan, 7)) as server:
        server.release()
        past_statement = server.statement()
    with fedmf.Server.open(folder) as server:
        assert server.statement() == past_statement
        assert server.plan.longer.mechanism.rounds == 12
        for _ in range(6):
            server.release()
        with refusal("all rounds=7 of the plan are released"):
            server.release()
    assert "--stop-after 7" in past_statement
    assert "--rounds 12" in past_statement.split("fedmf audit log")[-1]
    assert fedmf.load_mechanism(folder / "mechanism.npz").rounds == 12


def test_log_has_one_spelling_of_each_client(tmp_path):
    folder = tmp_path / "server"
    server = make_server(folder)
    composed = "zo\u00eb"
    decomposed = "zoe\u0308"
    for client in (composed, None, None, decomposed):
        if client:
            assert server.cohort(available=[client]) == [client]
            server.add(update(), client=client)
        server.release()
    server.close()
    rows = [json.loads(line) for line in (folder / "participation.jsonl").open()]
    assert rows == [{"round": 0, "client": composed}, {"round": 3, "client": composed}]
    log_audit = fedmf.audit_log(folder / "participation.jsonl", server.plan, rounds_run=4)
    assert log_audit.contradictions == ()


def test_closed_server_can_be_opened_after_a_fork(tmp_path):
    server = make_server(tmp_path / "server")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)  # The child waits until the parent ends it.
        os._exit(0)
    os.close(read_end)
    try:
        with refusal("in use by another server"):
            fedmf.Server.open(tmp_path / "server")
        server.close()
        fedmf.Server.open(tmp_path / "server").close()
    finally:
        os.close(write_end)
        os.waitpid(child, 0)
