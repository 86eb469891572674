"""What every fit does, whatever the family: counts its steps, keeps the best so far, repeats
itself, stops at Ctrl-C.
"""

import contextlib
import dataclasses
import signal
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose

import fedmf
from fedmf.experiments.papers import fits
from fedmf.mechanisms.banded.loss import StructuredLoss
from fedmf.mechanisms.fitting.progress import interruptible_fits
from fedmf.privacy import bands, config
from tests.mechanisms.schemas import epochs, every_round, separated, single

ROUNDS = 60
ONCE = single(ROUNDS)
EPOCHS = epochs(ROUNDS, 10)
SUMS = fedmf.prefix_sum(ROUNDS)
PLAIN = fedmf.Workload("plain", np.tri(ROUNDS))  # prefix sums whose structure nobody knows
# The forms that the fits have: of the structure of the workload and without it, with the norms of
# columns equal and free.
FITS = {
    "banded": (SUMS, ONCE, {"bands": 20, "tolerance": 1e-8}),
    "banded, plain": (PLAIN, ONCE, {"bands": 20, "tolerance": 1e-8}),
    "banded, free": (SUMS, EPOCHS, {"equal_norms": False, "tolerance": 1e-7}),
    "dense": (SUMS, EPOCHS, {"tolerance": 1e-9}),
    "dense, plain": (PLAIN, EPOCHS, {"tolerance": 1e-9}),
    "toeplitz": (SUMS, ONCE, {"bands": 50}),
    "blt": (SUMS, ONCE, {}),
    "low_rank": (SUMS, ONCE, {"bands": 2, "rank": 2}),
}


def fit(name, **options):
    workload, participation, own = FITS[name]
    family = name.split(",")[0]
    return fedmf.fit(workload, participation, family=family, **own, **options)


def ctrl_c(*_):
    """A progress function: Ctrl-C in the step after whose end it is called."""
    signal.raise_signal(signal.SIGINT)


def test_a_certificate_that_is_interrupted_is_replaced_by_the_quickest_bound(monkeypatch):
    tolerances, bound = [], StructuredLoss.bound

    def interrupted(self, columns, classes, tolerance):
        tolerances.append(tolerance)
        if len(tolerances) == 1:
            ctrl_c()
        return bound(self, columns, classes, tolerance)

    monkeypatch.setattr(StructuredLoss, "bound", interrupted)
    with pytest.warns(RuntimeWarning, match="fit was interrupted"):
        mechanism = fit("banded")
    assert tolerances == [FITS["banded"][2]["tolerance"], np.inf]
    monkeypatch.undo()
    best = fit("banded").certificate
    assert mechanism.certificate.lower_bound <= best.loss <= mechanism.certificate.loss


@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.parametrize("name", FITS)
def test_an_interrupted_fit_keeps_the_best_so_far(name, at):
    taken = []

    def interrupt(step, value, gap):
        taken.append(value)
        if step == at:
            ctrl_c()

    words = rf"{name.split(',')[0]} fit was interrupted after {at} step.*starts anew"
    with pytest.warns(RuntimeWarning, match=words):
        mechanism = fit(name, progress=interrupt)
    assert len(taken) == at
    workload, participation, _ = FITS[name]
    assert_allclose(
        fedmf.loss(mechanism, workload, participation), mechanism.certificate.loss, rtol=1e-9
    )
    assert mechanism.certificate.gap > 1e-9
    if name != "low_rank":  # its first steps are those of the dense optimum that it approximates
        assert mechanism.certificate.loss <= min(taken) * (1.0 + 1e-9)


@pytest.mark.parametrize(
    "name", [name for name in FITS if name != "low_rank"]
)  # whose sweeps end when they make no progress
def test_steps_are_counted_on_and_a_fit_that_stops_short_warns(name):
    steps = []
    with pytest.warns(RuntimeWarning, match="raise max_iterations=4"):
        mechanism = fit(name, max_iterations=4, progress=lambda *step: steps.append(step))
    assert [step[0] for step in steps] == list(range(1, len(steps) + 1))
    assert mechanism.certificate.iterations == len(steps)
    losses = [loss for _, loss, _ in steps[-4:]]
    assert losses == sorted(losses, reverse=True)
    assert_allclose(losses[-1], mechanism.certificate.loss, rtol=1e-9)


@pytest.mark.parametrize("name", FITS)
def test_a_fit_within_its_tolerance_warns_of_nothing_and_repeats_itself(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = fit(name), fit(name)
    assert np.array_equal(first.encoder(), second.encoder())


SCHEMAS = {
    "single": single(40),
    "min_sep": separated(40, 8),
    "epochs": epochs(40, 7, 3),
    "every_round": every_round(40),
}
# What a neighbour changes, and the fit: bands beyond min_sep, and no more buffers than are of use.
# It may be a little better, as fits end at a tolerance; 5e-4 after three steps, or more.
NUMBERS = {
    "toeplitz": (["coefficients"], {"bands": 20}),
    "blt": (["decays", "inverse_decays"], {"buffers": 2}),
}


@pytest.mark.parametrize("measure", [fedmf.rmse, fedmf.max_error])
@pytest.mark.parametrize("participation", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("name", NUMBERS)
def test_no_neighbour_of_a_fit_is_better(name, participation, measure):
    workload = fedmf.momentum_sgd(40)
    objective = "mean" if measure is fedmf.rmse else "max"
    changed, few = NUMBERS[name]
    mechanism = fedmf.fit(workload, participation, family=name, objective=objective, **few)
    least, rng = measure(mechanism, workload, participation), np.random.default_rng(0)
    unknown = {"certificate": None, "certificate_reason": "a neighbour"}
    for size in [1e-2] * 6 + [1e-3] * 6:
        moved = {
            field: (numbers := getattr(mechanism, field))
            * (1 + size * rng.uniform(-1, 0, len(numbers)))
            for field in changed
        }
        neighbour = dataclasses.replace(mechanism, **moved, **unknown)
        assert measure(neighbour, workload, participation) >= least * (1 - 1e-4)


class TestNobodyGoesOnWithHalfAnAnswer:
    """Ctrl-C in a fit whose answer something goes on with, a run, a choice of bands, a table, ends
    that too.
    """

    @pytest.fixture(autouse=True)
    def _progress_interrupts(self, monkeypatch):
        @contextlib.contextmanager
        def progress_line(label, enabled):
            yield ctrl_c

        monkeypatch.setattr(config, "progress_line", progress_line)
        monkeypatch.setattr(fits, "progress_line", progress_line)
        monkeypatch.setattr(
            bands, "fit", lambda *a, **options: fedmf.fit(*a, **options, progress=ctrl_c)
        )

    @pytest.mark.parametrize("name", FITS)
    def test_every_family(self, name):
        with interruptible_fits(), pytest.raises(KeyboardInterrupt):
            fit(name, progress=ctrl_c)

    def test_a_fit_that_is_good_enough_when_it_is_interrupted(self):
        # Within its tolerance from the first step on: nothing to warn of, and yet Ctrl-C.
        options = {"family": "banded", "bands": 8, "tolerance": 0.5, "progress": ctrl_c}
        with interruptible_fits(), pytest.raises(KeyboardInterrupt):
            fedmf.fit(SUMS, ONCE, **options)

    def test_of_a_run(self):
        settings = fedmf.TrainConfig(rounds=ROUNDS, min_sep=8, cohort_size=2, epsilon=8.0, bands=8)
        with pytest.raises(KeyboardInterrupt):
            settings.plan()

    def test_of_a_choice_of_bands(self):
        ask = {"population": 3200, "cohort_size": 20, "epsilon": 1.0, "delta": 1e-6}
        search = bands.BandSearch(workload=SUMS, **ask)
        for made in (lambda: search.banded(8), search.dense):
            with pytest.raises(KeyboardInterrupt):
                made()

    def test_of_a_table(self):
        with pytest.raises(KeyboardInterrupt):
            fits.fit(SUMS, ONCE, "banded", bands=8)
