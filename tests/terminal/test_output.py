"""Output without a reader, as under `| head`, and output for which the disk has no room."""

import os
import subprocess
import sys

import pytest


def finished_command(call, output):
    """Runs a command whose output goes to a descriptor, and returns its status and its errors."""
    command = [sys.executable, "-m", "fedmf", *call.split()]
    return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, timeout=60, check=False)


@pytest.mark.parametrize("call", ["--help", "completion bash"])  # Click writes one, a command one
def test_a_command_without_a_reader_ends_without_a_message(call):
    reading, writing = os.pipe()
    os.close(reading)
    finished_process = finished_command(call, writing)
    os.close(writing)
    assert (finished_process.returncode, finished_process.stderr) == (141, b"")


def test_an_output_without_room_fails_in_one_sentence():
    with open("/dev/full", "wb") as full:
        finished_process = finished_command("completion bash", full)
    assert finished_process.returncode == 1
    assert finished_process.stderr.count(b"\n") == 1
    assert b"No space left" in finished_process.stderr
