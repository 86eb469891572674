"""Studies, which are grids of training runs, of the papers' experiments on StackOverflow.

They belong to Figures 2, 3 and 6 of Denisov's paper, to Figures 3 and 10 to 12 of the multi-epoch
paper, to Figures 1 (b), 5 (a) and 12 of the banded paper, and to the paper on BLT
(arXiv:2408.08868).

At the paper's size a study has the settings that the paper prints. A smaller `Size` has the same
lines.
"""

import functools
from collections.abc import Sequence
from typing import Any

import fedmf
from fedmf.experiments.papers import printed
from fedmf.experiments.papers import stackoverflow_sizes as sizes
from fedmf.experiments.papers.stackoverflow_sizes import (
    EARLIER,
    EPOCHS_RATE_AT_2,
    EPOCHS_RATES,
    SIZES,
    Size,
)
from fedmf.experiments.papers.study_grid import DATA_SEED, Fields, Study, sized
from fedmf.mechanisms import Mechanism
from fedmf.privacy.bands import choose_bands
from fedmf.schedule import CustomSchedule, WarmupCooldown
from fedmf.tasks.stackoverflow import write_synthetic_corpus

DELTA = 1e-6
ONLINE, FULL, PREFIX, MOMENTUM = "Honaker Online", "Honaker Full", "Opt Prefix Sum", "Optimal M=BC"
# The best server rate, client rate and momentum of each line, in the order of DENISOV_NOISE. They
# are those of Table 4 of Denisov et al. 2022.
DENISOV_TABLE_4 = {
    line: tuple(tuple(map(float, setting.split())) for setting in settings.split("|"))
    for line, settings in {
        FULL: "0.5 1 0.95 | 0.25 1 0.95 | 0.25 1 0.9 | 0.25 0.5 0.9 | 0.25 0.5 0",
        ONLINE: "0.25 1 0.95 | 0.25 1 0.9 | 0.25 0.5 0.9 | 0.25 1 0 | 0.25 0.5 0",
        PREFIX: "0.5 1 0.95 | 0.25 0.5 0.95 | 0.25 1 0.9 | 0.25 0.5 0.9 | 0.5 0.5 0",
        MOMENTUM: "1 1 0.9 | 0.25 1 0.95 | 0.25 0.5 0.9 | 0.25 0.5 0.9 | 0.5 0.5 0",
    }.items()
}
SGDM, GDM, HONAKER_6 = "DP-SGDM,6e", "DP-GDM,2052e", "Honaker,6e"
MF_1_1, MF_1_6, MF_6_6 = "MF1,1e", "MF1,6e", "MF6,6e"
MF_PREFIX, MF_CONSTANT = f"{MF_6_6}, prefix", f"{MF_6_6}, constant rate"
UNNOISED = "no noise"
# Names of mechanisms in Tables 4 to 7 of the banded paper, which are lines of its figures.
SGD, SINGLE, TREE = "DP-SGD", "Single-epoch MF", "Optimal TreeAgg"
MULTI, BANDED = "Multi-epoch MF", "Band MF"
BLT = "BLT"
NU = "nu-DP-FTRL"
# These server learning rates range from the best one of DP-SGD at epsilon 1 to the best one of the
# best mechanism at epsilon 16 (Table 6 of the banded paper).
NU_RATES = tuple(1.7**power for power in range(-5, 2))
Parts = Sequence[tuple[str, Fields]]


COOLDOWN, DECAY = "-cooldown", "-decay"


def _study(
    name: str, size: Size, parts: Parts, *, once: bool = False, smoothed_over: int = 0, **fixed: Any
) -> Study:
    """Returns a study with the settings that all StackOverflow experiments share.

    `once` is true for Denisov's experiments, which have one epoch.
    """
    momentum_by_file = {"prefix": 0.0} | {
        f"momentum-{beta:g}": beta for beta in (*size.momentums, size.momentum) if beta
    }
    common_fields = {
        "rounds": size.rounds,
        "delta": DELTA,
        "evaluate_every": 20 if size.rounds > 200 else max(1, size.rounds // 8),
        "client_learning_rate": size.client_rate,
        "warmup": 0.0,
    }
    task_options = size.options or {"model": "published"}
    write_data = functools.partial(
        write_synthetic_corpus,
        clients=size.population,
        seed=DATA_SEED,
        progress=False,
        **size.corpus,
    )
    return Study(
        name=f"stackoverflow-{name}",
        fixed=common_fields | {f"task_option.{k}": v for k, v in task_options.items()} | fixed,
        parts=parts,
        repeats=size.repeats_denisov if once else size.repeats,
        repeats_every_setting=size.repeats_every_setting,
        smoothed_over=smoothed_over,
        mechanisms={
            f"{stem}{fall}{k}": functools.partial(optimum, size, beta, fall, not k)
            for stem, beta in momentum_by_file.items()
            for fall in FALLS
            for k in ("", "-epochs")
        },
        data=(".sqlite", write_data),
        reduced=sizes.reduced(size, once) if size.options else "",
    )


# Falls of the learning rate in the last quarter of the rounds. It does not fall (""), or linearly
# to 0.05 of the peak (COOLDOWN), or at once to 0.15 of it (DECAY).
FALLS = ("", COOLDOWN, DECAY)


def decay(rounds: int) -> str:
    """Returns the learning-rate schedule with 0.15 of the rate in the last quarter of the rounds.

    The last quarter is 512 of 2048 rounds in Denisov et al. 2022, Sec. 5.
    """
    return f"{rounds - rounds // 4}:0.15"


def optimum(size: Size, momentum: float, fall: str, once: bool) -> Mechanism:
    """Fits the optimal mechanism for SGD with momentum and one of the learning-rate FALLS, for one
    epoch or for all.
    """
    num_rounds = size.rounds_once if once else size.rounds
    learning_rates = {
        "": None,
        COOLDOWN: WarmupCooldown(
            rounds=num_rounds, peak=1.0, warmup=0.0, cooldown=0.25
        ).learning_rates(),
        DECAY: CustomSchedule(
            rounds=num_rounds, peak=1.0, shares=decay(num_rounds)
        ).learning_rates(),
    }[fall]
    workload = fedmf.momentum_sgd(num_rounds, momentum, learning_rates)
    return fedmf.fit(workload, size.once if once else size.in_order, family="dense", tolerance=1e-3)


def _file(name: str) -> Fields:
    return {"family": "file", "mechanism": name}


def _order(size: Size) -> Fields:
    return {"schema": "fixed_epoch", "min_sep": size.epoch}


def _sampled(size: Size) -> Fields:
    return {"sampling": "poisson", "population": size.population}


def _cohort(size: Size, cohort: int) -> Fields:
    if size.simulated is None or size.simulated >= cohort:
        return {"cohort_size": cohort}
    return {"cohort_size": size.simulated, "claimed_cohort": cohort}


@sized(EARLIER, **sizes.DENISOV)
def denisov(size: Size) -> Study:
    """Returns the study of one epoch of 100 clients a round, with constant learning rates. See
    Denisov et al. 2022, Figure 2 and Tables 3 and 4.
    """
    grid = {
        "client_learning_rate": size.client_rates,
        "server_learning_rate": size.server_rates,
        "noise_multiplier": size.noise,
        **_cohort(size, size.denisov),
    }
    swept_fields = grid | {"server_momentum": size.momentums}
    parts: list[tuple[str, Fields]] = [
        (ONLINE, {"family": "tree", "decoder": "online"} | swept_fields),
        (FULL, {"family": "tree", "decoder": "full"} | swept_fields),
        (PREFIX, {"family": "dense"} | swept_fields),
    ]
    # Each value of the momentum has its own optimal mechanism. For momentum 0 it is the optimal
    # mechanism for prefix sums.
    for beta in size.momentums:
        mechanism_fields = _file(f"momentum-{beta:g}") if beta else {"family": "dense"}
        parts.append((MOMENTUM, mechanism_fields | grid | {"server_momentum": beta}))
    return _once("denisov", size, parts, cooldown=0.0)


def _once(name: str, size: Size, parts: Parts, **fixed: Any) -> Study:
    """Returns a study of a single epoch, as Denisov's studies are."""
    fixed |= {"rounds": size.rounds_once, "schema": "single", "zeroing_norm": None}
    return _study(name, size, parts, once=True, **fixed)


CONSTANT, AFTER = "prefix sums, constant rate", "prefix sums, cool-down after"
M_CONSTANT, M_AFTER, M_INSIDE = (
    "momentum inside, constant rate",
    "momentum inside, cool-down after",
    "momentum and cool-down inside",
)
MORE, M_MORE = f"{AFTER}, more clients", f"{M_INSIDE}, more clients"
DECAY_AFTER, M_DECAY = "prefix sums, decay after", "momentum and decay inside"


@sized(EARLIER, **sizes.SCHEDULES)
def schedules(size: Size) -> Study:
    """Returns the study of momentum and a falling learning rate as part of the mechanism, or not.
    See Denisov et al. 2022, Figure 3.

    The paper has epsilon 18.9. Its two horizontal lines are the previous state of the art, which is
    Honaker's tree with the online decoder, and training without noise.
    """
    lines = [CONSTANT, AFTER, M_CONSTANT, M_AFTER, M_INSIDE, MORE, M_MORE, DECAY_AFTER, M_DECAY]
    return _schedules("schedules", size, [*lines, ONLINE, UNNOISED])


@sized(EARLIER, **sizes.DECAYS)
def decays(size: Size) -> Study:
    """Returns the study of validation accuracy by round, with two lines of Figure 3. See Denisov et
    al. 2022, Figure 6.

    At the same size it shares runs with Fig. 3.
    """
    return _schedules(
        "schedules" if size in EARLIER.values() else "decays", size, [AFTER, M_INSIDE]
    )


def _schedules(name: str, size: Size, lines: list[str]) -> Study:
    beta = size.momentum
    prefix_fields = {"family": "dense"}
    momentum_file = _file(f"momentum-{beta:g}")
    cooldown_file = _file(f"momentum-{beta:g}-cooldown")
    fields_by_line = {
        CONSTANT: prefix_fields,
        AFTER: prefix_fields,
        MORE: prefix_fields,
        M_CONSTANT: momentum_file,
        M_AFTER: momentum_file,
        ONLINE: {"family": "tree", "decoder": "online"},
        UNNOISED: {"family": "none"},
    }
    # The runs of these lines read their mechanisms from files. If a run fitted its mechanism
    # itself, the mechanism would be the optimum for the run's decaying learning rates.
    fields_by_line |= {DECAY_AFTER: _file("prefix"), M_DECAY: _file(f"momentum-{beta:g}{DECAY}")}
    # On the real data, these lines have the best settings of Table 4 of Denisov et al. 2022 (App.
    # I). Those of prefix sums are the shared settings.
    table_line_by_line = {M_CONSTANT: MOMENTUM, ONLINE: ONLINE}
    study_parts = []
    for line in lines:
        cohort_fields = size.single if line in (MORE, M_MORE) else size.denisov
        fall_fields: Fields = {"cooldown": 0.0 if line in (CONSTANT, M_CONSTANT, ONLINE) else 0.25}
        if line in (DECAY_AFTER, M_DECAY):
            fall_fields = {"learning_rate_schedule": decay(size.rounds_once)}
        line_fields = fields_by_line.get(line, cooldown_file) | fall_fields
        if line in table_line_by_line and not size.corpus:
            rate, _, momentum = DENISOV_TABLE_4[table_line_by_line[line]][0]
            line_fields |= {"server_learning_rate": rate, "server_momentum": momentum}
            if line == M_CONSTANT:
                line_fields |= _file(f"momentum-{momentum:g}")
        study_parts.append((line, line_fields | _cohort(size, cohort_fields)))
    return _once(
        name,
        size,
        study_parts,
        noise_multiplier=size.noise[0],
        server_momentum=beta,
        server_learning_rate=size.server_rate,
    )


@sized(EARLIER, **sizes.EPOCHS)
def epochs(size: Size) -> Study:
    """Returns the study of Figures 3, 11 and 12 and Tables 4 and 5 of the multi-epoch paper."""
    all_epochs = _cohort(size, size.cohort)
    order_fields = _order(size) | all_epochs
    shorter_fields = {"rounds": size.rounds_once}
    single_epoch = shorter_fields | {"schema": "single"} | _cohort(size, size.single)
    momentum_cooldown = f"momentum-{size.momentum:g}-cooldown"
    all_clients = {"schema": "every_round", "claimed_cohort": size.population}
    lines: dict[str, Fields] = {
        MF_6_6: order_fields | _file(f"{momentum_cooldown}-epochs"),
        MF_1_6: order_fields | shorter_fields | _file(momentum_cooldown),
        MF_1_1: single_epoch | _file(momentum_cooldown),
        HONAKER_6: order_fields | shorter_fields | {"family": "tree", "decoder": "online"},
        SGDM: all_epochs | {"family": "identity"} | _sampled(size),
        GDM: all_epochs | {"family": "identity"} | all_clients,
    }
    study_parts = []
    for line, fields in lines.items():
        for epsilon in size.epsilons:
            server_rates = size.rates
            if (epsilon, server_rates) == (2.0, EPOCHS_RATES):
                server_rates = (EPOCHS_RATE_AT_2, *server_rates)
            study_parts.append(
                (line, fields | {"epsilon": epsilon, "server_learning_rate": server_rates})
            )
    study_parts.append(
        (UNNOISED, order_fields | {"family": "none", "server_learning_rate": size.rates})
    )
    return _study("epochs", size, study_parts, server_momentum=size.momentum, cooldown=0.25)


@sized(EARLIER, **sizes.DIVERGENCE)
def divergence(size: Size) -> Study:
    """Returns the study of Table 2 of the multi-epoch paper, where updates with an entry above 100
    are zeroed.

    Runs without zeroing are left out. There the paper's clip turns huge updates into NaN, and
    fedmf's does not (docs/papers).
    """
    sgdm_fields = {"family": "identity"} | _sampled(size)
    mf_fields = _order(size) | _file(f"momentum-{size.momentum:g}-cooldown-epochs")
    small_epsilon = size.epsilons[0]
    large_epsilon = size.epsilons[min(1, len(size.epsilons) - 1)]
    setting_rows = [
        (SGDM, sgdm_fields, small_epsilon, 0.5),
        (SGDM, sgdm_fields, large_epsilon, 0.5),
        (MF_6_6, mf_fields, small_epsilon, 0.5),
        (MF_6_6, mf_fields, large_epsilon, 1.0),
    ]
    study_parts = [
        (
            line,
            fields
            | _cohort(size, size.cohort)
            | {"epsilon": epsilon, "server_learning_rate": rate, "zeroing_norm": 100.0},
        )
        for line, fields, epsilon, rate in (
            setting_rows if small_epsilon != large_epsilon else setting_rows[::2]
        )
    ]
    return _study("divergence", size, study_parts, server_momentum=size.momentum, cooldown=0.25)


@sized(EARLIER, **sizes.UNNOISED)
def unnoised(size: Size) -> Study:
    """Returns the study of the accuracy without noise by the number of clients a round (multi-epoch
    paper, Figure 10).

    With the most clients a run trains six epochs, with fewer at most one. Beside these runs are
    private ones. At the paper's size they have the settings of Fig. 3, since those of Fig. 10 are
    only in the picture.
    """
    single_epoch = {"rounds": size.rounds_once, "schema": "single", "min_sep": None}
    parts: list[tuple[str, Fields]] = [
        (
            f"{clients} clients a round{', cool-down' if cooldown else ''}",
            (
                single_epoch
                if clients < max(size.unnoised)
                else {"rounds": size.rounds} | _order(size)
            )
            | {"cohort_size": clients, "cooldown": cooldown, "server_learning_rate": size.rates},
        )
        for clients in size.unnoised
        for cooldown in (0.0, 0.25)
    ]
    private_fields = _order(size) | _cohort(size, size.cohort)
    private_fields |= {"epsilon": size.epsilons, "server_learning_rate": size.rates}
    momentum_name = f"momentum-{size.momentum:g}"
    lines: dict[str, Fields] = {
        MF_6_6: _file(f"{momentum_name}{COOLDOWN}-epochs") | {"cooldown": 0.25},
        MF_PREFIX: _file("prefix-epochs") | {"cooldown": 0.25},
        MF_CONSTANT: _file(f"{momentum_name}-epochs") | {"cooldown": 0.0},
    }
    parts += [(line, private_fields | fields) for line, fields in lines.items()]
    return _study("unnoised", size, parts, server_momentum=size.momentum, family="none")


@sized(SIZES, **sizes.PHONES)
def phones(size: Size) -> Study:
    """Returns the study of Figures 5 (a) and 12 and Tables 4 and 6 of the banded paper, where a
    client takes part at least 342 rounds apart.
    """
    separation_fields = {"schema": "min_sep", "min_sep": size.epoch}
    single_epoch = {"rounds": size.rounds_once, "schema": "single"}
    lines: dict[str, Fields] = {
        SGD: separation_fields | {"family": "identity"},
        SINGLE: single_epoch | {"family": "dense"},
        TREE: separation_fields | {"family": "tree", "decoder": "full"},
        MULTI: separation_fields | {"family": "dense", "equal_norms": True},
        BANDED: separation_fields | {"family": "banded", "bands": size.epoch},
    }
    study_parts = [
        _banded_part(size, printed.BANDED_TABLE_6, line, fields, epsilon)
        for line, fields in lines.items()
        for epsilon in size.epsilons_banded
    ]
    server_rates = size.rates_banded or tuple(map(float, printed.BANDED_TABLE_6_UNNOISED))
    cohort_fields = _cohort(size, size.cohort) | {"claimed_cohort": None}
    unnoised_fields = (
        separation_fields | cohort_fields | {"family": "none", "server_learning_rate": server_rates}
    )
    return _banded("phones", size, [*study_parts, (UNNOISED, unnoised_fields)])


@sized(SIZES, **sizes.BLT)
def blt(size: Size) -> Study:
    """Returns the study of McMahan, Xu and Zhang 2024 (arXiv:2408.08868), where a client takes part
    at least 342 rounds apart.

    Its settings are those of `phones`. At the paper's size BLT has the learning rates that the
    banded paper tuned for BandMF.
    """
    lines: dict[str, Fields] = {
        BLT: {"family": "blt"},
        TREE: {"family": "tree", "decoder": "full"},
        BANDED: {"family": "banded", "bands": size.epoch},
    }
    study_parts = []
    for line, blt_fields in lines.items():
        tuned_line = BANDED if line == BLT else line
        for epsilon in size.epsilons_banded:
            blt_fields = blt_fields | {"schema": "min_sep", "min_sep": size.epoch}
            part = _banded_part(size, printed.BANDED_TABLE_6, tuned_line, blt_fields, epsilon)
            study_parts.append((line, part[1]))
    return _banded("blt", size, study_parts)


@sized(SIZES, **sizes.CENTRE)
def centre(size: Size) -> Study:
    """Returns the study of Figure 1 (b) and Tables 5 and 7 of the banded paper, where a server
    samples the clients.

    The number of bands is the best at each epsilon.
    """
    study_parts = []
    for epsilon in size.epsilons_banded:
        best_band_count = best_bands(size, epsilon)
        sampling_fields = _sampled(size) if best_band_count < size.epoch else _order(size)
        lines: dict[str, Fields] = {
            SGD: _sampled(size) | {"family": "identity"},
            MULTI: _order(size) | {"family": "dense", "equal_norms": True},
            BANDED: sampling_fields | {"family": "banded", "bands": best_band_count},
        }
        study_parts += [
            _banded_part(size, printed.BANDED_TABLE_7, line, fields, epsilon)
            for line, fields in lines.items()
        ]
        for row in printed.BANDED_TABLE_7 if size.rates_banded is None else ():
            if (row.mechanism, row.epsilon) == (BANDED, epsilon) and row.bands != best_band_count:
                banded_fields = _sampled(size) | {"family": "banded", "bands": row.bands}
                server_rates = tuple(map(float, row.accuracies))
                banded_fields |= {"epsilon": epsilon, "server_learning_rate": server_rates}
                study_parts.append(
                    (f"{BANDED}, {row.bands} bands", banded_fields | _cohort(size, size.cohort))
                )
    return _banded("centre", size, study_parts)


def _banded_part(
    size: Size, table: tuple[printed.TunedRow, ...], line: str, fields: Fields, epsilon: float
) -> tuple[str, Fields]:
    """Returns the part of a study for one line at one epsilon.

    At the paper's size it has the learning rates for which the table prints an accuracy.
    """
    server_rates = size.rates_banded
    if server_rates is None:
        table_row = next(
            table_row
            for table_row in table
            if (table_row.mechanism, table_row.epsilon) == (line, epsilon)
        )
        server_rates = tuple(map(float, table_row.accuracies))
    cohort_fields = _cohort(size, size.single if line == SINGLE else size.cohort)
    return line, fields | cohort_fields | {"epsilon": epsilon, "server_learning_rate": server_rates}


def _banded(name: str, size: Size, parts: Parts) -> Study:
    smoothed_over = 400 if size.rounds > 1000 else size.rounds // 5
    fixed: Fields = {"warmup": 0.15, "cooldown": 0.25, "server_momentum": size.momentum}
    return _study(name, size, parts, smoothed_over=smoothed_over, **fixed)


@sized(SIZES, **sizes.NU)
def nu_noise(size: Size) -> Study:
    """Returns the study of nu-DP-FTRL on the slides, with noise t^(-3/2) (1 - nu)^t and nu tuned.

    The slides give no settings, so they are those of the banded paper, in a fixed order.
    """
    server_rates = size.rates_banded or NU_RATES
    fields_by_line: dict[str, Fields] = {
        NU: {"family": "toeplitz", "coefficients": "nu", "nu": printed.NUS},
        MULTI: {"family": "dense", "equal_norms": True},
        SGD: {"family": "identity"},
    }
    study_parts = [
        (
            line,
            fields
            | _order(size)
            | _cohort(size, size.cohort)
            | {"epsilon": size.epsilons_banded, "server_learning_rate": server_rates},
        )
        for line, fields in fields_by_line.items()
    ]
    return _banded("nu", size, study_parts)


@functools.cache
def _bands(rounds: int, population: int, cohort: int, epsilon: float) -> int:
    return choose_bands(
        fedmf.prefix_sum(rounds),
        population=population,
        cohort_size=cohort,
        epsilon=epsilon,
        delta=DELTA,
    ).best.bands


def best_bands(size: Size, epsilon: float) -> int:
    """Returns the number of bands with the least error at an epsilon.

    At the paper's size it is the printed number, which has the least error too (docs/papers).
    """
    if size.rates_banded is None:
        printed_bands = {
            (row.mechanism, row.epsilon): row.bands for row in reversed(printed.BANDED_TABLE_7)
        }
        return printed_bands[BANDED, epsilon] or 0
    return min(size.epoch, _bands(size.rounds, size.population, size.cohort, epsilon))
