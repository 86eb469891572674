"""The confirmatory runs have the settings that were fixed before them, and seeds that were new."""

import json
import pathlib
import subprocess

import pytest

from fedmf.experiments.papers import ITEMS
from fedmf.experiments.papers.study_grid import DATA_SEED, TUNING_SEED
from tests.experiments import confirmatory_settings as settings

ROOT = pathlib.Path(__file__).parents[2]
FIXED = json.loads(settings.FILE.read_text())
# Studies with one epsilon, and lines without noise, have no line over epsilon.
ONE_EPSILON = {"stackoverflow-schedules", "stackoverflow-decays", "stackoverflow-divergence"}
# The search for their best numbers of bands takes seconds.
SLOW = {"banded-figure-1", "banded-figure-10", "stackoverflow-centre", "cifar-banded"}
# The seeds of the gallery's results before the confirmatory runs were 0 to 32.
LARGEST_FORMER_SEED = 32


def each(names):
    """Parameters, of which some are slow."""
    return [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in names]


def git(*arguments, **options):
    """Returns what a Git command prints."""
    return subprocess.run(
        ("git", "-C", str(ROOT), *arguments),
        capture_output=True,
        text=True,
        check=True,
        **options,
    ).stdout


def test_every_trained_item_is_fixed_once_with_its_runs():
    assert list(FIXED["items"]) == settings.TRAINED
    assert len(FIXED["items"]) == 23
    assert {of["study"] for of in FIXED["items"].values()} == set(FIXED["studies"])
    assert settings.hours(FIXED) <= settings.MAX_HOURS
    assert FIXED["tuning seed"] == TUNING_SEED == 1000
    assert FIXED["data seed"] == DATA_SEED > 1000
    for study in FIXED["studies"].values():
        assert study["seeds"] == list(range(1001, 1001 + len(study["seeds"])))
        assert len(study["seeds"]) >= 5


@pytest.mark.parametrize("name", each(FIXED["studies"]))
def test_the_runs_of_a_study_are_those_that_were_fixed(name, tmp_path):
    items = [item for item, fixed in FIXED["items"].items() if fixed["study"] == name]
    assert settings.of_study(name, items, tmp_path) == FIXED["studies"][name]


@pytest.mark.parametrize("name", each(FIXED["items"]))
def test_what_an_item_trains_and_judges_is_what_was_fixed(name, tmp_path):
    assert settings.of_item(name, tmp_path) == FIXED["items"][name]


@pytest.mark.parametrize("name", each(FIXED["items"]))
def test_lines_over_epsilon_have_three_points(name):
    made = settings.small_study(ITEMS[name].study)
    targets = {}
    for line, _, config in made.configs(pathlib.Path("data"), pathlib.Path("folder")):
        targets.setdefault(line, set()).add(config.epsilon or config.noise_multiplier)
    numbers = {len(found) for found in targets.values() if None not in found}
    if made.name in ONE_EPSILON:
        assert max(numbers) < 3
    else:
        assert min(numbers) >= 3


def test_no_result_before_had_a_seed_of_the_confirmatory_runs():
    """Reads every version of every result before the commit that fixed the settings."""
    try:
        if git("rev-parse", "--is-shallow-repository").strip() != "false":
            pytest.skip("the history of this checkout is shallow")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no Git checkout")
    path = settings.FILE.relative_to(ROOT).as_posix()
    fixing_commits = git("log", "--diff-filter=A", "--format=%H", "--", path).split()
    last = fixing_commits[-1] if fixing_commits else "HEAD"
    log = git("log", "--raw", "--no-abbrev", "--format=", last, "--", "docs/papers/*.json")
    blobs = {line.split()[3] for line in log.splitlines()} - {"0" * 40}
    assert len(blobs) > 60
    texts = git("cat-file", "--batch", input="\n".join(blobs))
    seeds = set()
    decoder = json.JSONDecoder()
    while texts:
        _, _, texts = texts.partition("\n")
        result, end = decoder.raw_decode(texts)
        seeds |= set(result["seeds"])
        texts = texts[end:].lstrip("\n")
    assert {0, 1, LARGEST_FORMER_SEED} <= seeds
    assert max(seeds) == LARGEST_FORMER_SEED
