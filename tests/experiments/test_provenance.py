"""The origin of results: commit, digest of the settings, history, and results that share runs."""

import dataclasses
import functools
import itertools
import json
import pathlib
import subprocess

import pytest

from fedmf.experiments.papers import ITEMS, Item, Request, provenance, results
from fedmf.experiments.papers.study_grid import Study
from tests.refusals import refusal

KEPT = pathlib.Path(__file__).parents[2] / "docs" / "papers"


def git(folder, *arguments):
    """Runs a Git command in a folder, by an author who is named here."""
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", folder, *author, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """Makes a Git checkout with a file of code, and returns its folder."""
    (tmp_path / "fedmf").mkdir()
    (tmp_path / "fedmf" / "code.py").write_text("1\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_the_commit_of_a_checkout_says_whether_its_code_has_changes(checkout):
    commit = provenance.code_commit(checkout)
    assert len(commit) == 40
    (checkout / "notes.md").write_text("not code\n")
    assert provenance.code_commit(checkout) == commit
    (checkout / "fedmf" / "code.py").write_text("2\n")
    assert provenance.code_commit(checkout) == f"{commit}+changes"
    assert provenance.short_commit(f"{commit}+changes") == f"{commit[:8]}+changes"
    (checkout / "fedmf" / "code.py").write_text("1\n")
    (checkout / "fedmf" / "new.py").write_text("\n")
    assert provenance.code_commit(checkout) == f"{commit}+changes"


def test_code_outside_a_checkout_has_no_commit(checkout, tmp_path_factory, monkeypatch):
    """An installed package can lie in a folder of a checkout of something else."""
    assert provenance.code_commit(checkout / "fedmf") == "unknown"
    assert provenance.code_commit(tmp_path_factory.mktemp("no_checkout")) == "unknown"
    monkeypatch.setenv("PATH", "")
    assert provenance.code_commit(checkout) == "unknown"


def test_a_folder_of_runs_has_the_commits_that_trained_there(tmp_path, monkeypatch):
    assert provenance.training_commits(tmp_path) == ("unknown",)
    for commit in ("a", "b", "b", "a"):
        monkeypatch.setattr(provenance, "code_commit", lambda commit=commit: commit)
        provenance.add_training_commit(tmp_path)
    assert provenance.training_commits(tmp_path) == ("a", "b")


def write_data(path, *, clients, seed):
    """Stands for a function that writes synthetic data."""


STUDY = Study(
    name="a",
    fixed={"rounds": 8, "cohort_size": 2, "noise_multiplier": 1.0, "min_sep": 4},
    parts=[("one line", {"family": "identity", "server_learning_rate": [0.5, 1.0]})],
    repeats=3,
    data=(".sqlite", functools.partial(write_data, clients=4, seed=0)),
    reduced="a few clients",
)


def item(study=STUDY, **fields):
    """Returns an item that trains a study."""
    return dataclasses.replace(BASE_ITEM, study=lambda scale: study, **fields)


BASE_ITEM = Item(
    name="banded-figure-1",
    number="Figure 1",
    claim="It trains.",
    state="trained at reduced scale",
    why="",
    make=lambda request: None,
    seconds={"small": 1},
)


def digest(study=STUDY, folder="papers", **fields):
    """Returns the digest of the settings with which a study is requested."""
    request = Request(folder=pathlib.Path(folder), **fields)
    return provenance.settings_digest(item(study), request)


CHANGES = {
    "a fixed field": {"fixed": STUDY.fixed | {"rounds": 9}},
    "a rate": {"parts": [("one line", {**STUDY.parts[0][1], "server_learning_rate": [0.5, 2.0]})]},
    "a line": {"parts": [*STUDY.parts, ("another line", {"family": "none"})]},
    "the name of a line": {"parts": [("another line", STUDY.parts[0][1])]},
    "the number of seeds": {"repeats": 4},
    "the smoothing of tuning": {"smoothed_over": 2},
    "the seed of the data": {"data": (".sqlite", functools.partial(write_data, clients=4, seed=1))},
    "the arguments of a mechanism": {"mechanisms": {"a": functools.partial(max, 1)}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_covers_each_setting_of_a_study(change):
    assert digest(dataclasses.replace(STUDY, **CHANGES[change])) != digest()


def test_the_digest_covers_the_test_limit_and_real_data_and_no_path():
    on_file = digest(scale="full", data=pathlib.Path("one.sqlite"))
    assert digest(folder="elsewhere", jobs=4) == digest()
    assert digest(folder="b", scale="full", data=pathlib.Path("b.sqlite")) == on_file
    assert len({digest(), on_file, digest(test_sentences=5)}) == 3


def test_the_digest_of_an_item_that_trains_nothing_is_of_its_arguments():
    def digest_of(name, bands, scale):
        """Returns the digest of an item whose function has an argument."""
        exact_item = dataclasses.replace(BASE_ITEM, name=name, make=functools.partial(max, bands))
        return provenance.settings_digest(
            exact_item, Request(folder=pathlib.Path("papers"), scale=scale)
        )

    cases = list(itertools.product("ab", (9, 18), ("small", "full")))
    assert len({digest_of(*case) for case in cases}) == len(cases)


def result(**fields):
    """Returns a result with one clause."""
    clauses = [{"text": "A beats B.", "verdict": "inconclusive", "evidence": "-1 to 2 points."}]
    return {
        "verdict": "inconclusive",
        "clauses": clauses,
        "commit": "0123456789",
        "training_commits": ["0123456789"],
        "settings": "aa",
        "study": "a",
        "scale": "small",
        "reduced": "few clients",
        "date": "2026-11-30",
    } | fields


def test_a_result_that_is_replaced_joins_the_history():
    former = result(history=[{"commit": "first"}])
    newer = result(verdict="reproduced", settings="bb", commit="f" * 40)
    entry = {
        "commit": "01234567",
        "date": "2026-11-30",
        "settings": "few clients",
        "verdict": "inconclusive",
        "outcome": "A beats B: inconclusive (-1 to 2 points).",
    }
    assert provenance.with_history(newer, former)["history"] == [{"commit": "first"}, entry]
    same_settings = newer | {"settings": "aa"}
    assert provenance.with_history(same_settings, former)["history"] == [
        {"commit": "first"},
        entry,
    ]


def test_a_result_that_is_only_drawn_again_joins_no_history():
    former = result(history=[{"commit": "first"}])
    redrawn = provenance.with_history(result(commit="f" * 40), former)
    assert redrawn["history"] == former["history"]
    assert "history" not in provenance.with_history(result(), result())
    assert "history" not in provenance.with_history(result(), None)


def test_a_result_from_before_settings_were_recorded_is_in_the_history_already():
    former = result(history=[{"commit": "first"}])
    del former["settings"]
    assert provenance.with_history(result(), former)["history"] == [{"commit": "first"}]


def check(first, second, *, same_grid=True):
    """Checks two results of items that train the same grid, or grids of the same sweep."""
    first_item = item(name="banded-figure-5")
    second_item = dataclasses.replace(first_item, name="banded-figure-12")
    if not same_grid:
        second_item = item(name="banded-figure-12")
    items = {"banded-figure-5": first_item, "banded-figure-12": second_item}
    provenance.check_shared_runs(items, {"banded-figure-5": first, "banded-figure-12": second})


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (result(commit="f"), r"differ in commit \(0123456789, f\): compute both"),
        (result(settings="bb"), r"differ in settings \(aa, bb\)"),
        (result(scale="full"), r"differ in scale \(small, full\)"),
        (result(training_commits=["f"]), "differ in training commits"),
    ],
)
def test_results_of_the_same_grid_have_the_same_origin(second, message):
    check(result(), result(verdict="contradicted"))
    with refusal(message):
        check(result(), second)


def test_results_of_grids_that_share_runs_have_the_same_commit():
    check(result(), result(settings="bb"), same_grid=False)
    check(result(), result(commit="f", study="b"), same_grid=False)
    check(result(), result(commit="f", scale="full"), same_grid=False)
    with refusal("banded-figure-5 and banded-figure-12, which share runs, differ in commit"):
        check(result(), result(commit="f"), same_grid=False)


def test_a_refused_report_writes_nothing(tmp_path):
    first_item = item(name="banded-figure-5")
    second_item = dataclasses.replace(first_item, name="banded-figure-12")
    items = {"banded-figure-5": first_item, "banded-figure-12": second_item}
    for name, commit in (("banded-figure-5", "e"), ("banded-figure-12", "f")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(result(commit=commit)))
    with refusal("share runs"):
        results.report(items, tmp_path, tmp_path / "page.md")
    assert not (tmp_path / "page.md").exists()
    assert not (tmp_path / "page").exists()


ITEMS_WITH_RESULT = [name for name in ITEMS if (KEPT / f"{name}.json").is_file()]


@pytest.mark.parametrize("name", ITEMS_WITH_RESULT)
def test_a_kept_result_is_judged_and_names_commit_and_settings(name):
    kept_result = json.loads((KEPT / f"{name}.json").read_text())
    assert kept_result["verdict"] != "not judged"
    recorded = {"commit", "settings", "date", "study"}
    if ITEMS[name].study is not None:
        recorded.add("training_commits")
    assert recorded <= kept_result.keys()
