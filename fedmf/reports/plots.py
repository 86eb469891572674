"""The report's plots of runs: validation and training over rounds, how the metric spreads over
clients, and how often they took part.

And plots of the noise: its matrices, and how much of it there is.
"""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from fedmf.reports.canvas import (
    DASHED,
    INK,
    RED,
    SOFT,
    Plot,
    canvas,
    draw_color_bar,
    draw_heat_map,
    in_percent,
    legend_above,
    marker,
    shared_norm,
    whole_steps,
)
from fedmf.reports.drawn_noise import MAX_DRAWN_ROUNDS, drawn_noise
from fedmf.reports.groups import (
    Group,
    distinct_mechanisms,
    distinct_noise,
    mean_curve,
    mean_over_runs,
    noise_levels,
    private_curve,
    runs_of,
    simulation_note,
    unfinished,
    validation_curve,
)
from fedmf.reports.text import is_share, metric_name, metric_value, plain, significant
from fedmf.runs.folder import Run

_MAX_NAMED_LINES = 24  # of more the legend has the mechanisms alone
_MAX_MARKED_POINTS = 6  # of a line
_MAX_LABELLED_BARS = 16


def accuracy_plot(groups: Sequence[Group]) -> Plot:
    """The headline metric on the validation set over rounds."""
    metric = groups[0].plan["task"]["headline_metric"]
    runs = runs_of(groups)
    note = simulation_note(runs)
    title = f"Validation {metric_name(metric)} over rounds"
    with canvas(3.9, note) as (figure, png):
        ax = figure.subplots()
        last = [
            f"{group.label} {metric_value(metric, end)}"
            for group in groups
            for end in _draw_curve(ax, group)
        ]
        _over_rounds(ax, title, steps=8)
        ax.set_xlim(0, max(run.config.rounds for run in runs))
        if is_share(metric):
            in_percent(ax)
            ax.set_ylim(bottom=max(0.0, ax.get_ylim()[0]))
        if not last:
            nothing = "no run has been validated yet"
            ax.text(0.5, 0.5, nothing, transform=ax.transAxes, ha="center", color=SOFT)
            ax.set_yticks([])
        every_group_named = len(groups) <= _MAX_NAMED_LINES
        named: dict[str, Line2D] = {}
        for group in groups:
            name = group.label if every_group_named else group.mechanism
            named.setdefault(name, Line2D([], [], color=group.color, linestyle=group.line))
        legend_above(figure, list(named.values()), list(named))
    caption = (
        f"Validation {metric_name(metric)} against the number of completed rounds, one "
        "colour for each mechanism."
    )
    if len({group.config.family for group in groups}) < len(groups):
        caption += " Shades and dashes tell apart what is of one kind."
    if not every_group_named:
        caption += " They are too many to name: the tables do."
    if len(runs) > len(groups):
        caption += (
            " The bold line is the mean over seeds, thin lines are the seeds, "
            "and the band spans them."
        )
    if any(unfinished(run) for run in runs):
        caption += " A cross ends the curve of an unfinished run."
    alt = f"Line plot: {title}. Last values: {'; '.join(last) or 'none yet'}."
    return Plot(png=png.getvalue(), caption=caption, note=note, alt=alt)


def _over_rounds(ax: Axes, title: str, *, steps: int = 5) -> None:
    """The title, and the axis of rounds, with at most so many ticks."""
    ax.set(title=title, xlabel="rounds completed")
    ax.xaxis.set_major_locator(whole_steps(steps))


def _draw_curve(ax: Axes, group: Group) -> list[float]:
    """Draws the group's lines. Its last mean value, if there is one."""
    for run in group.runs:
        rounds, values = validation_curve(run)
        if len(group.runs) > 1:
            ax.plot(rounds, values, color=group.color, linewidth=0.9, alpha=0.55)
        if unfinished(run):
            ax.plot(
                rounds[-1:],
                values[-1:],
                "X",
                markersize=8,
                color=group.color,
                markeredgecolor="white",
            )
    rounds, seeds = mean_curve(group)
    if not len(rounds):
        return []
    mean = seeds.mean(axis=0)
    ax.fill_between(
        rounds, seeds.min(axis=0), seeds.max(axis=0), color=group.color, alpha=0.13, linewidth=0
    )
    marked = "o" if len(rounds) <= _MAX_MARKED_POINTS else ""
    ax.plot(
        rounds,
        mean,
        color=group.color,
        linestyle=group.line,
        marker=marked,
        markersize=4,
        clip_on=False,
    )
    return [float(mean[-1])]


# Column of metrics.jsonl -> what its axis says.
_TRAINING = {"train_loss": "training loss", "clip_fraction": "updates clipped"}


def training_plot(groups: Sequence[Group]) -> Plot | None:
    """Training loss and share of clipped updates over rounds, means over a group's runs; None where
    no run has either.
    """
    runs = runs_of(groups)
    shown = [name for name in _TRAINING if any(name in row for run in runs for row in run.metrics)]
    if not shown:
        return None
    note = simulation_note(runs)
    last = []
    with canvas(2.8, note) as (figure, png):
        for ax, name in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            for group in groups:
                rounds, values = mean_over_runs(group, name)
                ax.plot(rounds, values, color=group.color, linestyle=group.line, linewidth=1.4)
                last.append(
                    f"{group.label} {_TRAINING[name]} {values[-1]:.4g}"
                    if len(values)
                    else f"{group.label} none"
                )
            _over_rounds(ax, _TRAINING[name].capitalize())
            if name == "clip_fraction":
                in_percent(ax)
                ax.set_ylim(0, 1.03)
    caption = (
        "Over the clients of each round: the mean loss before the round's step, and the share of "
        "updates that were clipped."
    )
    if len(runs) > len(groups):
        caption += " Lines are means over seeds."
    caption += (
        " Colours are those above. These are exact functions of client data, which the "
        "guarantee does not cover."
    )
    alt = f"Line plots. Last values: {'; '.join(last)}."
    return Plot(png=png.getvalue(), caption=caption, note=note, alt=alt)


# What a run with private metrics has in a row under "private".
_PRIVATE = {"loss": "private loss", "accuracy": "private accuracy"}


def private_plot(groups: Sequence[Group]) -> Plot | None:
    """Private metrics over rounds with two standard deviations of their noise, of each group's
    first run that has some; None where no run has.
    """
    shown = [
        (group, run)
        for group in groups
        for run in [run for run in group.runs if run.config.private_metrics][:1]
    ]
    if not shown:
        return None
    note = simulation_note([run for _, run in shown])
    last = []
    with canvas(2.8, note) as (figure, png):
        for ax, name in zip(figure.subplots(1, len(_PRIVATE)), _PRIVATE, strict=True):
            for group, run in shown:
                rounds, values, spread = private_curve(run, name)
                ax.plot(rounds, values, color=group.color, linestyle=group.line, linewidth=1.4)
                low = values - 2 * spread
                high = values + 2 * spread
                ax.fill_between(rounds, low, high, color=group.color, alpha=0.2, linewidth=0)
                newest = f"{values[-1]:.4g}" if len(values) else "none"
                last.append(f"{group.label} {_PRIVATE[name]} {newest}")
                top = run.config.largest_loss if name == "loss" else 1.0
            _over_rounds(ax, _PRIVATE[name].capitalize())
            ax.set_ylim(-0.03 * top, 1.03 * top)
            if name == "accuracy":
                in_percent(ax)
    return Plot(
        png=png.getvalue(),
        caption="Means over the clients of the rounds between validations, of the models that "
        "these rounds began with, released with noise: the guarantee covers them. Bands are two "
        "standard deviations of the noise.",
        note=note,
        alt=f"Line plots with bands. Last values: {'; '.join(last)}.",
    )


def _draw_deciles(
    ax: Axes, group: Group, metric: str, deciles: Sequence[float], *, hollow: bool = False
) -> Line2D:
    """A line of the group through the deciles over clients of the metric."""
    percents = range(10, 100, 10)
    (line,) = ax.plot(percents, deciles, "o", color=group.color, linestyle=group.line, markersize=4)
    if hollow:
        line.set(linewidth=1.0, markerfacecolor="white")
    ax.set_xlabel("percent of clients at or below")
    ax.set_xticks(percents)
    if is_share(metric):
        in_percent(ax)
    return line


def clients_plot(groups: Sequence[Group]) -> Plot | None:
    """Deciles of the headline metric over training clients, of the runs for which it was measured;
    None without one.
    """
    measured = [
        (group, run, run.clients)
        for group in groups
        for run in group.runs
        if run.clients is not None
    ]
    if not measured:
        return None
    metric = groups[0].plan["task"]["headline_metric"]
    note = simulation_note([run for _, run, _ in measured])
    said = []
    left_out = []
    with canvas(2.9, note) as (figure, png):
        ax = figure.subplots()
        named: dict[str, Line2D] = {}
        for group, run, clients in measured:
            deciles = clients["deciles"]
            named.setdefault(group.label, _draw_deciles(ax, group, metric, deciles))
            ends = " to ".join(metric_value(metric, deciles[i]) for i in (0, -1))
            said.append(
                f"{group.label}, seed {run.config.seed}: {ends} over {clients['clients']:,} clients"
            )
            for reason in ("undefined", "not_finite"):  # an earlier release counts one of them
                if num_clients := clients.get(f"clients_{reason}", 0):
                    which = f"{reason.replace('_', ' ')} on {num_clients:,}"
                    left_out.append(f"{which} of {group.label}, seed {run.config.seed}")
        ax.set_title(f"{metric_name(metric).capitalize()} over training clients")
        legend_above(figure, list(named.values()), list(named))
    caption = (
        f"Deciles of the {metric_name(metric)} on the training examples of each client by itself "
        "(`fedmf evaluate --by-client`). A flat line serves all clients alike."
    )
    if left_out:
        caption += (
            " Clients on whose examples it is undefined or not finite are left out: "
            f"{'; '.join(left_out)}."
        )
    alt = f"Line plot. From the first to the ninth decile: {'; '.join(said)}."
    return Plot(png=png.getvalue(), caption=caption, note=note, alt=alt)


def fine_tuned_plot(groups: Sequence[Group]) -> Plot | None:
    """Deciles of the headline metric over clients before and after fine-tuning, and of its change,
    of the runs for which it was measured; None where it is defined on no client of any.
    """
    metric = groups[0].plan["task"]["headline_metric"]
    measured = [
        (group, run, run.fine_tuned, run.fine_tuned["metrics"][metric])
        for group in groups
        for run in group.runs
        if run.fine_tuned is not None and run.fine_tuned["metrics"][metric]["clients"]
    ]
    if not measured:
        return None
    note = simulation_note([run for _, run, *_ in measured])
    said = []
    with canvas(2.9, note) as (figure, png):
        values, changes = figure.subplots(1, 2)
        changes.axhline(0.0, color=SOFT, linewidth=0.9)
        named: dict[str, Line2D] = {}
        for group, run, found, of in measured:
            start = f"{group.label}, " if len(groups) > 1 else ""
            for name in ("before", "after"):
                hollow = name == "before"
                line = _draw_deciles(values, group, metric, of[name]["deciles"], hollow=hollow)
                named.setdefault(f"{start}{name} fine-tuning", line)
            _draw_deciles(changes, group, metric, of["change"]["deciles"])
            means = " to ".join(metric_value(metric, of[n]["mean"]) for n in ("before", "after"))
            rate = ""
            if "learning_rate" in found:
                rate = f" --learning-rate {plain(found['learning_rate'])}"
            num_not_finite = of.get("clients_not_finite", 0)
            left_out = of["clients_undefined"] + num_not_finite + sum(found["left_out"].values())
            said.append(
                f"{group.label}, seed {run.config.seed}, --fine-tune {found['epochs']}{rate}, "
                f"on {found['measured_on']}: {means} "
                f"over {of['clients']:,} clients, {left_out:,} left out, "
                f"{num_not_finite:,} of these for values that are not finite"
            )
        values.set_title(metric_name(metric).capitalize())
        changes.set_title("Each client's change")
        legend_above(figure, list(named.values()), list(named))
    means = "; ".join(said)
    caption = (
        f"Deciles over clients of the {metric_name(metric)} before and after the model is trained "
        "on half of the client's examples, on the other half or the split that is named; and of "
        f"the change. Means: {means}. The guarantee does not cover these exact functions of data."
    )
    return Plot(png=png.getvalue(), caption=caption, note=note, alt=f"Line plots. Means: {means}.")


def participation_plot(runs: Sequence[Run]) -> Plot | None:
    """How many clients took part how often, over the finished runs.

    None without one, and where rounds, cohorts or populations differ: a mean over them would be the
    count of no run.
    """
    done = [
        (run, run.result["participation"]["population"]) for run in runs if run.result is not None
    ]
    sizes = {(run.config.rounds, run.config.cohort_size, population) for run, population in done}
    if len(sizes) != 1:
        return None
    drawn = [run for run, _ in done]
    note = simulation_note(drawn)
    with canvas(2.8, note) as (figure, png):
        ax = figure.subplots()
        ax.set_title("How often clients took part")
        alt = f"Bar plot. {_draw_participation(ax, drawn)}"
    caption = (
        "Clients by the number of rounds in which they took part; the grey bar "
        "counts those that never did."
    )
    if len(drawn) > 1:
        caption += " Bars are means over runs, and lines span the smallest and the largest count."
    return Plot(png=png.getvalue(), caption=caption, note=note, alt=alt)


def _draw_participation(ax: Axes, runs: Sequence[Run]) -> str:
    """Bars of the mean over these runs, which have the same number of clients and rounds; the bars
    in words.
    """
    counts = [_clients_by_count(run) for run in runs]
    limits = {run.plan["participation"]["max_participations"] for run in runs}
    limit = limits.pop() if len(limits) == 1 else None
    most = 1 + max(map(max, counts))
    shown = most if limit is None or limit > 2 * most else max(most, limit + 1)
    times = np.arange(shown)
    table = np.array([[count.get(t, 0) for t in times] for count in counts])
    mean = table.mean(axis=0)
    colors = [
        "#c9c9c9" if t == 0 else RED if limit is not None and t > limit else "#51677f"
        for t in times
    ]
    spread = np.stack([mean - table.min(axis=0), table.max(axis=0) - mean])
    bars = ax.bar(
        times, mean, color=colors, yerr=spread if spread.any() else None, ecolor=INK, capsize=3
    )
    if shown <= _MAX_LABELLED_BARS:
        ax.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=9)
    ax.margins(y=0.15)
    ax.set_xlabel(
        "participations of one client" + ("" if limit is None else f", planned limit {limit:,}")
    )
    if limit is not None and limit < shown:
        ax.axvline(limit + 0.5, color=INK, linewidth=1.2, linestyle=DASHED)
    ax.set_ylabel("clients")
    ax.grid(axis="x", visible=False)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=16, min_n_ticks=1))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    return "; ".join(
        f"{t} times: {clients:,.0f} clients" for t, clients in zip(times, mean, strict=True)
    )


def _clients_by_count(run: Run) -> dict[int, int]:
    """Clients that took part so often, for every number of times."""
    assert run.result is not None
    seen = run.result["participation"]
    histogram = {int(times): int(clients) for times, clients in seen["histogram"].items()}
    return histogram | {0: seen["population"] - seen["clients"]}


def spending_plot(runs: Sequence[Run]) -> Plot | None:
    """What clients spent of their participation budget; None without a finished run that has one,
    or where these differ in size.
    """
    seen = [run.result["participation"] for run in runs if run.result is not None]
    seen = [participation for participation in seen if "clients_by_share_spent" in participation]
    if len({participation["population"] for participation in seen}) != 1:
        return None
    counts = [participation["clients_by_share_spent"] for participation in seen]
    shares = list(counts[0])
    mean = np.mean([[count[share] for share in shares] for count in counts], axis=0)
    note = simulation_note([run for run in runs if run.result is not None])
    with canvas(2.8, note) as (figure, png):
        ax = figure.subplots()
        bars = ax.bar(shares, mean, color="#51677f")
        ax.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=9)
        ax.set(
            title="What clients spent of their budget",
            xlabel="share of the squared budget",
            ylabel="clients",
        )
        ax.margins(y=0.15)
        ax.grid(axis="x", visible=False)
    caption = (
        "Clients that took part by what their rounds cost: their summed |X|, in parts of the "
        "squared participation budget."
    )
    if len(seen) > 1:
        caption += " Bars are means over runs."
    alt = "Bar plot. " + "; ".join(
        f"{share}: {clients:,.0f} clients" for share, clients in zip(shares, mean, strict=True)
    )
    return Plot(png=png.getvalue(), caption=caption, note=note, alt=alt)


def matrices_plot(groups: Sequence[Group]) -> Plot | None:
    """Heat maps of N and of the correlation of N Z between rounds, for each private mechanism; None
    without one.
    """
    kinds = distinct_mechanisms(groups)
    if not kinds:
        return None
    note = simulation_note([run for _, kind in kinds for run in runs_of(kind)])
    # N is scaled by the sensitivity: C and c C are the same mechanism, and only this product does
    # not depend on c.
    drawn = [
        drawn_noise(kind[0].mechanism_of_noise, kind[0].plan["sensitivity"]["value"])
        for _, kind in kinds
    ]
    columns = (
        ("sensitivity × N", "noise source", [weights for weights, _ in drawn]),
        ("correlation", "round", [correlation for _, correlation in drawn]),
    )
    with canvas(1.0 + 2.25 * len(kinds), note) as (figure, png):
        axes = figure.subplots(len(kinds), 2, squeeze=False)
        for (name, across, matrices), below in zip(columns, axes.T, strict=True):
            norm = shared_norm([matrix.entries for matrix in matrices])
            for ax, matrix in zip(below, matrices, strict=True):
                draw_heat_map(ax, matrix.entries, norm, size=matrix.size)
            below[-1].set_xlabel(across)
            draw_color_bar(figure, list(below), norm, location="bottom", label=name)
        for row, (label, kind) in zip(axes, kinds, strict=True):
            row[0].set_title(textwrap.fill(label, 40), color=kind[0].color)
            row[0].set_ylabel("round")
            row[1].set_title("correlation between rounds", color=SOFT, fontweight="normal")
    caption = (
        "Left: the noising matrix N times the sensitivity; row t holds the weights with which the "
        "independent noise sources enter round t, so blue entries below red ones take back noise "
        "that an earlier round added. Right: the correlation of the noise of two rounds; off the "
        "diagonal, blue noise cancels over time and white noise is fresh in every round. All "
        "mechanisms share a colour scale, logarithmic in both directions away from white."
    )
    if any(group.config.rounds > MAX_DRAWN_ROUNDS for _, kind in kinds for group in kind):
        caption += f" Of longer runs {MAX_DRAWN_ROUNDS:,} rounds at equal distances are drawn."
    names = ", ".join(label for label, _ in kinds)
    alt = f"Heat maps of the noising matrix and of the correlation between rounds, for {names}."
    return Plot(png=png.getvalue(), caption=caption, note=note, alt=alt)


def levels_plot(groups: Sequence[Group]) -> Plot | None:
    """Standard deviation of the noise on each round and on the sum of rounds;
    None if no group is private.
    """
    private = distinct_noise(groups)
    if not private:
        return None
    note = simulation_note(runs_of([group for group in groups if group.private]))
    levels = [noise_levels(group) for group in private]
    with canvas(2.9, note) as (figure, png):
        for i, ax in enumerate(figure.subplots(1, 2)):
            for group, values in zip(private, levels, strict=True):
                rounds = np.arange(1, len(values[i]) + 1)
                style = {"color": group.color, "linestyle": group.line, "marker": marker(values[i])}
                ax.plot(rounds, values[i], linewidth=1.6, **style)
            _over_rounds(ax, ("Noise on one round", "Noise on the sum so far")[i])
            ax.set(xlim=(0, None), ylim=(0, None))
        figure.axes[0].set(xlabel="round", ylabel="standard deviation")
        legend_above(figure, figure.axes[0].lines, [group.label for group in private])
    caption = (
        "Standard deviation of the noise in each coordinate of the cohort's average update, in the "
        "units of the model. Training adds updates up, so the right side decides: correlated noise "
        "may be larger in single rounds (left) and still smaller in the sum (right)."
    )
    alt = "Two line plots of noise levels. On the sum after the last round: " + "; ".join(
        f"{group.label} {significant(on_sum[-1])}"
        for group, (_, on_sum) in zip(private, levels, strict=True)
    )
    return Plot(png=png.getvalue(), caption=caption, note=note, alt=alt)
