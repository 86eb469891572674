"""The command line as users and scripts run it."""

import contextlib
import io
import subprocess

from fedmf.cli import main

SMALL = (
    "--rounds 4 --cohort-size 4 --min-sep 2 -o vocabulary-size=60 -o embedding-size=8 -o "
    "lstm-size=8 -o max-sentences=8 -o validation-sentences=50 -o test-sentences=50 "
    "--checkpoint-every 2 --evaluate-every 2 --quiet"
).split()
SECRET = "98765432109876543210"
TRAIN = [*SMALL, "--epsilon", "8", "--noise-seed", SECRET]


def fedmf(*arguments, status=0):
    """Runs a command and returns what it printed."""
    words = [str(argument) for argument in arguments]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as stop:
            code = int(stop.code or 0)
    done = subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
    assert done.returncode == status, (arguments, done.stdout, done.stderr)
    return done


def refused(*arguments, status=2, words=()):
    """Runs a command that fails with one sentence on standard error, and returns it."""
    error = fedmf(*arguments, status=status).stderr
    (line,) = error.strip().splitlines()
    assert line.startswith("fedmf: error: ")
    for word in words:
        assert word in line, (word, line)
    return line
