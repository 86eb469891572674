"""Records of the origin of a result, with the commit of the code, a digest of the settings, and
the former results of the same item.

A small study can be given other sizes, rates or seeds until it bears a claim out. Therefore a
result keeps the history of every setting with which its item ran to the end.
"""

import dataclasses
import hashlib
import itertools
import json
import pathlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from fedmf.experiments.papers.item import Item, Request
from fedmf.experiments.papers.study_grid import Study
from fedmf.files import write_atomically
from fedmf.runs.config import TrainConfig

UNKNOWN = "unknown"
# Number of digits of a short commit.
_NUM_DIGITS = 8
# The folders of the code from which results follow.
_CODE_FOLDERS = ("fedmf", "tasks", "experiments")
# File in the folder of a study, with the commits whose code has trained runs there.
_TRAINING_COMMITS = "commits.txt"
_ROOT = pathlib.Path(__file__).resolve().parents[2]


def code_commit(root: pathlib.Path = _ROOT) -> str:
    """Returns the commit of a checkout, with "+changes" if its code differs from the commit.

    It is "unknown" if the folder is not the top of a Git checkout, or if there is no Git.
    """
    top_folder = _git(root, "rev-parse", "--show-toplevel")
    commit = _git(root, "rev-parse", "HEAD")
    if not top_folder or not commit or pathlib.Path(top_folder).resolve() != root.resolve():
        return UNKNOWN
    code_folders = [folder for folder in _CODE_FOLDERS if (root / folder).exists()]
    if _git(root, "status", "--porcelain", "--", *code_folders) != "":
        commit += "+changes"
    return commit


def short_commit(commit: str) -> str:
    """Returns the commit of `code_commit` with 8 digits."""
    digits, plus, changes = commit.partition("+")
    return f"{digits[:_NUM_DIGITS]}{plus}{changes}"


def add_training_commit(folder: pathlib.Path) -> None:
    """Records in the folder of a study that the code of this process trains runs there."""
    commits = list(_recorded_commits(folder))
    commit = code_commit()
    if commit not in commits:
        write_atomically(
            folder / _TRAINING_COMMITS, "".join(f"{line}\n" for line in [*commits, commit])
        )


def training_commits(folder: pathlib.Path) -> tuple[str, ...]:
    """Returns the commits whose code has trained the runs of a study's folder.

    Later code may judge and draw these runs again without training.
    """
    return _recorded_commits(folder) or (UNKNOWN,)


def _recorded_commits(folder: pathlib.Path) -> tuple[str, ...]:
    """Returns the lines of the file with the training commits, or none if there is no file."""
    commits_file = folder / _TRAINING_COMMITS
    return tuple(commits_file.read_text().splitlines()) if commits_file.is_file() else ()


def _git(root: pathlib.Path, *arguments: str) -> str | None:
    """Returns the output of a Git command, or None if it fails."""
    try:
        git_process = subprocess.run(
            ("git", "-C", str(root), *arguments), capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return git_process.stdout.strip() if git_process.returncode == 0 else None


def study_name(item: Item, request: Request) -> str | None:
    """Returns the name of the study that the item trains, or None if it trains nothing.

    Items whose studies have the same name share runs.
    """
    return None if item.study is None else item.study(request.scale).name


def settings_digest(item: Item, request: Request) -> str:
    """Returns a digest of what an item computes or trains, which no path of a machine enters.

    For an item that trains, it is a digest of its study at the scale of the request: every
    configuration of every line, the seeds, the synthetic data with their seed, and the limit on
    test sentences. Items of the same grid have the same digest. For other items it is a digest of
    the name, the scale, and those arguments of the item's function that are data.
    """
    if item.study is None:
        settings: dict[str, Any] = {
            "item": item.name,
            "scale": request.scale,
            "make": _call(item.make),
        }
    else:
        settings = _study_settings(item.study(request.scale), request)
    settings_text = json.dumps(settings, sort_keys=True, default=_call)
    return hashlib.sha256(settings_text.encode()).hexdigest()[:16]


def _study_settings(study: Study, request: Request) -> dict[str, Any]:
    """Returns everything that determines the runs of a study."""
    suffix, write_data = study.data
    run_settings = [
        (line, name, _fixed_fields(config))
        for line, name, config in study.configs(
            pathlib.Path(f"data{suffix}"), pathlib.Path("mechanisms")
        )
    ]
    synthetic_data = None if request.data is not None else _call(write_data)
    study_fields = {
        field.name: getattr(study, field.name)
        for field in dataclasses.fields(study)
        if field.name not in ("fixed", "parts", "data", "reduced")
    }
    return study_fields | {
        "runs": run_settings,
        "synthetic data": synthetic_data,
        "test sentences": request.test_sentences,
    }


def _fixed_fields(config: TrainConfig) -> dict[str, Any]:
    """Returns the fields of a configuration that determine its run.

    Some fields were added after the settings of the confirmatory runs were fixed, whose digests do
    not contain them: those of a private selection, and the framework of StackOverflow's models.
    They are left out of a run that does what such a run did.
    """
    config_fields = dataclasses.asdict(config)
    if config.mean_trials is None:
        for name in ("mean_trials", "trial_distribution", "trial_shape"):
            del config_fields[name]
    task_options = config_fields["task_options"]
    if task_options.get("framework") == "tensorflow":
        del task_options["framework"]
    return config_fields


def _call(function: Any) -> Any:
    """Returns a function's name with the arguments that are bound to it, as data."""
    if hasattr(function, "func"):
        return [_call(function.func), list(function.args), dict(function.keywords)]
    if hasattr(function, "__qualname__"):
        return function.__qualname__
    if dataclasses.is_dataclass(function) and not isinstance(function, type):
        return dataclasses.asdict(function)
    return str(function)


def with_history(result: Mapping[str, Any], former: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns a result with the history of its item.

    The former result joins the history if it was computed with other settings, or had another
    outcome. The same outcome of the same settings was only drawn again. A former result that names
    no settings is in the history already.

    Args:
      result: the newest result.
      former: the result that it replaces, with its history; None if it is the first.
    """
    if former is None:
        return dict(result)
    new_history = list(former.get("history", ()))
    has_settings = "settings" in former and "commit" in former
    compared_keys = ("settings", "verdict", "clauses")
    if has_settings and any(former[part] != result[part] for part in compared_keys):
        new_history.append(_history_entry(former))
    if not new_history:
        return dict(result)
    return {**result, "history": new_history}


def _history_entry(result: Mapping[str, Any]) -> dict[str, str]:
    """Returns the entry of a result in the history of its item."""
    clauses_text = "; ".join(
        f"{clause['text'].rstrip('.')}: {clause['verdict']} ({clause['evidence'].rstrip('.')})"
        for clause in result["clauses"]
    )
    commits = result.get("training_commits", [result["commit"]])
    return {
        "commit": ", ".join(map(short_commit, commits)),
        "date": result["date"],
        "settings": result["reduced"] or f"scale {result['scale']}",
        "verdict": result["verdict"],
        "outcome": f"{clauses_text}.",
    }


def check_shared_runs(items: Mapping[str, Item], results: Mapping[str, Mapping[str, Any]]) -> None:
    """Checks that results which share runs come from the same code and settings.

    Raises:
      ValueError: two items of the same grid have results of other commits or settings, or two items
        whose grids share runs have results of other commits.
    """
    trained_names = [name for name in results if items[name].study is not None]
    for first_name, second_name in itertools.combinations(trained_names, 2):
        first_result = results[first_name]
        second_result = results[second_name]
        is_same_grid = items[first_name].study is items[second_name].study
        for part in _parts_in_common(first_result, second_result, is_same_grid=is_same_grid):
            first_value = first_result.get(part)
            second_value = second_result.get(part)
            if first_value != second_value:
                raise ValueError(
                    f"results of {first_name} and {second_name}, which share runs, differ in "
                    f"{part.replace('_', ' ')} ({first_value}, {second_value}): compute both "
                    f"again with `fedmf paper run {first_name} {second_name}`"
                )


def _parts_in_common(
    first_result: Mapping[str, Any], second_result: Mapping[str, Any], *, is_same_grid: bool
) -> Sequence[str]:
    """Returns the parts that have to be equal in the results of two items that train."""
    if is_same_grid:
        return ("scale", "commit", "training_commits", "settings")
    study = first_result.get("study")
    is_same_sweep = study is not None and study == second_result.get("study")
    if is_same_sweep and first_result["scale"] == second_result["scale"]:
        return ("commit", "training_commits")
    return ()
