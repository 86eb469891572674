"""Ctrl-C where Python cannot raise it."""

import contextlib
import gc
import os
import pty
import signal
import subprocess
import sys
import threading
import time

import pytest

from fedmf.terminal.interrupts import like_ctrl_c, never_lost, not_swallowed


class InADestructor:
    def __del__(self):
        raise KeyboardInterrupt


def in_a_callback_of_the_collector():
    def callback(phase, info):
        gc.callbacks.remove(callback)
        raise KeyboardInterrupt

    gc.callbacks.append(callback)
    gc.collect()


def in_a_destructor():
    del InADestructor().__dict__


@pytest.mark.parametrize("press", [in_a_callback_of_the_collector, in_a_destructor])
def test_it_comes_again(press, capfd):
    @never_lost()
    def work():
        press()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert "ignored" not in capfd.readouterr().err


class PressesInADestructor:
    number = signal.SIGINT

    def __del__(self):
        signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_does_not_come_again_once_it_is_answered(number):
    """Lost in a destructor, and raised at the end of the block: a second one would end what saves the run."""
    PressesInADestructor.number = number
    with like_ctrl_c(), never_lost():
        with pytest.raises(KeyboardInterrupt), not_swallowed():
            del PressesInADestructor().__dict__
        time.sleep(0.3)


def test_other_errors_are_reported_as_before_and_the_hook_is_put_back(monkeypatch):
    class Fails:
        def __del__(self):
            raise ValueError("as before")

    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(str(unraisable.exc_value)))
    hook = sys.unraisablehook
    with never_lost():
        assert sys.unraisablehook is not hook
        Fails()
    assert reported == ["as before"]
    assert sys.unraisablehook is hook


def press_and_go_on():
    signal.raise_signal(signal.SIGINT)


def press_and_swallow():
    with contextlib.suppress(KeyboardInterrupt):
        press_and_go_on()


def press_and_fail():
    try:
        press_and_go_on()
    except KeyboardInterrupt:
        raise ImportError("initialization failed") from None


class TestAroundOtherPeoplesCode:
    @pytest.mark.parametrize("press", [press_and_go_on, press_and_swallow, press_and_fail])
    def test_it_is_a_ctrl_c_again(self, press):
        with pytest.raises(KeyboardInterrupt), not_swallowed():
            press()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_it_is_raised_at_once_where_nobody_catches_it_and_else_at_the_end(self):
        reached = []

        @not_swallowed()
        def work(press):
            press()
            reached.append(press)

        for press in (press_and_go_on, press_and_swallow):
            with pytest.raises(KeyboardInterrupt):
                work(press)
        assert reached == [press_and_swallow]

    def test_errors_without_one_are_what_they_are(self):
        with pytest.raises(ImportError, match="missing"), not_swallowed():
            raise ImportError("missing")

    def test_somebody_elses_handler_and_other_threads_are_left_alone(self):
        def elses(number, frame):
            raise AssertionError("not pressed")

        signal.signal(signal.SIGINT, elses)
        try:
            with not_swallowed():
                assert signal.getsignal(signal.SIGINT) is elses
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        done = []

        def work():
            with not_swallowed():
                done.append("worked")

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert done == ["worked"]


ENDED = """
import signal, sys, time
from fedmf.terminal.interrupts import like_ctrl_c, never_lost, not_swallowed

class InADestructor:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

with like_ctrl_c() as came:
    try:
        with never_lost(), not_swallowed():
            PRESS
            time.sleep(20)
            print("not ended")
    except KeyboardInterrupt:
        print("caught", flush=True)
        signal.raise_signal(signal.SIGHUP)  # a second one does not end what the first has begun
        print("saved")
        status = 128 + came()
sys.exit(status)
"""
PRESSES = {
    "at once": "signal.raise_signal(signal.SIGTERM)",
    "with Ctrl-C ignored": "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.raise_signal(signal.SIGTERM)",
    "lost": "del InADestructor().__dict__",
    "lost with Ctrl-C ignored": "signal.signal(signal.SIGINT, signal.SIG_IGN); del InADestructor().__dict__",
}


class TestOtherSignals:
    @pytest.mark.parametrize("press", PRESSES)
    def test_sigterm_is_a_ctrl_c_with_a_status_of_its_own(self, press):
        program = ENDED.replace("PRESS", PRESSES[press])
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout.split(), done.stderr) == (143, ["caught", "saved"], "")

    @pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
    def test_what_somebody_swallows_is_raised_at_the_end(self, handler):
        before = signal.signal(signal.SIGINT, handler)
        try:
            with like_ctrl_c() as came:
                mine = signal.getsignal(signal.SIGTERM)
                with pytest.raises(KeyboardInterrupt), not_swallowed(), contextlib.suppress(KeyboardInterrupt):
                    signal.raise_signal(signal.SIGTERM)
                assert came() == signal.SIGTERM
            assert signal.getsignal(signal.SIGTERM) is mine  # a second one is ignored while the process exits
        finally:
            signal.signal(signal.SIGINT, before)
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)

    def test_without_one_all_is_as_before(self):
        with like_ctrl_c() as came:
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
            assert came() == signal.SIGINT
        assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGHUP) is signal.SIG_DFL

    def test_nohup_is_left_alone(self):
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with like_ctrl_c():
                signal.raise_signal(signal.SIGHUP)
                assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_a_terminal_that_is_gone_fails_nothing(self, tmp_path):
        program = f"""
import fcntl, os, sys, termios, time
from fedmf.terminal.interrupts import like_ctrl_c
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
with like_ctrl_c() as came:
    try:
        os.mkdir({str(tmp_path / "ready")!r})
        time.sleep(60)
    except KeyboardInterrupt:
        print("stopping", file=sys.stderr, flush=True)
        os.mkdir({str(tmp_path / "saved")!r})
        os._exit(128 + came())
"""
        master, slave = pty.openpty()
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
        with subprocess.Popen([sys.executable, "-c", program], start_new_session=True, **ends) as process:
            os.close(slave)
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and not (tmp_path / "ready").exists():
                time.sleep(0.02)
            os.close(master)
            assert process.wait(timeout=30) == 129
        assert (tmp_path / "saved").exists()
