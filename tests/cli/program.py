"""Functions that run the command line as users and scripts do, and check what it prints."""

import contextlib
import io
import json
import pathlib
import re
import shlex
import subprocess

from fedmf.cli import main

DOCS = pathlib.Path(__file__).parents[2] / "docs"
# Sentences of 4 words: TensorFlow traces every step of the LSTM, and 20 take most of the time.
SMALL_MODEL = (
    "-o vocabulary-size=60 -o embedding-size=8 -o lstm-size=8 -o sequence-length=4 "
    "-o max-sentences=8 -o validation-sentences=50 -o test-sentences=50"
)
SMALL = f"--rounds 4 --cohort-size 4 --min-sep 2 {SMALL_MODEL} --evaluate-every 2 --quiet"
# A run on a table of numbers, for tests that hold for every task.
TABLE = "--task regression --rounds 4 --cohort-size 4 --min-sep 2 --evaluate-every 2 --quiet"
SECRET = "98765432109876543210"
SEED = f"--noise-seed {SECRET}"
TRAIN = f"{SMALL} --epsilon 8 {SEED}"


def fedmf(*arguments, status=0):
    """Runs a command and returns what it printed; a text may have several words, as in a shell."""
    words = []
    for argument in arguments:
        words += shlex.split(argument) if isinstance(argument, str) else [str(argument)]
    words = words[words[:1] == ["fedmf"] :]
    stdout = io.StringIO()
    stderr = io.StringIO()
    code = 0
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
    finished_process = subprocess.CompletedProcess(
        words, code, stdout.getvalue(), stderr.getvalue()
    )
    assert finished_process.returncode == status, (
        arguments,
        finished_process.stdout,
        finished_process.stderr,
    )
    return finished_process


def printed_by(*arguments, status=0):
    """Runs a command with --json and returns what it printed."""
    return json.loads(fedmf(*arguments, "--json", status=status).stdout)


def refused(line, *words, status=2):
    """Runs a command that fails with one sentence on standard error, and returns it."""
    (error,) = fedmf(line, status=status).stderr.strip().splitlines()
    assert error.startswith("fedmf: error: ")
    for word in words:
        assert word in error, (word, error)
    return error


def commands_in(text):
    """Returns the commands of a code block, one per line, and checks that all are fedmf's."""
    lines = text.replace("\\\n", " ").splitlines()
    assert all(line.startswith("fedmf ") for line in lines), lines
    return lines


def commands_of(page, section=""):
    """Returns the commands that docs/PAGE, or a section of it, prints."""
    text = (DOCS / page).read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    assert blocks
    return [line for block in blocks for line in commands_in(block)]
