"""Click types for the values of options, which parse the values and complete them in a shell."""

import abc
import contextlib
import dataclasses
import itertools
import math
import pathlib
import secrets
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from fedmf.cli.errors import BadArgument, arguments_checked, one_line, with_option_names
from fedmf.fields import MAX_COUNT, PATHS
from fedmf.files import expanded

# Largest number of digits of a noise seed, since Python's int() refuses longer texts.
_MAX_SEED_DIGITS = 4000


def completions(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Returns the words that begin with `incomplete`. For PATHS the shell itself completes
    files.
    """
    if words is PATHS:
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def task_names() -> Iterable[str]:
    """Returns the names of the built-in tasks and of the tasks of installed packages."""
    from fedmf import tasks

    return sorted(tasks.available())


class Suggesting(click.ParamType[Any]):
    """Click type whose values a shell can complete."""

    @abc.abstractmethod
    def suggestions(self, ctx: click.Context) -> Iterable[str]:
        """Returns the values that a shell may complete, or PATHS for names of files."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Returns the suggestions that begin with `incomplete`."""
        del param
        return completions(self.suggestions(ctx), incomplete)


SHARE = click.FloatRange(0, 1)


class Whole(click.IntRange):
    """Click type of a whole number of at least `min` that fits into 64 bits."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the value as a number, or ends the command if the number is too large."""
        whole_number = super().convert(value, param, ctx)
        if whole_number > MAX_COUNT:
            self.fail(f"{value} does not fit into 64 bits: use fewer digits", param, ctx)
        return whole_number


class FilePath(click.Path):
    """Click type of a path. "~" is expanded, since no shell expands it behind `--out=`."""

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
        """Returns the path, with "~" expanded, or ends the command if the path cannot be used."""
        if value == "":
            self.fail("'' is empty: name a file or folder", param, ctx)
        with arguments_checked():
            return super().convert(expanded(value), param, ctx)


COUNT = Whole(min=1)
PATH = FilePath()
EXISTING = FilePath(exists=True)
EXISTING_FILE = FilePath(exists=True, dir_okay=False)


class OneOf(click.Choice[str]):
    """Click type of one of the registered mechanism families or noise strategies.

    Their modules are imported only when needed, since that would slow down `fedmf --help`.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the mechanism families or of the noise strategies that can be chosen."""
        from fedmf.mechanisms.family import fitted_families
        from fedmf.noise.host_strategies import HOST_STRATEGIES

        return tuple({"family": fitted_families(), "strategy": HOST_STRATEGIES}[self._kind])


class Parsed(Suggesting, abc.ABC):
    """Click type whose values are parsed from text. A ValueError says what is wrong with a text."""

    def suggestions(self, ctx: click.Context) -> Iterable[str]:
        """Returns no suggestions. A type that knows its values overrides this."""
        del ctx
        return ()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the parsed value of a text, or ends the command if the text cannot be parsed."""
        try:
            return self.parsed(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    @abc.abstractmethod
    def parsed(self, text: str) -> Any:
        """Parses a text, and returns its value."""


class _RunFolder(FilePath):
    """Click type of the folder of a run."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Returns an item that asks the shell to complete folders."""
        return [CompletionItem(incomplete, type="dir")]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path of a run's folder, or ends the command if the folder holds no run."""
        from fedmf.runs.folder import RunFolder

        path: Any = super().convert(value, param, ctx)
        with arguments_checked():
            return RunFolder.open(path).path


RUN = _RunFolder()


class OutputFile(Parsed):
    """Click type of a path that can be written to and has one of these suffixes.

    Writing is tried at once, so that it does not fail after minutes of work.
    """

    name = "file"

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes

    def suggestions(self, ctx: click.Context) -> Iterable[str]:
        """Returns PATHS, so that a shell completes names of files."""
        return PATHS

    def parsed(self, text: str) -> pathlib.Path:
        """Returns the path, or raises ValueError for another suffix or a path that cannot be
        written.
        """
        output_path = expanded(text)
        if output_path.suffix not in self.suffixes:
            allowed_suffixes = " or ".join(self.suffixes)
            raise ValueError(
                f"{text!r} does not end in {allowed_suffixes}: the suffix says what is written"
            )
        # Writing a temporary file beside the path, as `write_atomically` does, tests whether the
        # path can be written.
        trial_path = output_path.with_name(f".{output_path.name}.{secrets.token_hex(8)}.part")
        try:
            if output_path.is_dir():
                raise ValueError(f"{text!r} is a folder: name a file")
            trial_path.touch(exist_ok=False)
            trial_path.unlink()
        except OSError as error:
            raise ValueError(
                f"{text!r} cannot be written ({error.strerror}): choose another place"
            ) from error
        return output_path


class Gigabytes(click.FloatRange):
    """Click type of a number of gigabytes, whose value is in bytes."""

    name = "GB"

    def __init__(self) -> None:
        super().__init__(min=0, max=1e6, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Converts a number of gigabytes to a number of bytes."""
        num_gigabytes = super().convert(value, param, ctx)
        if math.isnan(num_gigabytes):
            self.fail(f"{value!r} is no number of gigabytes: use one such as 4", param, ctx)
        return int(num_gigabytes * 1e9)


class NoiseSeed(Parsed):
    """Click type of the secret noise seed, which is a number, a file that holds it, or "os"."""

    name = "integer|os|@FILE"

    def suggestions(self, ctx: click.Context) -> Iterable[str]:
        """Returns "os", the only noise seed that is a word."""
        return ("os",)

    def parsed(self, text: str) -> int | str:
        """Returns the seed as a number, or "os"."""
        if text == "os":
            return "os"
        # The error message quotes the command line, and never the file's content, which is secret.
        quoted_text = text[:60]
        if text.startswith("@"):
            with contextlib.suppress(OSError, ValueError):
                text = expanded(text[1:]).read_text(encoding="ascii").strip()
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_SEED_DIGITS):
            raise ValueError(
                f"{quoted_text!r} must be a non-negative whole number of at most "
                f"{_MAX_SEED_DIGITS} digits, @FILE that holds one, or os to draw one"
            )
        return int(text)


class ConfigField(Suggesting):
    """Click type of a configuration's field, which applies the field's own check.

    The word `none` is accepted for a field that may be None but has another default.
    """

    NONE = object()

    def __init__(self, field: "dataclasses.Field[Any]") -> None:
        field_types = typing.get_args(field.type) or (field.type,)
        (kind,) = (kind for kind in field_types if kind is not types.NoneType)
        self._field = field
        self._type = click.types.convert_type(kind)
        self._has_none = types.NoneType in field_types and field.default is not None
        self.name = self._type.name
        if self._has_none:
            self.name += "|none"

    def suggestions(self, ctx: click.Context) -> Iterable[str]:
        """Returns the values of the field that a shell may complete."""
        if self._field.name == "task":
            return task_names()
        suggestions = self._field.metadata.get("suggestions")
        words: Iterable[str] = ()
        if suggestions is not None:
            words = suggestions()
        if self._has_none:
            return (*words, "none")
        return words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the value after the field's own check, or ends the command if the check fails."""
        if value is self.NONE or (self._has_none and value == "none"):
            return self.NONE
        try:
            return self._field.metadata["check"](
                self._field.name, self._type.convert(value, param, ctx)
            )
        except (ValueError, TypeError) as error:
            check_parameters = []
            if param is not None:
                check_parameters.append(param)
            raise BadArgument(with_option_names(one_line(error), check_parameters)) from error


class FamilyOption(Suggesting):
    """Click type of a mechanism family's option. Some of the families' options are a choice of
    texts.
    """

    def __init__(self, kind: type, choices_by_family: Mapping[str, tuple[str, ...]]) -> None:
        self._type = click.types.convert_type(kind)
        self._choices_by_family = choices_by_family
        self.name = self._type.name

    def suggestions(self, ctx: click.Context) -> Iterable[str]:
        """Returns the choices of the family on the command line, or of all families."""
        choices = self._choices_by_family.get(ctx.params.get("family") or "")
        return choices or sorted({*itertools.chain(*self._choices_by_family.values())})

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the value of a mechanism family's option in the option's type. The mechanism
        family checks it later.
        """
        return self._type.convert(value, param, ctx)


class Named(Suggesting):
    """Click type of a name, which the command checks later."""

    name = "text"

    def __init__(self, names: Callable[[], Iterable[str]]) -> None:
        self._names = names

    def suggestions(self, ctx: click.Context) -> Iterable[str]:
        """Returns the names that a shell may complete."""
        return self._names()


class Listed(Suggesting):
    """Click type of several values of one type, with commas between them."""

    def __init__(
        self, kind: click.ParamType[Any], name: str, words: Callable[[], Iterable[str]] = tuple
    ) -> None:
        self._kind = kind
        self.name = name
        self._words = words

    def suggestions(self, ctx: click.Context) -> Iterable[str]:
        """Returns the suggestions for a single value of the list."""
        return self._words()

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Returns completions of the last value, each preceded by the values before it."""
        earlier_values, comma, _ = incomplete.rpartition(",")
        completed_words = [f"{earlier_values}{comma}{word}" for word in self._words()]
        return completions(completed_words, incomplete)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Splits a text at commas, and returns the list of converted values."""
        if isinstance(value, list):
            return value
        return [self._kind.convert(text, param, ctx) for text in value.split(",")]


class TaskOption(Parsed):
    """Click type of an option of a task with its value, as in name=value."""

    name = "name=value"

    def suggestions(self, ctx: click.Context) -> Iterable[str]:
        """Returns the option names of a built-in task. Another task is not asked, since it may
        import TensorFlow.
        """
        from fedmf import tasks

        task_name = ctx.params.get("task") or tasks.DEFAULT
        if task_name not in tasks.TASKS:
            return []
        options_class = tasks.options_class(task_name)
        if options_class is None:
            return []
        option_names = [field.name for field in dataclasses.fields(options_class)]
        return [f"{name.replace('_', '-')}=" for name in option_names if name != "data"]

    def parsed(self, text: str) -> tuple[str, str]:
        """Returns the option's name and its value."""
        option, equals, setting = text.partition("=")
        if not option or not equals:
            raise ValueError(f"{text!r} names no option and its value: write it as batch-size=20")
        return option.strip().replace("-", "_"), setting.strip()
