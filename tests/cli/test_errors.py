"""Wrong calls of every command: one sentence in the words of the command line, exit status 2, and
nothing left behind.
"""

import ast
import os
import pathlib
import re

import click
import pytest

import fedmf
from fedmf.cli import cli
from fedmf.cli.errors import with_option_names
from tests.cli.program import fedmf as program
from tests.cli.program import refused

PLAN = "MECHANISM --rounds 12 --min-sep 4"
POOL = "plan participation --population 2000 --cohort-size 20 --rounds 120"
RUN = "train --out r --rounds 4 --min-sep 2 --noise-seed 1 --epsilon 8"
FIT = "fit --rounds 8 --min-sep 2"
CALIBRATE = f"calibrate {PLAN} --epsilon 8"

# Each call has the words of its error: the option and its value. MECHANISM is a file for 12 rounds.
# The library's tests have its own refusals; this list has those of the command line, and at least
# one call of each command.
COMPARE = "plan compare --rounds 12 --population 40 --cohort-size 10 --epsilon 1"
WRONG_CALLS = {
    "tarin": "Did you mean 'train'?",
    "completion csh": "csh",
    "predict absent words": "absent",
    f"{FIT} --out x.npz --family tree --bands 2": "--bands 2",
    f"{FIT} --out x.npz --matrices . --bands 2": "--matrices",
    f"{FIT} --out absent/x.npz": "absent/x.npz",
    f"{FIT} --show --out x.png": "does not end in .npz",
    f"{FIT}": "--out",
    "fit --rounds 8 --out x.npz": "--min-sep is required with --schema min_sep",
    f"calibrate {PLAN}": "--epsilon (not given) and --noise-multiplier (not given)",
    f"{CALIBRATE} --sampling poisson": "needs --population",
    f"{CALIBRATE} --sampling balls-in-bins --population 10 --cohort-size 4": "--cohort-size 4",
    f"{CALIBRATE} --sampling min-sep-poisson --population 9 --cohort-size 9 --partitions 2": (
        "--partitions 2 does not belong"
    ),
    f"{CALIBRATE} --population 9": "--population 9 needs --sampling",
    "plan noise MECHANISM --noise-memory 0": "--noise-memory",
    f"{COMPARE} --availability often": "--availability often is no frequency of check-ins",
    f"{COMPARE} --availability every:day --min-sep 9": "--min-sep 9 is more than the 4",
    f"{COMPARE} --family many": "--family many",
    COMPARE: "40 clients in cohorts of 10 allow --min-sep up to 4; pass a number in 1..4",
    f"{COMPARE} --min-sep 5": (
        "--min-sep 5 is too large: 40 clients in cohorts of 10 allow --min-sep up to 4; lower "
        "--min-sep to at most 4, lower --cohort-size to at most 8"
    ),
    f"plan learning-rate {PLAN} --noise-multiplier -0 --cohort-size 9": "--noise-multiplier 0",
    "plan settings --task regression --epsilon 0": "--epsilon 0.0 must be positive",
    "plan settings --data absent.sqlite --epsilon 8": "there is no file absent.sqlite",
    "plan bands --rounds 8 --population 9 --cohort-size 2 --epsilon 1 --bands 2,x": "'x'",
    f"{POOL} --no-search": "--min-sep",
    f"{POOL} --sampling poisson": "--partitions (not given)",
    f"{POOL} --partitions 2": "--partitions 2 needs --sampling",
    f"{POOL} --sampling poisson --partitions 2 --min-sep 3": "leave out --min-sep 3",
    "paper run banded-figure-99": "banded-figure-99",
    "paper run banded-table-1": "no result",
    "paper list --jsonn": "--jsonn",
    "paper report --out x.html": "does not end in .md",
    "data import absent.csv --out x.sqlite": "absent.csv",
    "data synth --clients 4 --words 258 --out x.sqlite": "--words",
    "data synth --task emnist --words 500 --out x": "--words 500",
    "data synth --task emnist --examples-per-client 9 --out x": "--examples-per-client 9",
    "data synth --task regression --out x": "'regression'",
    "data picture --out x.jpg": "does not end in .png",
    "data info absent": "data synth",
    "data info MECHANISM": "is no data file",
    "train --out r --epsilon 8 --min-sep 2": "--noise-seed is missing",
    f"{RUN} --noise-seed ²": "'²' must be a non-negative whole number",
    f"{RUN} --noise-seed {'1' * 5000}": "at most 4000 digits",
    f"{RUN} --resume": "--noise-seed",
    f"{RUN} -o lstm-size=many": "--task-option lstm-size='many'",
    f"{RUN} -o size=5": "--task-option 'size'",
    f"{RUN} --partition shards:2 --clients 4": "--partition is none of the task stackoverflow_nwp",
    f"{RUN} --task emnist --partition shards:2": "--partition shards:2 needs clients",
    f"{RUN} --task cifar10 --clients 4 -o clients=5": "clients is given twice",
    f"{RUN} --task weather": "--task weather",
    f"{RUN} --task no_such_module:task": "No module named",
    "sweep --out s --noise-seed 1 --epsilon 8 --vary speed=1,2": "speed",
    "sweep --out s --noise-seed 1 --epsilon 8 --vary seed=1 --vary seed=2": "--vary names seed",
    "sweep --out s --epsilon 8 --noise-seed 1": "--vary is missing",
    "demo --out d --epsilon 0": "--epsilon 0",
    "report . --out report": "holds no run",
    "audit .": "holds no run",
    "audit": "RUN",
    "audit run . --json": "holds no run",
    "audit canaries .": "holds no run",
    "evaluate . -o filters": "'filters'",
    "export . --out model.keras": "holds no run",
    f"audit log absent.csv {PLAN} --epsilon 8 --statement x.txt": "x.txt",
    "audit aggregator nowhere:function --noise-multiplier 1": "nowhere:function",
    f"audit mechanism {PLAN}": "--epsilon (not given)",
    # The progress bar has not begun, and is not drawn.
    f"audit mechanism {PLAN} --epsilon 8 --coordinates 3": "--coordinates 3",
}


def commands(group=cli):
    for command in group.commands.values():
        yield from commands(command) if isinstance(command, click.Group) else [command]


NAMES = {p.name for c in commands() for p in c.get_params(click.Context(c)) if "_" in p.name}


def python_names(text):
    """Returns the names of Python arguments in a text: `name=`, or an option's name with
    underscores. Quoted values do not count.
    """
    words = re.sub(r"'[^']*'|--schema \w+|--vary \S+|--task-option \S+|one of [\w, ]+", "", text)
    assigned_names = re.findall(r"(?<![\w./-])[a-z]\w*(?==)", words)
    return assigned_names + [word for word in re.findall(r"(?<![-\w])\w+", words) if word in NAMES]


def foreign_options(line, call):
    """Returns the options in an error, outside quoted commands, that the command of the call
    lacks.
    """
    command = cli
    for word in call.split():
        if not isinstance(command, click.Group) or word not in command.commands:
            break
        command = command.commands[word]
    command_options = {
        option
        for parameter in command.get_params(click.Context(command))
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    named_options = re.findall(r"(?<![\w-])--[a-z][a-z-]*", re.sub(r"`[^`]*`", "", line))
    return {
        name
        for name in named_options
        if name not in command_options | {"--help", "--debug"} and name not in call
    }


@pytest.mark.parametrize("call", WRONG_CALLS, ids=lambda call: call[:70])
def test_a_wrong_call_is_one_sentence_about_its_options(call, identity_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refused(call.replace("MECHANISM", str(identity_file)), WRONG_CALLS[call])
    assert python_names(line) == []
    assert foreign_options(line, call) == set()
    assert os.listdir(tmp_path) == []


def test_debug_shows_the_traceback(tmp_path):
    for line in (f"--debug audit {tmp_path}", f"audit {tmp_path} --debug"):
        assert "Traceback" in program(line, status=2).stderr


def test_names_of_python_arguments_are_detected():
    assert python_names("min_sep=9 does not suit") == ["min_sep", "min_sep"]
    assert python_names("leave max_participations out") == ["max_participations"]
    assert python_names("--schema min_sep is not one of single, min_sep; 'min_sep'") == []


def test_every_command_has_a_wrong_call():
    called = {word for call in WRONG_CALLS for word in call.split()[:2]}
    assert {command.name for command in commands()} <= called


@pytest.mark.parametrize(
    ("call", "option"),
    [
        ("fit --family foo --rounds 0", "--family"),
        ("fit --out absent/x.npz --schema foo", "--out"),
    ],
)
def test_the_first_of_several_mistakes_is_reported(call, option):
    refused(call, option)


def test_arguments_are_named_as_options():
    options = [
        click.Option([name])
        for name in ("--min-sep", "--schema", "--nu", "--out", "--equal-norms/--no-equal-norms")
    ]
    for message, expected in {
        "min_sep=9 must be in 1..4, not `min_sep`": "--min-sep 9 must be in 1..4, not --min-sep",
        "schema='min_sep' needs min_sep=None": "--schema min_sep needs --min-sep (not given)",
        "min_sep=0: choose one of single, min_sep": "--min-sep 0: choose one of single, min_sep",
        "equal_norms=False or equal_norms=True": "--no-equal-norms or --equal-norms",
        "out='a b.npz' in /tmp/min_sep/x": "--out 'a b.npz' in /tmp/min_sep/x",
        "nu is small, menu=1, x.nu=1": "nu is small, menu=1, x.nu=1",
        "path='x.npz' does not hold": "'x.npz' does not hold",
        "run nu=2,out=1,nu=3 in s/nu=2,nu=3 failed": "run nu=2,out=1,nu=3 in s/nu=2,nu=3 failed",
    }.items():
        assert with_option_names(message, options) == expected


def refusals():
    """Yields every text of a raise, a warning or the hint of a check outside the command line."""
    root = pathlib.Path(fedmf.__file__).parent
    paths = [*root.rglob("*.py"), *(root / "tasks").resolve().rglob("*.py")]
    for path in (path for path in paths if not path.is_relative_to(root / "cli")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_message = isinstance(node, ast.keyword) and node.arg in ("hint", "to")
            is_message |= isinstance(node, ast.Call) and ast.unparse(node.func).endswith("warn")
            if is_message or isinstance(node, ast.Raise):
                texts = [
                    constant.value
                    for constant in ast.walk(node)
                    if isinstance(constant, ast.Constant)
                ]
                yield from (text for text in texts if isinstance(text, str))


BARE = re.compile(rf"(?<![\w./'\"=-])({'|'.join(NAMES)})(?![\w='\"./(])|(?<![\w-])--[a-z]")


def named_wrongly(text):
    """Finds an unmarked argument, or an option outside of quoted commands, in a text."""
    return BARE.search(re.sub(r"`[^`]*(`|$)", "", text))


def test_refusals_mark_the_arguments_that_they_name():
    """Messages write name=value or backticks, which the command line replaces with its options."""
    texts = list(refusals())
    assert len(texts) > 1000
    assert [text for text in texts if named_wrongly(text)] == []
    for text, is_wrong in {
        "the run is there: resume it with --resume": True,
        "leave min_sep out": True,
        "write one with `fedmf data synth --out FILE`, or leave out `min_sep`": False,
    }.items():
        assert bool(named_wrongly(text)) == is_wrong


def test_an_error_names_a_damaged_mechanism_as_it_was_typed(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"no archive")
    line = refused(
        f"calibrate {tmp_path}/x.npz --rounds 8 --min-sep 2 --epsilon 1", "x.npz' does not hold"
    )
    assert "path" not in line.replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("--out file/x.npz", "cannot be written"),
        (f"--out {'x' * 250}.npz", "cannot be written"),
        ("--out x.npz --show", "x.png"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_fit(
    call, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("precious")
    (tmp_path / "x.png").mkdir()
    monkeypatch.setattr(fedmf, "fit", lambda *args, **options: pytest.fail("fitted"))
    refused(f"{FIT} {call}", words)
    assert sorted(os.listdir(tmp_path)) == ["file", "x.png"]
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.tensorflow
@pytest.mark.parametrize("command", ["train", "sweep --vary client_learning_rate=0.1"])
def test_an_error_about_min_sep_names_the_largest_that_the_data_allow(command, tmp_path):
    call = (
        f"{command} --task regression -o clients=14 --cohort-size 4 --rounds 8 --epsilon 8 "
        f"--noise-seed 1 --quiet --out {tmp_path}/out"
    )
    allowed_text = "14 clients in cohorts of 4 allow --min-sep up to 3; "
    refused(
        call, f"--min-sep is required with --schema min_sep: {allowed_text}pass a number in 1..3"
    )
    assert not (tmp_path / "out").exists()
    too_large = f"--min-sep 4 is too large: {allowed_text}lower --min-sep to at most 3, lower "
    error = program(f"{call} --min-sep 4", status=2).stderr
    assert f"{too_large}--cohort-size to at most 3, or raise the population to 16" in error
    assert not list(tmp_path.rglob("metrics.jsonl"))
