"""Mechanisms of the experiments on CIFAR-10 that repeat one mechanism in several equal parts
of a run."""

import functools

import fedmf
from fedmf.experiments.papers import error_tables
from fedmf.experiments.papers.cifar_sizes import Size
from fedmf.experiments.papers.study_grid import Fields
from fedmf.mechanisms import Mechanism

HONAKER = "Honaker"
FFT = "FFT"
ONE = "MF(k=1)"
DECODED = "Honaker, optimal decoder"
PLAIN_FFT = "FFT, plain"


def stamped(kind: str, steps: int, stamps: int) -> Mechanism:
    """Returns the mechanism of Table 1 of the multi-epoch paper for `steps` steps, repeated in
    `stamps` equal parts.

    `kind` is HONAKER, DECODED, FFT, PLAIN_FFT or ONE.
    """
    made: dict[str, tuple[str, Fields]] = {
        HONAKER: ("tree", {"decoder": "online"}),
        DECODED: ("tree", {"decoder": "full"}),
        FFT: ("fft", {"decoder": "optimal"}),
        PLAIN_FFT: ("fft", {"decoder": "plain"}),
        ONE: ("dense", {"tolerance": 1e-3}),
    }
    family, options = made[kind]
    return error_tables.stamped(family, steps, stamps, **options)


@functools.cache
def losses(kind: str, size: Size) -> dict[int, float]:
    """Returns the rmse of prefix sums for each number of stamps, which are the copies of a small
    mechanism in a stamped one.

    The paper chooses the number of stamps by this error (App. E).
    """
    participation = size.participation
    return {
        s: fedmf.rmse(
            stamped(kind, participation.rounds, s),
            fedmf.prefix_sum(participation.rounds),
            participation,
        )
        for s in size.stamps
        if participation.rounds % s == 0
    }


def best_stamps(kind: str, size: Size) -> int:
    """Returns the number of stamps (repetitions of a mechanism) with the least error."""
    loss_by_stamps = losses(kind, size)
    return min(loss_by_stamps, key=lambda s: loss_by_stamps[s])


def label(kind: str, stamps: int) -> str:
    """Returns the label of a stamped mechanism, as in the figures."""
    return f"{kind} x{stamps}"


def for_some_epochs(size: Size, s: int) -> Mechanism:
    """Returns the optimal mechanism for one of `s` equal parts of the epochs, used `s` times."""
    num_steps = size.participation.rounds
    k = size.epochs // s
    return error_tables.stamped("dense", num_steps, s, participations=k, tolerance=1e-3)


def some_epochs(size: Size) -> dict[str, int]:
    """Returns a mapping from a label such as MF(k=10) x2 to the number of parts of the epochs.

    For 20 epochs these are MF(k=10) x2 and MF(k=5) x4.
    """
    stamp_counts = [s for s in (2, 4) if size.epochs % s == 0 and size.epochs > s]
    return {label(f"MF(k={size.epochs // s})", s): s for s in stamp_counts}
