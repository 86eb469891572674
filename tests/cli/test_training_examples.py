"""Each training example of the help texts, from a quarter of its clients and rounds, learns.

Clients, rounds and the rounds between two turns of a client shrink together: cohorts and noise stay
what they are. `fedmf demo` is left out, which takes minutes: tests/experiments has its settings.
"""

import itertools
import json
import math
import shutil

import pytest

from fedmf import tasks
from tests.cli.program import fedmf
from tests.cli.test_command_lines import examples

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.usefixtures("clients_in_turn", "tasks_made_once"),
]

QUARTERED = ("--clients", "--rounds", "--min-sep", "--canaries")
AFFORDABLE = [
    *("--evaluate-every", "5", "--quiet"),
    *("-o", "validation-sentences=500", "-o", "test-sentences=500"),
]


def quartered(words):
    """Returns an example for a quarter of the clients and rounds."""
    pairs = zip(["", *words], words, strict=False)
    return [
        str(int(word) // 4) if previous_word in QUARTERED else word for previous_word, word in pairs
    ]


def runs_of_sweep(words):
    """Yields a command line of `fedmf train` for each setting of a sweep."""
    fixed_words = ["train"]
    values_by_flag = {}
    for flag, value in zip(words[1::2], words[2::2], strict=True):
        if flag == "--vary":
            name, _, values = value.partition("=")
            values_by_flag[f"--{name}"] = values.split(",")
        elif flag == "--out":
            folder = value
        elif flag != "--jobs":
            fixed_words += [flag, value]
    for values in itertools.product(*values_by_flag.values()):
        options = itertools.chain(*zip(values_by_flag, values, strict=True))
        yield [*fixed_words, *options, "--out", f"{folder}/{'-'.join(values)}"]


def training_examples():
    """Yields the words of each command that trains, in the order of the help texts."""
    for words in examples():
        if words[0] == "sweep":
            yield from runs_of_sweep(words)
        elif words[0] == "train":
            yield words


@pytest.fixture(scope="module")
def tasks_made_once():
    """Makes each task once for its options, so that runs of the same task trace it once."""
    tasks_by_options = {}
    make_task = tasks.task_from_config

    def task_from_config(config, **options):
        key = (config.task, config.data, *sorted(config.task_options.items()))
        if key not in tasks_by_options:
            tasks_by_options[key] = make_task(config, **options)
        return tasks_by_options[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "task_from_config", task_from_config)
        yield


@pytest.fixture(scope="module")
def example_folder(tmp_path_factory):
    """Writes the files of text that the examples name into a folder."""
    path = tmp_path_factory.mktemp("examples")
    fedmf("data synth --clients 250 --quiet --out", path / "corpus.sqlite")
    shutil.copy(path / "corpus.sqlite", path / "mine.sqlite")
    return path


def validation_losses(run):
    """Returns the losses of a run's validations."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row["validation"]["loss"] for row in rows if "validation" in row]


def test_every_training_example_learns(example_folder, monkeypatch):
    monkeypatch.chdir(example_folder)
    commands = [*training_examples()]
    assert sum("--resume" in words for words in commands) == 1
    assert len(commands) == 2 + 1 + 4 + 1
    for words in commands:
        is_resumed = "--resume" in words
        finished_process = fedmf(
            *map(str, quartered(words)), *(["--quiet"] if is_resumed else AFFORDABLE)
        )
        assert "warning" not in finished_process.stderr, (words, finished_process.stderr)
        losses = validation_losses(example_folder / words[words.index("--out") + 1])
        assert len(losses) >= 2, words
        assert all(math.isfinite(loss) for loss in losses), (words, losses)
        assert losses[-1] < losses[0], (words, losses)
    # The examples of `fedmf evaluate` fine-tune that run, at their own rates.
    fine_tuning_examples = [
        words for words in examples() if words[0] == "evaluate" and "--fine-tune" in words
    ]
    assert len(fine_tuning_examples) == 2
    for words in fine_tuning_examples:
        sample = [] if "--clients" in words else ["--clients", "50"]
        finished_process = fedmf(*quartered(words), *sample, "--quiet")
        assert "warning" not in finished_process.stderr, (words, finished_process.stderr)
