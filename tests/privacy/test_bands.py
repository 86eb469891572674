"""The choice of the number of bands: rows, search, refusals and the command."""

import dataclasses
import math

import numpy as np
import pytest

import fedmf
from fedmf.privacy import bands
from fedmf.privacy.amplification import sampled_gaussian_epsilon
from fedmf.privacy.bands import choose_bands
from fedmf.privacy.gaussian import gaussian_epsilon, gaussian_noise_multiplier
from fedmf.privacy.plan import per_query_noise_multiplier
from fedmf.privacy.random_allocation import random_allocation_epsilon
from tests.cli.program import fedmf as command
from tests.cli.program import printed_by
from tests.mechanisms.schemas import fitted, single
from tests.refusals import refusal

ASK = {"population": 320, "cohort_size": 20, "epsilon": 2.0, "delta": 1e-6}


@pytest.fixture(scope="module")
def band_search():
    return bands.BandSearch(workload=fedmf.prefix_sum(64), **ASK)


@pytest.fixture(scope="module")
def choice():
    return choose_bands(fedmf.prefix_sum(64), **ASK, rounds=64)


@pytest.fixture(scope="module")
def small_choice():
    """Returns a choice with an amplified row and one without amplification."""
    return choose_bands(fedmf.prefix_sum(64), **ASK, bands=[4, 16])


@pytest.mark.slow
def test_rows_meet_the_target_and_no_more(choice, band_search):
    for row in (*choice.rows, band_search.dense()):
        if row.amplified:
            assert (row.probability, row.compositions) == (
                20 * row.bands / 320,
                math.ceil(64 / row.bands),
            )
            reached = sampled_gaussian_epsilon(
                row.per_query_noise_multiplier,
                1e-6,
                probability=row.probability,
                compositions=row.compositions,
            )
        else:
            reached = gaussian_epsilon(row.noise_multiplier, 1e-6)
        assert 0.999 * 2.0 < reached <= 2.0


@pytest.mark.slow
def test_rmse_is_that_of_the_noise_of_a_plan(choice):
    row = choice.best
    workload = fedmf.prefix_sum(64)
    mechanism = fitted(single(64), "banded", bands=row.bands)
    sampling = fedmf.CyclicPoisson(population=320, cohort_size=20)
    plan = fedmf.calibrate(mechanism, None, epsilon=2.0, delta=1e-6, sampling=sampling)
    noise = workload.matrix @ mechanism.noising() * plan.stddev
    assert row.rmse == pytest.approx(np.sqrt((noise**2).sum() / 64), rel=1e-4)
    unit = fedmf.sensitivity(mechanism, choice.participation).value
    assert row.noise_multiplier == pytest.approx(plan.stddev / unit, rel=1e-4)
    assert row.advantage == pytest.approx(fedmf.attack_risk(plan).advantage, rel=1e-6)
    multiplier = per_query_noise_multiplier(plan)
    assert row.per_query_noise_multiplier == pytest.approx(multiplier, rel=1e-4)
    assert row.effective_rmse == row.rmse / 20


@pytest.mark.parametrize(
    "sampling", [pytest.param("min-sep-poisson", marks=pytest.mark.slow), "balls-in-bins"]
)
def test_simulated_schemes_are_choices(quick, sampling):
    target = ASK | {"delta": 1e-4, "bands": [4]}
    (row,) = choose_bands(fedmf.prefix_sum(64), sampling=sampling, **target).rows
    assert row.amplified
    assert row.compositions == (16 if sampling == "min-sep-poisson" else 4)
    # Less than without amplification, in the unit of the fixed order that both could be drawn in.
    assert row.noise_multiplier < gaussian_noise_multiplier(2.0, 1e-4)


def test_the_failure_of_a_choice_is_that_of_all_its_calibrations(small_choice):
    search = dataclasses.replace(small_choice.search, sampling="min-sep-poisson")
    simulated_choice = dataclasses.replace(small_choice, search=search, rows=small_choice.rows * 3)
    assert simulated_choice.summary()["failure"] == pytest.approx(3 * 2 * 10 * 1e-10)
    assert small_choice.failure == 0


def test_as_many_bands_as_an_epoch_has_rounds_are_not_amplified(small_choice, band_search):
    row = small_choice.rows[-1]
    dense_row = band_search.dense()
    assert (row.bands, row.amplified, row.probability, row.compositions) == (16, False, 1.0, 4)
    unamplified_multiplier = gaussian_noise_multiplier(2.0, 1e-6)
    assert row.per_query_noise_multiplier == pytest.approx(2 * unamplified_multiplier, rel=1e-9)
    assert row.noise_multiplier == pytest.approx(unamplified_multiplier, rel=1e-9)
    assert row.advantage == pytest.approx(fedmf.AttackRisk(mu=1 / row.noise_multiplier).advantage)
    assert small_choice.close == tuple(
        close_row
        for close_row in small_choice.rows
        if close_row.rmse <= 1.01 * small_choice.best.rmse
    )
    # The dense optimum is the best without amplification.
    assert (dense_row.family, dense_row.amplified) == ("dense", False)
    assert dense_row.rmse <= row.rmse


def test_random_allocation_costs_less_noise_than_poisson_sampling(small_choice):
    # 3 bands in an epoch of 16 rounds: clients keep to the rounds of 4 partitions.
    choice = choose_bands(
        fedmf.prefix_sum(64), **ASK, bands=[3, 4, 16], sampling="random-allocation"
    )
    *amplified, unamplified_row = choice.rows
    for row in amplified:
        assert (row.amplified, row.probability, row.compositions) == (True, 1 / 4, 4)
        noise = row.per_query_noise_multiplier
        assert 1.998 < random_allocation_epsilon(noise, 1e-6, positions=4, epochs=4) <= 2.0
    assert amplified[-1].rmse < small_choice.rows[0].rmse
    assert unamplified_row.rmse == small_choice.rows[1].rmse


@pytest.mark.slow
def test_the_search_finds_the_best_of_all(choice):
    full_choice = choose_bands(fedmf.prefix_sum(64), **ASK, bands=range(1, 17))
    assert choice.best.rmse <= 1.002 * full_choice.best.rmse
    assert len(choice.rows) < 16
    for row in choice.rows:
        assert row.rmse == pytest.approx(full_choice.rows[row.bands - 1].rmse, rel=1e-9)


def test_less_than_an_epoch_is_amplified_with_any_bands():
    short_choice = choose_bands(
        fedmf.prefix_sum(8), population=3200, cohort_size=20, epsilon=1.0, delta=1e-6, bands=[8]
    )
    assert (
        short_choice.best.amplified,
        short_choice.best.probability,
        short_choice.best.compositions,
    ) == (True, 0.05, 1)
    assert short_choice.participation.max_participations == 1


@pytest.mark.slow
@pytest.mark.parametrize("candidates", [None, [2, 1000]])
def test_a_search_without_room_for_its_largest_fit_is_refused_at_once(candidates, monkeypatch):
    monkeypatch.setattr("fedmf.checks.available_memory", lambda: 10**9)
    monkeypatch.setattr(bands.BandSearch, "banded", lambda *_: pytest.fail("a fit was begun"))
    target = {"population": 100_000, "cohort_size": 100, "epsilon": 4.0, "delta": 1e-6}
    search = bands.BandSearch(workload=fedmf.prefix_sum(20_000), **target)
    with refusal("bands=1000 would take 40 dense 20000 x 1000 arrays, 5.96 GiB .*`bands`"):
        next(search.rows(candidates))


def test_plan_bands_prints_the_rows_of_choose_bands(tmp_path):
    sizes = "plan bands --rounds 16 --population 80 --cohort-size 10 --epsilon 4"
    printed_values = printed_by(f"{sizes} --out {tmp_path}/curve.png --dense")
    bands_arguments = {"population": 80, "cohort_size": 10, "epsilon": 4.0, "delta": 1e-6}
    rows = choose_bands(fedmf.prefix_sum(16), **bands_arguments).rows
    assert printed_values["rows"][:-1] == list(map(dataclasses.asdict, rows))
    assert printed_values["rows"][-1]["family"] == "dense"
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "2 participations 8 rounds apart" in command(f"{sizes} --bands 1,8").stdout
