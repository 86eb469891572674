"""The commands of docs/text.md run as printed, on text of as many users as
its sizes are for.
"""

import csv
import re

import pytest

import fedmf
from fedmf.tasks.stackoverflow import write_synthetic_corpus
from tests.cli.program import commands_of, printed_by
from tests.cli.program import fedmf as program
from tests.tasks.data_files import sentences

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def write_posts(path):
    """Writes a table of synthetic sentences of 1550 authors, of whom 65% train."""
    write_synthetic_corpus(
        path.with_suffix(".made"), clients=1550, vocabulary_size=4000, progress=False
    )
    synthetic_path = sentences(path.with_suffix(".made"))
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["author", "body"])
        for (split, author), texts in synthetic_path.items():
            if split == "train":
                rows.writerows([author, f"{text}."] for text in texts)


COMMANDS = commands_of("text.md", "Next words")


@pytest.fixture(scope="module")
def as_printed(tmp_path_factory):
    """Returns the folder in which the commands ran, and their finished processes."""
    folder = tmp_path_factory.mktemp("printed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_posts(folder / "posts.csv")
        return folder, [program(line) for line in COMMANDS]


def test_the_recipe_reaches_its_accuracy(as_printed):
    """With the noise seeds 1 and 2 the test accuracy was 0.379 and 0.378; always the most
    frequent word has 0.12."""
    folder, finished_processes = as_printed
    printed_text = "".join(finished_process.stdout for finished_process in finished_processes)
    assert re.search(r"splits\.train\.clients +10\d\d\n", printed_text)
    assert not any("warning" in finished_process.stderr for finished_process in finished_processes)
    run = fedmf.Run.load(folder / "runs" / "mine")
    assert run.plan["epsilon"] == pytest.approx(8, abs=1e-3)
    assert run.result["test"]["accuracy"] > 0.3
    assert "test accuracy_no_pad" in printed_text


def test_proposed_settings_are_nearly_as_good_as_those_of_the_recipe(as_printed, monkeypatch):
    """The losses are at most 20% above, and nothing diverges."""
    folder, _ = as_printed
    monkeypatch.chdir(folder)
    [line] = [line for line in COMMANDS if "fedmf train" in line]
    options = re.findall(r"(?:--data|--epsilon|-o) \S+", line)
    command = printed_by(f"plan settings {' '.join(options)} --quiet")["command"]
    finished_process = program(f"{command} --quiet --stop-on-divergence --out runs/proposed")
    assert "diverges" not in finished_process.stderr
    proposed, recipe = (fedmf.Run.load(f"runs/{name}").result for name in ("proposed", "mine"))
    for split in ("validation", "test"):
        assert proposed[split]["loss"] < 1.2 * recipe[split]["loss"]
