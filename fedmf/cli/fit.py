"""fedmf fit: from a participation schema to a mechanism file."""

import contextlib
import pathlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import arguments_checked, in_option_names
from fedmf.cli.help import say
from fedmf.cli.options import FamilyCommand, in_one, json_option, options_of, show
from fedmf.cli.values import COUNT, EXISTING, SHARE, OneOf, OutputFile

if TYPE_CHECKING:
    from fedmf.mechanisms import Mechanism
    from fedmf.participation.schema import Participation

_PARTICIPATION = ("rounds", "schema", "min_sep", "max_participations")


@click.command(cls=FamilyCommand)
@options_of(
    "PlanConfig",
    names=(*_PARTICIPATION, "workload", "workload_momentum", "learning_rate_schedule"),
    required=("rounds",),
    defaults=True,
)
@in_one(
    "fitting",
    click.option("--family", type=OneOf("family"), default="banded", help="Kind of mechanism."),
    click.option(
        "--tolerance",
        type=float,
        help="Relative optimality gap to reach; of toeplitz and blt the last progress.",
    ),
    click.option("--max-iterations", type=COUNT, help="Steps after which to stop anyway."),
    click.option(
        "--cache/--no-cache", default=True, help="Answer from fits kept on disk, and keep this one."
    ),
)
@click.option("--matrices", type=EXISTING, help="Read another program's matrices, fit nothing.")
@in_one(
    "shares",
    click.option(
        "--warmup", type=SHARE, default=0.0, help="Share of rounds of rising learning rate."
    ),
    click.option(
        "--cooldown", type=SHARE, default=0.0, help="Share of rounds of falling learning rate."
    ),
)
@click.option(
    "--out", required=True, type=OutputFile(".npz"), help="File to write, ending in .npz."
)
@click.option(
    "--show",
    "picture",
    is_flag=True,
    help="Draw C, N, X and the error by round, as a PNG beside the file.",
)
@json_option
def fit(
    promise: dict[str, Any],
    fitting: dict[str, Any],
    shares: dict[str, Any],
    matrices: pathlib.Path | None,
    out: pathlib.Path,
    picture: bool,
    as_json: bool,
) -> None:
    """Find the best mechanism of a family and write it to a file.

    Ctrl-C keeps the best one so far, with exit status 130.

    \b
    Example:
      fedmf fit --rounds 256 --min-sep 64 --family banded --out banded.npz --show
      fedmf fit --rounds 2000 --schema fixed_epoch --min-sep 100 --family tree --decoder full \\
        --out tree.npz
      fedmf fit --rounds 2048 --schema single --matrices prefix_opt/size=2048 --out theirs.npz
    """
    import fedmf
    from fedmf import workloads
    from fedmf.mechanisms.fitting.progress import interrupted_fit, progress_line
    from fedmf.schedule import CustomSchedule
    from fedmf.terminal.interrupts import Interrupted
    from fedmf.terminal.progress_bar import elapsed

    if picture:
        # Before the fit
        OutputFile(".png").convert(str(out.with_suffix(".png")), None, click.get_current_context())
    interrupted_fit.set(False)
    limits = {name: promise.pop(name) for name in _PARTICIPATION}
    momentum, given = promise.pop("workload_momentum"), promise.pop("learning_rate_schedule")
    workload = promise.pop("workload")
    options = {n: value for n, value in (fitting | promise).items() if value is not None}
    with arguments_checked(), _warnings_in_a_line():
        participation = fedmf.Participation(**limits)
        n, rates = participation.rounds, None
        if given is not None:
            if any(shares.values()):
                raise ValueError(
                    f"learning_rate_schedule={given} is given beside warmup and cooldown: leave "
                    "them out"
                )
            rates = CustomSchedule(rounds=n, peak=1.0, shares=given).learning_rates()
        elif any(shares.values()):
            rates = fedmf.WarmupCooldown(rounds=n, peak=1.0, **shares).learning_rates()
        A = workloads.by_name(workload, n, momentum=momentum, learning_rates=rates)
        if matrices is not None:
            refused = " and ".join(
                f"--{n.replace('_', '-')}" for n in options if n not in ("family", "cache")
            )
            if refused:
                raise ValueError(
                    f"matrices={str(matrices)!r} are taken as they are: leave out {refused}"
                )
            mechanism = fedmf.load_factorization(matrices)
            if mechanism.rounds != A.rounds:
                raise ValueError(
                    f"rounds={A.rounds} but the matrices have {mechanism.rounds} "
                    "rounds: pass that number"
                )
        else:
            with progress_line(options["family"], not as_json) as progress:
                mechanism = fedmf.fit(A, participation, progress=progress, **options)
    with elapsed("computing errors", disable=as_json):
        sensitivity = fedmf.sensitivity(mechanism, participation)
        errors = fedmf.per_round_error(mechanism, A, participation)
    mechanism.save(out)  # which others can read, for memory holds what they need
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
    }
    if certificate:
        values["certified_for"] = _certified_for(certificate.participation, mechanism.family)
    else:
        values["no_certificate"] = mechanism.certificate_reason
    values["file"] = str(out)
    if picture:
        with elapsed("drawing", disable=as_json):
            values["picture"] = str(_picture(mechanism, sensitivity.value, errors, A.name, out))
    show(values, as_json)
    if interrupted_fit.get():
        raise Interrupted(
            f"interrupted: {out} holds the best mechanism so far; the same command would "
            "fit it anew, to the end"
        )


def _certified_for(participation: "Participation | None", family: str) -> str:
    """The participation of a certificate, which can differ from that of the command."""
    if participation is None:
        return "one participation" + ", or any number that the bands keep apart" * (
            family == "banded"
        )
    schema, b, k = participation.schema, participation.min_sep, participation.max_participations
    return f"{schema}, min_sep {b}, {k} participation{'s' * (k != 1)}"


def _picture(
    mechanism: "Mechanism", sensitivity: float, errors: Any, workload: str, out: pathlib.Path
) -> pathlib.Path:
    """Draws the mechanism, scaled to sensitivity 1, beside `out`."""
    from fedmf.files import write_atomically
    from fedmf.reports.pictures import mechanism_picture

    path = out.with_suffix(".png")
    png = mechanism_picture(
        f"{mechanism.family}, {mechanism.rounds:,} "
        f"round{'s' * (mechanism.rounds != 1)}, {workload}",
        mechanism=mechanism,
        sensitivity=sensitivity,
        errors=errors,
    )
    write_atomically(path, png)
    return path


@contextlib.contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, RuntimeWarning):
            say("warning", in_option_names(str(warning.message)))
