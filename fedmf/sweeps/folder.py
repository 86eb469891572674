"""Folder of a sweep, with the states of its runs and the check that new runs belong to the same
sweep.
"""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Iterable, Iterator, Mapping

from fedmf.files import expanded, make_folder
from fedmf.mechanisms import load_mechanism
from fedmf.privacy.statement import mechanism_digest
from fedmf.reports.labels import field_names
from fedmf.runs.config import TrainConfig, read_config_file
from fedmf.runs.folder import Run, RunFolder
from fedmf.runs.selection import SELECTION
from fedmf.sweeps import grid
from fedmf.sweeps.runs import run_folder


def state(out: pathlib.Path, name: str) -> str:
    """Returns the state of a run, which is "finished", "not begun" or the number of rounds that are
    done.
    """
    folder_of_run = run_folder(out, name)
    if (folder_of_run / "result.json").exists():
        return "finished"
    if not (folder_of_run / "config.json").exists():
        return "not begun"
    num_rounds = num_rounds_done(folder_of_run)
    return "1 round done" if num_rounds == 1 else f"{num_rounds} rounds done"


def num_rounds_done(folder: pathlib.Path) -> int:
    """Returns the number of rounds that are recorded in a run's folder."""
    metrics_path = folder / "metrics.jsonl"
    return metrics_path.read_bytes().count(b"\n") if metrics_path.exists() else 0


def in_folder(out: pathlib.Path, configs: Mapping[str, TrainConfig]) -> dict[str, TrainConfig]:
    """Returns the runs of a sweep under the names that they already have in its folder.

    The path of the data may have changed.

    Raises:
      ValueError: the folder holds a private selection, or a run that differs in a field that
        neither name contains, or whose mechanism file of the same name had other content.
    """
    if (out / SELECTION).exists():
        raise ValueError(
            f"{out} holds a private selection, whose guarantee other runs would add to: name "
            "another folder"
        )
    config_by_name = {
        path.parent.name: TrainConfig.from_mapping(read_config_file(path), str(path))
        for path in sorted((out / "runs").glob("*/config.json"))
    }
    configs_in_folder = {}
    for name, config in configs.items():
        names_of_same_run = [
            present_name
            for present_name, present_config in config_by_name.items()
            if dataclasses.replace(present_config, data=config.data) == config
        ]
        for present_name, present_config in config_by_name.items():
            if name not in names_of_same_run or present_name == name:
                _check_beside(name, config, run_folder(out, present_name), present_config)
        # An earlier command may have trained the same run under another name, because the name of
        # seed 0 changes when seeds are varied. The run keeps the earlier name, so that it is not
        # trained twice.
        folder_name = name
        if names_of_same_run and name not in names_of_same_run:
            folder_name = names_of_same_run[0]
        configs_in_folder[folder_name] = config
    return configs_in_folder


def _check_beside(
    name: str, config: TrainConfig, folder: pathlib.Path, present_config: TrainConfig
) -> None:
    """Raises an error if a new run and a run of the folder cannot belong to the same sweep."""
    allowed_differences = {"data"}
    if name != folder.name:
        allowed_differences |= grid.fields_in_name(name) | grid.fields_in_name(folder.name)
    for field in field_names([config, present_config]):
        new_value = config.flat().get(field)
        present_value = present_config.flat().get(field)
        is_taken = grid.is_taken_by_all(field, config, present_config)
        if field not in allowed_differences and new_value != present_value and is_taken:
            raise ValueError(
                f"{folder} holds a run with {field}={present_value}, and this sweep has "
                f"{field}={new_value}: name another folder, "
                f"or give the options of the sweep that is there, or vary {field}"
            )
    if config.mechanism is None or config.mechanism != present_config.mechanism:
        return
    trained_file = folder / "mechanism.npz"
    current_file = expanded(config.mechanism)
    if trained_file.exists() and current_file.exists():
        trained_digest = _digest_of(trained_file, trained_file.stat().st_mtime_ns)
        if trained_digest != _digest_of(current_file, current_file.stat().st_mtime_ns):
            raise ValueError(
                f"mechanism={config.mechanism} is not the one that {folder} was trained with: give "
                "the new one another name"
            )


@functools.lru_cache(maxsize=1024)
def _digest_of(path: pathlib.Path, modified: int) -> str:
    """Returns the digest of the mechanism in a file. `modified` is the file's modification time."""
    # The modification time is part of the cache's key, so that a rewritten file is read again.
    del modified
    return mechanism_digest(load_mechanism(path))


def begun_runs(folders: Iterable[pathlib.Path]) -> list[Run]:
    """Returns the runs that have released at least one round, whether finished, stopped or crashed.

    All of them have trained on the clients.
    """
    return [
        Run.load(folder)
        for folder in folders
        if (folder / "result.json").exists() or RunFolder(folder).has_released()
    ]


@contextlib.contextmanager
def writing(out: pathlib.Path) -> Iterator[None]:
    """Creates the folder of a sweep. Inside the block, errors of writing to the folder say what to
    do.
    """
    try:
        for name in ("runs", "logs"):
            make_folder(out / name)
        yield
    except OSError as error:
        raise ValueError(
            f"cannot write to folder {out} ({error.strerror}): name a folder you may write to"
        ) from error
