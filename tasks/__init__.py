"""Training tasks, each with its data, model and metrics. Tasks are independent of the privacy
mechanism.

A task is made by a function that returns a `training.Task`, such as a `federated.Task`. The
function takes a frozen dataclass of options, and `progress` if it shows progress bars. Each task
that ships has a folder here and a line in TASKS. Tasks of installed packages are entry points of
the group fedmf.tasks. A user names a task of their own as package.module:function.
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
from fedmf.tasks.data_file import is_labelled

if TYPE_CHECKING:
    from fedmf.runs.config import TrainConfig
    from fedmf.runs.folder import Run
    from fedmf.training.task import Task

TASKS = {
    "stackoverflow_nwp": "fedmf.tasks.stackoverflow:stackoverflow_nwp",
    "emnist": "fedmf.tasks.emnist:emnist",
    "cifar10": "fedmf.tasks.cifar10:cifar10",
    "regression": "fedmf.tasks.regression:regression",
    "classification": "fedmf.tasks.classification:classification",
}
DEFAULT = "stackoverflow_nwp"
ENTRY_POINTS = "fedmf.tasks"


def available() -> dict[str, str]:
    """Returns the function that makes each shipped or installed task, as package.module:function by
    the task's name.
    """
    entry_points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {entry_point.name: entry_point.value for entry_point in entry_points} | TASKS


def task_function(name: str) -> Callable[..., "Task"]:
    """Returns the function that makes a task, given the task's name or package.module:function.

    Modules are also looked for in the working folder.

    Raises:
      ValueError: there is no such function, or it cannot be imported.
    """
    # Names of built-in tasks are looked up first, since reading the entry points of all packages is
    # slow.
    function_path = TASKS.get(name) or available().get(name, name)
    if ":" not in function_path:
        raise ValueError(
            f"task={name!r} is unknown: choose one of {', '.join(available())}, or name a function "
            "as package.module:function"
        )
    if os.getcwd() not in sys.path:
        # The current folder is added at the end of the module search path, so that its modules do
        # not shadow installed ones.
        sys.path.append(os.getcwd())
    try:
        if ":" in name and importlib.util.find_spec(name.partition(":")[0].partition(".")[0]):
            _import_tensorflow_quietly()
        task_builder = pkgutil.resolve_name(function_path)
    except Exception as error:
        raise ValueError(
            f"task={name!r} cannot be imported ({type(error).__name__}: {error}): name a function "
            "as package.module:function"
        ) from error
    if not callable(task_builder):
        raise ValueError(
            f"task={name!r} is a {type(task_builder).__name__}: name a function that returns a Task"
        )
    return task_builder


def _import_tensorflow_quietly() -> None:
    """Imports TensorFlow, if it is installed, without the messages that its import prints."""
    if importlib.util.find_spec("tensorflow"):
        import fedmf.federated  # noqa: F401


def options_class(name: str) -> type[Any] | None:
    """Returns the dataclass of a task's options, or None if the task has no options.

    The first parameter of the task's function is annotated with it.

    Raises:
      ValueError: as `task_function` does.
    """
    task_builder = task_function(name)
    function_parameters = list(inspect.signature(task_builder).parameters.values())
    options_annotation = function_parameters[0].annotation if function_parameters else None
    # With `from __future__ import annotations`, an annotation is a text, here the name of a class.
    if isinstance(options_annotation, str):
        options_annotation = getattr(task_builder, "__globals__", {}).get(options_annotation)
    is_class = isinstance(options_annotation, type) and dataclasses.is_dataclass(options_annotation)
    return options_annotation if is_class else None


def completed(config: "TrainConfig") -> "TrainConfig":
    """Returns a configuration after filling in the default task and the defaults of the task's
    options.

    Raises:
      ValueError: no such task or option, or a value that the option does not take.
    """
    task_name = _name_of_task(config)
    task_options = _task_options(task_name, config)
    option_values = {} if task_options is None else dataclasses.asdict(task_options)
    option_values.pop("data", None)
    return dataclasses.replace(config, task=task_name, task_options=option_values)


def _name_of_task(config: "TrainConfig") -> str:
    """Returns the name of a configuration's task. If it names none, the task is that of its data
    file.
    """
    if config.task is not None:
        return config.task
    if config.data is not None and is_labelled(config.data):
        return "classification"
    return DEFAULT


def check_separation_is_given(values: Mapping[str, Any]) -> None:
    """Raises an error if a run lacks the separation that its participation schema needs.

    The error says which separation the clients of the data allow. If the data cannot be read,
    nothing is raised here, and `TrainConfig` raises its own error.

    Args:
      values: field of `TrainConfig` -> value.

    Raises:
      ValueError: with the largest separation.
    """
    from fedmf.runs.config import TrainConfig

    schema_name = values.get("schema") or TrainConfig.schema
    is_given = values.get("min_sep") is not None or values.get("sampling") is not None
    if (
        is_given
        or schema_name not in tuple(SCHEMAS)
        or "min_sep" not in SCHEMAS[schema_name].settings
    ):
        return
    try:
        config = completed(TrainConfig.from_mapping({**values, "min_sep": 1}, "the run"))
        num_clients = len(task_from_config(config, progress=False).client_ids)
    # Errors are ignored here, because training raises the same error later, after more important
    # ones.
    except Exception:
        return
    check_separation(
        None,
        population=num_clients + config.canaries,
        cohort_size=config.cohort_size,
        rounds=config.rounds,
        schema=schema_name,
    )


def _task_options(name: str, config: "TrainConfig") -> Any:
    """Returns the checked options of a task, or None if the task has no options."""
    options_type = options_class(name)
    if options_type is None:
        _refuse_options(name, config)
        return None
    field_by_name = {field.name: field for field in dataclasses.fields(options_type)}
    value_by_option = {
        option.replace("-", "_"): value for option, value in config.task_options.items()
    }
    if config.data is not None:
        if "data" not in field_by_name:
            raise ValueError(f"data={config.data!r}: the task {name} reads no data, leave it out")
        value_by_option["data"] = config.data
    for option in value_by_option:
        if option not in field_by_name:
            option_hint = did_you_mean(
                _spelled(option), map(_spelled, field_by_name), "its options are"
            )
            raise ValueError(
                f"`task_option` {_spelled(option)!r} is none of the task {name}: {option_hint}"
            )
        if value_by_option[option] == "none":
            option_type = typing.get_type_hints(options_type)[option]
            if types.NoneType in typing.get_args(option_type):
                value_by_option[option] = None
    try:
        return msgspec.convert(value_by_option, options_type, strict=False)
    except msgspec.ValidationError as error:
        error_message = _option_message(str(error), value_by_option, list(field_by_name))
        raise ValueError(f"`task_option` {error_message}") from error


def _refuse_options(name: str, config: "TrainConfig") -> None:
    """Raises an error if a configuration has options for a task that takes none."""
    option_names = list(config.task_options)
    if config.data is not None:
        option_names.append("data")
    if option_names:
        raise ValueError(
            f"`task_option` {option_names[0]!r}: the task {name} has no options, leave it out"
        )


def _option_message(message: str, values: Mapping[str, Any], options: list[str]) -> str:
    """Returns an error message of msgspec after adding the option's name and value at its
    beginning.
    """
    # msgspec puts the field's name at the end: "Expected `int`, got `str` - at `$.clients`".
    full_sentence, _, field = re.sub(r" - at `\$`$", "", message).partition(" - at `$.")
    option_name = field.rstrip("`")
    if option_name:
        full_sentence = f"{option_name}={values[option_name]!r}: {full_sentence}"
    return re.sub(rf"\b({'|'.join(options)})\b", lambda match: _spelled(match[0]), full_sentence)


def task_of_run(
    run: "Run",
    *,
    task: str | None = None,
    task_options: Mapping[str, Any] | None = None,
    data: str | None = None,
    progress: bool = True,
) -> "Task":
    """Returns the task that a run was trained on, or with `data` the same task on another data
    file.

    If the run was trained in Python and its configuration does not name the task, `task` and
    `task_options` do.

    Words and classes keep the ids that the model was trained with. If that takes more than reading
    another file, the task's options have a method `on_data(data)`.

    Raises:
      FileNotFoundError, TypeError, ValueError: as `task_from_config` does; the run's config does
        not name its task and `task` does not either; or `task` is another than the run's.
    """
    config = run.config
    recorded_name = run.plan["task"]["name"]
    if task is None and task_options:
        raise ValueError(
            "`task_options` belong to a task that is named: give task=module:function as well"
        )
    if task is not None:
        all_options = {**config.task_options, **(task_options or {})}
        config = dataclasses.replace(config, task=task, task_options=all_options)
    elif config.task is None and recorded_name != DEFAULT:
        raise ValueError(
            f"run {run.path} was trained in Python on task {recorded_name!r}, which its config "
            "does not name: give task=module:function, whose "
            "function makes it, or load the run there by federated.TrainedRun.of"
        )
    data_config = config if data is None else dataclasses.replace(config, data=data)
    run_task = task_from_config(data_config, progress=progress)
    if task is not None and run_task.name != recorded_name:
        raise ValueError(
            f"task={task} makes the task {run_task.name!r}, and run {run.path} was trained on "
            f"{recorded_name!r}: name a function that makes that one"
        )
    if data is None or run_task.data_version == run.data_version:
        return run_task
    mapped_config = config_on_data(config, data)
    if mapped_config == data_config:
        return run_task
    return task_from_config(mapped_config, progress=progress)


def config_on_data(config: "TrainConfig", data: str) -> "TrainConfig":
    """Returns the configuration of the same task on another data file, in which words and classes
    keep the ids that they have for the present file.
    """
    task_options = _task_options(_name_of_task(config), config)
    if not hasattr(task_options, "on_data"):
        return dataclasses.replace(config, data=data)
    option_values = dataclasses.asdict(task_options.on_data(data))
    return dataclasses.replace(config, data=option_values.pop("data"), task_options=option_values)


def _spelled(option: str) -> str:
    """Returns an option as it is spelled on the command line and in configuration files."""
    return option.replace("_", "-")


def task_from_config(config: "TrainConfig", *, progress: bool = True) -> "Task":
    """Returns the task that a configuration describes, and imports the library that trains it.

    Reading of large files shows progress bars, unless `progress` is False.

    Raises:
      FileNotFoundError, TypeError, ValueError: no such task, an option out of range, the data file
        is absent or damaged.
    """
    from fedmf.training.examples import errors_of
    from fedmf.training.task import Task

    task_name = _name_of_task(config)
    task_builder = task_function(task_name)
    task_options = _task_options(task_name, config)
    builder_arguments = [] if task_options is None else [task_options]
    builder_signature = inspect.signature(task_builder)
    builder_keywords = {"progress": progress} if "progress" in builder_signature.parameters else {}
    try:
        builder_signature.bind(*builder_arguments, **builder_keywords)
    except TypeError as error:
        raise ValueError(
            f"task={task_name!r} cannot be called ({error}): give its first parameter a frozen "
            "dataclass of options as its type, and no other parameter without a default"
        ) from error
    needs_tensorflow = getattr(task_options, "framework", "tensorflow") == "tensorflow"
    if task_name in TASKS and needs_tensorflow:
        # Importing `fedmf.federated` loads TensorFlow without its log messages. If TensorFlow is
        # missing, the error says how to install it.
        import fedmf.federated  # noqa: F401
    with errors_of(f"task={task_name!r}"):
        built_task = task_builder(*builder_arguments, **builder_keywords)
    if not isinstance(built_task, Task):
        raise TypeError(
            f"task={task_name!r} returns a {type(built_task).__name__}: return a "
            "fedmf.federated.Task or a fedmf.training.Task"
        )
    return built_task
