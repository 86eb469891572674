"""Options made from dataclasses, and arguments turned into objects with exit status 2 when they do not fit."""

import contextlib
import dataclasses
import json
import pathlib
import tempfile
import types
import typing
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fedmf.privacy.plan import Plan
    from fedmf.privacy.sampling import Sampling


_MAX_DIGITS = 4000  # Python reads no longer ones


class BadArgument(click.UsageError):
    """An argument that cannot work: one sentence, exit status 2, no usage text in front of it."""

    def show(self, file: Any = None) -> None:
        """Prints the sentence."""
        click.echo(f"fedmf: error: {self.message}", err=True, file=file)


class Interrupted(Exception):
    """Ctrl-C has ended a command that can say more than that: what is kept, and how to go on."""


@contextlib.contextmanager
def arguments_checked() -> Iterator[None]:
    """Errors inside are the arguments' fault."""
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise BadArgument(" ".join(str(error).split())) from error


def writable(name: str, path: pathlib.Path | None, *suffixes: str) -> None:
    """Refuses a file that cannot be written, before minutes of work; None is no file.

    Raises:
      ValueError: it ends in none of the suffixes, is a folder, or is in one that does not exist or may not be written to.
    """
    if path is None:
        return
    if path.suffix not in suffixes:
        ends = " or ".join(suffixes)
        raise ValueError(f"{name}={str(path)!r} does not end in {ends}: the suffix says what is written")
    if path.is_dir():
        raise ValueError(f"{name}={str(path)!r} is a folder: name a file")
    if not path.parent.is_dir():
        raise ValueError(f"{name}={str(path)!r} is in a folder that does not exist: create it, or choose another")
    try:  # as write_atomically will
        tempfile.NamedTemporaryFile(prefix=f".{path.name}.{'0' * 16}", suffix=".part", dir=path.parent).close()
    except OSError as error:
        raise ValueError(f"{name}={str(path)!r} cannot be written ({error.strerror}): choose another") from error


def gigabytes(name: str, value: float) -> int:
    """As bytes.

    Raises:
      ValueError: not between 0 and a million.
    """
    if not 0 < value < 1e6:
        raise ValueError(f"{name}={value} must be gigabytes, such as 1.5")
    return int(value * 1e9)


class _NumberOrNone(click.ParamType):
    """A float, or `none` where the default is a number and None is a value of its own."""

    name = "float|none"
    NONE = object()

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        return self.NONE if value in ("none", self.NONE) else click.FLOAT.convert(value, parameter, context)


def options_given(flags: dict[str, Any]) -> dict[str, Any]:
    """Of what `config_options` hands to a command, the options that were on the command line."""
    given = {name: value for name, value in flags.items() if value is not None}
    return {name: None if value is _NumberOrNone.NONE else value for name, value in given.items()}


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """One option for every field of TrainConfig; the command's keyword arguments are for `options_given`."""
    from fedmf.runs.config import TrainConfig

    for field in reversed(dataclasses.fields(TrainConfig)):
        kinds = [k for k in (typing.get_args(field.type) or (field.type,)) if k is not types.NoneType]
        default = "" if field.default is None else f"  [default: {field.default}]"
        command = click.option(
            f"--{field.name.replace('_', '-')}",
            field.name,
            type=_NumberOrNone() if types.NoneType in typing.get_args(field.type) and default else kinds[0],
            default=None,
            help=field.metadata["help"] + default,
        )(command)
    return command


def config_values(path: pathlib.Path) -> dict[str, Any]:
    """The options in a TOML or JSON file.

    Raises:
      FileNotFoundError, ValueError: naming the path.
    """
    from fedmf.runs.config import read_config_file

    # What is called neither is read as JSON, whose error would puzzle who wrote YAML.
    if path.is_file() and path.suffix not in (".toml", ".json"):
        raise ValueError(f"config={str(path)!r} ends in neither .toml nor .json: name a TOML or JSON file of options")
    return read_config_file(path)


def _noise_seed(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:
    if value is None or value == "os":
        return value
    if not (value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS):
        raise click.BadParameter(
            f"{value[:60]!r} must be a non-negative whole number of at most {_MAX_DIGITS} digits, or os to draw one"
        )
    return int(value)


def noise_seed_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--noise-seed: a whole number, "os", or None."""
    help = "Secret whole number, or os to draw one. Needed for a new run."
    return click.option("--noise-seed", callback=_noise_seed, help=help)(command)


def participation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--rounds, --schema, --min-sep, --max-participations."""
    options = (
        click.option("--rounds", type=int, required=True, help="Rounds of training."),
        click.option(
            "--schema", default="min_sep", show_default=True, help="single, fixed_epoch, min_sep or every_round."
        ),
        click.option("--min-sep", type=int, help="Least number of rounds between two participations of a client."),
        click.option("--max-participations", type=int, help="Most participations of a client."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Those of participation_options, --epsilon, --noise-multiplier, --delta and --clip-norm: the arguments of `plan_from`."""
    options = (
        participation_options,
        click.option("--epsilon", type=float, help="Privacy target; or give --noise-multiplier."),
        click.option("--noise-multiplier", type=float, help="Noise of the whole run; or give --epsilon."),
        click.option("--delta", type=float, default=1e-6, show_default=True, help="Failure probability."),
        click.option("--clip-norm", type=float, default=1.0, show_default=True, help="L2 bound on a client's update."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def sampling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--sampling, --population, --cohort-size and --groups: more arguments of `plan_from`."""
    options = (
        click.option(
            "--sampling",
            help="Amplify by how clients are drawn: poisson, fixed_size, shuffle or reshuffle. Needs --population and --cohort-size.",
        ),
        click.option("--population", type=int, help="With --sampling: the number of clients."),
        click.option("--cohort-size", type=int, help="With --sampling: clients of a round."),
        click.option(
            "--groups",
            type=int,
            help="With --sampling: parts of the population, each drawn from in its turn.  [default: the mechanism's bands]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def simulation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--simulated-cohort and --claimed-cohort: more arguments of `plan_from`."""
    options = (
        click.option(
            "--simulated-cohort",
            type=int,
            help="Clients a round that stand for --claimed-cohort, with the noise scaled down.",
        ),
        click.option(
            "--claimed-cohort", type=int, help="With --simulated-cohort: the clients a round of the claimed run."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def plan_from(
    mechanism_file: pathlib.Path,
    *,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    clip_norm: float,
    sampling: str | None = None,
    population: int | None = None,
    cohort_size: int | None = None,
    groups: int | None = None,
    simulated_cohort: int | None = None,
    claimed_cohort: int | None = None,
    **participation: Any,
) -> "Plan":
    """The plan that the options describe.

    Raises:
      TypeError, ValueError, OSError: naming the argument that cannot work.
    """
    import fedmf

    takes_part = fedmf.Participation(**participation)
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            f"epsilon={epsilon} and noise_multiplier={noise_multiplier}: give exactly one, the other follows"
        )
    scheme = _sampling(sampling, population, cohort_size, groups)
    if (simulated_cohort is None) != (claimed_cohort is None):
        raise ValueError(
            f"simulated_cohort={simulated_cohort} and claimed_cohort={claimed_cohort}: give both, or neither to train the claimed run"
        )
    mechanism = fedmf.load_mechanism(mechanism_file)
    if epsilon is not None:
        plan = fedmf.calibrate(
            mechanism, takes_part, epsilon=epsilon, delta=delta, clip_norm=clip_norm, sampling=scheme
        )
    else:
        assert noise_multiplier is not None
        plan = fedmf.Plan(
            mechanism=mechanism,
            participation=takes_part,
            noise_multiplier=noise_multiplier,
            delta=delta,
            clip_norm=clip_norm,
            sampling=scheme,
        )
    if simulated_cohort is not None and claimed_cohort is not None:
        plan = plan.simulating(simulated=simulated_cohort, claimed=claimed_cohort)
    _ = plan.stddev  # refuses what float32 cannot hold
    return plan


def _sampling(
    sampling: str | None, population: int | None, cohort_size: int | None, groups: int | None
) -> "Sampling | None":
    """The scheme that --sampling, --population, --cohort-size and --groups name."""
    from fedmf import checks
    from fedmf.privacy.sampling import SCHEMES

    if sampling is None:
        for name, value in (("population", population), ("cohort_size", cohort_size), ("groups", groups)):
            if value is not None:
                raise ValueError(f"{name}={value} belongs to sampling: leave it out, or give --sampling")
        return None
    checks.one_of("sampling", sampling, tuple(SCHEMES))
    if population is None or cohort_size is None:
        raise ValueError(
            f"sampling={sampling} needs --population and --cohort-size, from which the probability follows"
        )
    return SCHEMES[sampling](population=population, cohort_size=cohort_size, groups=groups)


json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def show(values: dict[str, Any], as_json: bool) -> None:
    """Prints a result: JSON, or one aligned line a value."""
    if as_json:
        click.echo(json.dumps(values, indent=2))
        return
    width = max(len(name) for name in values)
    for name, value in values.items():
        # In JSON an infinite epsilon is null.
        unbounded = value is None and ("epsilon" in name or "rho" in name)
        click.echo(f"{name:<{width}}  {'infinite' if unbounded else _text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
