"""Servers that are killed, have no room or have edited files: no noise vector is ever released with
two sums, and no returned release is lost.
"""

import contextlib
import errno
import itertools
import json
import os
import re
import resource
import shutil
import signal
import sys
import traceback

import numpy as np
import pytest

import fedmf
from fedmf.server.state import plan_fingerprint
from tests.mechanisms.registry import MECHANISMS
from tests.refusals import refusal
from tests.server.plans import plan_of

# Every change of the disk goes through one of these calls.
CALLS = ("open", "fsync", "replace", "link", "close", "unlink", "mkdir")
ROUNDS = 6
NOT_ITS_OWN = "is damaged or not of this server|holds no server|since the server was begun"


@pytest.fixture(scope="module")
def plan():
    return plan_of(MECHANISMS["banded"](ROUNDS), quantile_clipping=fedmf.QuantileClipping(every=1))


@pytest.fixture
def make_server(plan, tmp_path):
    """Returns a function that makes a server in the folder, or in another one."""

    def make(folder=tmp_path / "server"):
        return fedmf.Server(plan, shapes=[(3,)], clients_per_round=4, noise_seed=8, folder=folder)

    return make


def collect(server, value):
    """Adds two updates of this value."""
    for client in server.cohort(available=[f"{server.round} {i}" for i in range(2)]):
        server.add([np.full(3, value)], client=client)


def in_a_child(work):
    """Returns the bytes that `work` writes to its file in a child process; None if a signal ended
    the child.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            work(write_end)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        child_output = pipe.read()
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return child_output or None


def killed_at(number):
    """Kills the process before the number-th call from now on that may change the disk."""
    count = itertools.count()

    def dying(call):
        def wrapped(*args, **options):
            if next(count) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return wrapped

    for name in CALLS:
        setattr(os, name, dying(getattr(os, name)))


def releases(folder, value, number):
    """Returns work that opens the server, collects, is killed at the number-th call, and writes its
    release.
    """

    def work(pipe):
        write = os.write
        server = fedmf.Server.open(folder)
        killed_at(number)
        collect(server, value)
        [mean] = server.release()
        write(pipe, mean.tobytes())

    return work


def state_of(server):
    """Returns the state that determines later rounds."""
    last_bytes = server.last_release[0].tobytes()
    return (
        server.round,
        last_bytes,
        server.client_params().clip_norm,
        server.ledger.to_csv(),
        plan_fingerprint(server.plan),
    )


@pytest.mark.slow
def test_kill_at_every_write_of_a_round_repeats_no_release(make_server, tmp_path):
    """A release that `release` or `open` returned once is the only sum of its noise vector."""
    make_server().close()
    folder = tmp_path / "server"
    seen_releases = {}
    kills = []
    for t in range(ROUNDS):
        for number in itertools.count():
            child_output = in_a_child(releases(folder, value=0.01 * (number + 1), number=number))
            with fedmf.Server.open(folder) as reopened_server:
                assert reopened_server.round in (t, t + 1)
                assert (
                    child_output is None or reopened_server.round == t + 1
                )  # A returned release is preserved.
                if reopened_server.round == t + 1:
                    seen_releases[t] = reopened_server.last_release[0].tobytes()
                    assert child_output in (None, seen_releases[t])
                assert len(reopened_server.clients) == 2 * reopened_server.round
                # Later rounds begin after a kill at another point each.
                if reopened_server.round == t + 1:
                    kills.append(number)
                    break
            if t % 2 and number == 3:  # A process that is not killed repeats the round.
                with fedmf.Server.open(folder) as reopened_server:
                    collect(reopened_server, 0.5)
                    reopened_server.release()
                break
        with fedmf.Server.open(folder) as reopened_server:
            assert reopened_server.round == t + 1
            assert seen_releases.setdefault(t, reopened_server.last_release[0].tobytes()) == (
                reopened_server.last_release[0].tobytes()
            )
    # Before the rename nothing is released, and after it everything is: some calls are on either
    # side.
    assert min(kills) > 3
    assert in_a_child(releases_again(folder)) == b"refused"


def releases_again(folder):
    """Returns work that asks a finished server for another release."""

    def work(pipe):
        try:
            fedmf.Server.open(folder).release()
        except ValueError:
            os.write(pipe, b"refused")

    return work


@pytest.mark.slow
def test_kill_at_every_write_before_round_0_allows_a_new_start(make_server, tmp_path, plan):
    for number in itertools.count():
        folder = tmp_path / f"server {number}"

        def work(pipe, folder=folder, number=number):
            write = os.write
            killed_at(number)
            make_server(folder)
            write(pipe, b"made")

        child_output = in_a_child(work)
        try:
            fedmf.Server.open(folder).release()
        except ValueError:
            assert child_output is None
            make_server(folder).release()  # The same call works again with the remaining space.
        if child_output is not None:
            break
    assert number > 10


def test_full_disk_delays_the_release_of_the_same_sum(make_server, monkeypatch):
    server = make_server()
    collect(server, 0.1)
    for name in ("fsync", "link"):

        def full(*args):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match="No space left"):
                server.release()
        with refusal("round 0 has its noise, and its release could not be written"):
            server.add([np.full(3, 0.2)], client="late")
    [mean] = server.release()
    server.close()
    same_server = make_server(None)
    collect(same_server, 0.1)
    np.testing.assert_array_equal(same_server.release()[0], mean)


@pytest.mark.slow
def test_interrupt_at_every_line_of_a_release_repeats_no_release(make_server, tmp_path):
    """After KeyboardInterrupt at any line the round is released once, with one sum."""
    reference = make_server(None)
    expected = []
    for t in range(2):
        collect(reference, 0.1 * (t + 1))
        expected.append(reference.release()[0])
    for number in itertools.count(step=5):
        folder = tmp_path / f"server {number}"
        server = make_server(folder)
        collect(server, 0.1)
        is_interrupted = interrupted_at(number, server.release)
        try:
            if server.round == 0:
                server.release()
        except ValueError as error:
            error_text = str(error)
            assert "was interrupted" in error_text, error_text
        server.close()
        server = fedmf.Server.open(folder)
        if server.round == 0:
            collect(server, 0.1)
            server.release()
        np.testing.assert_array_equal(server.last_release[0], expected[0])
        collect(server, 0.2)
        np.testing.assert_array_equal(server.release()[0], expected[1])
        server.close()
        if not is_interrupted:
            break
    assert number > 60


def interrupted_at(number, call):
    """Returns whether `call` was interrupted before the number-th line of the server."""
    lines = itertools.count()

    def interrupt(frame, event, argument):
        # Signals do not come between the end of a block and the release of its lock; lines do.
        path = frame.f_code.co_filename.replace(os.sep, "/")
        if "fedmf/server/" not in path or path.endswith("/calls.py"):
            return None
        if event == "line" and next(lines) == number:
            raise KeyboardInterrupt
        return interrupt

    past_trace = sys.gettrace()
    sys.settrace(interrupt)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(past_trace)
    return False


def test_interrupt_at_every_line_of_add_leaves_a_bounded_sum(make_server):
    """A client counts once, for at most the clip norm, also where its update is sent again."""
    clip_norm = make_server(None).plan.clip_norm
    for number in itertools.count():
        server = make_server(None)

        def add(server=server):
            server.add([np.full(3, 7.0)], client="ann")

        is_interrupted = interrupted_at(number, add)
        with contextlib.suppress(ValueError):
            add()  # The update is sent again, and refused if it already counts.
        assert np.linalg.norm(server._sum.total) <= clip_norm
        with refusal("client='ann' is in round 0 already"):
            add()
        if not is_interrupted:
            break
    assert number > 30


class TestFilesThatAreNotItsOwn:
    @pytest.fixture
    def folder(self, make_server, tmp_path):
        server = make_server()
        for t in range(3):
            collect(server, 0.1 * (t + 1))
            server.release()
        server.close()
        return tmp_path / "server"

    @pytest.mark.parametrize(
        "name",
        [
            "server.json",
            "mechanism.npz",
            "private/rounds.jsonl",
            "private/journal/000003.npz",
            "private/noise_seed",
        ],
    )
    def test_damaged_or_missing_files_are_refused(self, folder, name):
        """A change of any byte is refused, unless no value that is read has changed."""
        path = folder / name
        content = path.read_bytes()
        with fedmf.Server.open(folder) as server:
            whole_state = state_of(server)
        # The end of rounds.jsonl is the newest row, which the journal has as well.
        is_rows = name.endswith(".jsonl")
        for cut in (
            None,
            0,
            len(content) // 2,
            len(content) - (len(content) // 2 if is_rows else 1),
        ):
            path.unlink(missing_ok=True)
            if cut is not None:
                path.write_bytes(content[:cut])
            with refusal(
                "is damaged or not of this server|holds no server|since the server was begun"
            ):
                fedmf.Server.open(folder)
        harmless = 0
        for byte_index in range(0, len(content), max(1, len(content) // 40)):
            changed_content = bytearray(content)
            changed_content[byte_index] ^= 1
            path.write_bytes(changed_content)
            try:
                with fedmf.Server.open(folder) as server:
                    assert state_of(server) == whole_state
                    harmless += 1
            except ValueError as error:
                error_text = str(error)
                assert re.search(NOT_ITS_OWN, error_text)
        # Names, dates and lengths that a zip file has twice.
        assert harmless == 0 or name.endswith((".npz", ".jsonl"))
        path.write_bytes(content)
        fedmf.Server.open(folder).release()

    def test_older_journal_file_is_refused(self, folder, tmp_path):
        older_file = folder / "private" / "journal" / "000003.npz"
        content = older_file.read_bytes()
        server = fedmf.Server.open(folder)
        collect(server, 0.3)
        server.release()
        collect(server, 0.4)
        server.release()
        server.close()
        (folder / "private" / "journal" / "000005.npz").unlink()
        with refusal("000000.npz is damaged or not of this server"):
            fedmf.Server.open(folder)
        older_file.write_bytes(content)
        for _ in range(2):
            with refusal("4 rounds were committed, and the journal's newest file is of 3"):
                fedmf.Server.open(folder)
        rows = folder / "private" / "rounds.jsonl"
        lines = rows.read_text().splitlines(keepends=True)
        rows.write_text("".join(lines[:3]))
        for _ in range(2):
            with refusal("has round 3 and the journal's newest round is 2"):
                fedmf.Server.open(folder)

    def test_files_of_another_server_are_refused(self, folder, plan, tmp_path):
        other_folder = tmp_path / "other"
        server = fedmf.Server(
            plan, shapes=[(3,)], clients_per_round=4, noise_seed=9, folder=other_folder
        )
        server.release()
        server.close()
        shutil.copy(
            other_folder / "private/journal/000001.npz", other_folder / "private/journal/000003.npz"
        )
        for name in ("private/journal/000003.npz", "private/noise_seed"):
            copied_folder = tmp_path / f"copy of {name.replace('/', ' ')}"
            shutil.copytree(folder, copied_folder)
            shutil.copy(other_folder / name, copied_folder / name)
            with refusal(NOT_ITS_OWN):
                fedmf.Server.open(copied_folder)

    def test_edited_participations_are_refused(self, folder):
        path = folder / "participation.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows[0]["client"] = "nobody"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        with refusal("participation.jsonl has other rows than the journal; .*remove it"):
            fedmf.Server.open(folder)
        path.unlink()
        fedmf.Server.open(folder).close()
        assert json.loads(path.read_text().splitlines()[0])["client"] == "0 0"


def test_file_size_limit_that_kills_within_a_write_loses_nothing(make_server, tmp_path):
    """SIGXFSZ at the limit leaves a part of a file's content."""
    server = make_server()
    collect(server, 0.1)
    server.release()
    server.close()
    folder = tmp_path / "server"
    size = (folder / "private" / "journal" / "000001.npz").stat().st_size
    for limit in (9, size // 2, size - 1):

        def work(pipe, limit=limit):
            server = fedmf.Server.open(folder)
            collect(server, 0.5)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            os.write(pipe, server.release()[0].tobytes())

        assert in_a_child(work) is None
        with fedmf.Server.open(folder) as reopened_server:
            assert reopened_server.round == 1
    with fedmf.Server.open(folder) as reopened_server:
        collect(reopened_server, 0.2)
        reopened_server.release()
