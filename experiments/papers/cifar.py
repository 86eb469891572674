"""CIFAR-10 at example level: multi-epoch Figures 1, 7, 8, 9 and App. E; banded Figure 10 and App.
H.

Steps of 500 images in a fixed order, 20 epochs, no momentum for DP-SGD and 0.95 for the others, and
a rate that falls to 0.05 of its peak over the last quarter. Every image is a client whose one SGD
step of rate 1 is its gradient.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fedmf
from fedmf.experiments import error_tables
from fedmf.experiments.papers import accuracy
from fedmf.experiments.papers.item import Item, Outcome, Request, Scale
from fedmf.experiments.papers.study import Part, Score, Study, run_study
from fedmf.mechanisms import Mechanism
from fedmf.participation.schema import Participation
from fedmf.privacy.bands import choose_bands
from fedmf.privacy.gaussian import gaussian_epsilon
from fedmf.tasks.cifar10 import write_synthetic

DELTA = 1e-5  # multi-epoch paper, Fig. 4
# The noise multipliers of the papers' code: of matrices (sensitivity 1), and of DP-SGD with
# sampling for the same epsilons.
NOISE = (0.3, 0.4, 0.5, 0.75, 1.0, 2.0)
NOISE_DP_SGD = (0.498, 0.559, 0.61, 0.715, 0.807, 1.16)
# Rates 1, 2, 5 times 10^i: i in -2, -1 (multi-epoch paper, App. E), or -2 to 3 (banded
# paper, App. H.1).
RATES = tuple(float(f"{c}e{i}") for i in (-2, -1) for c in (1, 2, 5))
RATES_BANDED = tuple(float(f"{c}e{i}") for i in range(-2, 4) for c in (1, 2, 5))
HONAKER, FFT, ONE, BANDED = "Honaker", "FFT", "MF(k=1)", "BandMF"
SGD, SAMPLED = "DP-SGD", "DP-SGD, amplified"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How much of the experiment.

    Attributes:
      images, cohort, epochs: training images, images of a step, passes; an epoch has images /
        cohort steps.
      simulated: images that train for those of a step; None for all.
      model, momentum: of the network, and of the server for correlated noise.
      epsilons: of the multi-epoch paper, and of the banded one, whose figures start at 0.5.
      rates, rates_banded: learning rates to tune.
      rates_sgd: those of DP-SGD, which has no momentum; None for the same.
      stamps: numbers of parts that are tried, all divisors of the steps.
      test_images: of the stand-in; None for as many as training images, and at most 1000.
      repeats: seeds.
    """

    images: int = 50_000
    cohort: int = 500
    simulated: int | None = None
    epochs: int = 20
    model: str = "vgg"
    momentum: float = 0.95
    epsilons: tuple[float, ...] = tuple(round(gaussian_epsilon(z, DELTA), 3) for z in NOISE)
    epsilons_banded: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    rates: tuple[float, ...] = RATES
    rates_banded: tuple[float, ...] = RATES_BANDED
    rates_sgd: tuple[float, ...] | None = None
    stamps: tuple[int, ...] = (1, 2, 5, 10, 20)
    test_images: int | None = None
    repeats: int = 12

    @property
    def participation(self) -> Participation:
        """A fixed order of the images."""
        epoch = self.images // self.cohort
        return Participation(rounds=self.epochs * epoch, schema="fixed_epoch", min_sep=epoch)

    @property
    def optimal(self) -> str:
        """What the figures call the optimum for all epochs."""
        return f"MF(k={self.epochs})"


SIZES: Mapping[str, Size] = {
    "full": Size(),
    "small": Size(
        images=800, cohort=80, epochs=10, model="small", momentum=0.9, epsilons=(16.0,),
        epsilons_banded=(4.0,),
        rates=(0.1, 0.2, 0.5), rates_sgd=(0.5, 1.0, 2.0), rates_banded=(0.1, 0.2, 0.5),
        stamps=(1, 2, 5, 10), repeats=5,
    ),
    "tiny": Size(
        images=20, cohort=5, epochs=2, model="small", epsilons=(16.0,), epsilons_banded=(16.0,),
        rates=(0.1,), rates_banded=(0.1,),
        stamps=(1, 2), repeats=1,
    ),
}  # fmt: skip
# What scale "small" takes for three studies: 140 steps, with which 1, 7 and 70 stamps differ; for
# banded matrices two epochs, since with many they have little room; and 28 epochs, with which the
# optimum for one is a quarter worse used once than five times, and that for all
# another quarter better.
STAMPS = dataclasses.replace(
    SIZES["small"], images=560, simulated=24, epochs=20, stamps=(1, 7, 70), repeats=8
)
_TWO_EPOCHS = dataclasses.replace(STAMPS, images=4000, epochs=2, epsilons_banded=(1.0, 8.0))
_MANY_EPOCHS = dataclasses.replace(
    SIZES["small"],
    images=1000,
    cohort=200,
    simulated=60,
    epochs=28,
    epsilons=(6.0,),
    test_images=4000,
    repeats=16,
)
_REDUCED = (
    "pictures of ten shapes for CIFAR-10, {size.images} of them, steps of {size.cohort}, for which "
    "{simulated} stand, {size.epochs} epochs, {steps} steps, a network of 39,000 parameters, "
    "momentum {size.momentum}, {size.repeats} seeds, fewer rates and epsilons"
)


def stamped(kind: str, steps: int, stamps: int) -> Mechanism:
    """The mechanism of multi-epoch Table 1 for `steps` steps; `kind` is HONAKER, FFT or ONE."""
    made: dict[str, tuple[str, dict[str, Any]]] = {
        HONAKER: ("tree", {"decoder": "online"}),
        FFT: ("fft", {"decoder": "optimal"}),
        ONE: ("dense", {"tolerance": 1e-3}),
    }
    family, options = made[kind]
    found: Mechanism = error_tables.stamped(family, steps, stamps, **options)
    return found


@functools.cache
def losses(kind: str, size: Size) -> dict[int, float]:
    """Number of stamps -> rmse of prefix sums at the study's participation, by which the paper
    chooses it (App. E).
    """
    p = size.participation
    return {
        s: fedmf.rmse(stamped(kind, p.rounds, s), fedmf.prefix_sum(p.rounds), p)
        for s in size.stamps
        if p.rounds % s == 0
    }


def best_stamps(kind: str, size: Size) -> int:
    """The number of stamps of least error."""
    found = losses(kind, size)
    return min(found, key=lambda s: found[s])


def label(kind: str, stamps: int) -> str:
    """What the figures call a stamped mechanism."""
    return f"{kind} x{stamps}"


def _fixed(size: Size) -> dict[str, Any]:
    return {
        "task": "cifar10", "task_option.model": size.model, "task_option.validation": "test",
        "rounds": size.participation.rounds,
        "cohort_size": size.simulated or size.cohort,
        "claimed_cohort": size.cohort if size.simulated else None,
        "delta": DELTA, "client_learning_rate": 1.0, "warmup": 0.0, "cooldown": 0.25,
        "zeroing_norm": None, "evaluate_every": max(1, size.participation.rounds // 5),
        "checkpoint_every": size.participation.rounds,
    }  # fmt: skip


def _in_order(size: Size, **fields: Any) -> dict[str, Any]:
    momentum = {} if "server_momentum" in fields else {"server_momentum": [size.momentum]}
    return fields | {"schema": ["fixed_epoch"], "min_sep": [size.participation.min_sep]} | momentum


def _sampled(size: Size, **fields: Any) -> dict[str, Any]:
    return fields | {"sampling": ["poisson"], "population": [size.images]}


def _study(name: str, size: Size, parts: Sequence[Part]) -> Study:
    makes: dict[str, Callable[[], Mechanism]] = {
        f"{kind}-x{s}": functools.partial(stamped, kind, size.participation.rounds, s)
        for kind in (HONAKER, FFT, ONE)
        for s in size.stamps
    }
    tests = size.test_images or min(1000, max(20, size.images))
    write = functools.partial(
        write_synthetic, examples=size.images, test_examples=tests, progress=False
    )
    return Study(
        name=name,
        fixed=_fixed(size),
        parts=parts,
        repeats=size.repeats,
        mechanisms=makes,
        data=(".tar.gz", write),
    )


def multi_epoch(size: Size) -> Study:
    """Multi-epoch Figs. 1 and 9: no sampling but DP-SGD's, which the paper calls
    incorrect, though standard.
    """
    sgd = {
        "epsilon": size.epsilons,
        "server_learning_rate": size.rates_sgd or size.rates,
        "family": ["identity"],
        "server_momentum": [0.0],
    }
    parts = [
        Part(line=SAMPLED, fields=_sampled(size, **sgd)),
        Part(line=SGD, fields=_in_order(size, **sgd)),
        _optimal(size),
    ]
    parts += [_stamped(size, kind, best_stamps(kind, size)) for kind in (HONAKER, FFT, ONE)]
    return _study("cifar-multi-epoch", size, parts)


def optima(size: Size) -> Study:
    """Multi-epoch Fig. 8: the optimum for all epochs, and that for one, stamped and not; at one
    size with Fig. 1 they share runs.
    """
    name = "cifar-multi-epoch" if size in SIZES.values() else "cifar-optima"
    once = [_stamped(size, ONE, s) for s in sorted({1, best_stamps(ONE, size)}, reverse=True)]
    return _study(name, size, [_optimal(size), *once])


def stamps(size: Size) -> Study:
    """Multi-epoch Fig. 7: Honaker's tree for all numbers of stamps."""
    return _study("cifar-stamps", size, [_stamped(size, HONAKER, s) for s in size.stamps])


def _optimal(size: Size) -> Part:
    return Part(line=size.optimal, fields=_in_order(size, family=["dense"], **_tuned(size)))


def _stamped(size: Size, kind: str, s: int) -> Part:
    fields = _in_order(size, family=["file"], mechanism=[f"{kind}-x{s}"], **_tuned(size))
    return Part(line=label(kind, s), fields=fields)


def _tuned(size: Size) -> dict[str, Any]:
    return {"epsilon": size.epsilons, "server_learning_rate": size.rates}


def banded(size: Size) -> Study:
    """Banded Fig. 10: the number of bands is the best at each epsilon, and at most an epoch."""
    rates = {"server_learning_rate": size.rates_banded}
    every = {"epsilon": size.epsilons_banded} | rates
    sgd = every | {
        "server_learning_rate": size.rates_sgd or size.rates_banded,
        "family": ["identity"],
        "server_momentum": [0.0],
    }
    parts = [
        Part(line=SAMPLED, fields=_sampled(size, **sgd)),
        Part(line=size.optimal, fields=_in_order(size, family=["dense"], **every)),
    ]
    for epsilon in size.epsilons_banded:
        bands, amplified = best_bands(size, epsilon)
        where = _sampled if amplified else _in_order
        fields = {
            "family": ["banded"],
            "bands": [bands],
            "server_momentum": [size.momentum],
            "epsilon": [epsilon],
        } | rates
        parts.append(Part(line=BANDED, fields=where(size, **fields)))
    return _study("cifar-banded", size, parts)


@functools.cache
def best_bands(size: Size, epsilon: float) -> tuple[int, bool]:
    """The number of bands of least error at this epsilon, and whether it is amplified."""
    best = choose_bands(
        fedmf.prefix_sum(size.participation.rounds),
        population=size.images,
        cohort_size=size.cohort,
        epsilon=epsilon,
        delta=DELTA,
    ).best
    return best.bands, best.amplified


_OWN: Mapping[Callable[[Size], Study], Size] = {
    stamps: STAMPS,
    optima: _MANY_EPOCHS,
    banded: _TWO_EPOCHS,
}


def _size(grid: Callable[[Size], Study], scale: Scale) -> Size:
    """The size of a study at a scale."""
    return _OWN.get(grid, SIZES[scale]) if scale == "small" else SIZES[scale]


def _at(grid: Callable[[Size], Study], scale: Scale) -> Study:
    """The grid of an item at a scale."""
    return grid(_size(grid, scale))


def _outcome(
    scores: Sequence[Score], orders: Sequence[accuracy.Order], size: Size, request: Request
) -> Outcome:
    text, holds = accuracy.verdict(orders)
    smaller = _REDUCED.format(
        size=size, simulated=size.simulated or "all", steps=size.participation.rounds
    )
    return Outcome(
        columns=accuracy.COLUMNS,
        rows=accuracy.rows(scores),
        figure=accuracy.over_epsilon(scores),
        verdict=text,
        holds=holds,
        reduced="" if request.scale == "full" else f"{smaller}; {accuracy.cost(scores)}",
        seeds=tuple(range(size.repeats + 1)),
    )


def figure_1(request: Request) -> Outcome:
    """Multi-epoch Figs. 1 and 9."""
    size = _size(multi_epoch, request.scale)
    best = {kind: label(kind, best_stamps(kind, size)) for kind in (HONAKER, FFT, ONE)}
    scores = run_study(multi_epoch(size), request)
    # The paper: "as low as epsilon of about 4"
    above = size.epsilons[0] if request.scale != "full" else 4.0
    orders = [accuracy.order(scores, size.optimal, best[kind]) for kind in (ONE, FFT, HONAKER)]
    orders += [
        accuracy.order(scores, best[FFT], best[HONAKER]),
        accuracy.order(scores, size.optimal, SAMPLED, from_epsilon=above),
    ]
    return _outcome(scores, [*orders, accuracy.order(scores, SAMPLED, SGD)], size, request)


def figure_7(request: Request) -> Outcome:
    """Multi-epoch Fig. 7: the stamps of Honaker's tree.

    Accuracies should be in the order of the losses.
    """
    size = _size(stamps, request.scale)
    found = losses(HONAKER, size)
    scores = run_study(stamps(size), request)
    best, *others = (label(HONAKER, s) for s in sorted(found, key=lambda s: found[s]))
    return _outcome(
        scores, [accuracy.order(scores, best, other) for other in others], size, request
    )


def figure_8(request: Request) -> Outcome:
    """Multi-epoch Fig. 8: the optimum for one epoch, once or stamped, and that for all epochs."""
    size = _size(optima, request.scale)
    scores = run_study(optima(size), request)
    lines = dict.fromkeys(score.line for score in scores)
    orders = [accuracy.order(scores, better, worse) for better, worse in itertools.pairwise(lines)]
    return _outcome(scores, orders, size, request)


def figure_10(request: Request) -> Outcome:
    """Banded Figs. 1 (a) and 10."""
    size = _size(banded, request.scale)
    scores = run_study(banded(size), request)
    return _outcome(
        scores,
        [accuracy.order(scores, BANDED, other) for other in (size.optimal, SAMPLED)],
        size,
        request,
    )


_WHY = (
    "At scale small it trains a small network on pictures of ten shapes; scale full takes "
    "CIFAR-10's archive in --data."
)
# The grid, and seconds at scale small. Figures 1, 9 and, at full, 8 of the multi-epoch paper share
# their runs, which are trained once.
_Listed = tuple[str, int, Callable[[Request], Outcome], Callable[[Size], Study], float, str]
_LISTED: tuple[_Listed, ...] = (
    ("multi-epoch", 1, figure_1, multi_epoch, 600, "The optimum for all epochs is the best, from "
                                                   "epsilon 4 up also above sampled DP-SGD."),
    ("multi-epoch", 7, figure_7, stamps, 200, "Honaker's tree is best with a number of stamps in "
                                              "the middle, as its loss says."),
    ("multi-epoch", 8, figure_8, optima, 400, "Accuracy rises as the epochs that a factorisation "
                                              "is made for come near those trained."),
    ("multi-epoch", 9, figure_1, multi_epoch, 600, "Figure 1, larger."),
    ("banded", 10, figure_10, banded, 200, "With the best bands for each epsilon banded matrices "
                                           "are the best (also Figure 1 a)."),
)  # fmt: skip
ITEMS = tuple(
    Item(
        name=f"{source}-figure-{number}",
        source=source,
        number=f"Figure {number}",
        claim=claim,
        state="trained at reduced scale",
        why=_WHY,
        make=make,
        study=functools.partial(_at, grid),
        seconds={"small": seconds},
    )
    for source, number, make, grid, seconds, claim in _LISTED
)
