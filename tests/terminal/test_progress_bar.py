"""What a bar writes, on pseudo-terminals of several sizes and in a file."""

import contextlib
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

fcntl = pytest.importorskip("fcntl")

PROGRAM = """
import time
from fedmf.terminal.progress_bar import bar
with bar(total=20, desc="rounds") as steps:
    for _ in range(20):
        time.sleep(0.03)
        steps.update()
"""


LONG = """
import time
from fedmf.terminal import progress_bar
with progress_bar.elapsed("reading", delay=0.05):
    time.sleep(2.3)
with progress_bar.bar(desc="fit", delay=0.05) as steps, progress_bar.refreshed(steps):
    time.sleep(2.3)
with progress_bar.elapsed("too short to be shown"):
    pass
"""


def drawn_lines(rows, columns, program=PROGRAM):
    """Returns the lines that the program writes to a terminal of this size."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    subprocess.run([sys.executable, "-c", program], stderr=terminal, check=True, timeout=60)
    os.close(terminal)
    text = b""
    with contextlib.suppress(OSError):  # The terminal is closed on the other side.
        while chunk := os.read(master, 65536):
            text += chunk
    os.close(master)
    return [line for line in text.decode().replace("\n", "\r").split("\r") if line]


@pytest.mark.parametrize(("columns", "width"), [(120, 119), (0, 100)])
def test_a_terminal_of_any_size_shows_rounds_speed_and_time_left(columns, width):
    lines = drawn_lines(24, columns)
    assert len(lines) > 3
    assert max(map(len, lines)) == width
    assert all(
        expected_text in lines[-2] for expected_text in ("rounds:", "/20 [", "it/s", "<00:")
    ), lines[-2]


def test_a_file_gets_a_line_every_ten_seconds():
    finished_process = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert len(finished_process.stderr.split("\r")) <= 3
    assert "20/20" in finished_process.stderr


def test_work_without_steps_shows_that_time_goes_on():
    lines = drawn_lines(24, 120, LONG)
    for name in ("reading", "fit"):
        times = {
            num_seconds
            for num_seconds in (1, 2)
            for line in lines
            if f"{name}" in line and f"00:0{num_seconds}" in line
        }
        assert times == {1, 2}, lines
    assert not any("too short" in line for line in lines)
    assert not lines[-1].strip()
