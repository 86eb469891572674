"""Ctrl-C as a flag, and the signals that end a process."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time

import pytest

from fedmf.terminal import interrupts


def test_the_first_interrupt_is_raised_by_check_and_the_second_at_once():
    with interrupts.deferred():
        interrupts.check()
        signal.raise_signal(signal.SIGINT)  # The work continues.
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with interrupts.deferred():
        interrupts.check()  # The interrupt of an earlier block is over.


def test_a_suppressed_interrupt_is_raised_by_the_next_check():
    with interrupts.handled(signal.SIGINT):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()


def test_handlers_of_other_code_and_other_threads_are_unchanged():
    other_handler = lambda number, frame: None  # noqa: E731
    signal.signal(signal.SIGINT, other_handler)
    try:
        with interrupts.deferred():
            assert signal.getsignal(signal.SIGINT) is other_handler
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    finished_work = []

    def work():
        with interrupts.deferred():
            finished_work.append("worked")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert finished_work == ["worked"]


PROGRAM = """
import fcntl, os, signal, sys, termios, time
from fedmf.terminal import interrupts

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where pytest runs under nohup

with interrupts.handled(*interrupts.ENDING_SIGNALS):
    try:
        {work}
        time.sleep(60)
        print("not ended")
    except KeyboardInterrupt:
        print("caught", file=sys.stderr, flush=True)
        signal.raise_signal(signal.SIGHUP)  # a second one does not end what the first has begun
        os.mkdir(sys.argv[1])
        os._exit(128 + interrupts.first_received())
"""
WORK = [
    "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.raise_signal(signal.SIGTERM)",
    "exec('with interrupts.deferred():\\n "
    "signal.raise_signal(signal.SIGTERM)\\n interrupts.check()')",
]


@pytest.mark.parametrize("work", WORK, ids=["with Ctrl-C ignored", "deferred"])
def test_sigterm_is_a_ctrl_c_with_a_status_of_its_own(work, tmp_path):
    command = [sys.executable, "-c", PROGRAM.format(work=work), str(tmp_path / "saved")]
    finished_process = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )
    assert (
        finished_process.returncode,
        finished_process.stdout,
        finished_process.stderr.split(),
    ) == (143, "", ["caught"])
    assert (tmp_path / "saved").exists()


def test_nohup_continues_to_ignore_hangups():
    # Ray may have replaced the handler of SIGTERM in earlier tests of this process.
    handlers = {signal.SIGHUP: signal.SIG_IGN, signal.SIGTERM: signal.SIG_DFL}
    old_handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        with interrupts.handled(*interrupts.ENDING_SIGNALS):
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


def test_a_closed_terminal_does_not_stop_the_work_of_saving(tmp_path):
    work = f"fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.mkdir({str(tmp_path / 'ready')!r})"
    master, slave = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
    command = [sys.executable, "-c", PROGRAM.format(work=work), str(tmp_path / "saved")]
    with subprocess.Popen(command, start_new_session=True, **streams) as process:
        os.close(slave)
        while not (tmp_path / "ready").exists():
            time.sleep(0.02)
        os.close(master)
        assert process.wait(timeout=30) == 129
    assert (tmp_path / "saved").exists()
