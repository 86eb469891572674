"""Runs every example of the help texts with options left out and with odd values.

Each command line is accepted or refused in one sentence without a traceback, and no value is
accepted that no run could mean.
"""

import contextlib
import inspect
import io
import itertools
import os
import random
import re
import shlex
import shutil
import sys
import types
from typing import NamedTuple

import click
import numpy as np
import pytest

import fedmf
from fedmf.cli import cli, main
from fedmf.cli.values import OutputFile
from tests.cli.program import fedmf as program
from tests.cli.test_errors import python_names

VALUES = ("0", "-1", "nan", "1e309", "abc", "", "0.5", "12345678901234567890")
# Small values replace the numbers of the examples, so that accepted commands take no time.
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
# Options that are checked behind the work, which these tests leave out.
CHECKED_LATER = {"confidence", "false_positive_rate", "sentences_per_client", "tolerance"}


class Reached(click.ClickException):
    """Raised when a command line has been accepted."""


def reach(*arguments, **options):
    raise Reached("the work begins")


@pytest.fixture(scope="module")
def input_folder(tmp_path_factory):
    """Writes the files that the examples name into a folder."""
    folder = tmp_path_factory.mktemp("inputs")
    participation = fedmf.Participation(rounds=16, schema="min_sep", min_sep=4)
    mechanism = fedmf.fit(fedmf.prefix_sum(16), participation, family="toeplitz")
    for name in ("banded.npz", "toeplitz.npz"):
        mechanism.save(folder / name)
    np.save(folder / "theirs.npy", np.eye(16))
    (folder / "log.csv").write_text("client,round\na,0\nb,1\na,8\n")
    (folder / "posts.csv").write_text("author,body\nann,One sentence.\n")
    (folder / "rows.csv").write_text("author,section,age,words\nann,a,1,2\n")
    (folder / "docs").mkdir()
    shutil.copy(folder / "log.csv", folder / "log.parquet")
    for name in ("first", "second", "python", "audited"):
        (folder / "runs" / name).mkdir(parents=True)
        (folder / "runs" / name / "config.json").write_text("{}")
    program(
        "data synth --clients 4 --sentences-per-client 4 --quiet --out", folder / "corpus.sqlite"
    )
    for name in ("mine", "other", "stackoverflow", "emnist", "rows"):
        shutil.copy(folder / "corpus.sqlite", folder / f"{name}.sqlite")
    return folder


@pytest.fixture
def stopped_at_work(input_folder, monkeypatch):
    """Ends each command where its work begins."""
    from fedmf import tasks
    from fedmf.audits import aggregator, guarantee
    from fedmf.experiments import demo
    from fedmf.experiments.papers import results, study
    from fedmf.privacy import bands
    from fedmf.runs.folder import Run
    from fedmf.server import audit
    from fedmf.sweeps import run, search
    from fedmf.tasks import classification, describe, stackoverflow

    monkeypatch.chdir(input_folder)
    for module, name in (
        *((tasks, "task_from_config"), (Run, "load"), (stackoverflow, "import_text")),
        (classification, "import_rows"),
        *(
            (demo, "run_demo"),
            (results, "run"),
            (results, "report"),
            (study, "dry_run"),
            (study, "check_data"),
        ),
        *((run, "run_sweep"), (search, "run_search"), (audit, "audit_mechanism")),
        (bands.BandSearch, "_row"),
        *((aggregator, "audit_aggregator"), (guarantee, "audit_log"), (describe, "describe_file")),
        *(
            (stackoverflow, "write_synthetic_corpus"),
            (sys.modules["fedmf.cli.evaluate"], "_load_trained"),
        ),
    ):
        monkeypatch.setattr(module, name, reach)
    names = ("Callback", "TensorBoard", "StopAfter", "StopOnDivergence", "EarlyStopping")
    training = types.SimpleNamespace(**dict.fromkeys(names, object), DivergedRun=RuntimeError)
    monkeypatch.setattr(fedmf, "federated", training, raising=False)  # without TensorFlow


class Variant(NamedTuple):
    """A command line of an example, with the changed option and its value."""

    words: list[str]
    option: click.Option | None = None
    value: str = ""


def help_texts(group=cli):
    """Yields the help text of every group and command."""
    yield group.help
    for command in group.commands.values():
        yield from help_texts(command) if isinstance(command, click.Group) else [command.help]


def examples():
    """Yields the words of each example, without `fedmf`."""
    for text in map(inspect.cleandoc, help_texts()):
        in_lines = re.sub(r"\s*\\\n\s*", " ", text)  # An example may continue in the next line.
        block = in_lines.partition("\b\nExample:\n")[2]
        for line in re.findall(r"^  fedmf (.*)$", block, re.M):
            words = shlex.split(line.partition(">")[0].partition("   ")[0], comments=True)
            if "..." not in words and "--help" not in words:
                yield words


def command_of(words):
    """Returns the command that the words begin with, and how many of them name it."""
    command = cli
    for num_words, word in enumerate(words):
        if not isinstance(command, click.Group):
            return command, num_words
        if word not in command.commands:  # `fedmf audit FOLDER`
            return command.commands["run"], num_words
        command = command.commands[word]
    return command, len(words)


def options_of(command):
    """Returns the options of a command that take a value, by flag."""
    parameters = command.get_params(click.Context(command))
    options = [
        parameter
        for parameter in parameters
        if isinstance(parameter, click.Option) and not parameter.is_flag
    ]
    return {flag: option for option in options for flag in option.opts}


def with_small_values(words):
    """Returns an example with numbers that take no time."""
    local_words = ["theirs.npy" if "/size=" in word else word for word in words]
    pairs = zip(["", *words], local_words, strict=False)
    return [SMALL.get(previous_word, word) for previous_word, word in pairs]


def with_values(words, options):
    """Returns the words in groups: an option together with its value."""
    iterator = iter(words)
    return [[word, next(iterator)] if word in options else [word] for word in iterator]


def variants():
    """Yields each example with a word left out and with each option's value replaced, and the first
    example of each command with each of its other options.
    """
    tried_variants = set()
    for example in examples():
        command, num_words = command_of(example)
        options = options_of(command)
        name = example[:num_words]
        arguments = with_small_values(example[num_words:])
        groups = with_values(arguments, options)
        for index, group in enumerate(groups):
            words_before = name + list(itertools.chain(*groups[:index]))
            words_after = list(itertools.chain(*groups[index + 1 :]))
            yield Variant(words_before + words_after)
            if group[0] not in options:
                continue
            key = ""  # of name=value
            if group[0] in ("-o", "--vary"):
                key = group[1].partition("=")[0] + "="
            for value in VALUES:
                words = [*words_before, group[0], key + value, *words_after]
                yield Variant(words, options[group[0]], value)
        if command in tried_variants:
            continue
        tried_variants.add(command)
        typed = {group[0] for group in groups}
        for flag, option in options.items():
            for value in () if flag in typed else VALUES:
                yield Variant([*name, *arguments, flag, value], option, value)


def must_be_refused(option, value):
    """Returns whether no option of this kind takes the value."""
    if option.name in CHECKED_LATER or option.multiple:
        return False
    if isinstance(option.type, click.Path | OutputFile):
        return value == ""
    is_whole = option.type.name.startswith("integer")
    is_seed = "seed" in option.name
    if not is_whole and not option.type.name.startswith("float"):
        return False
    if value == "0":
        zeros = ZERO_IS_A_COUNT if is_whole else ZERO_IS_A_NUMBER
        return not is_seed and option.name not in zeros
    if value == "12345678901234567890":
        return is_whole and not is_seed
    return is_whole or value != "0.5"


def check_command_line(variant):
    """Runs a command line and asserts what holds for all of them."""
    status = 0
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            main(list(variant.words))
        except SystemExit as stop:
            status = stop.code
    text = errors.getvalue().strip()
    is_accepted = status == 0 or "the work begins" in text
    assert "unexpected" not in text, (variant, text)
    assert "Traceback" not in text, (variant, text)
    if not is_accepted:
        assert status == 2, (variant, status, text)
        assert text.startswith("fedmf: error: "), (variant, text)
        assert "\n" not in text, (variant, text)
        without_names = re.sub(r"run \S+?: |NAME '.*|\d+ of \d+ settings.*", "", text)
        assert python_names(without_names) == [], (variant, text)
    if variant.option is not None and must_be_refused(variant.option, variant.value):
        assert not is_accepted, variant.words


def test_a_sample_of_command_lines_is_accepted_or_refused_in_one_sentence(stopped_at_work):
    command_lines = list(variants())
    draw = random.Random(1).sample if not os.environ.get("FEDMF_EXPLORE") else random.sample
    for variant in draw(command_lines, len(command_lines) // 10):
        check_command_line(variant)


@pytest.mark.slow
def test_every_command_line_is_accepted_or_refused_in_one_sentence(stopped_at_work):
    for variant in variants():
        check_command_line(variant)
