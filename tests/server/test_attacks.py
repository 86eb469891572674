"""Attacks on a server by the operator's program, a hostile client or the system. Each is refused,
or changes nothing.
"""

import enum
import fractions
import os
import signal
import threading
import warnings

import numpy as np
import pytest

import fedmf
from fedmf import files
from fedmf.cohorts.draws import PoolRanDryWarning
from fedmf.server.clipping import UpdateSum
from fedmf.server.host_noise import HostNoise
from tests.mechanisms.registry import MECHANISMS
from tests.refusals import assert_refused, refusal
from tests.server.plans import make_server, plan_of, update

GONE = "was moved, replaced, closed or resumed elsewhere: nothing was released"


class TestTheFolder:
    def test_folder_stays_when_the_working_folder_changes(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        server = make_server("server")
        monkeypatch.chdir("/")
        server.release()
        server.close()
        assert fedmf.Server.open(tmp_path / "server").round == 1

    def test_moved_or_replaced_folder_releases_nothing(self, tmp_path):
        server = make_server(tmp_path / "server")
        (tmp_path / "server").rename(tmp_path / "moved")
        with refusal(GONE):
            server.release()
        make_server(tmp_path / "server").close()
        with refusal(GONE):
            server.release()

    def test_folder_put_back_from_a_backup_releases_nothing(self, tmp_path):
        server = make_server(tmp_path / "server")
        journal = tmp_path / "server" / "private" / "journal"
        backup_content = (journal / "000000.npz").read_bytes()
        server.release()
        (journal / "000001.npz").unlink()
        (journal / "000000.npz").write_bytes(backup_content)
        with refusal(GONE):
            server.release()

    def test_file_systems_without_locks_are_refused(self, tmp_path, monkeypatch):
        import fcntl

        def none(*args):
            raise OSError(37, "No locks available")

        monkeypatch.setattr(fcntl, "flock", none)
        assert_refused(
            lambda: make_server(tmp_path / "server"), ValueError, "a file system without locks"
        )
        unlocked = files.lock(tmp_path)  # Runs accept this folder.
        assert unlocked
        unlocked.release()

    def test_folder_with_files_of_other_programs_is_refused(self, tmp_path):
        (tmp_path / "mechanism.npz").write_bytes(b"mine")
        assert_refused(lambda: make_server(tmp_path), ValueError, "has a mechanism.npz and no")
        assert (tmp_path / "mechanism.npz").read_bytes() == b"mine"
        assert_refused(lambda: make_server(""), TypeError, "is no path: name the folder")
        assert_refused(lambda: make_server("\0"), ValueError, "cannot write to folder")

    def test_release_is_on_disk_before_it_is_returned(self, tmp_path, monkeypatch):
        """Names are synced as well: of the folder and those above it, and of private."""
        synced = []
        fsync = os.fsync

        def told(descriptor):
            synced.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", told)
        folder = tmp_path / "above" / "server"
        server = make_server(folder)
        expected = {str(folder), str(folder / "private"), str(folder.parent), str(tmp_path)}
        assert expected <= set(synced)
        server.close()
        synced.clear()
        fedmf.Server.open(folder)
        assert synced == [str(folder / "private" / "journal")]

    def test_errors_do_not_show_the_seed(self, tmp_path):
        make_server(tmp_path / "server", noise_seed=123_454_321).close()
        path = tmp_path / "server" / "private" / "noise_seed"
        for text in ("123454321x\n", "123454321"):
            path.write_text(text)
            with refusal("noise_seed is damaged or not of this server") as caught:
                fedmf.Server.open(tmp_path / "server")
            assert "123454321" not in str(caught.value)
            assert caught.value.__cause__ is None
            assert caught.value.__suppress_context__


class TestCallsWithinCalls:
    def test_calls_of_other_threads_wait_and_a_closed_server_releases_nothing(
        self, tmp_path, monkeypatch
    ):
        server = make_server(tmp_path / "server")
        has_begun = threading.Event()
        go_on = threading.Event()
        row = HostNoise.row
        order = []

        def slow(self, t):
            has_begun.set()
            assert go_on.wait(30)
            return row(self, t)

        monkeypatch.setattr(HostNoise, "row", slow)
        release = threading.Thread(target=lambda: order.append(server.release()))
        close = threading.Thread(target=lambda: order.append(server.close()))
        release.start()
        assert has_begun.wait(30)
        close.start()
        assert_refused(
            lambda: fedmf.Server.open(tmp_path / "server"), ValueError, "in use by another"
        )
        go_on.set()
        release.join()
        close.join()
        assert order[1] is None  # The server is closed after the release.
        assert fedmf.Server.open(tmp_path / "server").round == 1

    def test_calls_of_a_signal_handler_are_refused(self, monkeypatch):
        server = make_server()
        error_texts = []
        row = HostNoise.row

        def handler(*_):
            try:
                server.release()
            except ValueError as error:
                error_texts.append(str(error))

        def interrupted(self, t):
            os.kill(os.getpid(), signal.SIGUSR1)
            return row(self, t)

        monkeypatch.setattr(HostNoise, "row", interrupted)
        past_handler = signal.signal(signal.SIGUSR1, handler)
        try:
            server.release()
        finally:
            signal.signal(signal.SIGUSR1, past_handler)
        assert server.round == 1
        assert "is at work" in error_texts[0]

    def test_a_warning_that_is_an_error_does_not_stop_a_release(self):
        twice = fedmf.Participation(rounds=12, schema="min_sep", min_sep=3, max_participations=2)
        plan = plan_of(MECHANISMS["banded"](12), participation=twice)
        server, warned_server = (make_server(plan=plan, population=18) for _ in range(2))
        for _ in range(11):
            server.release()
            warned_server.release()
        with pytest.warns(PoolRanDryWarning):  # of the last round
            warned_server.cohort()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            server.release()
        assert server.round == 12


class TestClients:
    def test_clients_of_a_sum_are_counted_in_any_iterable(self):
        server = make_server()
        for bad_clients, words in (
            ("ab", "`clients` is a str"),
            ([7, "x"], "`clients` has ints and texts"),
            ([7, 7], "`clients` has a client twice"),
        ):
            with refusal(words, (TypeError, ValueError)):
                server.add_sum(update(), clients=bad_clients)
        server.add(update(), client=5)
        server.add_sum(update(), clients=iter([7, 8]))
        server.release()
        assert server.clients == [5, 7, 8]  # The sum has no part of the refused lists.
        with refusal("client=7 took part in round 0"):
            server.add(update(), client=7)

    def test_client_ids_are_read_by_content_and_not_by_their_methods(self, tmp_path):
        class Number(int):
            def __index__(self):
                return 99

        people = enum.Enum("People", {"ann": "ann"}, type=str)  # whose str is People.ann
        for client_id, equal_id in ((people.ann, "ann"), (Number(7), 7), (np.int64(7), 7)):
            folder = tmp_path / type(client_id).__name__
            server = make_server(folder)
            server.add(update(), client=client_id)
            with refusal("is in round 0 already"):
                server.add(update(), client=equal_id)
            server.release()
            server.close()
            with fedmf.Server.open(folder) as server:
                assert type(server.clients[0]) is type(equal_id)
                with refusal("took part in round 0"):
                    server.add(update(), client=client_id)

    def test_ids_that_look_alike_count_as_one_client(self, tmp_path):
        server = make_server(tmp_path / "server")
        server.add(update(), client="A")
        for alike in ("\u0410", "\u0391", "\uff21"):
            with refusal("is in round 0 already"):
                server.add(update(), client=alike)
        server.release()
        with refusal("took part in round 0"):
            server.add(update(), client="\u0410")
        assert server.cohort(available=["\u0410", "b"]) == ["b"]
        assert server.clients == ["A"]

    def test_changes_to_a_ledger_copy_leave_the_server_unchanged(self):
        server = make_server()
        server.add(update(), client=1)
        server.release()
        server.ledger._rounds.clear()
        server.ledger.append(np.array([5]))
        assert (server.round, len(server.ledger)) == (1, 1)


class TestUpdates:
    def test_update_in_memory_that_changes_meanwhile_is_clipped(self):
        """Another thread writes the next message to the receive buffer."""
        total = UpdateSum(40_000, 1)
        leaf = np.full(40_000, 1e-6)

        class Buffer(np.ndarray):
            pass

        over = threading.Event()
        writer_ran = threading.Event()

        def write():
            while not over.is_set():
                leaf[:] = 1e9
                leaf[:] = 1e-6
                writer_ran.set()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            assert writer_ran.wait(30)
            for _ in range(300):
                total.clear()
                total.add([leaf.view(Buffer)], clip_norm=0.5, zeroing_norm=1e12)
                assert np.linalg.norm(total.total) <= 0.5
        finally:
            over.set()
            thread.join()

    def test_update_moves_the_sum_by_at_most_clip_norm_with_all_rounding(self):
        """The bound holds in exact arithmetic, with the client at any position of the round."""
        rng = np.random.default_rng(4)
        squared_bound = fractions.Fraction(0.1) ** 2
        worst_shift = fractions.Fraction(0)
        for trial in range(150):
            other_updates = [
                rng.standard_normal(3) * 10.0 ** rng.integers(-3, 4) for _ in range(19)
            ]
            client_position = rng.integers(0, 20)
            client_update = rng.standard_normal(3) * 100
            totals = []
            for sent_update in (client_update, np.zeros(3)):
                total = UpdateSum(3, 20)
                for added_update in [
                    *other_updates[:client_position],
                    sent_update,
                    *other_updates[client_position:],
                ]:
                    total.add([added_update], clip_norm=0.1, zeroing_norm=np.inf)
                totals.append([fractions.Fraction(x) for x in total.total])
            squared_shift = sum(
                (total_with - total_without) ** 2
                for total_with, total_without in zip(*totals, strict=True)
            )
            assert squared_shift <= squared_bound, trial
            worst_shift = max(worst_shift, squared_shift)
        assert worst_shift > squared_bound * fractions.Fraction(999_999, 1_000_000)
