"""fedmf fit: from a participation schema to a mechanism file."""

import contextlib
import functools
import pathlib
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.options import Interrupted, arguments_checked, json_option, participation_options, show, writable
from fedmf.cli.stopped import file_named

if TYPE_CHECKING:
    from fedmf.mechanisms import Mechanism
    from fedmf.participation.schema import Participation
    from fedmf.workloads import Workload

# Pictures of matrices beyond this many rounds would take minutes and gigabytes.
_MAX_PICTURED = 8192


def _family_options(command: Any) -> Any:
    """--family, and every option of a family. Left out, the family's own default holds; another family's is refused by the fit."""
    from fedmf.mechanisms.family import fitted_families

    families = fitted_families()
    kinds: dict[str, type] = {"tolerance": float, "max_iterations": int}
    texts: dict[str, list[str]] = {
        "tolerance": ["relative optimality gap to reach; for toeplitz and blt the progress at which to stop"],
        "max_iterations": ["steps after which to stop anyway"],
    }
    for name, family in families.items():
        for option in family.options.values():
            kinds[option.name] = option.kind
            texts.setdefault(option.name, []).append(f"{name}: {option.help}")
    for option_name, help_texts in texts.items():
        flag = option_name.replace("_", "-")
        kind = kinds[option_name]
        command = click.option(
            f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}",
            option_name,
            type=None if kind is bool else kind,
            default=None,
            help=f"{'; '.join(help_texts)}.",
        )(command)
    names = ", ".join(families)
    return click.option("--family", default="banded", show_default=True, help=f"One of {names}.")(command)


@click.command()
@participation_options
@_family_options
@click.option("--stamps", type=int, default=1, show_default=True, help="Fit a part of the run and repeat it as often.")
@click.option("--stamp-decoder", help="Of stamps: optimal or restarted.  [default: optimal]")
@click.option(
    "--matrices", type=click.Path(path_type=pathlib.Path), help="Read another program's matrices, fit nothing."
)
@click.option(
    "--workload",
    default="prefix_sum",
    show_default=True,
    help="prefix_sum, momentum_sgd or identity: what errors count.",
)
@click.option("--momentum", type=float, help="Of the momentum_sgd workload.  [default: 0.95]")
@click.option("--warmup", type=float, default=0.0, show_default=True, help="Share of rounds of rising learning rate.")
@click.option(
    "--cooldown", type=float, default=0.0, show_default=True, help="Share of rounds of falling learning rate."
)
@click.option("--out", required=True, type=click.Path(path_type=pathlib.Path), help="File to write, ending in .npz.")
@click.option("--show", "picture", is_flag=True, help="Draw C, N, X and the error by round, as a PNG beside the file.")
@click.option(
    "--cache/--no-cache", default=True, show_default=True, help="Answer from fits kept on disk, and keep this one."
)
@json_option
def fit(
    rounds: int,
    schema: str,
    min_sep: int | None,
    max_participations: int | None,
    family: str,
    stamps: int,
    stamp_decoder: str | None,
    matrices: pathlib.Path | None,
    workload: str,
    momentum: float | None,
    warmup: float,
    cooldown: float,
    out: pathlib.Path,
    picture: bool,
    cache: bool,
    as_json: bool,
    **family_options: Any,
) -> None:
    """Find the best mechanism of a family and write it to a file. Ctrl-C keeps the best one so far, with exit status 130.

    \b
    Example:
      fedmf fit --rounds 256 --min-sep 64 --family banded --out banded.npz --show
      fedmf fit --rounds 2000 --schema fixed_epoch --min-sep 100 --family tree --decoder full --out tree.npz
      fedmf fit --rounds 2048 --schema single --matrices prefix_opt/size=2048 --out theirs.npz
    """
    import fedmf
    from fedmf.mechanisms.fitting.progress import interrupted_fit

    interrupted_fit.set(False)
    options = {name: value for name, value in family_options.items() if value is not None}
    with arguments_checked(), _warnings_in_a_line():
        writable("out", out, ".npz")
        if stamps == 1 and stamp_decoder is not None:
            raise ValueError(f"stamp_decoder={stamp_decoder!r} belongs to stamps: leave it out, or give --stamps")
        participation = fedmf.Participation(
            rounds=rounds, schema=schema, min_sep=min_sep, max_participations=max_participations
        )
        workload_of = functools.partial(workload_named, workload, momentum, warmup, cooldown)
        A = workload_of(rounds)
        if matrices is not None:
            if options or stamps != 1:
                given = ", ".join([*options, *(["stamps"] if stamps != 1 else [])])
                raise ValueError(f"matrices={str(matrices)!r} are taken as they are: leave out {given}")
            mechanism = fedmf.load_factorization(matrices)
            if mechanism.rounds != rounds:
                raise ValueError(f"rounds={rounds} but the matrices have {mechanism.rounds} rounds: pass that number")
        else:
            mechanism = _fit(
                workload_of, participation, family, stamps, stamp_decoder, {"cache": cache, **options}, not as_json
            )
    with file_named(out):
        mechanism.save(out)
    sensitivity = fedmf.sensitivity(mechanism, participation)
    errors = fedmf.per_round_error(mechanism, A, participation)
    certificate = mechanism.certificate
    values = {
        "family": mechanism.family,
        "rounds": mechanism.rounds,
        "bands": mechanism.bands,
        "sensitivity": sensitivity.value,
        "sensitivity_is": "exact" if sensitivity.exact else "upper bound",
        "sensitivity_method": sensitivity.method,
        "rmse": float((errors**2).mean() ** 0.5),
        "max_error": float(errors.max()),
        "last_error": float(errors[-1]),
        "certified_gap": certificate.gap if certificate else None,
        **({"certified_for": _named(mechanism.family, certificate.participation)} if certificate else {}),
        **({} if certificate else {"no_certificate": mechanism.certificate_reason}),
        "file": str(out),
    }
    if picture:
        values["picture"] = str(_picture(mechanism, sensitivity.value, errors, A.name, out))
    show(values, as_json)
    if interrupted_fit.get():
        raise Interrupted(f"{out} holds the best mechanism so far; the same command would fit it anew, to the end")


def _fit(
    workload_of: Callable[[int], "Workload"],
    participation: "Participation",
    family: str,
    stamps: int,
    stamp_decoder: str | None,
    options: dict[str, Any],
    with_progress: bool,
) -> "Mechanism":
    import fedmf
    from fedmf.mechanisms.fitting.progress import shown

    if stamps < 1 or participation.rounds % stamps:
        raise ValueError(f"stamps={stamps} does not divide rounds={participation.rounds}: choose a positive divisor")
    with shown(family, with_progress) as progress:
        if stamps == 1:
            A = workload_of(participation.rounds)
            return fedmf.fit(A, participation, family=family, progress=progress, **options)
        # The part is made for what a client can do within it, and for a workload of its own that begins anew.
        part = participation.rounds // stamps
        separated = participation.schema in ("fixed_epoch", "min_sep")
        within = fedmf.Participation(
            rounds=part, schema=participation.schema, min_sep=min(part, participation.min_sep) if separated else None
        )
        fitted = fedmf.fit(workload_of(part), within, family=family, progress=progress, **options)
        return fedmf.stamp(fitted, stamps, decoder=stamp_decoder or "optimal")


def workload_named(name: str, momentum: float | None, warmup: float, cooldown: float, rounds: int) -> "Workload":
    """The workload that the options --workload, --momentum, --warmup and --cooldown describe."""
    import fedmf

    if momentum is not None and name != "momentum_sgd":
        raise ValueError(f"momentum={momentum} belongs to workload=momentum_sgd, not to workload={name}: leave it out")
    scheduled = bool(warmup or cooldown)
    rates = fedmf.WarmupCooldown(rounds=rounds, peak=1.0, warmup=warmup, cooldown=cooldown).learning_rates()
    if name == "momentum_sgd":
        return fedmf.momentum_sgd(rounds, 0.95 if momentum is None else momentum, rates if scheduled else None)
    if name == "prefix_sum":
        return fedmf.sgd(rates) if scheduled else fedmf.prefix_sum(rounds)
    if name != "identity":
        raise ValueError(f"workload={name!r} is unknown: use prefix_sum, momentum_sgd or identity")
    if scheduled:
        raise ValueError(f"warmup={warmup} and cooldown={cooldown} do not suit workload=identity: leave them out")
    return fedmf.identity(rounds)


def _named(family: str, participation: "Participation | None") -> str:
    """What a certificate is for, which can be other than what was asked for."""
    if participation is None:
        return "one participation" + (", or any number that the bands keep apart" if family == "banded" else "")
    schema, b, k = participation.schema, participation.min_sep, participation.max_participations
    return f"{schema}, min_sep {b}, {k} participation{'' if k == 1 else 's'}"


def _picture(mechanism: "Mechanism", scale: float, errors: Any, workload: str, out: pathlib.Path) -> pathlib.Path:
    """Draws the mechanism, scaled to sensitivity 1, beside `out`."""
    from fedmf.files import write_atomically
    from fedmf.reports.mechanism import mechanism_picture

    small = mechanism.rounds <= _MAX_PICTURED
    png = mechanism_picture(
        f"{mechanism.family}, {mechanism.rounds:,} round{'' if mechanism.rounds == 1 else 's'}, {workload}",
        encoder=mechanism.encoder() / scale if small else None,
        noising=mechanism.noising() * scale if small else None,
        errors=errors,
    )
    path = out.with_suffix(".png")
    write_atomically(path, png)
    return path


@contextlib.contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, RuntimeWarning):
            click.echo(f"fedmf: warning: {warning.message}", err=True)
