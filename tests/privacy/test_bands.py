"""The choice of bands: what a row means, how the search goes, what it refuses, and the command."""

import dataclasses
import json
import math

import numpy as np
import pytest

import fedmf
from fedmf.cli import main
from fedmf.privacy import bands
from fedmf.privacy.amplification import sampled_gaussian_epsilon
from fedmf.privacy.bands import choose_bands
from fedmf.privacy.gaussian import gaussian_epsilon, gaussian_noise_multiplier

ASK = {"population": 320, "cohort_size": 20, "epsilon": 2.0, "delta": 1e-6}


@pytest.fixture(scope="module")
def choice():
    return choose_bands(fedmf.prefix_sum(64), **ASK, dense=True)


def test_rows_meet_the_target_and_no_more(choice):
    for row in choice.rows:
        if row.amplified:
            assert (row.probability, row.compositions) == (20 * row.bands / 320, math.ceil(64 / row.bands))
            reached = sampled_gaussian_epsilon(
                row.per_query_noise_multiplier, 1e-6, probability=row.probability, compositions=row.compositions
            )
        else:
            reached = gaussian_epsilon(row.noise_multiplier, 1e-6)
        assert 0.999 * 2.0 < reached <= 2.0
    assert [row.family for row in choice.rows].count("dense") == 1
    assert not choice.rows[-1].amplified


def test_rmse_is_that_of_the_noise_of_a_plan(choice):
    row = choice.best
    assert row.amplified
    mechanism = fedmf.fit(
        fedmf.prefix_sum(64), fedmf.Participation(rounds=64, schema="single"), family="banded", bands=row.bands
    )
    sampling = fedmf.privacy.sampling.CyclicPoisson(population=320, cohort_size=20)
    plan = fedmf.calibrate(mechanism, choice.participation, epsilon=2.0, delta=1e-6, clip_norm=0.5, sampling=sampling)
    noise = fedmf.prefix_sum(64).matrix @ mechanism.noising() * plan.stddev / 0.5
    assert row.rmse == pytest.approx(np.sqrt((noise**2).sum() / 64), rel=1e-4)
    unit = fedmf.sensitivity(mechanism, choice.participation).value
    assert row.noise_multiplier == pytest.approx(plan.stddev / 0.5 / unit, rel=1e-4)
    assert row.per_query_noise_multiplier == pytest.approx(plan.per_query_noise_multiplier, rel=1e-4)
    assert row.effective_rmse == row.rmse / 20


def test_as_many_bands_as_an_epoch_has_rounds_are_not_amplified(choice):
    row = choice.row(16)
    assert (row.amplified, row.probability, row.compositions) == (False, 1.0, 4)
    assert row.per_query_noise_multiplier == pytest.approx(2 * gaussian_noise_multiplier(2.0, 1e-6), rel=1e-9)
    assert row.noise_multiplier == pytest.approx(gaussian_noise_multiplier(2.0, 1e-6), rel=1e-9)
    assert choice.best in choice.close
    assert choice.close == tuple(r for r in choice.rows if r.rmse <= 1.01 * choice.best.rmse)
    # The dense optimum is the best without amplification.
    assert choice.rows[-1].rmse <= row.rmse


def test_one_band_is_dp_sgd(choice):
    row = choice.row(1)
    assert row.rmse == pytest.approx(row.per_query_noise_multiplier * math.sqrt(65 / 2), rel=1e-9)


@pytest.mark.slow
def test_the_search_finds_the_best_of_all(choice):
    every = choose_bands(fedmf.prefix_sum(64), **ASK, bands=range(1, 17))
    searched = [row for row in choice.rows if row.family == "banded"]
    assert min(row.rmse for row in searched) <= 1.002 * every.best.rmse
    assert len(searched) < 16
    for row in searched:
        assert row.rmse == pytest.approx(every.row(row.bands).rmse, rel=1e-9)


def test_less_privacy_wants_more_bands():
    best = [
        choose_bands(fedmf.prefix_sum(64), **ASK | {"epsilon": epsilon}, bands=[1, 4, 16]).best.bands
        for epsilon in (0.05, 50.0)
    ]
    assert best == [1, 16]


def test_less_than_an_epoch_is_amplified_with_any_bands():
    few = choose_bands(fedmf.prefix_sum(8), population=3200, cohort_size=20, epsilon=1.0, delta=1e-6, bands=[8])
    assert (few.best.amplified, few.best.probability, few.best.compositions) == (True, 0.05, 1)
    assert few.participation.max_participations == 1


def test_another_unit_of_noise():
    separated = fedmf.Participation(rounds=64, schema="min_sep", min_sep=8)
    best = choose_bands(fedmf.prefix_sum(64), **ASK, bands=[4], participation=separated).best
    assert best.noise_multiplier == pytest.approx(best.per_query_noise_multiplier / math.sqrt(8), rel=1e-9)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rounds": 65}, "rounds=65 but workload 'prefix_sum' has rounds=64"),
        ({"population": 10}, "cohort_size=20 must be in 1..10: a round draws at most all of population=10 clients"),
        ({"epsilon": 0.0}, "epsilon=0.0 must be positive"),
        ({"delta": 1e-11}, "delta=1e-11 is below 1e-10, where the epsilon of sampled cohorts is not computed"),
        ({"bands": [65]}, "bands=65 must be in 1..64"),
        ({"bands": []}, "names no candidate"),
        ({"participation": fedmf.Participation(rounds=64, schema="min_sep", min_sep=17)}, "choose min_sep up to 16"),
        ({"participation": fedmf.Participation(rounds=8, schema="single")}, "has rounds=8 but the workload has 64"),
    ],
)
def test_bad_arguments_are_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        choose_bands(fedmf.prefix_sum(64), **ASK | change)


def test_without_sampling_delta_may_be_smaller():
    (row,) = choose_bands(fedmf.prefix_sum(64), **ASK | {"delta": 1e-11}, bands=[16]).rows
    assert not row.amplified


def test_wrong_kinds_are_refused():
    with pytest.raises(TypeError, match="pass a fedmf.Workload"):
        choose_bands(np.eye(4), **ASK)
    with pytest.raises(TypeError, match=r"pass a fedmf.Participation"):
        choose_bands(fedmf.prefix_sum(64), **ASK, participation=16)
    with pytest.raises(TypeError, match=r"bands=2.0 is a float"):
        choose_bands(fedmf.prefix_sum(64), **ASK, bands=[2.0])


def test_a_row_that_was_not_tried(choice):
    with pytest.raises(ValueError, match="bands=15 was not tried: choose one of 1, 2"):
        choice.row(15)


@pytest.mark.parametrize("least", [1, 5, 16, 100, 171, 342])
def test_the_search_ends_beside_the_best(least):
    def row(b):
        error = abs(math.log(b / least))
        return bands.BandRow(
            bands=b, family="banded", amplified=True, probability=0.1, compositions=1, per_query_noise_multiplier=1.0,
            noise_multiplier=1.0, rmse=1.0 + error, effective_rmse=1.0,
        )  # fmt: skip

    rows = {b: row(b) for b in bands._powers_of_two(342)}
    while missing := bands._between(rows, 10**9):
        rows |= {b: row(b) for b in missing}
    best = min(rows, key=lambda b: rows[b].rmse)
    assert abs(math.log(best / least)) < math.log(1.06)
    assert len(rows) <= 22


def test_command(tmp_path, capfd):
    out = tmp_path / "curve.png"
    arguments = ["plan", "bands", "--rounds", "16", "--population", "80", "--cohort-size", "10", "--epsilon", "4"]
    main([*arguments, "--out", str(out), "--dense", "--json"])
    found = json.loads(capfd.readouterr().out)
    expected = choose_bands(fedmf.prefix_sum(16), population=80, cohort_size=10, epsilon=4.0, delta=1e-6, dense=True)
    assert found["best"] == dataclasses.asdict(expected.best)
    assert [row["bands"] for row in found["rows"]] == [row.bands for row in expected.rows]
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    main([*arguments, "--bands", "1,8"])
    table = capfd.readouterr().out
    assert "best" in table
    assert "2 participations 8 rounds apart" in table
