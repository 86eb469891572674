"""Every example of every help text with each option left out and with values that make no sense:
one sentence, no traceback, nothing accepted that no run could mean.

The work behind the checks of a command line is left out; what the library refuses is tested there.
"""

import contextlib
import inspect
import io
import os
import random
import re
import shlex
import shutil
import sys
import types

import click
import numpy as np
import pytest

import fedmf
from fedmf.cli import cli, main
from tests.cli.program import fedmf as program
from tests.cli.test_errors import commands, python_names

VALUES = ("0", "-1", "nan", "1e309", "abc", "", "0.5", "12345678901234567890")
# In place of the numbers of the examples, so that what is accepted takes no time.
SMALL = {
    "--rounds": "16",
    "--min-sep": "4",
    "--population": "160",
    "--cohort-size": "10",
    "--clients": "12",
    "--examples": "60",
    "--bands": "2,4",
    "--parameters": "1000",
    "--partitions": "2",
}
# Whole numbers for which 0 is a value.
ZERO_IS_A_COUNT = {"smoothed_over", "first_round", "trials", "timer_jitter", "canaries"}
# Rates, shares and strengths for which 0 is a value.
ZERO_IS_A_NUMBER = {
    *("warmup", "cooldown", "dropout", "noncompliant_fraction", "noise_multiplier"),
    *("workload_momentum", "client_momentum", "server_momentum", "proximal_strength"),
    *("private_metrics", "test_users", "heldout_users"),
}
# What is checked behind the work that is left out here.
CHECKED_LATER = {"confidence", "false_positive_rate", "sentences_per_client", "tolerance"}


class Reached(click.ClickException):
    """The command line has been accepted."""


def reach(*arguments, **options):
    raise Reached("the work begins")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with the files that the examples name."""
    folder = tmp_path_factory.mktemp("inputs")
    participation = fedmf.Participation(rounds=16, schema="min_sep", min_sep=4)
    mechanism = fedmf.fit(fedmf.prefix_sum(16), participation, family="toeplitz")
    for name in ("banded.npz", "toeplitz.npz"):
        mechanism.save(folder / name)
    np.save(folder / "theirs.npy", np.eye(16))
    (folder / "log.csv").write_text("client,round\na,0\nb,1\na,8\n")
    (folder / "posts.csv").write_text("author,body\nann,One sentence.\n")
    (folder / "docs").mkdir()
    shutil.copy(folder / "log.csv", folder / "log.parquet")
    for name in ("first", "second", "python", "audited"):
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "config.json").write_text("{}")
    program(
        "data synth --clients 4 --sentences-per-client 4 --quiet --out", folder / "corpus.sqlite"
    )
    for name in ("mine", "other", "stackoverflow", "emnist"):
        shutil.copy(folder / "corpus.sqlite", folder / f"{name}.sqlite")
    return folder


@pytest.fixture
def at_the_work(inputs, monkeypatch):
    """Commands end where their work begins."""
    from fedmf import tasks
    from fedmf.audits import aggregator, guarantee
    from fedmf.experiments import demo
    from fedmf.experiments.papers import results, study
    from fedmf.runs.folder import Run
    from fedmf.server import audit
    from fedmf.sweeps import run, search
    from fedmf.tasks import describe, stackoverflow

    monkeypatch.chdir(inputs)
    for module, name in (
        *((tasks, "task_from_config"), (Run, "load"), (stackoverflow, "import_text")),
        *(
            (demo, "run_demo"),
            (results, "run"),
            (results, "report"),
            (study, "dry_run"),
            (study, "check_data"),
        ),
        *((run, "run_sweep"), (search, "run_search"), (audit, "audit_mechanism")),
        *((aggregator, "audit_aggregator"), (guarantee, "audit_log"), (describe, "describe_file")),
        *(
            (stackoverflow, "write_synthetic_corpus"),
            (sys.modules["fedmf.cli.evaluate"], "_trained"),
        ),
    ):
        monkeypatch.setattr(module, name, reach)
    names = ("Callback", "TensorBoard", "StopAfter", "StopOnDivergence", "EarlyStopping")
    training = types.SimpleNamespace(**dict.fromkeys(names, object), DivergedRun=RuntimeError)
    monkeypatch.setattr(fedmf, "federated", training, raising=False)  # without TensorFlow


def examples():
    """The words of each example, without `fedmf`, by the command that has it in its help."""
    for command in commands():
        text = inspect.cleandoc(command.help).replace("\\\n", "")
        for line in re.findall(r"^  fedmf (.*)$", text.partition("\b\nExample:\n")[2], re.M):
            words = shlex.split(line.partition(">")[0], comments=True)
            if "..." not in words:
                yield words


def command_of(words):
    """The command of these words, and how many of them name it."""
    command = cli
    for number, word in enumerate(words):
        if not isinstance(command, click.Group):
            return command, number
        if word not in command.commands:  # `fedmf audit FOLDER`
            return command.commands["run"], number
        command = command.commands[word]
    return command, len(words)


def options_of(command):
    """Flag -> option of a command."""
    options = [
        p for p in command.get_params(click.Context(command)) if p.param_type_name != "argument"
    ]
    return {flag: option for option in options for flag in option.opts}


def small(words):
    """An example with numbers that take no time."""
    pairs = zip(["", *words], words, strict=False)
    return [SMALL.get(before, "theirs.npy" if "/size=" in word else word) for before, word in pairs]


def parts_of(words, options):
    """The words, an option together with its value."""
    words, parts = iter(words), []
    for word in words:
        has_value = word in options and not options[word].is_flag
        parts.append([word, next(words)] if has_value else [word])
    return parts


def variants():
    """(option, its type, value, words): an option left out, or with a value; every option of a
    command is tried with its first example.
    """
    tried = set()
    for example in examples():
        command, named = command_of(example)
        options, words = options_of(command), small(example)
        parts = parts_of(words[named:], options)
        for place, part in enumerate(parts):
            left, right = (
                [w for p in side for w in p] for side in (parts[:place], parts[place + 1 :])
            )
            begin = [*words[:named], *left]
            yield None, None, None, [*begin, *right]
            if len(part) == 2:
                name = part[1].partition("=")[0] + "=" if part[0] in ("-o", "--vary") else ""
                for value in VALUES:
                    yield options[part[0]], part[0], value, [*begin, part[0], name + value, *right]
        if command in tried:
            continue
        tried.add(command)
        for flag, option in options.items():
            if not option.is_flag and [flag] not in [part[:1] for part in parts]:
                for value in VALUES:
                    yield option, flag, value, [*words, flag, value]


def must_be_refused(option, value):
    """Whether no option of this kind takes the value."""
    kind = getattr(option.type, "name", "")
    if option.name in CHECKED_LATER or option.multiple:
        return False
    if kind in ("path", "file", "directory") or isinstance(option.type, click.Path):
        return value == ""
    is_whole, is_real = kind.startswith("integer"), kind.startswith("float")
    if not (is_whole or is_real):
        return False
    if value == "0":
        zeros = ZERO_IS_A_COUNT if is_whole else ZERO_IS_A_NUMBER
        return option.name not in zeros and "seed" not in option.name
    whole_only = {"0.5", "12345678901234567890"} if "seed" not in option.name else {"0.5"}
    return value in {"-1", "nan", "1e309", "abc", ""} | (whole_only if is_whole else set())


def check(variant):
    """Runs a variant and asserts what holds for every command line."""
    option, _, value, words = variant
    if "--help" in words:
        return
    status, errors = 0, io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            main(list(words))
        except SystemExit as stop:
            status = stop.code
    text = errors.getvalue().strip()
    accepted = status == 0 or "the work begins" in text
    assert "unexpected" not in text, (words, text)
    assert "Traceback" not in text, (words, text)
    if not accepted:
        assert status == 2, (words, status, text)
        assert text.startswith("fedmf: error: "), (words, text)
        assert "\n" not in text, (words, text)
        assert python_names(re.sub(r"run \S+?: |NAME '.*|\d+ of \d+ settings.*", "", text)) == [], (
            text
        )
    if option is not None and must_be_refused(option, value):
        assert not accepted, words


def test_a_tenth_of_the_command_lines(at_the_work):
    """Every other run of the tests tries another tenth with FEDMF_EXPLORE=1."""
    tried = list(variants())
    chance = random.Random(None if os.environ.get("FEDMF_EXPLORE") else 1)
    for variant in chance.sample(tried, len(tried) // 10):
        check(variant)


@pytest.mark.slow
def test_every_command_line(at_the_work):
    for variant in variants():
        check(variant)
