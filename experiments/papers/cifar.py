"""Figures of the papers that train on CIFAR-10 at example level.

These are Figures 1, 6, 7, 8 and 9 of the multi-epoch paper (App. E), and Figure 10 of the banded
paper (App. H).

Training has steps of 500 images in a fixed order and 20 epochs. DP-SGD has no momentum. The
learning rate falls to 0.05 of its peak over the last quarter. Every image is a client that takes
one SGD step with rate 1, so that its update is its gradient.
"""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import fedmf
from fedmf.experiments.papers import accuracy, clause, printed
from fedmf.experiments.papers import comparisons as compare
from fedmf.experiments.papers.cifar_mechanisms import (
    DECODED,
    FFT,
    HONAKER,
    ONE,
    PLAIN_FFT,
    best_stamps,
    for_some_epochs,
    label,
    losses,
    some_epochs,
    stamped,
)
from fedmf.experiments.papers.cifar_sizes import DELTA, SIZES, Size
from fedmf.experiments.papers.clause import Clause
from fedmf.experiments.papers.item import Outcome
from fedmf.experiments.papers.study import Score, trained
from fedmf.experiments.papers.study_grid import DATA_SEED, Fields, Study, sized
from fedmf.privacy.bands import choose_bands
from fedmf.tasks.cifar10 import write_synthetic

BANDED = "BandMF"
# The multi-epoch paper says that its optimal mechanism is more accurate than sampled DP-SGD down
# to an epsilon of about 4.
LEAST_EPSILON = 4.0
# The banded paper says that BandMF with bands of at most one epoch is more accurate than the
# optimum for all epochs up to an epsilon of about 5 (captions of Figures 9 and 10).
LARGEST_EPSILON_OF_BANDS = 5.0
SGD, SAMPLED, NU = "DP-SGD", "DP-SGD, amplified", "nu-DP-FTRL"


def _in_order(size: Size, fields: Fields) -> Fields:
    fixed_order = {"schema": "fixed_epoch", "min_sep": size.participation.min_sep}
    return {"server_momentum": size.momentums or size.momentum} | fields | fixed_order


def _sampled(size: Size, fields: Fields) -> Fields:
    return fields | {"sampling": "poisson", "population": size.images}


def _study(name: str, size: Size, parts: Sequence[tuple[str, Fields]]) -> Study:
    num_steps = size.participation.rounds
    write_data = functools.partial(
        write_synthetic,
        examples=size.images,
        seed=DATA_SEED,
        test_examples=size.test_images or min(1000, max(20, size.images)),
        progress=False,
    )
    common_fields = {
        "task": "cifar10",
        "task_option.model": size.model,
        "task_option.validation": "test",
        "rounds": num_steps,
        "cohort_size": size.simulated or size.cohort,
        "claimed_cohort": size.cohort if size.simulated else None,
        "delta": DELTA,
        "client_learning_rate": 1.0,
        "warmup": 0.0,
        "cooldown": 0.25,
        "zeroing_norm": None,
        "evaluate_every": max(1, num_steps // 5),
    }
    return Study(
        name=f"cifar-{name}",
        fixed=common_fields,
        parts=parts,
        repeats=size.repeats,
        mechanisms={
            f"{kind}-x{s}": functools.partial(stamped, kind, num_steps, s)
            for kind in (HONAKER, DECODED, FFT, PLAIN_FFT, ONE)
            for s in size.stamps
        }
        | {
            name: functools.partial(for_some_epochs, size, s)
            for name, s in some_epochs(size).items()
        },
        data=(".tar.gz", write_data),
        reduced=f"pictures of ten shapes for CIFAR-10, {size.images} of them, steps of "
        f"{size.cohort}, simulated by {size.simulated or 'all'}, {size.epochs} epochs, {num_steps} "
        f"steps, a network of 39,000 parameters, momentum {size.momentum}, {size.repeats} seeds, "
        "fewer rates and epsilons",
    )


def _tuned(size: Size) -> Fields:
    return {"epsilon": size.epsilons, "server_learning_rate": size.rates}


def _optimal(size: Size) -> tuple[str, Fields]:
    return size.optimal, _in_order(size, {"family": "dense"} | _tuned(size))


def _stamped(size: Size, kind: str, s: int) -> tuple[str, Fields]:
    mechanism_fields = {"family": "file", "mechanism": f"{kind}-x{s}"}
    return label(kind, s), _in_order(size, mechanism_fields | _tuned(size))


def _sgd(size: Size, epsilons: Sequence[float], rates: Sequence[float]) -> Fields:
    return {
        "epsilon": epsilons,
        "server_learning_rate": size.rates_sgd or rates,
        "family": "identity",
        "server_momentum": 0.0,
    }


@sized(SIZES)
def multi_epoch(size: Size) -> Study:
    """Returns the study of Figure 1 of the multi-epoch paper.

    DP-SGD alone is trained with sampling as well, which the paper calls incorrect, though standard.
    """
    sgd_fields = _sgd(size, size.epsilons, size.rates)
    study_parts = [
        (SAMPLED, _sampled(size, sgd_fields)),
        (SGD, _in_order(size, sgd_fields)),
        _optimal(size),
    ]
    study_parts += [_stamped(size, kind, best_stamps(kind, size)) for kind in (HONAKER, FFT, ONE)]
    return _study("multi-epoch", size, study_parts)


@sized(SIZES)
def with_plain(size: Size) -> Study:
    """Returns the study of Figure 9 of the multi-epoch paper, which adds the plain FFT to Figure 1
    and shares its runs.
    """
    study = multi_epoch.make(size)
    plain_parts = [_stamped(size, PLAIN_FFT, best_stamps(PLAIN_FFT, size))]
    return dataclasses.replace(study, parts=[*study.parts, *plain_parts])


@sized(SIZES)
def decoders(size: Size) -> Study:
    """Returns the study of Figure 6 of the multi-epoch paper, which trains Honaker's tree with
    either decoder, and the optimum.

    It shares runs with Fig. 1.
    """
    trees = [_stamped(size, kind, best_stamps(kind, size)) for kind in (HONAKER, DECODED)]
    return _study("multi-epoch", size, [_optimal(size), *trees])


# With 28 epochs the errors of the mechanisms differ enough to show in the accuracies. The optimum
# for one epoch has a quarter more error if it is used once than if it is repeated (stamped).
@sized(
    SIZES,
    images=1000,
    cohort=200,
    simulated=60,
    epochs=28,
    epsilons=(4.377, 6.129, 9.997),
    test_images=4000,
    repeats=12,
)
def optima(size: Size) -> Study:
    """Returns the study of Figure 8 of the multi-epoch paper, which trains the optimal mechanism
    for all epochs, and the one for a single epoch, with and without repeating (stamping) it.

    At the same size it shares runs with Fig. 1.
    """
    once_parts = [_stamped(size, ONE, s) for s in sorted({1, best_stamps(ONE, size)}, reverse=True)]
    study_name = "multi-epoch" if size in SIZES.values() else "optima"
    stamped_parts = [
        (line, _in_order(size, {"family": "file", "mechanism": line} | _tuned(size)))
        for line in some_epochs(size)
    ]
    return _study(study_name, size, [_optimal(size), *stamped_parts, *once_parts])


# With 140 steps, mechanisms with 1, 7 and 70 stamps (repetitions) differ enough in their errors to
# differ in accuracy.
@sized(SIZES, images=560, simulated=24, epochs=20, stamps=(1, 7, 70), repeats=8)
def stamps(size: Size) -> Study:
    """Returns the study of Figure 7 of the multi-epoch paper, which trains Honaker's tree with each
    number of stamps (repetitions).
    """
    return _study("stamps", size, [_stamped(size, HONAKER, s) for s in size.stamps])


# Two epochs are used because, over many epochs, BandMF is hardly more accurate than the mechanisms
# that it is compared with.
@sized(SIZES, images=4000, simulated=24, epochs=2, repeats=12)
def banded(size: Size) -> Study:
    """Returns the study of Figure 10 of the banded paper.

    The number of bands is the best at each epsilon, and at most the steps of an epoch. Both
    matrix mechanisms have the same momentum, and DP-SGD has none (App. H).
    """
    rate_fields = {"server_learning_rate": size.rates_banded, "server_momentum": size.momentum}
    swept_fields = rate_fields | {"epsilon": size.epsilons_banded}
    sgd_fields = _sgd(size, size.epsilons_banded, size.rates_banded)
    study_parts = [
        (SAMPLED, _sampled(size, sgd_fields)),
        (size.optimal, _in_order(size, {"family": "dense"} | swept_fields)),
    ]
    for epsilon in size.epsilons_banded:
        bands, amplified = best_bands(size, epsilon)
        banded_fields = rate_fields | {
            "family": "banded",
            "bands": bands,
            "epsilon": epsilon,
        }
        study_parts.append((BANDED, (_sampled if amplified else _in_order)(size, banded_fields)))
    return _study("banded", size, study_parts)


# With two epochs of 50 steps, the nu noise of the slides closes as much of the gap in error between
# independent noise and the optimum as with the paper's 20 epochs of 100 steps
# (docs/papers/slides.md).
@sized(
    SIZES,
    images=4000,
    simulated=40,
    epochs=2,
    epsilons=(4.377, 6.129, 9.997),
    test_images=2000,
    repeats=12,
)
def nu_noise(size: Size) -> Study:
    """Returns the study of the slides' nu-DP-FTRL on CIFAR-10, beside lines of Figure 1 of the
    multi-epoch paper.

    The noise coefficients are t^(-3/2) (1 - nu)^t, and nu is tuned.
    """
    nu_fields = {"family": "toeplitz", "coefficients": "nu", "nu": printed.NUS}
    sgd_fields = _in_order(size, _sgd(size, size.epsilons, size.rates))
    study_parts = [
        (NU, _in_order(size, nu_fields | _tuned(size))),
        (SGD, sgd_fields),
        _optimal(size),
    ]
    return _study("nu", size, study_parts)


@functools.cache
def best_bands(size: Size, epsilon: float) -> tuple[int, bool]:
    """Returns the number of bands with the least error at an epsilon, and whether sampling
    amplifies it.
    """
    best_candidate = choose_bands(
        fedmf.prefix_sum(size.participation.rounds),
        population=size.images,
        cohort_size=size.cohort,
        epsilon=epsilon,
        delta=DELTA,
    ).best
    return best_candidate.bands, best_candidate.amplified


def _figure_1_clauses(scores: Sequence[Score], size: Size) -> list[Clause]:
    """Judges whether the optimum has the best accuracy, then the FFT mechanism, and whether from
    epsilon 4 up both are above sampled DP-SGD (caption of Figure 1).
    """
    honaker, fft, one = (label(kind, best_stamps(kind, size)) for kind in (HONAKER, FFT, ONE))
    line_pairs = [(size.optimal, line) for line in (fft, one, honaker, SGD)]
    clauses = compare.compare_at_every_epsilon(scores, [*line_pairs, (fft, honaker), (fft, one)])
    for line in (size.optimal, fft):
        clauses += [
            compare.compare_lines(scores, line, SAMPLED, target=target)
            for target in compare.targets(scores)
            if target >= LEAST_EPSILON
        ]
    return clauses


@trained(multi_epoch, "multi-epoch-figure-1")
def figure_1(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges Figure 1 of the multi-epoch paper, where the optimal mechanism should have the best
    accuracy.
    """
    return accuracy.judged(scores, _figure_1_clauses(scores, size))


@trained(with_plain, "multi-epoch-figure-9")
def figure_9(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges whether the plain FFT is more accurate than Honaker's tree, and less than the FFT with
    the optimal decoder. See the multi-epoch paper, Figure 9 and App. C.
    """
    mechanism_kinds = (FFT, PLAIN_FFT, HONAKER)
    line_pairs = itertools.pairwise(
        label(kind, best_stamps(kind, size)) for kind in mechanism_kinds
    )
    clauses = _figure_1_clauses(scores, size)
    return accuracy.judged(scores, clauses + compare.compare_at_every_epsilon(scores, line_pairs))


@trained(decoders, "multi-epoch-figure-6-trained")
def figure_6(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges whether the accuracy of Honaker's tree with the optimal decoder is between those of
    the tree with the online decoder and of the optimum (multi-epoch paper, Figure 6).
    """
    online, full = (label(kind, best_stamps(kind, size)) for kind in (HONAKER, DECODED))
    line_pairs = [(size.optimal, full), (full, online), (size.optimal, online)]
    return accuracy.judged(scores, compare.compare_at_every_epsilon(scores, line_pairs))


@trained(stamps, "multi-epoch-figure-7")
def figure_7(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges whether the number of stamps (repetitions) of Honaker's tree with the least loss also
    has the best accuracy, and is in the middle (multi-epoch paper, Figure 7).
    """
    loss_by_stamps = losses(HONAKER, size)
    best, *others = sorted(loss_by_stamps, key=lambda s: loss_by_stamps[s])
    line_pairs = [(label(HONAKER, best), label(HONAKER, other)) for other in others]
    middle_clause = clause.from_numbers(
        "Of the numbers of stamps that train, the one with the least loss is in the middle",
        min(others) < best < max(others),
        ", ".join(f"loss {loss**2:.3g} with {s}" for s, loss in loss_by_stamps.items()),
    )
    clauses = compare.compare_at_every_epsilon(scores, line_pairs)
    return accuracy.judged(scores, [*clauses, middle_clause])


@trained(optima, "multi-epoch-figure-8")
def figure_8(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges whether the order of the mechanisms by error is their order by accuracy (multi-epoch
    paper, Figure 8).
    """
    lines = dict.fromkeys(score.line for score in scores)
    line_pairs = itertools.pairwise(lines)
    return accuracy.judged(scores, compare.compare_at_every_epsilon(scores, line_pairs))


@trained(nu_noise, "slides-nu-dp-ftrl-on-cifar-10")
def nu_figure(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges whether nu-DP-FTRL of the slides is as accurate on CIFAR-10 as the optimal
    mechanism.
    """
    clauses = compare.match_at_every_epsilon(scores, NU, size.optimal, SGD)
    return accuracy.judged(scores, clauses)


@trained(banded, "banded-figure-10")
def figure_10(scores: Sequence[Score], size: Size) -> Outcome:
    """Judges whether BandMF is more accurate than sampled DP-SGD at every epsilon, and than the
    optimum for all epochs up to epsilon 5 (banded paper, Figures 1 (a) and 10).
    """
    clauses = compare.compare_at_every_epsilon(scores, [(BANDED, SAMPLED)])
    clauses += compare.compare_at_every_epsilon(
        scores, [(BANDED, size.optimal)], up_to=LARGEST_EPSILON_OF_BANDS
    )
    line_pairs = [(size.optimal, BANDED)]
    clauses_above_crossing = compare.compare_at_every_epsilon(
        scores, line_pairs, above=LARGEST_EPSILON_OF_BANDS
    )
    if not clauses_above_crossing:
        unjudged_text = (
            f"Above epsilon {LARGEST_EPSILON_OF_BANDS:g}, {size.optimal} is more accurate"
        )
        unjudged_reason = (
            "The epsilon at which the lines cross depends on the numbers of epochs and rounds, "
            "which are smaller at this scale."
        )
        clauses_above_crossing = [clause.not_judged(unjudged_text, unjudged_reason)]
    return accuracy.judged(scores, clauses + clauses_above_crossing)
