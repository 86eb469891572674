"""Forecasts of participation, in Python and by `fedmf plan participation`."""

import pytest

from fedmf.cohorts.availability import Diurnal, Independent
from fedmf.cohorts.forecast import Size, forecast, largest_min_sep
from fedmf.privacy.sampling import CyclicPoisson, CyclicRandomAllocation
from tests.cli.program import fedmf
from tests.mechanisms.schemas import separated

SMALL = "--population 2000 --cohort-size 20 --rounds 120"


def run_command(*arguments):
    """Returns the standard output of the command."""
    return fedmf("plan participation", *arguments).stdout


class TestSize:
    @pytest.mark.parametrize(
        ("population", "cohort_size", "simulated"),
        [
            (2000, 20, (2000, 20)),
            (10**7, 6500, (200_000, 130)),
            (10**8, 6500, (1_538_461, 100)),  # No cohort has fewer than 100 clients.
            (10**6, 50, (10**6, 50)),  # A small cohort is not made smaller.
        ],
    )
    def test_the_simulation_has_the_same_share_of_clients_in_a_cohort(
        self, population, cohort_size, simulated
    ):
        size = Size(population=population, cohort_size=cohort_size)
        assert (size.simulated_population, size.simulated_cohort) == simulated
        # The simulation must not be easier than the run.
        assert size.simulated_population * cohort_size <= population * size.simulated_cohort


class TestForecast:
    def test_dry_rounds_are_those_with_too_few_eligible_clients(self):
        # 100 clients, 10 a round, a separation of 8: with full cohorts 30 are eligible, of which 6
        # are available.
        rare = Independent(probability=0.2, seed=1)
        run = forecast(separated(60, 8), Size(population=100, cohort_size=10), availability=rare)
        # The pool of every round is known, and a round is dry if the pool is less than a cohort.
        assert run["pool_rounds"] == list(range(60))
        assert run["dry"] == [t for t, pool in enumerate(run["pool"]) if pool < 1]
        assert run["cohorts"] == [min(1, pool) for pool in run["pool"]]
        assert 0 < run["dry_rounds"] < 60

    def test_poisson_rounds_are_never_dry(self):
        scheme = CyclicPoisson(population=2000, cohort_size=20, partitions=4)
        run = forecast(
            scheme.participation(80),
            Size(population=2000, cohort_size=20),
            sampling=scheme,
            availability=Independent(probability=0.5),
        )
        assert (run["dry"], run["pool"]) == ([], [])
        assert 5 < run["mean_cohort"] < 15

    def test_a_scheme_is_resized_to_the_simulated_population(self):
        scheme = CyclicRandomAllocation(population=10**6 + 3, cohort_size=1000, partitions=8)
        size = Size(population=scheme.population, cohort_size=1000, simulated_cohort=10)
        run = forecast(scheme.participation(40), size, sampling=scheme)
        assert sum(run["cohorts"]) == pytest.approx(40, rel=0.2)


class TestSearch:
    def test_always_available_clients_allow_the_largest_possible_separation(self):
        # With all clients available the controller allows population / cohort_size.
        search = largest_min_sep(Size(population=400, cohort_size=10), rounds=90)
        assert (search["largest_min_sep"], search["too_large_min_sep"]) == (40, None)
        # A run that is dry in its first round allows none.
        half_available = Independent(probability=0.5)
        search = largest_min_sep(
            Size(population=100, cohort_size=90), rounds=5, availability=half_available
        )
        assert (search["largest_min_sep"], search["too_large_min_sep"]) == (None, 1)

    def test_the_search_agrees_with_forecasts_of_its_results(self):
        size = Size(population=1500, cohort_size=20)
        options = {"availability": Diurnal(), "seed": 3}
        search = largest_min_sep(size, rounds=100, **options)
        found_min_sep = search["largest_min_sep"]
        too_large = search["too_large_min_sep"]
        assert 1 <= too_large - found_min_sep <= max(1, found_min_sep // 100)
        # Unavailable clients cost separation: with all available it would be 75.
        assert 30 < found_min_sep < 75
        for min_sep in (found_min_sep, too_large):
            run = forecast(separated(100, min_sep), size, **options)
            assert search["tried"][min_sep] == next(iter(run["dry"]), None)
        assert search["tried"][found_min_sep] is None
        assert search["tried"][too_large] is not None


class TestCommand:
    def test_figures_of_a_smaller_population_are_marked_as_simulated(self):
        forecast_options = (
            "--population 20000 --cohort-size 40 --rounds 30 --min-sep 20 --no-search"
        )
        text = run_command(f"{forecast_options} --simulated-cohort 20")
        for name in ("dry_rounds", "mean_cohort", "max_participations_observed"):
            assert f"{name}, simulated " in text
        assert ", simulated" not in run_command(forecast_options)
        assert "clients with 1 participations" in text

    @pytest.mark.parametrize(
        "added_options",
        [
            "--schema fixed_epoch --min-sep 50",
            "--min-sep 30 --no-search --timer-jitter 4 --dropout 0.1 --noncompliant-fraction 0.3",
            "--sampling poisson --partitions 5 --availability diurnal:rounds_per_day=24",
        ],
    )
    def test_the_command_draws_a_figure_for_every_option(self, added_options, tmp_path):
        text = run_command(f"{SMALL} {added_options} --out {tmp_path}/who.png")
        assert "max_participations_observed" in text
        assert (tmp_path / "who.png").stat().st_size > 10_000
