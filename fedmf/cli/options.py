"""Options that several commands have, and the values they turn into."""

import abc
import contextlib
import dataclasses
import math
import pathlib
import secrets
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fedmf import strict_json
from fedmf.cli.errors import BadArgument, Command, arguments_checked, one_line, with_option_names
from fedmf.cli.help import CONFIG_SECTIONS, SectionOption, TaskFieldOption
from fedmf.fields import MAX_COUNT
from fedmf.files import expanded

if TYPE_CHECKING:
    from fedmf.privacy.config import PlanConfig

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_MAX_SEED_DIGITS = 4000  # Python's int() reads no longer texts

# A share from 0 to 1.
SHARE = click.FloatRange(0, 1)


class Whole(click.IntRange):
    """A whole number of at least `min` that fits into 64 bits."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the number."""
        number = super().convert(value, param, ctx)
        if number > MAX_COUNT:
            self.fail(f"{value} does not fit into 64 bits: use fewer digits", param, ctx)
        return number


class FilePath(click.Path):
    """A path that is not empty; "~" is the home folder, which no shell expands behind `--out=`."""

    def __init__(
        self,
        *,
        exists: bool = False,
        file_okay: bool = True,
        dir_okay: bool = True,
        writable: bool = False,
    ) -> None:
        super().__init__(
            exists=exists,
            file_okay=file_okay,
            dir_okay=dir_okay,
            writable=writable,
            path_type=pathlib.Path,
        )

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path."""
        if value == "":
            self.fail("'' is empty: name a file or folder", param, ctx)
        with arguments_checked():
            return super().convert(expanded(value), param, ctx)


COUNT = Whole(min=1)
PATH = FilePath()
EXISTING = FilePath(exists=True)
EXISTING_FILE = FilePath(exists=True, dir_okay=False)


class OneOf(click.Choice[str]):
    """One of the families or strategies.

    They are imported when needed: `fedmf --help` must not.
    """

    def __init__(self, kind: str) -> None:
        self._kind, self.case_sensitive = kind, True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names."""
        from fedmf.mechanisms.family import fitted_families
        from fedmf.noise.strategies import HOST_STRATEGIES

        return tuple({"family": fitted_families(), "strategy": HOST_STRATEGIES}[self._kind])


class Parsed(click.ParamType[Any], abc.ABC):
    """A value by a function of its text, whose ValueError says what is wrong."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value."""
        try:
            return self.parsed(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    @abc.abstractmethod
    def parsed(self, text: str) -> Any:
        """The value of a text."""


class _RunFolder(FilePath):
    """The folder of a run."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; refuses one that holds no run."""
        from fedmf.runs.folder import RunFolder

        path: Any = super().convert(value, param, ctx)
        with arguments_checked():
            return RunFolder.open(path).path


RUN = _RunFolder()


class OutputFile(Parsed):
    """A path that can be written to, with one of these suffixes.

    It is tried before minutes of work, not after.
    """

    name = "file"

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes

    def parsed(self, text: str) -> pathlib.Path:
        """Refuses another suffix, and a path at which no file can be made."""
        path = expanded(text)
        if path.suffix not in self.suffixes:
            ends = " or ".join(self.suffixes)
            raise ValueError(f"{text!r} does not end in {ends}: the suffix says what is written")
        # As `write_atomically` names it
        trial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        try:
            if path.is_dir():
                raise ValueError(f"{text!r} is a folder: name a file")
            trial.touch(exist_ok=False)
            trial.unlink()
        except OSError as error:
            raise ValueError(
                f"{text!r} cannot be written ({error.strerror}): choose another place"
            ) from error
        return path


class Gigabytes(click.FloatRange):
    """A number of gigabytes, as bytes."""

    name = "GB"

    def __init__(self) -> None:
        super().__init__(min=0, max=1e6, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The bytes."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number of gigabytes: use one such as 4", param, ctx)
        return int(number * 1e9)


class _NoiseSeed(Parsed):
    name = "integer|os|@FILE"

    def parsed(self, text: str) -> int | str:
        """The seed, or "os"."""
        if text == "os":
            return "os"
        shown = text[:60]
        if text.startswith("@"):  # what the file holds is not shown
            with contextlib.suppress(OSError, ValueError):
                text = expanded(text[1:]).read_text(encoding="ascii").strip()
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_SEED_DIGITS):
            raise ValueError(
                f"{shown!r} must be a non-negative whole number of at most "
                f"{_MAX_SEED_DIGITS} digits, @FILE that holds one, or os to draw one"
            )
        return int(text)


class _ConfigField(click.ParamType[Any]):
    """A field of TrainConfig by its own check.

    `none` is a value where the default is a number that can be left out.
    """

    NONE = object()

    def __init__(self, field: "dataclasses.Field[Any]") -> None:
        kinds = typing.get_args(field.type) or (field.type,)
        (kind,) = (kind for kind in kinds if kind is not types.NoneType)
        self._field, self._type = field, click.types.convert_type(kind)
        self._has_none = types.NoneType in kinds and field.default is not None
        self.name = self._type.name + "|none" * self._has_none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value is self.NONE or (self._has_none and value == "none"):
            return self.NONE
        try:
            return self._field.metadata["check"](
                self._field.name, self._type.convert(value, param, ctx)
            )
        except (ValueError, TypeError) as error:
            raise BadArgument(
                with_option_names(one_line(error), [param] if param else [])
            ) from error


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
    type=_NoiseSeed(),
    help="Secret whole number, @FILE that holds it, or os to draw one. Needed "
    "for a new run with noise.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress bar.")


class _TaskOption(Parsed):
    name = "name=value"

    def parsed(self, text: str) -> tuple[str, str]:
        """The option and its value."""
        option, equals, setting = text.partition("=")
        if not option or not equals:
            raise ValueError(f"{text!r} names no option and its value: write it as batch-size=20")
        return option.strip().replace("-", "_"), setting.strip()


run_task_options = in_one(
    "asked",
    click.option(
        "--task",
        is_eager=True,
        help="Of a run that was trained in Python: what makes its task, package.module:function.",
    ),
    click.option(
        "-o",
        "--task-option",
        "task_options",
        type=_TaskOption(),
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
            settings |= {"type": _TaskOption(), "multiple": True}
            help_text += " Repeatable; `--task NAME --help` lists them."
            declared += [_of_the_task(own, section) for own in dataclasses.fields(PartitionOptions)]
        else:
            flags = [f"--{field.name.replace('_', '-')}"]
            settings["type"] = _ConfigField(field)
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
        type=_ConfigField(field),
        help=text,
        cls=TaskFieldOption,
        section=section,
    )


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The argument MECHANISM, a file, and the options of its plan, for `plan_config`."""
    from fedmf.privacy.flat_config import OF_THE_FIT

    mechanism = click.argument("mechanism_file", metavar="MECHANISM", type=EXISTING_FILE)
    options = options_of("PlanConfig", leave_out=OF_THE_FIT, required=("rounds",))
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
        made = SectionOption(
            [flags, name],
            section="Options of the families",
            type=None if kind is bool else kind,
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
        f"{TASK_OPTION}{n}" if n in of_the_task else n: None
        if value is _ConfigField.NONE
        else value
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


def status_line(label: str = "") -> Callable[[Any], None]:
    """A function that shows how far a search is in one line of a terminal."""
    if not sys.stderr.isatty():
        return lambda progress: None
    return lambda progress: click.echo(f"\r\033[K{label}{progress}", nl=False, err=True)


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
