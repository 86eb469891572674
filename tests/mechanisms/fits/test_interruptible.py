"""Ctrl-C in a fit whose answer something goes on with: a run, a choice of bands, a table. None goes on with half an answer."""

import contextlib
import signal

import pytest

import fedmf
from fedmf.experiments import table_cells
from fedmf.mechanisms.fitting.progress import interruptible_fits
from fedmf.privacy import bands
from fedmf.runs import config

ROUNDS = 64
FAMILIES = {"banded": {"bands": 8}, "toeplitz": {}, "blt": {}, "dense": {}, "low_rank": {"rank": 8}}


def interrupting(*_):
    """A progress function: Ctrl-C in the step after whose end it is called."""
    signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def shown(label, enabled):
    yield interrupting


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family):
    def fit():
        return fedmf.fit(
            fedmf.prefix_sum(ROUNDS),
            fedmf.Participation(rounds=ROUNDS, schema="single"),
            family=family,
            progress=interrupting,
            tolerance=1e-9,
            **FAMILIES[family],
        )

    with interruptible_fits(), pytest.raises(KeyboardInterrupt):
        fit()
    # The control: who asks for a fit and nothing else keeps what was reached.
    with pytest.warns(RuntimeWarning, match="was interrupted after"):
        assert fit().rounds == ROUNDS


def test_a_fit_that_is_good_enough_when_it_is_interrupted():
    # Within its tolerance from the first step on: nothing to warn of, and yet Ctrl-C.
    options = {"family": "banded", "bands": 8, "tolerance": 0.5, "progress": interrupting}
    with interruptible_fits(), pytest.raises(KeyboardInterrupt):
        fedmf.fit(fedmf.prefix_sum(ROUNDS), fedmf.Participation(rounds=ROUNDS, schema="single"), **options)


def test_the_fit_of_a_run(monkeypatch):
    monkeypatch.setattr(config, "shown", shown)
    settings = fedmf.TrainConfig(rounds=ROUNDS, min_sep=8, cohort_size=2, epsilon=8.0, bands=8)
    with pytest.raises(KeyboardInterrupt):
        settings.plan()


def test_a_choice_of_bands(monkeypatch):
    monkeypatch.setattr(bands, "fit", lambda *a, **options: fedmf.fit(*a, **options, progress=interrupting))
    options = {"population": 3200, "cohort_size": 20, "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(KeyboardInterrupt):
        bands.choose_bands(fedmf.prefix_sum(ROUNDS), **options, bands=[8])
    with pytest.raises(KeyboardInterrupt):
        bands.choose_bands(fedmf.prefix_sum(ROUNDS), **options, bands=[1], dense=True)


def test_a_table(monkeypatch):
    monkeypatch.setattr(table_cells, "shown", shown)
    with pytest.raises(KeyboardInterrupt):
        table_cells.fit(
            fedmf.prefix_sum(ROUNDS), fedmf.Participation(rounds=ROUNDS, schema="single"), "banded", bands=8
        )
