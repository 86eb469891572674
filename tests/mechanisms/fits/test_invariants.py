"""Invariants of every fit: it counts its steps, is deterministic, and returns the best mechanism so
far at Ctrl-C.
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
PLAIN = fedmf.Workload("plain", np.tri(ROUNDS))  # Prefix sums of unknown structure.
# The variants of the fits: with and without the structure of the workload, with equal and with free
# column norms.
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
    """Runs the fit of FITS called `name`, with further options."""
    workload, participation, fit_options = FITS[name]
    family = name.split(",")[0]
    return fedmf.fit(workload, participation, family=family, **fit_options, **options)


def ctrl_c(*_):
    """Raises Ctrl-C; as a progress function, at the end of the first step."""
    signal.raise_signal(signal.SIGINT)


def test_a_certificate_that_is_interrupted_is_replaced_by_the_quickest_bound(monkeypatch):
    tolerances = []
    bound = StructuredLoss.bound

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
    best_certificate = fit("banded").certificate
    assert mechanism.certificate.lower_bound <= best_certificate.loss <= mechanism.certificate.loss


@pytest.mark.parametrize("interrupted_step", [1, 4])
@pytest.mark.parametrize("name", FITS)
def test_an_interrupted_fit_returns_the_best_so_far(name, interrupted_step):
    step_losses = []

    def interrupt(step, value, gap):
        step_losses.append(value)
        if step == interrupted_step:
            ctrl_c()

    words = rf"{name.split(',')[0]} fit was interrupted after {interrupted_step} step.*starts anew"
    with pytest.warns(RuntimeWarning, match=words):
        mechanism = fit(name, progress=interrupt)
    assert len(step_losses) == interrupted_step
    workload, participation, _ = FITS[name]
    assert_allclose(
        fedmf.loss(mechanism, workload, participation), mechanism.certificate.loss, rtol=1e-9
    )
    assert mechanism.certificate.gap > 1e-9
    if name != "low_rank":  # Its first steps are those of the dense optimum.
        assert mechanism.certificate.loss <= min(step_losses) * (1.0 + 1e-9)


# The sweeps of low_rank end without progress.
@pytest.mark.parametrize("name", [name for name in FITS if name != "low_rank"])
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
def test_a_fit_within_its_tolerance_does_not_warn_and_is_deterministic(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first_fit = fit(name)
        second_fit = fit(name)
    assert np.array_equal(first_fit.encoder(), second_fit.encoder())


SCHEMAS = {
    "single": single(40),
    "min_sep": separated(40, 8),
    "epochs": epochs(40, 7, 3),
    "every_round": every_round(40),
}
# Fields that a neighbour changes, and options of the fit: bands beyond min_sep, and only as many
# buffers as are of use. A neighbour may be a little better, as fits end at a tolerance; 5e-4 after
# three steps, or more.
NUMBERS = {
    "toeplitz": (["coefficients"], {"bands": 20}),
    "blt": (["decays", "inverse_decays"], {"buffers": 2}),
}


@pytest.mark.parametrize("measure", [fedmf.rmse, fedmf.max_error])
@pytest.mark.parametrize("participation", SCHEMAS.values(), ids=SCHEMAS)
@pytest.mark.parametrize("name", NUMBERS)
def test_no_neighbour_of_a_fit_has_less_error(name, participation, measure):
    workload = fedmf.momentum_sgd(40)
    objective = "mean" if measure is fedmf.rmse else "max"
    changed_fields, options = NUMBERS[name]
    mechanism = fedmf.fit(workload, participation, family=name, objective=objective, **options)
    fitted_error = measure(mechanism, workload, participation)
    rng = np.random.default_rng(0)
    changes = {"certificate": None, "certificate_reason": "a neighbour"}
    for size in [1e-2] * 6 + [1e-3] * 6:
        for field in changed_fields:
            values = getattr(mechanism, field)
            changes[field] = values * (1 + size * rng.uniform(-1, 0, len(values)))
        neighbour = dataclasses.replace(mechanism, **changes)
        assert measure(neighbour, workload, participation) >= fitted_error * (1 - 1e-4)


class TestInterruptedWork:
    """Ctrl-C in a fit also ends the work that needs its result: a run, bands, a table."""

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
    def test_ctrl_c_in_a_fit_of_any_family_raises(self, name):
        with interruptible_fits(), pytest.raises(KeyboardInterrupt):
            fit(name, progress=ctrl_c)

    def test_ctrl_c_in_a_fit_within_its_tolerance_raises(self):
        # The fit is within its tolerance from the first step on, so that it would not warn.
        options = {"family": "banded", "bands": 8, "tolerance": 0.5, "progress": ctrl_c}
        with interruptible_fits(), pytest.raises(KeyboardInterrupt):
            fedmf.fit(SUMS, ONCE, **options)

    def test_ctrl_c_in_the_plan_of_a_run_raises(self):
        settings = fedmf.TrainConfig(rounds=ROUNDS, min_sep=8, cohort_size=2, epsilon=8.0, bands=8)
        with pytest.raises(KeyboardInterrupt):
            settings.plan()

    def test_ctrl_c_in_a_choice_of_bands_raises(self):
        search_options = {"population": 3200, "cohort_size": 20, "epsilon": 1.0, "delta": 1e-6}
        search = bands.BandSearch(workload=SUMS, **search_options)
        for fit_bands in (lambda: search.banded(8), search.dense):
            with pytest.raises(KeyboardInterrupt):
                fit_bands()

    def test_ctrl_c_in_a_table_of_a_paper_raises(self):
        with pytest.raises(KeyboardInterrupt):
            fits.fit(SUMS, ONCE, "banded", bands=8)
