"""Ctrl-C where Python cannot raise it."""

import contextlib
import gc
import signal
import sys
import threading
import time

import pytest

from fedmf.ctrl_c import never_lost, not_swallowed


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
