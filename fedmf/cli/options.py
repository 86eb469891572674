"""Options that several commands share, and functions that build configurations from them."""

import contextlib
import dataclasses
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fedmf import strict_json
from fedmf.cli.errors import Command, arguments_checked
from fedmf.cli.help import CONFIG_SECTIONS, SectionOption, TaskFieldOption
from fedmf.cli.values import (
    EXISTING_FILE,
    ConfigField,
    FamilyOption,
    Named,
    NoiseSeed,
    TaskOption,
    task_names,
)

if TYPE_CHECKING:
    from fedmf.privacy.config import PlanConfig

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
# After this many seconds without a change, a progress line also shows the elapsed time.
_QUIET_SECONDS = 3


def grouped(group: str, *options: Decorator) -> Decorator:
    """Returns a decorator that passes the values of these options to a command as one dict.

    The dict is the command function's argument named `group`.
    """

    def declare(command: Callable[..., Any]) -> Callable[..., Any]:
        num_earlier = len(getattr(command, "__click_params__", ()))
        for option in reversed(options):
            command = option(command)
        for parameter in command.__click_params__[num_earlier:]:  # type: ignore[attr-defined]
            parameter.group = group
        return command

    return declare


noise_seed_option = click.option(
    "--noise-seed",
    type=NoiseSeed(),
    help="Secret whole number, @FILE that holds it, or os to draw one. Needed "
    "for a new run with noise.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress bar.")


run_task_options = grouped(
    "task_settings",
    click.option(
        "--task",
        type=Named(task_names),
        is_eager=True,
        help="Of a run that was trained in Python: what makes its task, package.module:function.",
    ),
    click.option(
        "-o",
        "--task-option",
        "task_options",
        type=TaskOption(),
        multiple=True,
        help="With --task: an option of it. Repeatable.",
    ),
)


def options_of(
    config: str,
    *,
    group: str = "config_options",
    names: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    required: Sequence[str] = (),
    defaults: bool = False,
) -> Decorator:
    """Returns a decorator that adds one option for each field of a configuration class.

    All options that are fields are declared here. Their values reach the command's function as one
    argument, for `chosen_options`.

    Args:
      config: "PlanConfig", "TrainConfig", "AggregatorClaim" or "ImportOptions".
      group: name of the argument.
      names: names of the fields that become options; none for all.
      leave_out: names of fields that are no options of this command.
      required: names of the options that must be given.
      defaults: whether the command gets the default of each option that is not given.
    """
    from fedmf.audits.aggregator_claim import AggregatorClaim
    from fedmf.privacy.config import PlanConfig
    from fedmf.runs.config import TrainConfig
    from fedmf.tasks.partitioned import PartitionOptions
    from fedmf.tasks.row_table import ImportOptions

    configs: tuple[Any, ...] = (PlanConfig, TrainConfig, AggregatorClaim, ImportOptions)
    [kind] = (kind for kind in configs if kind.__name__ == config)
    help_section = "Options"
    declared: list[Decorator] = []
    for field in dataclasses.fields(kind):
        if kind is not ImportOptions:
            help_section = CONFIG_SECTIONS.get(field.name, help_section)
        if (names and field.name not in names) or field.name in leave_out:
            continue
        settings: dict[str, Any] = {"cls": SectionOption, "section": help_section}
        # A required option gets no default, not even None. For click, None is a default, so a
        # missing option would not be an error.
        if field.name not in required:
            settings["default"] = None
            if defaults:
                settings["default"] = field.default
        help_text = field.metadata["help"]
        # The field that has the options of a mechanism family gets no option here, because
        # `FamilyCommand` adds one for each of them.
        if field.name == "mechanism_options":
            continue
        if field.name == "task_options":
            option_flags = ["-o", "--task-option"]
            settings |= {"type": TaskOption(), "multiple": True}
            help_text += " Repeatable; `--task NAME --help` lists them."
            task_fields = dataclasses.fields(PartitionOptions)
            declared += [_task_field_option(task_field, help_section) for task_field in task_fields]
        else:
            option_flags = [f"--{field.name.replace('_', '-')}"]
            settings["type"] = ConfigField(field)
            settings["required"] = field.name in required
            # The help lists the options of the chosen task, so --task must be parsed first.
            settings["is_eager"] = field.name == "task"
            # The default is written into the help text only if the command does not pass it to
            # click, because click shows the defaults that it knows.
            if not (field.default is None or defaults or field.name in required):
                help_text += f"  [default: {field.default}]"
        declared.append(click.option(*option_flags, field.name, help=help_text, **settings))
    return grouped(group, *declared)


def _task_field_option(field: "dataclasses.Field[Any]", section: str) -> Decorator:
    """Returns an option for one field of a task's options, which --task-option can set as well."""
    help_text = f"{field.metadata['help']} For tasks with this option, such as emnist and cifar10."
    return click.option(
        f"--{field.name.replace('_', '-')}",
        field.name,
        type=ConfigField(field),
        help=help_text,
        cls=TaskFieldOption,
        section=section,
    )


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the argument MECHANISM, which is a file, and the options of its plan for
    `plan_config`.
    """
    from fedmf.privacy.flat_config import FIT_FIELDS

    mechanism_argument = click.argument("mechanism_file", metavar="MECHANISM", type=EXISTING_FILE)
    field_options = options_of("PlanConfig", leave_out=FIT_FIELDS, required=("rounds",))
    return grouped("config_options", mechanism_argument)(field_options(command))


class FamilyCommand(Command):
    """Command that has the options of every mechanism family that is registered when it runs."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Returns the command's own parameters, then those of the mechanism families, and --help at
        the end.
        """
        *own_options, help_option = super().get_params(ctx)
        own_names = {parameter.name for parameter in own_options}
        family_options = ctx.meta.setdefault("fedmf.family_options", _family_options())
        added_options = [option for option in family_options if option.name not in own_names]
        return [*own_options, *added_options, help_option]


def _family_options() -> list[click.Parameter]:
    """Returns one option for each option of the mechanism families.

    An option that is left out has its family's default. An option of another family is refused.
    """
    from fedmf.mechanisms.family import fitted_families

    family_options = []
    for family, record in fitted_families().items():
        family_options += [(family, option) for option in record.options.values()]
    declared: list[click.Parameter] = []
    for name, kind in {option.name: option.kind for _, option in family_options}.items():
        families_by_help: dict[str, list[str]] = {}
        choices_by_family = {}
        for family, option in family_options:
            if option.name == name:
                families_by_help.setdefault(option.help, []).append(family)
                choices_by_family[family] = option.choices
        help_phrases = [f"{', '.join(names)}: {text}" for text, names in families_by_help.items()]
        option_flag = f"--{name.replace('_', '-')}"
        option_type: FamilyOption | None = FamilyOption(kind, choices_by_family)
        if kind is bool:
            option_flag += f"/--no-{option_flag[2:]}"
            option_type = None
        section_option = SectionOption(
            [option_flag, name],
            section="Options of the families",
            type=option_type,
            default=None,
            help=f"{'; '.join(help_phrases)}.",
        )
        section_option.group = "config_options"
        declared.append(section_option)
    return declared


class TaskCommand(Command):
    """Command whose help also lists the options of a task, if --task comes before --help and names
    the task.
    """

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the options of the command, and the options of the task below them."""
        super().format_options(ctx, formatter)
        task_name = ctx.params.get("task")
        if task_name is None:
            return
        from fedmf import tasks

        with arguments_checked():
            options_class = tasks.options_class(task_name)
        help_rows = []
        if options_class is not None:
            for field in dataclasses.fields(options_class):
                help_rows.append((_with_default(field), field.metadata.get("help", "")))
        with formatter.section(f"Task options of {task_name}"):
            formatter.write_dl(help_rows or [("none", "")])


class ConfigCommand(TaskCommand, FamilyCommand):
    """Command that trains a model. It has the options of its task and of every mechanism family."""


def _with_default(field: dataclasses.Field[Any]) -> str:
    """Returns the name of a task's option with its default, such as batch_size=16."""
    if field.default_factory is not dataclasses.MISSING:
        return f"{field.name}={field.default_factory()}"
    if field.default is dataclasses.MISSING:
        return f"{field.name} (needed)"
    return f"{field.name}={field.default}"


def chosen_options(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration fields that were given on the command line, with their values."""
    from fedmf.privacy.flat_config import TASK_OPTION, nested
    from fedmf.tasks.partitioned import PartitionOptions

    task_fields = {field.name for field in dataclasses.fields(PartitionOptions)}
    chosen: dict[str, Any] = {}
    for name, value in flags.items():
        if value is None:
            continue
        config_name = name
        if name in task_fields:
            config_name = f"{TASK_OPTION}{name}"
        chosen[config_name] = value
        if value is ConfigField.NONE:
            chosen[config_name] = None
    task_options = dict(chosen.pop("task_options", ()))
    if task_options:
        chosen["task_options"] = task_options
    return nested(chosen)


def merged(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options in `values`, updated by those in `overrides`. The options of the task are
    merged one by one.
    """
    merged_values = {**values, **overrides}
    for name in ("task_options", "mechanism_options"):
        merged_options = {**values.get(name, {}), **overrides.get(name, {})}
        if merged_options:
            merged_values[name] = merged_options
    return merged_values


def config_values(path: pathlib.Path | None) -> dict[str, Any]:
    """Reads options from a TOML or JSON file, or returns none without a file.

    Raises:
      ValueError: naming the path.
    """
    from fedmf.privacy.flat_config import nested
    from fedmf.runs.config import read_config_file

    if path is None:
        return {}
    # YAML files get their own error message, since an error about invalid JSON would mislead the
    # author.
    if path.suffix not in (".toml", ".json"):
        raise ValueError(
            f"config={str(path)!r} ends in neither .toml nor .json: name a TOML "
            "or JSON file of options"
        )
    return nested(read_config_file(path))


def plan_config(config_options: Mapping[str, Any]) -> "PlanConfig":
    """Returns the plan's configuration from the values of `plan_options`.

    Raises:
      TypeError, ValueError: an option is out of range, or options do not suit each other.
    """
    from fedmf.privacy.config import PlanConfig

    chosen_values = chosen_options(config_options)
    mechanism_path = str(chosen_values.pop("mechanism_file"))
    return PlanConfig(family="file", mechanism=mechanism_path, **chosen_values)


@contextlib.contextmanager
def status_line(label: str = "") -> Iterator[Callable[[Any], None]]:
    """Yields a function that shows the progress of a search in a single line of a terminal.

    The line is cleared at the end. A step of more than a few seconds is shown with its time.
    """
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    latest_line = ""
    began = time.monotonic()
    is_done = threading.Event()

    def show_progress(progress: Any) -> None:
        nonlocal latest_line, began
        latest_line = f"{label}{progress}"
        began = time.monotonic()
        click.echo(f"\r\033[K{latest_line}", nl=False, err=True)

    def show_time() -> None:
        while not is_done.wait(1.0):
            elapsed_seconds = int(time.monotonic() - began)
            if elapsed_seconds >= _QUIET_SECONDS:
                click.echo(f"\r\033[K{latest_line} [{elapsed_seconds} s]", nl=False, err=True)

    time_thread = threading.Thread(target=show_time, daemon=True)
    time_thread.start()
    try:
        yield show_progress
    finally:
        is_done.set()
        time_thread.join()
        click.echo("\r\033[K", nl=False, err=True)


def show(values: dict[str, Any], as_json: bool) -> None:
    """Prints a result as JSON, or as one aligned line for each value.

    In a line, a nested value has a name such as `outer.inner`.
    """
    if as_json:
        click.echo(strict_json.dumps(values, indent=2))
        return
    from fedmf.fields import flat
    from fedmf.privacy.rounding import up

    values = flat(values)
    name_width = max(map(len, values))
    for name, value in values.items():
        # JSON has no infinity, so an infinite epsilon is null in the values.
        if value is None:
            value = "none"
            if "epsilon" in name or "rho" in name or name.endswith(".mu"):
                value = "infinite"
        value_text = _text(value)
        if isinstance(value, float) and any(word in name for word in _PRIVACY_LOSSES):
            value_text = up(value, 6)
        click.echo(f"{name:<{name_width}}  {value_text}")


# Values whose name contains one of these words bound the privacy loss, so they are rounded up.
_PRIVACY_LOSSES = ("epsilon", "rho", "advantage", "true_positive_rate", ".mu")


def _text(value: Any) -> str:
    """Returns a value as text for a terminal, where floats have six digits."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
