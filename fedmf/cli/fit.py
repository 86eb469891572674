"""The command `fedmf fit`, which computes a mechanism for a participation schema and writes it to a
file.
"""

import contextlib
import pathlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.errors import arguments_checked, in_option_names
from fedmf.cli.help import say
from fedmf.cli.options import FamilyCommand, grouped, json_option, options_of, show
from fedmf.cli.values import COUNT, EXISTING, SHARE, OneOf, OutputFile

if TYPE_CHECKING:
    import numpy as np

    from fedmf.mechanisms import Mechanism
    from fedmf.participation.schema import Participation
    from fedmf.participation.sharpening import Sensitivity
    from fedmf.workloads import Workload

_PARTICIPATION = ("rounds", "schema", "min_sep", "max_participations")


@click.command(cls=FamilyCommand)
@options_of(
    "PlanConfig",
    names=(*_PARTICIPATION, "workload", "workload_momentum", "learning_rate_schedule"),
    required=("rounds",),
    defaults=True,
)
@grouped(
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
@grouped(
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
    config_options: dict[str, Any],
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
    from fedmf.mechanisms.fitting.progress import interrupted_fit
    from fedmf.terminal.interrupts import Interrupted
    from fedmf.terminal.progress_bar import elapsed

    if picture:
        # The picture's path is checked before the fit, which takes long.
        OutputFile(".png").convert(str(out.with_suffix(".png")), None, click.get_current_context())
    interrupted_fit.set(False)
    participation_limits = {name: config_options.pop(name) for name in _PARTICIPATION}
    workload_settings = {
        name: config_options.pop(name)
        for name in ("workload", "workload_momentum", "learning_rate_schedule")
    }
    options = {n: value for n, value in (fitting | config_options).items() if value is not None}
    with arguments_checked(), _warnings_in_a_line():
        participation = fedmf.Participation(**participation_limits)
        A = _workload(participation.rounds, workload_settings, shares)
        if matrices is not None:
            mechanism = _read_matrices(matrices, A, options)
        else:
            mechanism = _fitted(A, participation, options, quiet=as_json)
    with elapsed("computing errors", disable=as_json):
        sensitivity = fedmf.sensitivity(mechanism, participation)
        round_errors = fedmf.per_round_error(mechanism, A, participation)
    # The mechanism is saved before the picture and the summary, because these can still fail.
    mechanism.save(out)
    mechanism_values = _mechanism_values(mechanism, sensitivity, round_errors) | {"file": str(out)}
    if picture:
        with elapsed("drawing", disable=as_json):
            mechanism_values["picture"] = str(
                _picture(mechanism, sensitivity.value, round_errors, A.name, out)
            )
    show(mechanism_values, as_json)
    if interrupted_fit.get():
        raise Interrupted(
            f"interrupted: {out} holds the best mechanism so far; the same command would "
            "fit it anew, to the end"
        )


def _workload(num_rounds: int, settings: dict[str, Any], shares: dict[str, Any]) -> "Workload":
    """Returns the workload that the options of the command describe.

    Args:
      num_rounds: rounds of the workload.
      settings: its name, momentum and learning-rate schedule.
      shares: shares of the rounds for warmup and cooldown.

    Raises:
      ValueError: for a learning-rate schedule beside warmup or cooldown.
    """
    import fedmf
    from fedmf import workloads
    from fedmf.schedule import CustomSchedule

    schedule_text = settings["learning_rate_schedule"]
    learning_rates = None
    if schedule_text is not None:
        if any(shares.values()):
            raise ValueError(
                f"learning_rate_schedule={schedule_text} is given beside warmup and cooldown: "
                "leave them out"
            )
        custom_schedule = CustomSchedule(rounds=num_rounds, peak=1.0, shares=schedule_text)
        learning_rates = custom_schedule.learning_rates()
    elif any(shares.values()):
        warmup_cooldown = fedmf.WarmupCooldown(rounds=num_rounds, peak=1.0, **shares)
        learning_rates = warmup_cooldown.learning_rates()
    return workloads.by_name(
        settings["workload"],
        num_rounds,
        momentum=settings["workload_momentum"],
        learning_rates=learning_rates,
    )


def _read_matrices(
    matrices: pathlib.Path, workload: "Workload", options: dict[str, Any]
) -> "Mechanism":
    """Builds a mechanism from matrices that another program has written.

    Raises:
      ValueError: for options of a fit, and for matrices of another number of rounds.
    """
    import fedmf

    option_flags = [f"--{n.replace('_', '-')}" for n in options if n not in ("family", "cache")]
    if option_flags:
        raise ValueError(
            f"matrices={str(matrices)!r} are taken as they are: leave out "
            f"{' and '.join(option_flags)}"
        )
    mechanism = fedmf.load_factorization(matrices)
    if mechanism.rounds != workload.rounds:
        raise ValueError(
            f"rounds={workload.rounds} but the matrices have {mechanism.rounds} "
            "rounds: pass that number"
        )
    return mechanism


def _fitted(
    workload: "Workload",
    participation: "Participation",
    options: dict[str, Any],
    *,
    quiet: bool,
) -> "Mechanism":
    """Fits a mechanism, and shows the progress unless `quiet`."""
    import fedmf
    from fedmf.mechanisms.fitting.progress import progress_line

    with progress_line(options["family"], not quiet) as progress:
        return fedmf.fit(workload, participation, progress=progress, **options)


def _mechanism_values(
    mechanism: "Mechanism", sensitivity: "Sensitivity", errors: "np.ndarray"
) -> dict[str, Any]:
    """Returns the mechanism's size, sensitivity, errors and certificate, for the output."""
    certificate = mechanism.certificate
    values: dict[str, Any] = {
        "family": mechanism.family,
        "rounds": mechanism.rounds,
        "bands": mechanism.bands,
        "sensitivity": sensitivity.value,
        "sensitivity_is": "upper bound",
        "sensitivity_method": sensitivity.method,
        "rmse": float((errors**2).mean() ** 0.5),
        "max_error": float(errors.max()),
        "last_error": float(errors[-1]),
        "certified_gap": None,
    }
    if sensitivity.exact:
        values["sensitivity_is"] = "exact"
    if certificate:
        values["certified_gap"] = certificate.gap
        values["certified_for"] = _certified_for(certificate.participation, mechanism.family)
    else:
        values["no_certificate"] = mechanism.certificate_reason
    return values


def _certified_for(participation: "Participation | None", family: str) -> str:
    """Describes the participation that a certificate holds for, which can differ from the
    command's.
    """
    from fedmf.reports.text import plural

    if participation is None:
        if family == "banded":
            return "one participation, or any number that the bands keep apart"
        return "one participation"
    num_participations = participation.max_participations
    return (
        f"{participation.schema}, min_sep {participation.min_sep}, {num_participations} "
        f"{plural('participation', num_participations)}"
    )


def _picture(
    mechanism: "Mechanism", sensitivity: float, errors: Any, workload: str, out: pathlib.Path
) -> pathlib.Path:
    """Draws the mechanism, scaled to sensitivity 1, into a file beside `out`."""
    from fedmf.files import write_atomically
    from fedmf.reports.command_pictures import mechanism_picture
    from fedmf.reports.text import plural

    picture_path = out.with_suffix(".png")
    num_rounds = mechanism.rounds
    picture_png = mechanism_picture(
        f"{mechanism.family}, {num_rounds:,} {plural('round', num_rounds)}, {workload}",
        mechanism=mechanism,
        sensitivity=sensitivity,
        errors=errors,
    )
    write_atomically(picture_path, picture_png)
    return picture_path


@contextlib.contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Collects the RuntimeWarnings of the block, and prints each in one line after the block."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, RuntimeWarning):
            say("warning", in_option_names(str(warning.message)))
