"""What a budget gains over min_sep, as `fedmf plan participation` shows it."""

import json

import pytest

import fedmf
from tests.cli.program import fedmf as command
from tests.cli.program import refused
from tests.mechanisms.schemas import separated

APART = separated(200, 40)
ASK = """plan participation --rounds 200 --population 800 --cohort-size 20 --schema budget
    --min-sep 40 --json""".split()


@pytest.fixture(scope="module")
def mechanism_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("budget") / "toeplitz.npz"
    fedmf.fit(fedmf.prefix_sum(200), APART, family="toeplitz", coefficients="sqrt").save(path)
    return path


@pytest.mark.parametrize(
    "availability", ["always", "independent:0.1", "independent:0.025", "diurnal:rounds_per_day=20"]
)
def test_the_default_pace_never_loses(mechanism_file, availability, tmp_path):
    # The smallest population that min_sep fills: 40 cohorts.
    picture = ["--out", tmp_path / "who.png"] if availability == "always" else []
    found = json.loads(
        command(
            *ASK, *picture, "--mechanism", mechanism_file, "--availability", availability
        ).stdout
    )
    assert not picture or picture[1].stat().st_size > 10_000
    mean, low, high = found["participations_gained"]
    assert low <= mean <= high
    assert found["dry_rounds_budget"] <= found["dry_rounds_apart"]
    assert low >= 0.0
    if availability == "independent:0.025":  # devices that come once in 40 rounds
        assert low > 0.3
    assert sum(found["spent"].values()) <= 1.0 + 1e-9
    assert found["participations_budget"][0] >= found["participations_apart"][0]


def test_refusals(mechanism_file):
    refused(*ASK, words=["mechanism is missing", "fedmf fit --out"])
    refused(*ASK, "--mechanism", mechanism_file, "--seeds", 1, words=["--seeds"])
    apart = [word for word in ASK if word not in ("--schema", "budget")]
    refused(*apart, "--pace", 3, words=["--pace 3 belongs to --schema budget"])
