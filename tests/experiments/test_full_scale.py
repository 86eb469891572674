"""What the grids at scale full have of the papers' figures, and printed accuracies beside ours."""

import collections
import math
import pathlib

import pytest

from fedmf.experiments.papers import (
    ITEMS,
    cifar,
    printed,
    printed_accuracies,
    study_check,
)
from fedmf.experiments.papers import stackoverflow as grids
from tests.refusals import refusal


def configs_by_line(grid):
    """Line of the figure -> its configurations with the first seed."""
    configs = collections.defaultdict(list)
    for line, _, config in grid("full").configs(pathlib.Path("data"), pathlib.Path("folder")):
        configs[line].append(config)
    return configs


def test_denisovs_figure_3_has_both_levels_and_both_mechanisms_with_more_clients():
    configs = configs_by_line(grids.schedules)
    (honaker,) = configs[grids.ONLINE]
    (unnoised,) = configs[grids.UNNOISED]
    # Table 4 of Denisov et al. 2022, epsilon 18.9.
    assert (honaker.family, honaker.decoder) == ("tree", "online")
    assert (honaker.server_learning_rate, honaker.client_learning_rate) == (0.25, 1.0)
    assert (honaker.server_momentum, honaker.noise_multiplier) == (0.95, 0.341)
    assert (honaker.schema, honaker.cooldown) == ("single", 0.0)
    assert (unnoised.family, unnoised.schema) == ("none", "single")
    cohorts = {line: line_configs[0].cohort_size for line, line_configs in configs.items()}
    more = {grids.MORE, grids.M_MORE}
    assert cohorts == dict.fromkeys(configs, 100) | dict.fromkeys(more, 167)


def test_banded_figure_10_has_momentum_for_both_matrix_mechanisms_alone(monkeypatch):
    monkeypatch.setattr(cifar, "best_bands", lambda size, epsilon: (8, True))
    configs = configs_by_line(cifar.banded)
    momenta = {
        line: {config.server_momentum for config in line_configs}
        for line, line_configs in configs.items()
    }
    assert momenta == {cifar.SAMPLED: {0.0}, cifar.BANDED: {0.95}, "MF(k=20)": {0.95}}


def test_the_printed_accuracies_agree_with_their_own_extremes():
    """A slip of transcription in a mean, a deviation or an extreme of two runs would show."""
    rows = printed.MULTI_EPOCH_TABLES_4_AND_5
    assert len({row[:3] for row in rows}) == len(rows) == 44
    for row in rows:
        mean, low, high = map(float, (row.mean, row.minimum, row.maximum))
        assert low <= mean <= high
        assert (row.std == "") == (row.runs == 1) == (low == high)
        if row.runs == 2:
            assert mean == pytest.approx((low + high) / 2, abs=1.1e-5)
            assert float(row.std) == pytest.approx((high - low) / math.sqrt(2), abs=1.3e-5)


def test_tables_4_and_5_have_the_printed_accuracies_beside_ours():
    columns = ("line", "epsilon", "server rate", "test mean")
    ours = [
        ("MF6,6e", 8.841, 1.0, 0.4),
        ("MF6,6e", 8.841, 8.0, 0.1),
        (grids.UNNOISED, math.inf, 1.0, 0.5),
    ]
    fields = printed_accuracies.beside_printed(columns, ours)
    assert fields["columns"] == (*columns, *printed_accuracies.COLUMNS)
    matched, *unmatched = fields["rows"]
    assert matched == (*ours[0], "0.24897", "0.00081", "0.24804", "0.24955", 3)
    assert unmatched[:2] == [(*row, *[""] * 5) for row in ours[1:]]
    assert [row[3:5] for row in unmatched[2:4]] == [("", "0.22654"), ("", "0.22592")]
    assert len(unmatched) == 2 + 43


@pytest.mark.parametrize(
    ("num_clients", "accepted_by"),
    [
        (342_477, {"denisov", "schedules", "decays", "epochs", "divergence", "unnoised", "phones"}),
        # One epoch of 100 clients a round needs 204,800.
        (341_977, {"denisov", "decays"}),
        (200_000, set()),
    ],
)
def test_a_file_with_too_few_clients_for_the_claim_is_refused(num_clients, accepted_by):
    for grid in ("denisov", "schedules", "decays", "epochs", "divergence", "unnoised", "phones"):
        line_configs = configs_by_line(getattr(grids, grid)).values()
        configs = [config for configs in line_configs for config in configs]
        if grid in accepted_by:
            for config in configs:
                study_check.check_population(config, num_clients)
        else:
            with refusal(f"the data has {num_clients:,} training clients and the claim needs "):
                for config in configs:
                    study_check.check_population(config, num_clients)


def test_a_simulated_cohort_needs_the_clients_that_it_claims():
    """100 clients of 342 rounds could be sampled from 34,200 clients."""
    config = configs_by_line(grids.phones)[grids.BANDED][0]
    assert (config.cohort_size, config.claimed_cohort, config.min_sep) == (100, 1000, 342)
    study_check.check_population(config, 342_000)
    with refusal("341,999 training clients and the claim needs 342,000: name the paper's data"):
        study_check.check_population(config, 341_999)


@pytest.mark.parametrize("scale", ["tiny", "small"])
def test_the_synthetic_data_of_a_study_have_the_clients_that_it_claims(scale, monkeypatch):
    monkeypatch.setattr(cifar, "best_stamps", lambda kind, size: size.stamps[0])
    monkeypatch.setattr(cifar, "best_bands", lambda size, epsilon: (2, True))
    for grid in {id(item.study): item.study for item in ITEMS.values() if item.study}.values():
        size = grid.sizes[scale]
        num_clients = getattr(size, "population", None) or size.images
        for _, _, config in grid(scale).configs(pathlib.Path("data"), pathlib.Path("folder")):
            study_check.check_population(config, num_clients)
