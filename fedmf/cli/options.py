"""Options that several commands have, and the values they turn into."""

import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import secrets
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import BadArgument, Command, arguments_checked, one_line, with_option_names
from fedmf.cli.help import CONFIG_SECTIONS, SectionOption

if TYPE_CHECKING:
    from fedmf.privacy.plan import Plan
    from fedmf.privacy.sampling import Sampling
    from fedmf.workloads import Workload

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_MAX_SEED_DIGITS = 4000  # Python's int() reads no longer texts
_WORKLOADS = ("prefix_sum", "momentum_sgd", "identity")

COUNT = click.IntRange(min=1)
PATH = click.Path(path_type=pathlib.Path)
EXISTING = click.Path(exists=True, path_type=pathlib.Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=pathlib.Path)
# A share from 0 to 1.
SHARE = click.FloatRange(0, 1)


class OneOf(click.Choice[str]):
    """One of the families, schemas, sampling schemes or strategies.

    They are imported when needed: `fedmf --help` must not.
    """

    def __init__(self, kind: str) -> None:
        self._kind, self.case_sensitive = kind, True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names."""
        from fedmf.mechanisms.family import fitted_families
        from fedmf.noise.strategies import HOST_STRATEGIES
        from fedmf.participation.schema import SCHEMAS
        from fedmf.privacy.sampling import SCHEMES

        names = {
            "family": fitted_families(),
            "schema": SCHEMAS,
            "sampling": SCHEMES,
            "strategy": HOST_STRATEGIES,
        }
        return tuple(names[self._kind])


class OutputFile(click.ParamType[pathlib.Path]):
    """A path that can be written to, with one of these suffixes.

    It is tried before minutes of work, not after.
    """

    name = "file"

    def __init__(self, *suffixes: str) -> None:
        self.suffixes = suffixes

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> pathlib.Path:
        """Refuses another suffix, and a path at which no file can be made."""
        path = pathlib.Path(value)
        if path.suffix not in self.suffixes:
            ends = " or ".join(self.suffixes)
            self.fail(
                f"{str(path)!r} does not end in {ends}: the suffix says what is written", param, ctx
            )
        trial = path.with_name(
            f".{path.name}.{secrets.token_hex(8)}.part"
        )  # as `write_atomically` names it
        try:
            if path.is_dir():
                self.fail(f"{str(path)!r} is a folder: name a file", param, ctx)
            trial.touch(exist_ok=False)
            trial.unlink()
        except OSError as error:
            self.fail(
                f"{str(path)!r} cannot be written ({error.strerror}): choose another place",
                param,
                ctx,
            )
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


class _NoiseSeed(click.ParamType[int | str]):
    name = "integer|os|@FILE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if value == "os":
            return "os"
        shown = value[:60]
        if value.startswith("@"):  # what the file holds is not shown
            with contextlib.suppress(OSError, ValueError):
                value = pathlib.Path(value[1:]).read_text(encoding="ascii").strip()
        if not (value.isascii() and value.isdecimal() and len(value) <= _MAX_SEED_DIGITS):
            self.fail(
                f"{shown!r} must be a non-negative whole number of at most "
                f"{_MAX_SEED_DIGITS} digits, @FILE that holds one, or os to draw one",
                param, ctx,
            )  # fmt: skip
        return int(value)


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


def together(*options: Decorator) -> Decorator:
    """These options as one decorator."""
    return lambda command: functools.reduce(
        lambda decorated, option: option(decorated), reversed(options), command
    )


noise_seed_option = click.option(
    "--noise-seed",
    type=_NoiseSeed(),
    help="Secret whole number, @FILE that holds it, or os to draw one. Needed for a new run with "
    "noise.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress bar.")

participation_options = together(
    click.option("--rounds", type=COUNT, required=True, help="Rounds of training."),
    click.option("--schema", type=OneOf("schema"), default="min_sep", help="Who may come when."),
    click.option(
        "--min-sep",
        type=COUNT,
        help="Least number of rounds between two participations of a client.",
    ),
    click.option("--max-participations", type=COUNT, help="Most participations of a client."),
)
sampling_option = click.option(
    "--sampling",
    type=OneOf("sampling"),
    help="How clients are drawn at random, which amplifies the guarantee.",
)
plan_options = together(
    participation_options,
    click.option(
        "--budget",
        type=float,
        help="With --schema budget: a sensitivity.  [default: what --min-sep and its limit cost]",
    ),
    click.option("--epsilon", type=float, help="Privacy target; or give --noise-multiplier."),
    click.option(
        "--noise-multiplier", type=float, help="Noise of the whole run; or give --epsilon."
    ),
    click.option("--delta", type=float, default=1e-6, help="Failure probability."),
    click.option("--clip-norm", type=float, default=1.0, help="L2 bound on a client's update."),
    click.option(
        "--clip-quantile",
        "quantile",
        type=float,
        help="The clip norm follows this quantile of updates.",
    ),
    click.option(
        "--clip-share", "share", type=float, help="Part of rho that this takes.  [default: 0.04]"
    ),
    click.option(
        "--clip-every", "every", type=COUNT, help="Rounds between changes of it.  [default: 10]"
    ),
    click.option(
        "--clip-learning-rate",
        "learning_rate",
        type=float,
        help="Logarithm of the largest change.  [default: 1]",
    ),
)
sampling_options = together(
    sampling_option,
    click.option("--population", type=COUNT, help="With --sampling: the number of clients."),
    click.option("--cohort-size", type=COUNT, help="Clients of a round."),
    click.option(
        "--partitions",
        type=COUNT,
        help="With --sampling: parts of the population, drawn from in turn.  [default: the "
        "mechanism's bands]",
    ),
)
simulation_options = together(
    click.option(
        "--simulated-cohort",
        "simulated",
        type=COUNT,
        help="Clients a round that stand for --claimed-cohort.",
    ),
    click.option(
        "--claimed-cohort",
        "claimed",
        type=COUNT,
        help="Clients a round of the claimed run, whose noise is scaled down.",
    ),
)
workload_options = together(
    click.option(
        "--workload", type=click.Choice(_WORKLOADS), default="prefix_sum", help="What errors count."
    ),
    click.option("--momentum", type=float, help="Of the momentum_sgd workload.  [default: 0.95]"),
)


class _TaskOption(click.ParamType[tuple[str, str]]):
    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        option, equals, setting = value.partition("=")
        if not option or not equals:
            self.fail(
                f"{value!r} names no option and its value: write it as batch-size=20", param, ctx
            )
        return option.strip().replace("-", "_"), setting.strip()


run_task_options = together(
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


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """One option for every field of TrainConfig; the command's keyword arguments are for
    `chosen_options`.
    """
    from fedmf.runs.config import TrainConfig

    fields = dataclasses.fields(TrainConfig)
    sections: dict[str, str] = {}
    for field in fields:
        sections[field.name] = CONFIG_SECTIONS.get(field.name) or list(sections.values())[-1]
    for field in reversed(fields):
        help_text = field.metadata["help"]
        settings: dict[str, Any] = {
            "default": None,
            "cls": SectionOption,
            "section": sections[field.name],
        }
        if field.name == "task_options":
            flags, settings["type"], settings["multiple"] = (
                ["-o", "--task-option"],
                _TaskOption(),
                True,
            )
            help_text += " Repeatable; `--task NAME --help` lists them."
        else:
            flags, settings["type"] = [f"--{field.name.replace('_', '-')}"], _ConfigField(field)
            settings["is_eager"] = field.name == "task"  # the help asks for it
            help_text += "" if field.default is None else f"  [default: {field.default}]"
        command = click.option(*flags, field.name, help=help_text, **settings)(command)
    return command


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


def _with_default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"{field.name}={field.default_factory()}"
    return (
        f"{field.name} (needed)"
        if field.default is dataclasses.MISSING
        else f"{field.name}={field.default}"
    )


def chosen_options(flags: dict[str, Any]) -> dict[str, Any]:
    """Those of `config_options` that were on the command line."""
    chosen: dict[str, Any] = {
        n: None if value is _ConfigField.NONE else value
        for n, value in flags.items()
        if value is not None
    }
    options = dict(chosen.pop("task_options"))
    return chosen | ({"task_options": options} if options else {})


def over(values: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with those `above` in their place, and each option of the task by itself."""
    options = {**values.get("task_options", {}), **above.get("task_options", {})}
    return {**values, **above} | ({"task_options": options} if options else {})


def config_values(path: pathlib.Path | None) -> dict[str, Any]:
    """The options in a TOML or JSON file; none without one.

    Raises:
      ValueError: naming the path.
    """
    from fedmf.runs.config import read_config_file

    if path is None:
        return {}
    if path.suffix not in (".toml", ".json"):  # else YAML would be refused as bad JSON
        raise ValueError(
            f"config={str(path)!r} ends in neither .toml nor .json: name a TOML or JSON file of "
            "options"
        )
    return read_config_file(path)


def workload_from(
    name: str, momentum: float | None, rounds: int, warmup: float = 0.0, cooldown: float = 0.0
) -> "Workload":
    """The workload that `workload_options`, --warmup and --cooldown describe."""
    import fedmf

    if momentum is not None and name != "momentum_sgd":
        raise ValueError(
            f"momentum={momentum} belongs to workload=momentum_sgd, not to workload={name}: leave "
            "it out"
        )
    scheduled = bool(warmup or cooldown)
    rates = fedmf.WarmupCooldown(
        rounds=rounds, peak=1.0, warmup=warmup, cooldown=cooldown
    ).learning_rates()
    if name == "momentum_sgd":
        return fedmf.momentum_sgd(
            rounds, 0.95 if momentum is None else momentum, rates if scheduled else None
        )
    if name == "prefix_sum":
        return fedmf.sgd(rates) if scheduled else fedmf.prefix_sum(rounds)
    if scheduled:
        raise ValueError(
            f"warmup={warmup} and cooldown={cooldown} do not suit workload=identity: leave them out"
        )
    return fedmf.identity(rounds)


def plan_from(mechanism_file: pathlib.Path, target: Mapping[str, Any]) -> "Plan":
    """The plan that `plan_options` describe, with `sampling_options` and `simulation_options` where
    the command has them.

    Raises:
      TypeError, ValueError, OSError: naming the argument that cannot work.
    """
    import fedmf
    from fedmf.mechanisms.budget import check_pays_for_each_round
    from fedmf.privacy.gaussian import gaussian_noise_multiplier
    from fedmf.privacy.sampling.base import column_norm

    limits = {name: target[name] for name in ("rounds", "schema", "min_sep", "max_participations")}
    # A sampling scheme decides what clients keep to.
    decided = (
        target.get("sampling") is not None
        and limits["min_sep"] is None
        and limits["schema"] == "min_sep"
    )
    of_min_sep = limits["schema"] == "budget" and target["budget"] is None
    participation = (
        None if decided or of_min_sep else fedmf.Participation(**limits, budget=target["budget"])
    )
    epsilon, noise_multiplier = target["epsilon"], target["noise_multiplier"]
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            f"epsilon={epsilon} and noise_multiplier={noise_multiplier}: give exactly one, the "
            "other follows"
        )
    simulated, claimed = target.get("simulated"), target.get("claimed")
    if (simulated is None) != (claimed is None):
        raise ValueError(f"simulated={simulated} and claimed={claimed}: give both, or neither")
    shared: Any = {name: target[name] for name in ("delta", "clip_norm")} | {
        "sampling": sampling_from(target)
    }
    names = ("quantile", "share", "every", "learning_rate")
    following = {name: target[name] for name in names if target.get(name) is not None}
    if following and "quantile" not in following:
        given = " and ".join(f"{name}={value}" for name, value in following.items())
        raise ValueError(f"{given} belongs to --clip-quantile: give that as well")
    clipping = fedmf.QuantileClipping(**following) if following else None
    mechanism = fedmf.load_mechanism(mechanism_file)
    if limits["rounds"] != mechanism.rounds:
        raise ValueError(
            f"mechanism has {mechanism.rounds} rounds but rounds={limits['rounds']}: fit it for "
            "the rounds of the run"
        )
    if of_min_sep:
        participation = fedmf.Budget.of(
            mechanism, fedmf.Participation(**limits | {"schema": "min_sep"})
        ).participation
    elif participation is not None and participation.schema == "budget":
        check_pays_for_each_round(participation, column_norm(mechanism))
    # Without amplification at first: what does not go together is refused before the minutes that a
    # calibration can take.
    noise = (
        noise_multiplier if epsilon is None else gaussian_noise_multiplier(epsilon, target["delta"])
    )
    if epsilon is not None and shared["sampling"] is not None:
        participation = None
    shared["participation"] = participation
    plan = fedmf.Plan(mechanism=mechanism, noise_multiplier=noise, **shared)
    plan = dataclasses.replace(plan, quantile_clipping=clipping)
    if simulated is not None and claimed is not None:
        plan = plan.simulating(simulated=simulated, claimed=claimed)
    _ = plan.stddev  # refuses what float32 cannot hold
    if epsilon is not None:
        calibrated = fedmf.calibrate(mechanism, epsilon=epsilon, **shared)
        plan = dataclasses.replace(plan, noise_multiplier=calibrated.noise_multiplier)
        _ = plan.stddev
    return plan


def sampling_from(target: Mapping[str, Any]) -> "Sampling | None":
    """The scheme of `sampling_options`; None without --sampling."""
    from fedmf.privacy.sampling import scheme_from, takes

    settings = {
        setting: target.get(setting) for setting in ("population", "cohort_size", "partitions")
    }
    if target.get("sampling") is not None:
        own = {"min_sep": target.get("min_sep")} if takes(target["sampling"], "min_sep") else {}
        return scheme_from(target["sampling"], **settings, **own)
    for setting, value in settings.items():
        if value is not None:
            raise ValueError(
                f"{setting}={value} belongs to --sampling: leave it out, or give --sampling"
            )
    return None


def status_line(label: str = "") -> Callable[[Any], None] | None:
    """A function that shows how far a search is in one line of a terminal; None where there is no
    terminal.
    """
    if not sys.stderr.isatty():
        return None
    return lambda progress: click.echo(f"\r\033[K{label}{progress}", nl=False, err=True)


def show(values: dict[str, Any], as_json: bool) -> None:
    """Prints a result: as JSON, or one aligned line a value, with values inside others by the names
    of both.
    """
    if as_json:
        click.echo(json.dumps(values, indent=2))
        return
    from fedmf.fields import flat

    values = flat(values)
    width = max(map(len, values))
    for name, value in values.items():
        if value is None:  # in JSON an infinite epsilon is null
            value = "infinite" if "epsilon" in name or "rho" in name else "none"
        click.echo(f"{name:<{width}}  {_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
