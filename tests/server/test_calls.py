"""Calls of a server from threads, signal handlers and forked processes, and repeated seeds."""

import os
import signal
import threading
import warnings

import numpy as np
import pytest

import fedmf
from fedmf.server import calls, product_threads
from fedmf.server.folder import ServerFolder
from fedmf.server.host_noise import HostNoise
from fedmf.server.journal import Journal
from tests.refusals import assert_refused, refusal
from tests.server.plans import make_server, update


@pytest.fixture
def run_in_calls(monkeypatch):
    """Returns a function that runs another one in a signal handler within each call of a method."""
    past_handler = signal.getsignal(signal.SIGUSR1)

    def install(owner, name, work):
        method = getattr(owner, name)

        def interrupted(*args, **options):
            os.kill(os.getpid(), signal.SIGUSR1)
            return method(*args, **options)

        signal.signal(signal.SIGUSR1, lambda *_: work())
        monkeypatch.setattr(owner, name, interrupted)

    yield install
    signal.signal(signal.SIGUSR1, past_handler)


@pytest.mark.parametrize(
    ("owner", "name"), [(HostNoise, "row"), (ServerFolder, "commit"), (Journal, "commit")]
)
def test_close_in_a_signal_handler_takes_effect_after_the_call(tmp_path, run_in_calls, owner, name):
    server = make_server(tmp_path / "server")
    refusals = []

    def close():
        server.close()
        with refusal("in use by another server") as caught:  # The call has not returned yet.
            fedmf.Server.open(tmp_path / "server")
        refusals.append(caught)

    run_in_calls(owner, name, close)
    server.add(update(), client=1)
    release = server.release()
    assert refusals
    assert_refused(server.release, ValueError, "this server is closed")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with fedmf.Server.open(tmp_path / "server") as reopened_server:
        assert reopened_server.round == 1
        for released_array, reopened_array in zip(
            release, reopened_server.last_release, strict=True
        ):
            np.testing.assert_array_equal(released_array, reopened_array)


def test_signal_handler_may_use_another_server_but_not_the_same_noise(monkeypatch):
    """The thread would wait for ever for a lock that it holds already."""
    expected = make_server().release()
    server = make_server()
    second_server = make_server(noise_seed=6)
    refusals = []
    blas_libraries = product_threads.blas_libraries

    def interrupted():  # This call holds the lock of all noise.
        if not refusals:
            with refusal("the noise of another round is being made") as caught:
                server._noise.row(3)
            refusals.append(caught)
            second_server.release()
        return blas_libraries()

    monkeypatch.setattr(product_threads, "blas_libraries", interrupted)
    for array, expected_array in zip(server.release(), expected, strict=True):
        np.testing.assert_array_equal(array, expected_array)
    assert refusals
    assert second_server.round == 1


def test_close_in_a_signal_handler_takes_effect_after_an_error(tmp_path, run_in_calls):
    server = make_server(tmp_path / "server")

    def stop():
        server.close()
        raise SystemExit

    run_in_calls(HostNoise, "row", stop)
    with pytest.raises(SystemExit):
        server.release()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    fedmf.Server.open(tmp_path / "server").release()


def test_signal_handler_may_call_before_and_after_the_work_of_a_call(monkeypatch):
    """The handler runs between the lock and the work, and after the work before the release."""
    server = make_server()
    clients = iter(range(100, 200))

    class Lock:
        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            self.lock.__enter__()
            if not self.lock_is_nested:
                self.lock_is_nested = True
                server.cohort(available=[next(clients)])
                self.lock_is_nested = False

        def __exit__(self, *error):
            self.lock.__exit__(*error)

        lock_is_nested = False

    server._lock = Lock(server._lock)
    server.add(update(), client=1)
    server.release()
    assert next(clients) == 102


def test_refused_call_does_not_affect_later_calls(monkeypatch):
    """A thread with a refused call waits like any other thread: none of its clients is lost."""
    server = make_server(clients_per_round=10)
    server.add(update(), client="ann")
    with refusal("is in round 0 already"):
        server.add(update(), client="ann")
    is_inside = threading.Event()
    go_on = threading.Event()
    state = server._state

    class Round(int):
        def __int__(self):
            if threading.current_thread() is not threading.main_thread():
                is_inside.set()
                assert go_on.wait(30)
            return 0

    server._state = state._replace(next_round=Round())
    second_thread = threading.Thread(target=lambda: server.add(update(), client="bo"))
    second_thread.start()
    assert is_inside.wait(30)
    threading.Timer(0.1, go_on.set).start()
    server.add(update(), client="cy")
    second_thread.join()
    assert server.counts["clients"] == 3


class TestForks:
    def test_forked_child_may_make_a_server_while_noise_is_computed(self, tmp_path):
        """The child would wait for ever for a lock that another thread held at the fork."""
        with product_threads._ONE_LIMIT:
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                try:
                    make_server(noise_seed="os").release()
                    os._exit(0)
                finally:
                    os._exit(1)
        assert os.waitpid(child, 0)[1] == 0

    def test_child_forked_within_a_call_releases_nothing(self, tmp_path, run_in_calls):
        server = make_server(tmp_path / "server")
        children = []

        def fork():
            child = os.fork()
            if child:
                children.append(child)

        run_in_calls(HostNoise, "row", fork)
        try:
            server.release()
        except ValueError as error:
            is_refused = not children and "was moved, replaced, closed" in str(error)
            os._exit(int(not is_refused))
        if not children:
            os._exit(2)
        assert os.waitpid(children[0], 0)[1] == 0
        assert server.round == 1


class TestSeedsThatRepeat:
    @pytest.fixture(autouse=True)
    def no_past_seeds(self, monkeypatch):
        monkeypatch.setattr(calls, "_PLACE_BY_SEED", {})

    def test_repeated_seed_warns_once_and_names_both_folders(self, tmp_path):
        first_folder = tmp_path / "first"
        second_folder = tmp_path / "second"
        make_server(first_folder)
        with pytest.warns(UserWarning, match="have one noise seed") as caught_warnings:
            make_server(second_folder)
        [warning] = caught_warnings
        assert f"{str(first_folder)!r}" in str(warning.message)
        assert f"{str(second_folder)!r}" in str(warning.message)
        assert warning.filename == __file__.replace("test_calls", "plans")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make_server()

    def test_repeated_seed_warns_in_memory_and_after_open(self, tmp_path):
        make_server(tmp_path / "server").close()
        calls._PLACE_BY_SEED.clear()
        fedmf.Server.open(tmp_path / "server")
        with pytest.warns(UserWarning, match=r"first in '.*server', the second in memory"):
            make_server()

    def test_other_seeds_and_reopened_servers_do_not_warn(self, tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for seed in (1, 2, "os", "os"):
                make_server(noise_seed=seed)
            make_server(tmp_path / "server", noise_seed=3).close()
            fedmf.Server.open(tmp_path / "server").close()

    def test_seed_of_a_server_that_could_not_be_made_does_not_warn(self):
        with refusal("clients_per_round=0"):
            make_server(clients_per_round=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make_server()
