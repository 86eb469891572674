"""Wrong calls of every command: one sentence in the words of the command line, exit status 2, and
nothing left behind.
"""

import ast
import inspect
import os
import pathlib
import re
import shlex

import click
import pytest

import fedmf
from fedmf.cli import cli
from fedmf.cli.errors import with_option_names
from tests.cli.program import fedmf as program
from tests.cli.program import refused

PLAN = "MECHANISM --rounds 12 --min-sep 4"
POOL = "plan participation --population 2000 --cohort-size 20 --rounds 120"
RUN = "train --out r --rounds 4 --min-sep 2 --noise-seed 1"

# A call, and the words its error must have: the option, the value, the way out. MECHANISM is a file
# for 12 rounds.
WRONG_CALLS = {
    "nonsense": ["nonsense"],
    "tarin": ["Did you mean 'train'?"],
    "completion csh": ["csh", "bash"],
    "fit --rounds 8 --min-sep 2 --out x.npz --family fourier": ["--family", "fourier", "banded"],
    "fit --rounds 8 --out x.npz --min-sep 9": ["--min-sep 9", "1..8"],
    "fit --rounds 8 --out x.npz": ["--min-sep (not given)", "1..8"],
    "fit --rounds 8 --out x.npz --min-sep 2 --bands 9": ["--bands 9"],
    "fit --rounds 8 --out x.npz --min-sep 2 --family tree --bands 2": [
        "--bands 2",
        "--family tree",
        "--decoder",
    ],
    "fit --rounds 8 --out x.npz --min-sep 2 --bands 3 --no-equal-norms": [
        "--bands 3",
        "--min-sep 2",
        "--equal-norms",
    ],
    "fit --rounds many --out x.npz": ["--rounds", "many"],
    "fit --rounds 8": ["--out"],
    "fit --rounds 8 --min-sep 2 --show --out x.png": ["--out", "x.png", "does not end in .npz"],
    "fit --rounds 8 --min-sep 2 --out absent/x.npz": [
        "--out",
        "absent/x.npz",
        "choose another place",
    ],
    "fit --rounds 8 --min-sep 2 --out x.npz --workload-momentum 0.5": [
        "--workload-momentum 0.5",
        "momentum_sgd",
    ],
    "fit --rounds 8 --min-sep 2 --out x.npz --workload identity --warmup 0.5": [
        "--workload identity",
        "warmup",
    ],
    "fit --rounds 8 --min-sep 2 --out x.npz --matrices . --bands 2": ["--matrices", "--bands"],
    "calibrate absent.npz --rounds 12 --min-sep 4 --epsilon 8": ["MECHANISM", "absent.npz"],
    f"calibrate {PLAN}": ["--epsilon (not given) and --noise-multiplier (not given)"],
    "plan noise MECHANISM --noise-memory 0": ["--noise-memory", "0"],
    "plan noise MECHANISM --noise-memory nan": ["--noise-memory", "nan"],
    f"calibrate {PLAN} --epsilon 8 --clip-norm 1e300": [
        "--clip-norm 1e+300",
        "beyond the range of float32",
    ],
    f"calibrate {PLAN} --epsilon 8 --cohort-size 9 --claimed-cohort 9": [
        "--cohort-size 9",
        "--claimed-cohort 9",
    ],
    f"calibrate {PLAN} --epsilon 8 --budget 2": ["--budget 2.0 belongs to", "budget"],
    f"calibrate {PLAN} --epsilon 8 --sampling poisson": ["needs --population"],
    f"calibrate {PLAN} --epsilon 8 --sampling balls-in-bins --population 10 --cohort-size 4": [
        "--cohort-size 4",
        "use 5",
    ],
    f"calibrate {PLAN} --epsilon 8 --sampling min-sep-poisson --population 9 "
    "--cohort-size 9 --partitions 2": ["--partitions 2 does not belong"],
    f"calibrate {PLAN} --epsilon 8 --population 9": ["--population 9 belongs to --sampling"],
    f"calibrate {PLAN} --epsilon 8 --stop-after 13": ["--stop-after 13", "1..12"],
    "calibrate MECHANISM --rounds 13 --min-sep 4 --epsilon 8": ["12 rounds", "13"],
    "paper run banded-figure-99": ["NAME", "banded-figure-99", "fedmf paper list"],
    "paper run banded-table-1": ["NAME", "banded-table-1", "no result"],
    "paper list --jsonn": ["--jsonn"],
    "paper report --out x.html": ["--out", "x.html", "does not end in .md"],
    f"plan learning-rate {PLAN} --epsilon 8 --cohort-size 0": ["--cohort-size", "0"],
    f"plan learning-rate {PLAN} --noise-multiplier -0 --cohort-size 9": [
        "--noise-multiplier 0",
        "with noise",
    ],
    "plan bands --rounds 8 --population 9 --cohort-size 2 --epsilon 1 --bands 2,x": [
        "--bands",
        "'x'",
    ],
    "plan bands --rounds 8 --population 9 --cohort-size 20 --epsilon 1": [
        "--cohort-size 20",
        "--population 9",
    ],
    f"{POOL} --no-search": ["--min-sep", "--no-search"],
    f"{POOL} --min-sep 110": [
        "--min-sep 110",
        "exceeds --population 2000",
        "lower --min-sep to at most 100",
    ],
    f"{POOL} --availability sometimes": ["--availability sometimes is unknown"],
    f"{POOL} --availability independent:0": [
        "cannot be filled in every round",
        "lower --cohort-size",
    ],
    f"{POOL} --sampling poisson": ["--partitions (not given)"],
    f"{POOL} --partitions 2": ["--partitions 2 belongs to sampling"],
    f"{POOL} --sampling poisson --partitions 2 --min-sep 3": ["leave them out"],
    f"{POOL} --sampling fixed_size --partitions 5 --availability diurnal": ["use CyclicPoisson"],
    f"{POOL} --simulated-cohort 30": ["--simulated-cohort 30"],
    f"{POOL} --cohort-size 2001": ["--cohort-size 2001", "--population 2000"],
    "data import absent.csv --out x.sqlite": ["'FILE'", "absent.csv", "does not exist"],
    "data synth --clients 4 --words 258 --out x.sqlite": ["--words", "258"],
    "data synth --task emnist --words 500 --out x": [
        "--words 500",
        "--task stackoverflow_nwp",
        "--task emnist",
        "leave it out",
    ],
    "data synth --task cifar10 --clients 4 --out x": [
        "--clients 4",
        "--task stackoverflow_nwp or emnist",
        "--task cifar10",
    ],
    "data synth --task cifar10 --letters --out x": ["--letters", "--task emnist"],
    "data synth --task emnist --examples-per-client 9 --out x": [
        "--examples-per-client 9",
        "each split",
    ],
    "data synth --task regression --out x": ["--task", "'regression'", "cifar10"],
    f"{RUN} --epsilon 8 --noise-seed ²": [
        "--noise-seed",
        "'²' must be a non-negative whole number",
    ],
    f"{RUN} --epsilon 8 --noise-seed {'1' * 5000}": ["at most 4000 digits"],
    f"{RUN} --epsilon 8 --config absent.toml": ["--config", "absent.toml"],
    "train --out r --epsilon 8": ["--noise-seed is missing"],
    f"{RUN} --resume": ["--noise-seed", "--resume"],
    f"{RUN} --epsilon 8 --noise-multiplier 1": ["--epsilon 8", "--noise-multiplier 1", "give one"],
    f"{RUN}": ["--epsilon (not given)", "--noise-multiplier"],
    f"{RUN} --family none --epsilon 8": ["--family none"],
    f"{RUN} --epsilon 8 --clip-norm inf": ["--clip-norm inf"],
    f"{RUN} --epsilon 8 -o lstm-size=0": ["--task-option lstm-size=0", "positive whole number"],
    f"{RUN} --epsilon 8 -o lstm-size=many": ["--task-option lstm-size='many'", "Expected `int`"],
    f"{RUN} --epsilon 8 -o size=5": ["--task-option 'size'", "vocabulary-size"],
    f"{RUN} --epsilon 8 -o lstm-size": ["'lstm-size'", "batch-size=20"],
    f"{RUN} --epsilon 8 --task weather": [
        "--task weather",
        "stackoverflow_nwp",
        "package.module:function",
    ],
    f"{RUN} --epsilon 8 --task no_such_module:task": [
        "--task no_such_module:task",
        "No module named",
    ],
    f"{RUN} --epsilon 8 --claimed-cohort 4": ["--claimed-cohort 4", "--cohort-size 100"],
    f"{RUN} --epsilon 8 --sampling poisson": ["--sampling poisson", "population"],
    f"{RUN} --epsilon 8 --zeroing-norm nothing": ["--zeroing-norm", "nothing"],
    f"{RUN} --epsilon 8 --noise-strategy fastest": ["--noise-strategy", "fastest"],
    "sweep --out s --noise-seed 1 --epsilon 8 --vary speed=1,2": ["speed"],
    "sweep --out s --noise-seed 1 --epsilon 8 --vary seed=1 --vary seed=2": ["--vary", "seed"],
    "sweep --out s --epsilon 8 --vary seed=1,2": ["--noise-seed is missing"],
    "sweep --out s --epsilon 8 --noise-seed 1": ["--vary is missing"],
    "demo --out d --epsilon 0": ["--epsilon 0"],
    "report . --out report": ["holds no run"],
    "audit .": ["holds no run"],
    "audit run . --json": ["holds no run"],
    "audit canaries .": ["holds no run"],
    "evaluate .": ["holds no run"],
    "evaluate . -o filters": ["'filters'", "batch-size=20"],
    "export . --out model.keras": ["holds no run"],
    "audit": ["RUN"],
    f"audit log absent.csv {PLAN} --epsilon 8": ["absent.csv"],
    f"audit log absent.csv {PLAN} --epsilon 8 --duplicates x": ["--duplicates", "refuse", "once"],
    f"audit log absent.csv {PLAN} --epsilon 8 --statement x.txt": [
        "--statement",
        "x.txt",
        ".md or .json",
    ],
    f"audit mechanism {PLAN}": ["--epsilon (not given)"],
    f"audit mechanism {PLAN} --epsilon 8 --trials -1": ["--trials", "-1"],
}


def python_names(text):
    """What of this text is the name of a Python argument: `name=`, or an option's name with
    underscores; values in quotes are neither.
    """
    names = {
        p.name
        for c in commands()
        for p in c.get_params(click.Context(c))
        if isinstance(p, click.Option) and "_" in p.name
    }
    names |= {name for name in inspect.signature(fedmf.TrainConfig).parameters if "_" in name}
    words = re.sub(r"'[^']*'|--schema \w+|--vary \S+|one of [\w, ]+", "", text)
    return re.findall(r"(?<![\w./-])[a-z]\w*(?==)", words) + [
        w for w in re.findall(r"(?<![-\w])\w+", words) if w in names
    ]


def foreign_options(line, call):
    """Options in an error, not in quoted commands, that the command of the call does not have."""
    command = cli
    for word in call.split():
        if not isinstance(command, click.Group) or word not in command.commands:
            break
        command = command.commands[word]
    own = {
        o for p in command.get_params(click.Context(command)) for o in (*p.opts, *p.secondary_opts)
    }
    named = re.findall(r"(?<![\w-])--[a-z][a-z-]*", re.sub(r"`[^`]*`", "", line))
    return {name for name in named if name not in own | {"--help", "--debug"} and name not in call}


def commands(group=cli):
    for command in group.commands.values():
        yield from commands(command) if isinstance(command, click.Group) else [command]


@pytest.mark.parametrize("call", WRONG_CALLS, ids=lambda call: call[:70])
def test_a_wrong_call_is_one_sentence_about_its_options(call, identity, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refused(*shlex.split(call.replace("MECHANISM", str(identity))), words=WRONG_CALLS[call])
    assert python_names(line) == []
    assert foreign_options(line, call) == set()
    assert os.listdir(tmp_path) == []


def test_debug_shows_the_traceback(tmp_path):
    assert "Traceback" in program("--debug", "audit", tmp_path, status=2).stderr
    assert "Traceback" in program("audit", tmp_path, "--debug", status=2).stderr


def test_python_names_are_seen():
    assert python_names("min_sep=9 does not suit") == ["min_sep", "min_sep"]
    assert python_names("leave max_participations out") == ["max_participations"]
    assert python_names("--schema min_sep is not one of single, min_sep; 'min_sep'") == []


def test_every_command_is_called_wrongly():
    called = {
        tuple(call.split()[: 2 if call.split()[0] in ("plan", "data", "audit", "paper") else 1])
        for call in WRONG_CALLS
    }
    missing = [
        command.name for command in commands() if not any(command.name in words for words in called)
    ]
    assert missing == ["info"]  # whose only argument is a file of data


@pytest.mark.parametrize(
    ("call", "option"),
    [
        ("fit --family foo --rounds 0", "--family"),
        ("fit --rounds 0 --family foo", "--rounds"),
        ("fit --schema foo --out absent/x.npz", "--schema"),
        ("fit --out absent/x.npz --schema foo", "--out"),
    ],
)
def test_the_first_mistake_that_was_typed_is_reported(call, option):
    refused(*call.split(), words=[option])


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
    }.items():
        assert with_option_names(message, options) == expected


def texts_of_refusals(package):
    """Every string in a raise, or in the hint of a check, of a package of fedmf."""
    for path in sorted((pathlib.Path(fedmf.__file__).parent / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_hint = isinstance(node, ast.keyword) and node.arg in ("hint", "to")
            if isinstance(node, ast.Raise) or is_hint:
                texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                yield from (text for text in texts if isinstance(text, str))


def options_in_errors(package):
    """Strings in a raise that name an option of the command line."""
    return [
        text
        for text in texts_of_refusals(package)
        if re.search(r"(?<![\w-])--[a-z]", re.sub(r"`[^`]*`", "", text))
    ]


@pytest.mark.parametrize(
    "package", ["audits", "cohorts", "mechanisms", "noise", "participation", "privacy"]
)
def test_errors_of_python_name_arguments(package):
    assert options_in_errors(package) == []


def test_options_in_errors_are_seen():
    assert options_in_errors("cli")


def test_refusals_mark_the_arguments_that_they_name():
    """As name=value or in backticks: the command line puts its options in their places."""
    names = {p.name for c in commands() for p in c.get_params(click.Context(c)) if "_" in p.name}
    bare = re.compile(rf"(?<![\w./`'\"=-])({'|'.join(names)})(?![\w=`'\"./(])")
    refusals = [text for package in ("", "../tasks") for text in texts_of_refusals(package)]
    assert len(refusals) > 500
    assert [text for text in refusals if bare.search(text)] == []


def test_a_picture_that_cannot_be_written_is_refused_before_the_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.png").mkdir()
    monkeypatch.setattr(fedmf, "fit", lambda *args, **options: pytest.fail("fitted"))
    refused(
        "fit",
        "--rounds",
        8,
        "--min-sep",
        2,
        "--out",
        "x.npz",
        "--show",
        words=["x.png", "is a folder"],
    )


def test_a_damaged_mechanism_is_named_as_it_was(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"no archive")
    line = refused(
        "calibrate",
        tmp_path / "x.npz",
        "--rounds",
        8,
        "--min-sep",
        2,
        "--epsilon",
        1,
        words=["x.npz' does not hold"],
    )
    assert "path" not in line.replace(str(tmp_path), "")


@pytest.mark.parametrize("out", ["x" * 250 + ".npz", "file/x.npz"])
def test_a_file_that_cannot_be_written_is_refused_before_the_fit(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("precious")
    monkeypatch.setattr(fedmf, "fit", lambda *args, **options: pytest.fail("fitted"))
    refused(
        "fit", "--rounds", 8, "--min-sep", 2, "--out", out, words=["--out", "cannot be written"]
    )
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "precious"


def texts(source):
    """The texts of a program that are no documentation, those of an f-string with {}
    for its values.
    """
    tree = ast.parse(source)
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and not {id(node)} & (documentation | parts)
        ):
            yield node.value


def named_options(text):
    """The options of the command line that a sentence names, outside the commands that it quotes.

    A program's arguments are no sentence.
    """
    if not re.search(r"\w [a-z]+\b.*[:;,]", text):
        return []
    return re.findall(r"(?<![\w-])--[a-z][\w-]*", re.sub(r"`[^`]*`", "", text))


def test_options_are_seen():
    assert named_options("the run is there: go on with --resume") == ["--resume"]
    assert named_options("write one with `fedmf data synth --out FILE`, or another") == []
    assert list(texts('"""--a"""\nx = f"b {1} --c"')) == ["b {} --c"]


def test_the_library_names_no_options():
    """Its errors name arguments, which the command line translates."""
    root = pathlib.Path(fedmf.__file__).parent
    paths = [path for path in root.rglob("*.py") if "cli" not in path.parts]
    paths += (root / "tasks").resolve().rglob("*.py")
    assert len(paths) > 200
    found = {
        f"{path}: {text}": named_options(text) for path in paths for text in texts(path.read_text())
    }
    assert {text: options for text, options in found.items() if options} == {}
