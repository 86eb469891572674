"""Training tasks: data, model and metrics. They know no privacy.

A task is a function of its own frozen options dataclass, and of `progress` if it shows bars, that
returns a `training.Task`, of which `federated.Task` is one. Those that ship are a folder here and a
line of TASKS; those of installed packages are entry points of the group fedmf.tasks; a user's own
are named package.module:function.
"""

import dataclasses
import importlib.metadata
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from fedmf.checks import did_you_mean
from fedmf.participation.schema import SCHEMAS
from fedmf.participation.separation import check_separation

if TYPE_CHECKING:
    from fedmf.runs.config import TrainConfig
    from fedmf.runs.folder import Run
    from fedmf.training.task import Task

TASKS = {
    "stackoverflow_nwp": "fedmf.tasks.stackoverflow:stackoverflow_nwp",
    "emnist": "fedmf.tasks.emnist:emnist",
    "cifar10": "fedmf.tasks.cifar10:cifar10",
    "regression": "fedmf.tasks.regression:regression",
}
DEFAULT = "stackoverflow_nwp"
ENTRY_POINTS = "fedmf.tasks"


def available() -> dict[str, str]:
    """Name -> package.module:function, of shipped tasks and of those of installed packages."""
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {point.name: point.value for point in points} | TASKS


def task_function(name: str) -> Callable[..., "Task"]:
    """The function of a task: of one that is `available`, or package.module:function, also in the
    working folder.

    Raises:
      ValueError: there is none, or it cannot be imported.
    """
    # To read the entry points of all packages takes longer than all else here.
    target = TASKS.get(name) or available().get(name, name)
    if ":" not in target:
        raise ValueError(
            f"task={name!r} is unknown: choose one of {', '.join(available())}, or name a function "
            "as package.module:function"
        )
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # at the end: nothing of ours is shadowed
    try:
        if ":" in name and importlib.util.find_spec(name.partition(":")[0].partition(".")[0]):
            _import_tensorflow_quietly()
        function = pkgutil.resolve_name(target)
    except Exception as error:
        raise ValueError(
            f"task={name!r} cannot be imported ({type(error).__name__}: {error}): name a function "
            "as package.module:function"
        ) from error
    if not callable(function):
        raise ValueError(
            f"task={name!r} is a {type(function).__name__}: name a function that returns a Task"
        )
    return function


def _import_tensorflow_quietly() -> None:
    """Imports TensorFlow where it is installed, without the chatter that a user's own import of it
    would print.
    """
    if importlib.util.find_spec("tensorflow"):
        import fedmf.federated  # noqa: F401


def options_class(name: str) -> type[Any] | None:
    """The dataclass of a task's options, which its function's first parameter is annotated with;
    None for one without.

    Raises:
      ValueError: as `task_function` does.
    """
    function = task_function(name)
    parameters = list(inspect.signature(function).parameters.values())
    kind = parameters[0].annotation if parameters else None
    if isinstance(kind, str):  # under `from __future__ import annotations`
        kind = getattr(function, "__globals__", {}).get(kind)
    return kind if isinstance(kind, type) and dataclasses.is_dataclass(kind) else None


def completed(config: "TrainConfig") -> "TrainConfig":
    """The config with its task, and with every option of the task, checked.

    Raises:
      ValueError: no such task or option, or a value that the option does not take.
    """
    name = config.task or DEFAULT
    given = _options(name, config)
    options = dataclasses.asdict(given[0]) if given else {}
    options.pop("data", None)
    return dataclasses.replace(config, task=name, task_options=options)


def check_separation_is_given(values: Mapping[str, Any]) -> None:
    """Raises where the fields of a run lack the separation that their schema needs.

    The error says what the clients of the data allow; data that cannot be read leave it to
    `TrainConfig`.

    Args:
      values: field of `TrainConfig` -> value.

    Raises:
      ValueError: with the largest separation.
    """
    from fedmf.runs.config import TrainConfig

    schema = values.get("schema") or TrainConfig.schema
    is_given = values.get("min_sep") is not None or values.get("sampling") is not None
    if is_given or schema not in tuple(SCHEMAS) or "min_sep" not in SCHEMAS[schema].settings:
        return
    try:
        config = completed(TrainConfig.from_mapping({**values, "min_sep": 1}, "the run"))
        num_clients = len(task_from_config(config, progress=False).client_ids)
    except Exception:  # which is told where it is the first thing that is wrong
        return
    check_separation(
        None,
        population=num_clients + config.canaries,
        cohort_size=config.cohort_size,
        rounds=config.rounds,
        schema=schema,
    )


def _options(name: str, config: "TrainConfig") -> list[Any]:
    """What its function takes: the checked options, or nothing."""
    kind = options_class(name)
    if kind is None:
        for option in (*config.task_options, *["data"] * (config.data is not None)):
            raise ValueError(
                f"`task_option` {option!r}: the task {name} has no options, leave it out"
            )
        return []
    fields = {field.name: field for field in dataclasses.fields(kind)}
    given = {option.replace("-", "_"): value for option, value in config.task_options.items()}
    if config.data is not None:
        if "data" not in fields:
            raise ValueError(f"data={config.data!r}: the task {name} reads no data, leave it out")
        given["data"] = config.data
    for option, value in given.items():
        if option not in fields:
            hint = did_you_mean(_spelled(option), map(_spelled, fields), "its options are")
            raise ValueError(
                f"`task_option` {_spelled(option)!r} is none of the task {name}: {hint}"
            )
        if value == "none":
            annotation = typing.get_type_hints(kind)[option]
            given[option] = None if types.NoneType in typing.get_args(annotation) else value
    try:
        return [msgspec.convert(given, kind, strict=False)]
    except msgspec.ValidationError as error:
        # msgspec names the field behind the sentence: "Expected `int`, got `str` - at `$.clients`".
        message, _, place = re.sub(r" - at `\$`$", "", str(error)).partition(" - at `$.")
        option = place.rstrip("`")
        message = f"{option}={given[option]!r}: {message}" if option else message
        message = re.sub(rf"\b({'|'.join(fields)})\b", lambda match: _spelled(match[0]), message)
        raise ValueError(f"`task_option` {message}") from error


def task_of_run(
    run: "Run",
    *,
    task: str | None = None,
    task_options: Mapping[str, Any] | None = None,
    data: str | None = None,
    progress: bool = True,
) -> "Task":
    """The task that a run was trained on; with `data` the same on another data file.

    `task` names it, with `task_options`, where the run was trained in Python
    and its config does not.

    Words, classes and the like keep the numbers that the model knows them by: where that is more
    than another file, the task's options have a method `on_data(data)`.

    Raises:
      FileNotFoundError, TypeError, ValueError: as `task_from_config` does; the run's config does
        not name its task and `task` does not either; or `task` is another than the run's.
    """
    config, recorded = run.config, run.plan["task"]["name"]
    if task is None and task_options:
        raise ValueError(
            "`task_options` belong to a task that is named: give task=module:function as well"
        )
    if task is not None:
        config = dataclasses.replace(
            config, task=task, task_options={**config.task_options, **(task_options or {})}
        )
    elif config.task is None and recorded != DEFAULT:
        raise ValueError(
            f"run {run.path} was trained in Python on task {recorded!r}, which its config does not "
            "name: give task=module:function, whose "
            "function makes it, or load the run there by federated.TrainedRun.of"
        )
    made = task_from_config(
        config if data is None else dataclasses.replace(config, data=data), progress=progress
    )
    if task is not None and made.name != recorded:
        raise ValueError(
            f"task={task} makes the task {made.name!r}, and run {run.path} was trained on "
            f"{recorded!r}: name a function that makes that one"
        )
    if data is None or made.data_version == run.plan["task"]["data_version"]:
        return made
    options = _options(config.task or DEFAULT, config)
    if not options or not hasattr(options[0], "on_data"):
        return made
    values = dataclasses.asdict(options[0].on_data(data))
    config = dataclasses.replace(config, data=values.pop("data"), task_options=values)
    return task_from_config(config, progress=progress)


def _spelled(option: str) -> str:
    """As on the command line, which config files take as well."""
    return option.replace("_", "-")


def task_from_config(config: "TrainConfig", *, progress: bool = True) -> "Task":
    """The task that a config describes; imports what it trains with.

    Reading shows progress bars where it takes long, or none.

    Raises:
      FileNotFoundError, TypeError, ValueError: no such task, an option out of range, the data file
        is absent or damaged.
    """
    from fedmf.training.examples import errors_of
    from fedmf.training.task import Task

    name = config.task or DEFAULT
    function = task_function(name)
    options = _options(name, config)
    signature = inspect.signature(function)
    shown = {"progress": progress} if "progress" in signature.parameters else {}
    try:
        signature.bind(*options, **shown)
    except TypeError as error:
        raise ValueError(
            f"task={name!r} cannot be called ({error}): give its first parameter a frozen "
            "dataclass of options as its type, and no other parameter without a default"
        ) from error
    if name in TASKS:
        import fedmf.federated  # noqa: F401  (TensorFlow without its chatter, or what is missing)
    with errors_of(f"task={name!r}"):
        task = function(*options, **shown)
    if not isinstance(task, Task):
        raise TypeError(
            f"task={name!r} returns a {type(task).__name__}: return a fedmf.federated.Task or a "
            "fedmf.training.Task"
        )
    return task
