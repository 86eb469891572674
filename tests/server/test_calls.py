"""Calls of a server from threads, signal handlers and forked processes, and seeds that repeat."""

import os
import signal
import threading
import warnings

import numpy as np
import pytest

import fedmf
from fedmf.server import calls, noise_blocks
from fedmf.server.folder import ServerFolder
from fedmf.server.journal import Journal
from fedmf.server.rows import HostNoise
from tests.refusals import assert_refused, refusal
from tests.server.plans import server, update


@pytest.fixture
def in_a_call(monkeypatch):
    """A function that runs another one in a signal handler within each call of a method."""
    before = signal.getsignal(signal.SIGUSR1)

    def install(owner, name, work):
        method = getattr(owner, name)

        def interrupted(*args, **options):
            os.kill(os.getpid(), signal.SIGUSR1)
            return method(*args, **options)

        signal.signal(signal.SIGUSR1, lambda *_: work())
        monkeypatch.setattr(owner, name, interrupted)

    yield install
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("owner", "name"), [(HostNoise, "row"), (ServerFolder, "commit"), (Journal, "commit")]
)
def test_close_in_a_handler_closes_when_the_call_ends(tmp_path, in_a_call, owner, name):
    keeper, refused = server(tmp_path / "server"), []

    def close():
        keeper.close()
        with refusal("in use by another server") as caught:  # the call is not over
            fedmf.Server.open(tmp_path / "server")
        refused.append(caught)

    in_a_call(owner, name, close)
    keeper.add(update(), client=1)
    release = keeper.release()
    assert refused
    assert_refused(keeper.release, ValueError, "this server is closed")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with fedmf.Server.open(tmp_path / "server") as again:
        assert again.round == 1
        for before, after in zip(release, again.last_release, strict=True):
            np.testing.assert_array_equal(before, after)


def test_a_handler_may_use_another_server_and_is_refused_the_same_noise(monkeypatch):
    """A lock that the thread holds already would be waited for for ever."""
    expected = server().release()
    keeper, other, refused = server(), server(noise_seed=6), []
    blas_libraries = noise_blocks._blas_libraries

    def interrupted():  # within the lock of all noise
        if not refused:
            with refusal("the noise of another round is being made") as caught:
                keeper._noise.row(3)
            refused.append(caught)
            other.release()
        return blas_libraries()

    monkeypatch.setattr(noise_blocks, "_blas_libraries", interrupted)
    for array, same in zip(keeper.release(), expected, strict=True):
        np.testing.assert_array_equal(array, same)
    assert refused
    assert other.round == 1


def test_an_error_within_a_call_closes_what_a_handler_closed(tmp_path, in_a_call):
    keeper = server(tmp_path / "server")

    def stop():
        keeper.close()
        raise SystemExit

    in_a_call(HostNoise, "row", stop)
    with pytest.raises(SystemExit):
        keeper.release()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    fedmf.Server.open(tmp_path / "server").release()


def test_a_handler_before_or_after_the_work_of_a_call_may_call(monkeypatch):
    """Between taking the lock and beginning, and between ending and giving it free."""
    keeper, clients = server(), iter(range(100, 200))

    class Lock:
        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            self.lock.__enter__()
            if not self.lock_is_nested:
                self.lock_is_nested = True
                keeper.cohort(available=[next(clients)])
                self.lock_is_nested = False

        def __exit__(self, *error):
            self.lock.__exit__(*error)

        lock_is_nested = False

    keeper._lock = Lock(keeper._lock)
    keeper.add(update(), client=1)
    keeper.release()
    assert next(clients) == 102


def test_a_refused_call_leaves_no_mark(monkeypatch):
    """A thread that was refused once waits like any other: none of its clients is lost."""
    keeper = server(clients_per_round=10)
    keeper.add(update(), client="ann")
    with refusal("is in round 0 already"):
        keeper.add(update(), client="ann")
    inside, go_on, state = threading.Event(), threading.Event(), keeper._state

    class Round(int):
        def __int__(self):
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                assert go_on.wait(30)
            return 0

    keeper._state = state._replace(next_round=Round())
    other = threading.Thread(target=lambda: keeper.add(update(), client="bo"))
    other.start()
    assert inside.wait(30)
    threading.Timer(0.1, go_on.set).start()
    keeper.add(update(), client="cy")
    other.join()
    assert keeper.counts["clients"] == 3


class TestForks:
    def test_a_child_may_make_a_server_of_its_own_while_noise_is_made(self, tmp_path):
        """A lock that a thread holds at the fork would be held for ever."""
        with noise_blocks._ONE_LIMIT:
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                try:
                    server(noise_seed="os").release()
                    os._exit(0)
                finally:
                    os._exit(1)
        assert os.waitpid(child, 0)[1] == 0

    def test_a_child_of_a_call_releases_nothing(self, tmp_path, in_a_call):
        keeper, children = server(tmp_path / "server"), []

        def fork():
            child = os.fork()
            if child:
                children.append(child)

        in_a_call(HostNoise, "row", fork)
        try:
            keeper.release()
        except ValueError as error:
            os._exit(0 if not children and "was moved, replaced, closed" in str(error) else 1)
        if not children:
            os._exit(2)
        assert os.waitpid(children[0], 0)[1] == 0
        assert keeper.round == 1


class TestSeedsThatRepeat:
    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch):
        monkeypatch.setattr(calls, "_PLACE_BY_SEED", {})

    def test_warn_once_and_name_both_places(self, tmp_path):
        first, second = tmp_path / "first", tmp_path / "second"
        server(first)
        with pytest.warns(UserWarning, match="have one noise seed") as caught:
            server(second)
        [warning] = caught
        assert f"{str(first)!r}" in str(warning.message)
        assert f"{str(second)!r}" in str(warning.message)
        assert warning.filename == __file__.replace("test_calls", "plans")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            server()

    def test_in_memory_and_after_open(self, tmp_path):
        server(tmp_path / "server").close()
        calls._PLACE_BY_SEED.clear()
        fedmf.Server.open(tmp_path / "server")
        with pytest.warns(UserWarning, match=r"first in '.*server', the second in memory"):
            server()

    def test_not_of_other_seeds_or_a_server_that_is_opened_again(self, tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for seed in (1, 2, "os", "os"):
                server(noise_seed=seed)
            server(tmp_path / "server", noise_seed=3).close()
            fedmf.Server.open(tmp_path / "server").close()

    def test_not_of_a_server_that_could_not_be_made(self):
        with refusal("clients_per_round=0"):
            server(clients_per_round=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            server()
