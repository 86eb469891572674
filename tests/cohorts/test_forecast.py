"""fedmf.cohorts.forecast, and `fedmf plan participation` run in this process."""

import json

import numpy as np
import pytest

from fedmf.cohorts.availability import Diurnal, Independent
from fedmf.cohorts.devices import DeviceBehavior
from fedmf.cohorts.forecast import Size, forecast, largest_min_sep
from fedmf.participation.schema import Participation
from fedmf.privacy.sampling import CyclicPoisson, CyclicShuffle
from tests.cli.program import fedmf

SMALL = ["--population", "2000", "--cohort-size", "20", "--rounds", "120"]


def call(*arguments):
    """What the command prints."""
    return fedmf("plan", "participation", *arguments).stdout


class TestSize:
    @pytest.mark.parametrize(
        ("population", "cohort_size", "simulated"),
        [
            (2000, 20, (2000, 20)),
            (200_000, 100, (200_000, 100)),
            (10**7, 6500, (200_000, 130)),
            (10**8, 6500, (1_538_461, 100)),  # no fewer than 100 a round
            (10**6, 50, (10**6, 50)),  # a cohort that is small already is not made smaller
        ],
    )
    def test_the_same_share(self, population, cohort_size, simulated):
        size = Size(population=population, cohort_size=cohort_size)
        assert (size.simulated_population, size.simulated_cohort) == simulated
        # Never more room than there is: what is held there is held here.
        assert size.simulated_population * cohort_size <= population * size.simulated_cohort

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"population": 5}, "cohort_size=20 is larger than population=5: lower cohort_size to at most 5"),
            ({"population": 0}, "population=0"),
            ({"simulated_cohort": 21}, "simulated_cohort=21 must be in 1..20"),
        ],
    )
    def test_refused(self, change, words):
        with pytest.raises(ValueError, match=words):
            Size(**{"population": 2000, "cohort_size": 20, **change})


class TestForecast:
    def test_dry_rounds_are_those_in_which_too_few_may_come(self):
        # 100 clients, 10 a round, a separation of 8: with full cohorts 30 are eligible, of whom 6 are there.
        run = forecast(
            Participation(rounds=60, schema="min_sep", min_sep=8),
            Size(population=100, cohort_size=10),
            availability=Independent(probability=0.2, seed=1),
        )
        # The pool is shown for every round here: dry is where it is below one cohort.
        assert run.pool_rounds.tolist() == list(range(60))
        assert (run.dry == (run.pool < 1)).all()
        assert (run.sizes == np.minimum(10, np.rint(10 * run.pool))).all()
        assert 0 < run.dry.sum() < 60
        assert not run.dry[:4].any()

    def test_histogram_of_all_clients(self):
        run = forecast(Participation(rounds=7, schema="min_sep", min_sep=5), Size(population=60, cohort_size=10))
        assert sum(run.histogram.values()) == pytest.approx(1)
        assert sum(times * share for times, share in run.histogram.items()) == pytest.approx(70 / 60)
        assert run.observed.max_participations == max(run.histogram) == 2

    def test_poisson_rounds_are_never_dry(self):
        scheme = CyclicPoisson(population=2000, cohort_size=20, partitions=4)
        run = forecast(
            scheme.participation(80),
            Size(population=2000, cohort_size=20),
            sampling=scheme,
            availability=Independent(probability=0.5),
        )
        assert not run.dry.any()
        assert len(run.pool) == 0
        assert 5 < run.sizes.mean() < 15

    @pytest.mark.parametrize(
        "scheme",
        [CyclicPoisson(population=10**6, cohort_size=1000, partitions=9),
         CyclicShuffle(population=10**6 + 3, cohort_size=1000, partitions=8)],
        ids=["poisson", "shuffle"],
    )  # fmt: skip
    def test_a_scheme_in_a_smaller_population(self, scheme):
        size = Size(population=scheme.population, cohort_size=1000, simulated_cohort=10)
        run = forecast(scheme.participation(40), size, sampling=scheme)
        assert run.sizes.sum() == pytest.approx(400, rel=0.2)

    def test_the_well_behaved(self):
        run = forecast(
            Participation(rounds=60, schema="min_sep", min_sep=8),
            Size(population=400, cohort_size=10),
            behavior=DeviceBehavior(noncompliant_fraction=0.1),
        )
        assert run.observed.min_separation < run.well_behaved.min_separation == 8

    def test_refused_in_the_numbers_that_were_asked_about(self):
        with pytest.raises(
            ValueError, match=r"cohort_size=6500 \* min_sep=2000 = 13000000 exceeds population=10000000"
        ):
            forecast(
                Participation(rounds=4000, schema="min_sep", min_sep=2000), Size(population=10**7, cohort_size=6500)
            )


class TestSearch:
    def test_always_available_holds_all_that_is_possible(self):
        # With everybody there the controller can hold population / cohort_size.
        search = largest_min_sep(Size(population=400, cohort_size=10), rounds=90)
        assert (search.min_sep, search.too_large) == (40, None)
        # And a run that is dry from the start none.
        half = Independent(probability=0.5)
        search = largest_min_sep(Size(population=100, cohort_size=90), rounds=5, availability=half)
        assert (search.min_sep, search.too_large) == (None, 1)

    def test_between_what_held_and_what_did_not(self):
        size = Size(population=3000, cohort_size=20)
        given = {"rounds": 200, "availability": Diurnal(), "seed": 3}
        search = largest_min_sep(size, **given)
        assert search.tried[search.min_sep] is None
        assert search.tried[search.too_large] is not None
        assert 1 <= search.too_large - search.min_sep <= max(1, search.min_sep // 100)
        # Availability costs separation.
        assert 60 < search.min_sep < 150

    def test_as_the_forecast_says(self):
        size = Size(population=1000, cohort_size=20)
        there = Independent(probability=0.4, seed=2)
        search = largest_min_sep(size, rounds=150, availability=there)
        for min_sep, dry in ((search.min_sep, False), (search.too_large, True)):
            run = forecast(Participation(rounds=150, schema="min_sep", min_sep=min_sep), size, availability=there)
            assert run.dry.any() == dry
            assert search.tried[min_sep] == (int(run.dry.argmax()) if dry else None)


class TestCommand:
    def test_json(self):
        found = json.loads(call(*SMALL, "--min-sep", 97, "--availability", "independent:0.2", "--json"))
        assert (found["population"], found["cohort_size"], found["rounds"]) == (2000, 20, 120)
        assert found["dry_rounds"] == len(found["dry"]) > 0
        assert found["largest_min_sep"] < 97
        assert found["tried"][str(found["largest_min_sep"])] is None
        assert sum(found["histogram"].values()) == pytest.approx(1)

    def test_the_same_command_draws_the_same_picture(self, tmp_path):
        pictures = []
        for name in ("a.png", "b.png"):
            text = call(
                *SMALL, "--min-sep", 97, "--availability", "independent:0.2", "--no-search", "--out", tmp_path / name
            )
            assert str(tmp_path / name) in text
            pictures.append((tmp_path / name).read_bytes())
        assert pictures[0].startswith(b"\x89PNG")
        assert pictures[0] == pictures[1]

    def test_what_a_smaller_population_showed_is_marked(self):
        ask = ["--population", 20_000, "--cohort-size", 40, "--rounds", 30, "--min-sep", 20, "--no-search"]
        marks = ("dry rounds", "cohorts", "min separation", "most participations")
        text = call(*ask, "--simulated-cohort", 20)
        assert all(f"{mark}, simulated " in text for mark in marks)
        assert ", simulated" not in call(*ask)
        assert "1 participation " in text

    @pytest.mark.parametrize(
        "more",
        [
            ["--schema", "fixed_epoch", "--min-sep", 50],
            ["--schema", "every_round"],
            ["--availability", "independent:0.2"],
            ["--min-sep", 30, "--no-search", "--max-participations", 3, "--noncompliant-fraction", "0.3"],
            ["--min-sep", 30, "--no-search", "--timer-jitter", 4, "--dropout", "0.1"],
            ["--sampling", "poisson", "--partitions", 5, "--availability", "diurnal:rounds_per_day=24"],
            ["--sampling", "fixed_size", "--partitions", 5],
            ["--sampling", "reshuffle", "--partitions", 5],
        ],
        ids=str,
    )
    def test_every_option(self, more, tmp_path):
        text = call(*SMALL, *more, "--out", tmp_path / "who.png")
        assert "most participations" in text
        assert more[0] != "--availability" or "dry rounds              0 of 120" in text
        assert (tmp_path / "who.png").stat().st_size > 10_000
