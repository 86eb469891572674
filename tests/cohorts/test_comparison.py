"""`fedmf plan participation` compares a participation budget with min_sep."""

import pytest

from tests.cli.program import printed_by, refused
from tests.mechanisms.schemas import fitted, separated

PARTICIPATION = separated(200, 40)
ASK = "plan participation --rounds 200 --population 800 --cohort-size 20 --min-sep 40"
BUDGET = f"{ASK} --schema budget"


@pytest.fixture(scope="module")
def mechanism_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("budget") / "toeplitz.npz"
    fitted(PARTICIPATION, "toeplitz", coefficients="sqrt").save(path)
    return path


@pytest.mark.parametrize(
    "availability", ["always", "independent:0.1", "independent:0.025", "diurnal:rounds_per_day=20"]
)
@pytest.mark.slow
def test_the_default_pace_never_has_fewer_participations_than_min_sep(
    mechanism_file, availability, tmp_path
):
    # The smallest population that min_sep fills: 40 cohorts.
    picture = tmp_path / "who.png"
    draw = f"--out {picture}" if availability == "always" else ""
    options = f"--mechanism {mechanism_file} --availability {availability}"
    figures = printed_by(f"{BUDGET} {draw} {options}")
    assert not draw or picture.stat().st_size > 10_000
    mean, low, high = figures["participations_gained"]
    assert low <= mean <= high
    assert figures["dry_rounds_budget"] <= figures["dry_rounds_min_sep"]
    assert low >= 0.0
    if availability == "independent:0.025":  # Devices are available once in 40 rounds.
        assert low > 0.3
    assert sum(figures["spent"].values()) <= 1.0 + 1e-9
    assert figures["participations_budget"][0] >= figures["participations_min_sep"][0]


def test_options_that_do_not_fit_are_refused(mechanism_file):
    refused(BUDGET, "mechanism is missing")
    refused(f"{BUDGET} --mechanism {mechanism_file} --seeds 1", "--seeds")
    refused(f"{ASK} --pace 3", "--pace 3 belongs to --schema budget")
