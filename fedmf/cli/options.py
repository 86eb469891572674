"""Options that several commands have, and the values they turn into."""

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
# Seconds after which a line of progress that stays the same shows its time.
_QUIET_SECONDS = 3


def in_one(group: str, *options: Decorator) -> Decorator:
    """These options as one argument `group` of the command's function: a dict of their values."""

    def declare(command: Callable[..., Any]) -> Callable[..., Any]:
        before = len(getattr(command, "__click_params__", ()))
        for option in reversed(options):
            command = option(command)
        for parameter in command.__click_params__[before:]:  # type: ignore[attr-defined]
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


run_task_options = in_one(
    "asked",
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
    group: str = "promise",
    names: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    required: Sequence[str] = (),
    defaults: bool = False,
) -> Decorator:
    """One option for each field of a config: the one place that declares options of the promise.

    Their values are one argument of the command's function, for `chosen_options`.

    Args:
      config: "PlanConfig", "TrainConfig", "AggregatorClaim" or "ImportOptions".
      group: name of the argument.
      names: of the fields; none for all.
      leave_out: names that are no options of this command.
      required: names without which the command does not run.
      defaults: whether a command is given the defaults of what is not on its command line.
    """
    from fedmf.audits.aggregator_claim import AggregatorClaim
    from fedmf.privacy.config import PlanConfig
    from fedmf.runs.config import TrainConfig
    from fedmf.tasks.partitioned import PartitionOptions
    from fedmf.tasks.stackoverflow import ImportOptions

    configs: tuple[Any, ...] = (PlanConfig, TrainConfig, AggregatorClaim, ImportOptions)
    [kind] = (kind for kind in configs if kind.__name__ == config)
    section, declared = "Options", []
    for field in dataclasses.fields(kind):
        if kind is not ImportOptions:
            section = CONFIG_SECTIONS.get(field.name, section)
        if (names and field.name not in names) or field.name in leave_out:
            continue
        settings: dict[str, Any] = {"cls": SectionOption, "section": section}
        if field.name not in required:  # Click takes None for a default: nothing would be missing.
            settings["default"] = field.default if defaults else None
        help_text = field.metadata["help"]
        if field.name == "mechanism_options":  # each an option of its own: `FamilyCommand`
            continue
        if field.name == "task_options":
            flags = ["-o", "--task-option"]
            settings |= {"type": TaskOption(), "multiple": True}
            help_text += " Repeatable; `--task NAME --help` lists them."
            declared += [_of_the_task(own, section) for own in dataclasses.fields(PartitionOptions)]
        else:
            flags = [f"--{field.name.replace('_', '-')}"]
            settings["type"] = ConfigField(field)
            settings["required"] = field.name in required
            settings["is_eager"] = field.name == "task"  # the help asks for it
            # Click shows a default that the command is given.
            shown = not (field.default is None or defaults or field.name in required)
            help_text += f"  [default: {field.default}]" if shown else ""
        declared.append(click.option(*flags, field.name, help=help_text, **settings))
    return in_one(group, *declared)


def _of_the_task(field: "dataclasses.Field[Any]", section: str) -> Decorator:
    """An option that stands for --task-option, of tasks that have it."""
    text = f"{field.metadata['help']} For tasks with this option, such as emnist and cifar10."
    return click.option(
        f"--{field.name.replace('_', '-')}",
        field.name,
        type=ConfigField(field),
        help=text,
        cls=TaskFieldOption,
        section=section,
    )


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument MECHANISM, a file, and the options of its plan, for `plan_config`."""
    from fedmf.privacy.flat_config import FIT_FIELDS

    mechanism = click.argument("mechanism_file", metavar="MECHANISM", type=EXISTING_FILE)
    options = options_of("PlanConfig", leave_out=FIT_FIELDS, required=("rounds",))
    return in_one("promise", mechanism)(options(command))


class FamilyCommand(Command):
    """A command that has the options of every family that is registered when it runs."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The options; those of the families before --help."""
        *own, help_option = super().get_params(ctx)
        names = {parameter.name for parameter in own}
        made = ctx.meta.setdefault("fedmf.family_options", _family_options())
        return [*own, *(option for option in made if option.name not in names), help_option]


def _family_options() -> list[click.Parameter]:
    """The options of the families.

    Left out, the family's own default holds; another family's is refused.
    """
    from fedmf.mechanisms.family import fitted_families

    options = [
        (family, o) for family, record in fitted_families().items() for o in record.options.values()
    ]
    declared: list[click.Parameter] = []
    for name, kind in {option.name: option.kind for _, option in options}.items():
        families: dict[str, list[str]] = {}
        for family, option in options:
            if option.name == name:
                families.setdefault(option.help, []).append(family)
        flag = f"--{name.replace('_', '-')}"
        flags = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
        text = "; ".join(f"{', '.join(names)}: {phrase}" for phrase, names in families.items())
        choices = {family: option.choices for family, option in options if option.name == name}
        made = SectionOption(
            [flags, name],
            section="Options of the families",
            type=None if kind is bool else FamilyOption(kind, choices),
            default=None,
            help=f"{text}.",
        )
        made.group = "promise"
        declared.append(made)
    return declared


class TaskCommand(Command):
    """A command whose help lists the options of the task that --task names before --help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, and those of the task."""
        super().format_options(ctx, formatter)
        name = ctx.params.get("task")
        if name is None:
            return
        from fedmf import tasks

        with arguments_checked():
            kind = tasks.options_class(name)
        fields = () if kind is None else dataclasses.fields(kind)
        rows = [(_with_default(field), field.metadata.get("help", "")) for field in fields]
        with formatter.section(f"Task options of {name}"):
            formatter.write_dl(rows or [("none", "")])


class ConfigCommand(TaskCommand, FamilyCommand):
    """A command that trains: with the options of its task, and of every family."""


def _with_default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"{field.name}={field.default_factory()}"
    needed = field.default is dataclasses.MISSING
    return f"{field.name} (needed)" if needed else f"{field.name}={field.default}"


def chosen_options(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config that were on the command line, from a command's keyword arguments."""
    from fedmf.privacy.flat_config import TASK_OPTION, nested
    from fedmf.tasks.partitioned import PartitionOptions

    of_the_task = {field.name for field in dataclasses.fields(PartitionOptions)}
    chosen: dict[str, Any] = {
        f"{TASK_OPTION}{n}" if n in of_the_task else n: None if value is ConfigField.NONE else value
        for n, value in flags.items()
        if value is not None
    }
    options = dict(chosen.pop("task_options", ()))
    return nested(chosen | ({"task_options": options} if options else {}))


def over(values: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with those `above` in their place, and each option of the task by itself."""
    made = {**values, **above}
    for name in ("task_options", "mechanism_options"):
        options = {**values.get(name, {}), **above.get(name, {})}
        made |= {name: options} if options else {}
    return made


def config_values(path: pathlib.Path | None) -> dict[str, Any]:
    """The options in a TOML or JSON file; none without one.

    Raises:
      ValueError: naming the path.
    """
    from fedmf.privacy.flat_config import nested
    from fedmf.runs.config import read_config_file

    if path is None:
        return {}
    if path.suffix not in (".toml", ".json"):  # else YAML would be refused as bad JSON
        raise ValueError(
            f"config={str(path)!r} ends in neither .toml nor .json: name a TOML "
            "or JSON file of options"
        )
    return nested(read_config_file(path))


def plan_config(promise: Mapping[str, Any]) -> "PlanConfig":
    """The promise of `plan_options`.

    Raises:
      TypeError, ValueError: naming the argument that cannot work.
    """
    from fedmf.privacy.config import PlanConfig

    chosen = chosen_options(promise)
    mechanism = str(chosen.pop("mechanism_file"))
    return PlanConfig(family="file", mechanism=mechanism, **chosen)


@contextlib.contextmanager
def status_line(label: str = "") -> Iterator[Callable[[Any], None]]:
    """Yields a function that shows how far a search is, in one line of a terminal, which then goes
    again. What takes longer than a few seconds is shown with its time.
    """
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    latest = ""
    began = time.monotonic()
    is_done = threading.Event()

    def show_progress(progress: Any) -> None:
        nonlocal latest, began
        latest = f"{label}{progress}"
        began = time.monotonic()
        click.echo(f"\r\033[K{latest}", nl=False, err=True)

    def show_time() -> None:
        while not is_done.wait(1.0):
            seconds = int(time.monotonic() - began)
            if seconds >= _QUIET_SECONDS:
                click.echo(f"\r\033[K{latest} [{seconds} s]", nl=False, err=True)

    thread = threading.Thread(target=show_time, daemon=True)
    thread.start()
    try:
        yield show_progress
    finally:
        is_done.set()
        thread.join()
        click.echo("\r\033[K", nl=False, err=True)


def show(values: dict[str, Any], as_json: bool) -> None:
    """Prints a result: as JSON, or one aligned line a value, with values inside others by the names
    of both.
    """
    if as_json:
        click.echo(strict_json.dumps(values, indent=2))
        return
    from fedmf.fields import flat
    from fedmf.privacy.rounding import up

    values = flat(values)
    width = max(map(len, values))
    for name, value in values.items():
        if value is None:  # in JSON an infinite epsilon is null
            unbounded = "epsilon" in name or "rho" in name or name.endswith(".mu")
            value = "infinite" if unbounded else "none"
        lost = isinstance(value, float) and any(word in name for word in _LOST)
        click.echo(f"{name:<{width}}  {up(value, 6) if lost else _text(value)}")


# In the names of bounds on what is lost, which are rounded up.
_LOST = ("epsilon", "rho", "advantage", "true_positive_rate", ".mu")


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
