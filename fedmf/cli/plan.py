"""fedmf fit, fedmf calibrate: from a participation schema to a mechanism, and from a target to a plan."""

import pathlib
from typing import Any

import click

from fedmf.cli.options import arguments_checked, json_option, participation_options, show


@click.command()
@participation_options
@click.option("--family", default="banded", show_default=True, help="identity, tree, banded or dense.")
@click.option("--bands", type=int, help="Bands of the banded family; by default min_sep.")
@click.option("--decoder", default="online", show_default=True, help="Decoder of the tree: online or full.")
@click.option("--workload", default="prefix_sum", show_default=True, help="prefix_sum or momentum_sgd.")
@click.option("--momentum", type=float, default=0.95, show_default=True, help="Of the momentum_sgd workload.")
@click.option("--tolerance", type=float, help="Relative optimality gap to reach.")
@click.option("--out", required=True, type=click.Path(path_type=pathlib.Path), help="File to write, ending in .npz.")
@json_option
def fit(
    rounds: int,
    schema: str,
    min_sep: int | None,
    max_participations: int | None,
    family: str,
    bands: int | None,
    decoder: str,
    workload: str,
    momentum: float,
    tolerance: float | None,
    out: pathlib.Path,
    as_json: bool,
) -> None:
    """Find the best mechanism of a family and write it to a file.

    \b
    Example:
      fedmf fit --rounds 256 --min-sep 64 --family banded --out banded.npz
    """
    import fedmf
    from fedmf.optimize.progress import shown

    with arguments_checked():
        participation = fedmf.Participation(
            rounds=rounds, schema=schema, min_sep=min_sep, max_participations=max_participations
        )
        if workload not in ("prefix_sum", "momentum_sgd"):
            raise ValueError(f"workload={workload!r} is unknown: use prefix_sum or momentum_sgd")
        A = fedmf.prefix_sum(rounds) if workload == "prefix_sum" else fedmf.momentum_sgd(rounds, momentum=momentum)
        by_family: dict[str, dict[str, Any]] = {"tree": {"decoder": decoder}, "banded": {"bands": bands}}
        options = by_family.get(family, {})
        if tolerance is not None:
            options["tolerance"] = tolerance
        if bands is not None and family != "banded":
            raise ValueError(f"bands={bands} belongs to family=banded, not to family={family}: leave it out")
        with shown(family, not as_json) as progress:
            given = {name: value for name, value in options.items() if value is not None}
            mechanism = fedmf.fit(A, participation, family=family, progress=progress, **given)
    mechanism.save(out)
    sensitivity = fedmf.sensitivity(mechanism, participation)
    certificate = mechanism.certificate
    show(
        {
            "family": mechanism.family,
            "rounds": mechanism.rounds,
            "bands": mechanism.bands,
            "sensitivity": sensitivity.value,
            "sensitivity_is": "exact" if sensitivity.exact else "upper bound",
            "sensitivity_method": sensitivity.method,
            "rmse": fedmf.rmse(mechanism, A, participation),
            "certified_gap": certificate.gap if certificate else None,
            "file": str(out),
        },
        as_json,
    )


@click.command()
@click.argument("mechanism_file", metavar="MECHANISM", type=click.Path(path_type=pathlib.Path))
@participation_options
@click.option("--epsilon", type=float, help="Privacy target; or give --noise-multiplier.")
@click.option("--noise-multiplier", type=float, help="Noise of the whole run; or give --epsilon.")
@click.option("--delta", type=float, default=1e-6, show_default=True, help="Failure probability.")
@click.option("--clip-norm", type=float, default=1.0, show_default=True, help="L2 bound on a client's update.")
@click.option("--statement", is_flag=True, help="Print the privacy statement.")
@json_option
def calibrate(
    mechanism_file: pathlib.Path,
    rounds: int,
    schema: str,
    min_sep: int | None,
    max_participations: int | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    clip_norm: float,
    statement: bool,
    as_json: bool,
) -> None:
    """The noise that gives a mechanism a guarantee, or the guarantee that a noise gives.

    \b
    Example:
      fedmf calibrate banded.npz --rounds 256 --min-sep 64 --epsilon 8 --statement
    """
    import fedmf

    with arguments_checked():
        participation = fedmf.Participation(
            rounds=rounds, schema=schema, min_sep=min_sep, max_participations=max_participations
        )
        if (epsilon is None) == (noise_multiplier is None):
            raise ValueError(
                f"epsilon={epsilon} and noise_multiplier={noise_multiplier}: give exactly one, the other follows"
            )
        mechanism = fedmf.load_mechanism(mechanism_file)
        if epsilon is not None:
            plan = fedmf.calibrate(mechanism, participation, epsilon=epsilon, delta=delta, clip_norm=clip_norm)
        else:
            assert noise_multiplier is not None
            plan = fedmf.Plan(
                mechanism=mechanism,
                participation=participation,
                noise_multiplier=noise_multiplier,
                delta=delta,
                clip_norm=clip_norm,
            )
    if statement and not as_json:
        click.echo(plan.statement())
        return
    summary = plan.summary() | ({"statement": plan.statement()} if statement else {})
    if not as_json:
        sensitivity = summary.pop("sensitivity")
        summary["sensitivity"] = f"{sensitivity['value']:.6g} ({'exact' if sensitivity['exact'] else 'upper bound'})"
        for name in ("participation", "certificate", "simulated_cohort", "claimed_cohort"):
            summary.pop(name)
    show(summary, as_json)
