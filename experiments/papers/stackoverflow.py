"""The grids of the StackOverflow experiments: Denisov Figs. 2, 3, 6; multi-epoch Figs. 3, 10 to 12;
banded Figs. 1 (b), 5 (a), 12.

A grid is what the paper prints, at the paper's size; a smaller `Size` keeps the lines.
"""

import dataclasses
import functools
from typing import Any

import fedmf
from fedmf.experiments import tuning_figures
from fedmf.experiments.papers import published_clip
from fedmf.experiments.papers.stackoverflow_sizes import (
    EPOCHS_RATE_AT_2,
    EPOCHS_RATES,
    SIZES,
    Fields,
    Size,
)
from fedmf.experiments.papers.study import Part, Study
from fedmf.mechanisms import Mechanism
from fedmf.privacy.bands import choose_bands
from fedmf.schedule import WarmupCooldown
from fedmf.tasks.stackoverflow import write_synthetic_corpus

DELTA = 1e-6
ONLINE, FULL, PREFIX, MOMENTUM = "Honaker Online", "Honaker Full", "Opt Prefix Sum", "Optimal M=BC"
# Its Table 4: the best (server rate, client rate, momentum) by line, in the order of DENISOV_NOISE.
DENISOV_TABLE_4 = {
    FULL: (
        (0.5, 1.0, 0.95),
        (0.25, 1.0, 0.95),
        (0.25, 1.0, 0.9),
        (0.25, 0.5, 0.9),
        (0.25, 0.5, 0.0),
    ),
    ONLINE: (
        (0.25, 1.0, 0.95),
        (0.25, 1.0, 0.9),
        (0.25, 0.5, 0.9),
        (0.25, 1.0, 0.0),
        (0.25, 0.5, 0.0),
    ),
    PREFIX: (
        (0.5, 1.0, 0.95),
        (0.25, 0.5, 0.95),
        (0.25, 1.0, 0.9),
        (0.25, 0.5, 0.9),
        (0.5, 0.5, 0.0),
    ),
    MOMENTUM: (
        (1.0, 1.0, 0.9),
        (0.25, 1.0, 0.95),
        (0.25, 0.5, 0.9),
        (0.25, 0.5, 0.9),
        (0.5, 0.5, 0.0),
    ),
}
SGDM, GDM, HONAKER_6, MF_1_1, MF_1_6, MF_6_6 = (
    "DP-SGDM,6e",
    "DP-GDM,2052e",
    "Honaker,6e",
    "MF1,1e",
    "MF1,6e",
    "MF6,6e",
)
UNNOISED = "no noise"
# Banded paper, Tables 4 to 7.
SGD, SINGLE, TREE, MULTI, BANDED = (
    "DP-SGD",
    "Single-epoch MF",
    "Optimal TreeAgg",
    "Multi-epoch MF",
    "Band MF",
)


def _study(
    name: str, size: Size, parts: list[Part], *, repeats: int, smoothed_over: int = 0, **fixed: Any
) -> Study:
    options = {f"task_option.{option}": value for option, value in size.options.items()}
    common = {
        "rounds": size.rounds,
        "delta": DELTA,
        "evaluate_every": 20 if size.rounds > 200 else max(1, size.rounds // 8),
        "checkpoint_every": size.rounds if size.rounds < 200 else 100,
        "client_learning_rate": size.client_rate,
        "warmup": 0.0,
    }
    names = {"prefix": 0.0} | {
        f"momentum-{beta:g}": beta for beta in (*size.momentums, size.momentum) if beta
    }
    made = {
        f"{name}{decay}{k}": functools.partial(optimum, size, beta, decay=bool(decay), once=not k)
        for name, beta in names.items()
        for decay in ("", "-cooldown")
        for k in ("", "-epochs")
    }
    return Study(
        name=f"stackoverflow-{name}",
        fixed=common | options | fixed,
        parts=parts,
        repeats=repeats,
        smoothed_over=smoothed_over,
        mechanisms=made,
        data=(".sqlite", functools.partial(write_synthetic_corpus, progress=False, **size.corpus)),
    )


def optimum(size: Size, momentum: float, *, decay: bool, once: bool) -> Mechanism:
    """The best factorisation of SGD with momentum and, with `decay`, the rates' fall to 0.05 in the
    last quarter; for one epoch or all.
    """
    n = size.rounds_once if once else size.rounds
    rates = (
        WarmupCooldown(rounds=n, peak=1.0, warmup=0.0, cooldown=0.25).learning_rates()
        if decay
        else None
    )
    workload = fedmf.momentum_sgd(n, momentum, rates)
    return fedmf.fit(workload, size.once if once else size.in_order, family="dense", tolerance=1e-3)


def denisov(size: Size) -> Study:
    """Denisov Fig. 2, Tables 3 and 4: one epoch of 100 clients a round, constant rates."""
    grid: Fields = {
        "client_learning_rate": size.client_rates,
        "server_learning_rate": size.server_rates,
        "noise_multiplier": size.noise,
        **_cohort(size, size.denisov, size.simulates_all),
    }
    every: Fields = grid | {"server_momentum": size.momentums}
    parts = [
        Part(line=ONLINE, fields={"family": ["tree"], "decoder": ["online"]} | every),
        Part(line=FULL, fields={"family": ["tree"], "decoder": ["full"]} | every),
        Part(line=PREFIX, fields={"family": ["dense"]} | every),
    ]
    for (
        beta
    ) in size.momentums:  # each has its own optimum; without momentum it is that of prefix sums
        own: Fields = (
            {"family": ["file"], "mechanism": [f"momentum-{beta:g}"]}
            if beta
            else {"family": ["dense"]}
        )
        parts.append(Part(line=MOMENTUM, fields=own | grid | {"server_momentum": [beta]}))
    fixed: Fields = {
        "rounds": size.rounds_once,
        "schema": "single",
        "cooldown": 0.0,
        "zeroing_norm": None,
    }
    return _study("denisov", size, parts, repeats=size.repeats_denisov, **fixed)


CONSTANT, AFTER = "prefix sums, constant rate", "prefix sums, cool-down after"
M_CONSTANT, M_AFTER, M_INSIDE = (
    "momentum inside, constant rate",
    "momentum inside, cool-down after",
    "momentum and cool-down inside",
)
M_MORE = f"{M_INSIDE}, more clients"


def schedules(size: Size) -> Study:
    """Denisov Fig. 3: where momentum and the rates' fall are part of the mechanism.

    In the paper at epsilon 18.9.
    """
    return _schedules("schedules", size, [CONSTANT, AFTER, M_CONSTANT, M_AFTER, M_INSIDE, M_MORE])


def decays(size: Size) -> Study:
    """Denisov Fig. 6: two lines of Fig. 3; the same runs at one size with it."""
    return _schedules("schedules" if size in SIZES.values() else "decays", size, [AFTER, M_INSIDE])


def _schedules(name: str, size: Size, lines: list[str]) -> Study:
    beta = size.momentum
    inside: Fields = {"family": ["file"], "mechanism": [f"momentum-{beta:g}"]}
    both: Fields = {"family": ["file"], "mechanism": [f"momentum-{beta:g}-cooldown"]}
    of: dict[str, Fields] = {
        CONSTANT: {"family": ["dense"], "cooldown": [0.0]},
        AFTER: {"family": ["dense"], "cooldown": [0.25]},
        M_CONSTANT: inside | {"cooldown": [0.0]},
        M_AFTER: inside | {"cooldown": [0.25]},
        M_INSIDE: both | {"cooldown": [0.25]},
        M_MORE: both | {"cooldown": [0.25]},
    }
    fixed: Fields = {
        "rounds": size.rounds_once,
        "schema": "single",
        "noise_multiplier": size.noise[0],
        "server_momentum": beta,
        "zeroing_norm": None,
        "server_learning_rate": size.server_rate,
    }
    parts = [
        Part(
            line=line,
            fields=of[line]
            | _cohort(size, size.single if line == M_MORE else size.denisov, size.simulates_all),
        )
        for line in lines
    ]
    return _study(name, size, parts, repeats=size.repeats_denisov, **fixed)


def epochs(size: Size) -> Study:
    """Multi-epoch Figs. 3, 11 and 12, Tables 4 and 5."""
    all_epochs = _cohort(size, size.cohort, size.simulates_all)
    order: Fields = {"schema": ["fixed_epoch"], "min_sep": [size.epoch]} | all_epochs
    shorter: Fields = {"rounds": [size.rounds_once]}
    once: Fields = shorter | {"schema": ["single"]} | _cohort(size, size.single, size.simulates_all)
    inside = f"momentum-{size.momentum:g}-cooldown"
    lines: dict[str, Fields] = {
        MF_6_6: order | {"family": ["file"], "mechanism": [f"{inside}-epochs"]},
        MF_1_6: order | shorter | {"family": ["file"], "mechanism": [inside]},
        MF_1_1: once | {"family": ["file"], "mechanism": [inside]},
        HONAKER_6: order | shorter | {"family": ["tree"]},
        SGDM: all_epochs
        | {"family": ["identity"], "sampling": ["poisson"], "population": [size.population]},
        GDM: all_epochs
        | {"family": ["identity"], "schema": ["every_round"], "claimed_cohort": [size.population]},
    }
    parts = []
    for line, fields in lines.items():
        for epsilon in size.epsilons:
            rates = (
                (EPOCHS_RATE_AT_2, *size.rates)
                if (epsilon, size.rates) == (2.0, EPOCHS_RATES)
                else size.rates
            )
            parts.append(
                Part(
                    line=line, fields=fields | {"epsilon": [epsilon], "server_learning_rate": rates}
                )
            )
    parts.append(
        Part(line=UNNOISED, fields=order | {"family": ["none"], "server_learning_rate": size.rates})
    )
    return _study(
        "epochs", size, parts, repeats=size.repeats, server_momentum=size.momentum, cooldown=0.25
    )


def divergence(size: Size) -> Study:
    """Multi-epoch Table 2: with updates of an entry above 100 zeroed, and without, by the clip of
    the paper's own code.
    """
    order: Fields = {"schema": ["fixed_epoch"], "min_sep": [size.epoch]}
    sgdm: Fields = {
        "family": ["identity"],
        "sampling": ["poisson"],
        "population": [size.population],
    }
    mf: Fields = order | {
        "family": ["file"],
        "mechanism": [f"momentum-{size.momentum:g}-cooldown-epochs"],
    }
    small, large = size.epsilons[0], size.epsilons[min(1, len(size.epsilons) - 1)]
    rows = [
        (SGDM, sgdm, small, 0.5),
        (SGDM, sgdm, large, 0.5),
        (MF_6_6, mf, small, 0.5),
        (MF_6_6, mf, large, 1.0),
    ]
    parts = [
        Part(
            line=f"{name}, {'zeroing' if norm else 'no zeroing'}",
            fields=fields
            | _cohort(size, size.cohort, size.simulates_all)
            | {"epsilon": [epsilon], "server_learning_rate": [rate], "zeroing_norm": [norm]},
        )
        for name, fields, epsilon, rate in (rows if small != large else rows[::2])
        for norm in (100.0, None)
    ]
    study = _study(
        "divergence",
        size,
        parts,
        repeats=size.repeats,
        server_momentum=size.momentum,
        cooldown=0.25,
    )
    return dataclasses.replace(study, program=published_clip.PROGRAM)


def unnoised(size: Size) -> Study:
    """Multi-epoch Fig. 10: without noise, by clients a round; the most train six epochs, the others
    at most one.
    """
    most = max(size.unnoised)
    parts = [
        Part(
            line=f"{clients} clients a round{', cool-down' if cooldown else ''}",
            fields={
                "cohort_size": [clients],
                "cooldown": [cooldown],
                "server_learning_rate": size.rates,
                "rounds": [size.rounds_once if clients < most else size.rounds],
                "schema": ["single" if clients < most else "fixed_epoch"],
                "min_sep": [None if clients < most else size.epoch],
            },
        )
        for clients in size.unnoised
        for cooldown in (0.0, 0.25)
    ]
    return _study(
        "unnoised", size, parts, repeats=size.repeats, server_momentum=size.momentum, family="none"
    )


def phones(size: Size) -> Study:
    """Banded Figs. 5 (a) and 12, Tables 4 and 6: clients at least 342 rounds apart."""
    apart: Fields = {"schema": ["min_sep"], "min_sep": [size.epoch]}
    lines: dict[str, Fields] = {
        SGD: apart | {"family": ["identity"]},
        SINGLE: {"rounds": [size.rounds_once], "schema": ["single"], "family": ["dense"]},
        TREE: apart | {"family": ["tree"], "decoder": ["full"]},
        MULTI: apart | {"family": ["dense"], "equal_norms": [True]},
        BANDED: apart | {"family": ["banded"], "bands": [size.epoch]},
    }
    parts = []
    for line, fields in lines.items():
        cohort = size.single if line == SINGLE else size.cohort
        for epsilon in size.epsilons_banded:
            rates = size.rates_banded or _printed(tuning_figures.BANDED_TABLE_6, line, epsilon)
            parts.append(
                Part(
                    line=line,
                    fields=fields
                    | _cohort(size, cohort)
                    | {"epsilon": [epsilon], "server_learning_rate": rates},
                )
            )
    return _banded("phones", size, parts)


def centre(size: Size) -> Study:
    """Banded Fig. 1 (b), Tables 5 and 7: a server that draws its clients; the bands are the best at
    each epsilon.
    """
    sampled: Fields = {"sampling": ["poisson"], "population": [size.population]}
    order: Fields = {"schema": ["fixed_epoch"], "min_sep": [size.epoch]}
    parts = []
    for epsilon in size.epsilons_banded:
        bands = best_bands(size, epsilon)
        lines: dict[str, Fields] = {
            SGD: sampled | {"family": ["identity"]},
            MULTI: order | {"family": ["dense"], "equal_norms": [True]},
            BANDED: (sampled if bands < size.epoch else order)
            | {"family": ["banded"], "bands": [bands]},
        }
        for line, fields in lines.items():
            rates = size.rates_banded or _printed(tuning_figures.BANDED_TABLE_7, line, epsilon)
            parts.append(
                Part(
                    line=line,
                    fields=fields
                    | _cohort(size, size.cohort)
                    | {"epsilon": [epsilon], "server_learning_rate": rates},
                )
            )
    return _banded("centre", size, parts)


@functools.cache
def _bands(rounds: int, population: int, cohort: int, epsilon: float) -> int:
    workload = fedmf.prefix_sum(rounds)
    return choose_bands(
        workload, population=population, cohort_size=cohort, epsilon=epsilon, delta=DELTA
    ).best.bands


def best_bands(size: Size, epsilon: float) -> int:
    """The number of bands of the least error; at the paper's size what it prints,
    which is that (docs/fidelity.md).
    """
    if size.rates_banded is None:
        return next(
            row.bands or 0
            for row in tuning_figures.BANDED_TABLE_7
            if (row.mechanism, row.epsilon) == (BANDED, epsilon)
        )
    return min(size.epoch, _bands(size.rounds, size.population, size.cohort, epsilon))


def _cohort(size: Size, cohort: int, simulate: bool = True) -> Fields:
    if size.simulated is None or not simulate or size.simulated >= cohort:
        return {"cohort_size": [cohort]}
    return {"cohort_size": [size.simulated], "claimed_cohort": [cohort]}


def _printed(
    table: tuple[tuning_figures.TunedRow, ...], mechanism: str, epsilon: float
) -> tuple[float, ...]:
    """The rates that the table has an accuracy for."""
    row = next(row for row in table if (row.mechanism, row.epsilon) == (mechanism, epsilon))
    return tuple(float(rate) for rate in row.accuracies)


def _banded(name: str, size: Size, parts: list[Part]) -> Study:
    return _study(
        name,
        size,
        parts,
        repeats=size.repeats,
        smoothed_over=400 if size.rounds > 1000 else size.rounds // 5,
        warmup=0.15,
        cooldown=0.25,
        server_momentum=size.momentum,
    )
