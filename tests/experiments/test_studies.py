"""The papers' training experiments: their grids against the printed ones, what a verdict is worth,
and every item at a tiny scale.
"""

import collections
import csv
import dataclasses
import functools
import itertools
import json
import math
import pathlib
import types

import numpy as np
import pytest

import fedmf
from fedmf.experiments.papers import (
    ITEMS,
    Request,
    accuracy,
    cifar,
    printed,
    results,
    stackoverflow,
    stackoverflow_sizes,
    study,
)
from fedmf.privacy.amplification import sampled_gaussian_noise_multiplier
from fedmf.privacy.gaussian import gaussian_noise_multiplier

STACKOVERFLOW = (
    "denisov",
    "schedules",
    "decays",
    "epochs",
    "divergence",
    "unnoised",
    "phones",
    "centre",
)
# Those that are made in the same way once.
TRAINED = list({i.make.args: n for n, i in ITEMS.items() if i.study is not None}.values())


@functools.cache
def lines(name, scale="full"):
    """Line -> its configurations with seed 0."""
    found = collections.defaultdict(list)
    grid = getattr(stackoverflow, name)(scale)
    for line, run, config in grid.configs(pathlib.Path("data"), pathlib.Path("folder")):
        assert run.endswith("seed=0")
        found[line].append(config)
    assert set(grid.stems()) <= set(grid.mechanisms)
    return dict(found)


def of(configs, *fields):
    return {tuple(getattr(config, field) for field in fields) for config in configs}


# Denisov et al. 2022, App. I, Table 3, as printed.
TABLE_3 = {
    "client_learning_rate": {0.5, 1.0},
    "server_learning_rate": {0.25, 0.5, 1.0, 2.0},
    "server_momentum": {0.0, 0.9, 0.95},
    "noise_multiplier": {0.341, 0.682, 1.364, 2.728, 5.456},
}


def test_denisovs_grid_is_that_of_table_3():
    found = lines("denisov")
    assert {line: len(configs) for line, configs in found.items()} == dict.fromkeys(
        stackoverflow.DENISOV_TABLE_4, 120
    )
    for line, configs in found.items():
        for field, values in TABLE_3.items():
            assert {getattr(config, field) for config in configs} == values
        tried = of(
            configs,
            "noise_multiplier",
            "server_learning_rate",
            "client_learning_rate",
            "server_momentum",
        )
        best = zip(
            stackoverflow_sizes.DENISOV_NOISE, stackoverflow.DENISOV_TABLE_4[line], strict=True
        )
        assert {(noise, *setting) for noise, setting in best} <= tried
    fixed = of(
        itertools.chain(*found.values()),
        "rounds",
        "cohort_size",
        "schema",
        "warmup",
        "cooldown",
        "zeroing_norm",
    )
    assert fixed == {(2048, 100, "single", 0.0, 0.0, None)}
    # The optimum with momentum is another matrix for each momentum.
    files = {
        (pathlib.Path(c.mechanism or "prefix").stem, c.server_momentum)
        for c in found[stackoverflow.MOMENTUM]
    }
    assert files == {("prefix", 0.0), ("momentum-0.9", 0.9), ("momentum-0.95", 0.95)}


def test_the_multi_epoch_grid_is_that_of_tables_4_and_5():
    found = lines("epochs")
    for line, configs in found.items():
        if line == stackoverflow.UNNOISED:
            continue
        rates = of(configs, "epsilon", "server_learning_rate")
        assert rates == {(e, r) for e in (2.0, 8.841, 17.648) for r in (0.5, 1.0)} | {(2.0, 0.25)}
        fixed = of(
            configs,
            "server_momentum",
            "client_learning_rate",
            "cooldown",
            "warmup",
            "zeroing_norm",
            "delta",
        )
        assert fixed == {(0.95, 1.0, 0.25, 0.0, 100.0, 1e-6)}
    assert of(found[stackoverflow.HONAKER_6], "rounds", "cohort_size", "min_sep") == {
        (2048, 1000, 342)
    }
    assert of(found[stackoverflow.MF_1_6], "rounds", "cohort_size", "min_sep") == {
        (2048, 1000, 342)
    }
    assert of(found[stackoverflow.MF_6_6], "rounds", "cohort_size", "min_sep") == {
        (2052, 1000, 342)
    }
    assert of(found[stackoverflow.MF_1_1], "rounds", "cohort_size", "schema") == {
        (2048, 167, "single")
    }
    assert of(found[stackoverflow.GDM], "claimed_cohort", "schema") == {(342_477, "every_round")}
    assert of(found[stackoverflow.SGDM], "sampling", "population") == {("poisson", 342_477)}


@pytest.mark.parametrize(
    ("name", "table"), [("phones", printed.BANDED_TABLE_6), ("centre", printed.BANDED_TABLE_7)]
)
def test_the_banded_grids_are_those_of_tables_6_and_7(name, table):
    for line, configs in lines(name).items():
        tried = of(configs, "epsilon", "server_learning_rate")
        rows = [row for row in table if row.mechanism == line]
        if name == "centre" and line == stackoverflow.BANDED:
            rows = [
                row for row in rows if (row.epsilon, row.bands) != (16.0, 64)
            ]  # printed beside the best
            assert of(configs, "epsilon", "bands") == {(row.epsilon, row.bands) for row in rows}
        assert tried == {(row.epsilon, float(rate)) for row in rows for rate in row.accuracies}
        rounds, claimed = (2048, 167) if line == stackoverflow.SINGLE else (2052, 1000)
        assert of(configs, "rounds", "cohort_size", "claimed_cohort", "warmup") == {
            (rounds, 100, claimed, 0.15)
        }


def test_cifars_grid_is_that_of_the_papers():
    size = cifar.SIZES["full"]
    assert (
        size.participation.rounds,
        size.participation.min_sep,
        size.participation.max_participations,
    ) == (2000, 100, 20)
    assert size.rates == (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    assert (len(size.rates_banded), size.rates_banded[0], size.rates_banded[-1]) == (
        18,
        0.01,
        5000.0,
    )
    assert (size.repeats, size.stamps) == (12, (1, 2, 5, 10, 20))
    # The noise that the papers' code gives DP-SGD is 0.7 to 1.8% above ours for the epsilons of its
    # matrices: older PLD buckets.
    for epsilon, matrix, sampled in zip(
        size.epsilons, cifar.NOISE, cifar.NOISE_DP_SGD, strict=True
    ):
        assert gaussian_noise_multiplier(epsilon, cifar.DELTA) == pytest.approx(matrix, rel=1e-3)
        ours = sampled_gaussian_noise_multiplier(
            epsilon, cifar.DELTA, probability=500 / 50_000, compositions=2000
        )
        assert 0.98 < ours / sampled < 1
    configs = [
        config
        for _, _, config in cifar.multi_epoch("small").configs(
            pathlib.Path("data"), pathlib.Path("folder")
        )
    ]
    assert of(configs, "family", "server_momentum") == {
        ("identity", 0.0),
        ("dense", 0.9),
        ("file", 0.9),
    }
    assert of(configs, "warmup", "cooldown", "zeroing_norm", "delta") == {(0.0, 0.25, None, 1e-5)}


@pytest.mark.parametrize("name", STACKOVERFLOW)
def test_the_data_has_the_clients_that_a_study_draws_or_claims_to(name):
    for config in itertools.chain(*lines(name).values()):
        scheme, cohort = config.sampling_scheme(), config.claimed_cohort or config.cohort_size
        assert scheme is None or scheme.population == 342_477
        assert config.rounds in (2048, 2052)
        fedmf.ParticipationController(
            config.participation(), population=342_477, cohort_size=cohort, seed=0
        )


def test_cifars_trees_are_completed_as_in_table_1():
    found = cifar.losses(
        cifar.HONAKER, dataclasses.replace(cifar.SIZES["full"], stamps=(5, 10, 20))
    )
    figures = {
        row.times: row.printed
        for row in printed.MULTI_EPOCH_TABLE_1
        if row.name == "(Online) Honaker"
    }
    for times, rmse in found.items():
        assert printed.agrees(2000 * rmse**2, figures[times])
    assert min(found, key=lambda times: found[times]) == 10


@pytest.mark.parametrize("name", STACKOVERFLOW)
def test_a_smaller_size_has_the_same_lines(name):
    count = {scale: len(lines(name, scale)) for scale in ("tiny", "small", "full")}
    assert count["small"] == count["full"]
    assert count["tiny"] >= count["full"] / 2


def test_the_best_mechanism_for_two_epochs_is_made_for_them():
    size = stackoverflow_sizes.SIZES["tiny"]
    both = stackoverflow.optimum(size, 0.9, True, once=False)
    one = stackoverflow.optimum(size, 0.9, True, once=True)
    rates = (
        fedmf.TrainConfig(rounds=4, min_sep=2, epsilon=1.0, warmup=0.0, cooldown=0.25)
        .server_schedule()
        .learning_rates()
    )
    workload = fedmf.momentum_sgd(4, 0.9, rates)
    assert fedmf.loss(both, workload, size.in_order) < fedmf.loss(one, workload, size.in_order)
    assert fedmf.loss(one, workload, size.once) < fedmf.loss(both, workload, size.once)


def score(line, target, test, epsilon=None):
    return types.SimpleNamespace(
        line=line,
        target=target,
        epsilon=target if epsilon is None else epsilon,
        test=np.array(test),
    )


def test_an_order_is_of_the_same_seeds_at_the_targets_that_both_have():
    scores = [
        score("a", 1.0, [0.5, 0.7]),
        score("a", 2.0, [0.6, 0.8]),
        score("b", 2.0, [0.5, 0.7]),
        score("b", 1.0, [0.1, 0.5]),
        score("b", 4.0, [0.9, 0.9]),
        score("none", None, [0.9, 0.9], math.inf),
    ]
    assert accuracy.order(scores, "a", "b").mean == pytest.approx((0.4 + 0.2) / 4 + 0.1 / 2)
    assert accuracy.order(scores, "a", "b", from_epsilon=2.0).mean == pytest.approx(0.1)
    assert accuracy.order(scores, "none", "a").mean == pytest.approx(0.25)
    assert not accuracy.order(
        [score("a", 1.0, [0.9]), score("b", 1.0, [0.1])], "a", "b"
    ).shown  # one seed
    found = accuracy.verdict(
        [
            accuracy.Order("a", "b", 6, 0.1, 0.05, 0.2),
            accuracy.Order("b", "c", 6, -0.1, -0.2, -0.01),
        ]
    )
    assert not found["holds"]
    assert found["verdict"].startswith(
        "1 of 2 orders show, over 6 seeds: a over b +10.0 points (5.0 to 20.0); b over c -10.0"
    )
    assert "reversed" in found["verdict"]


def above_zero(rng, sets, shift, ends):
    return np.mean([ends(rng.normal(shift, 1, 6))[1] > 0 for _ in range(sets)])


def test_an_order_is_seldom_shown_where_there_is_none():
    """Of 6 seeds without a difference 3.1% show one (measured in 60,000 sets).

    The bound of 4.7% is 5 standard deviations above, of 3000 sets: the test fails by chance once in
    a million. Plain percentiles, 7.6%, are the control that must fail it. A difference of twice its
    standard deviation is shown in more than nine sets of ten.
    """
    rng = np.random.default_rng(11)
    assert above_zero(rng, 3000, 0.0, accuracy.interval) < 0.047
    assert above_zero(rng, 300, 2.0, accuracy.interval) > 0.9

    def plain(x):
        means = x[np.random.default_rng(0).integers(0, 6, (1000, 6))].mean(1)
        return x.mean(), *np.quantile(means, [0.025, 0.975])

    assert above_zero(rng, 3000, 0.0, plain) > 0.047


def quality(config):
    """An accuracy that keeps all orders of the papers."""
    stem = pathlib.Path(config.mechanism).stem if config.mechanism else ""
    stamps = int(stem.rpartition("-x")[2]) if "-x" in stem else 0
    if stem.startswith("Honaker"):
        size = cifar.stamps.sizes["small"] if config.rounds == 140 else cifar.SIZES["small"]
        base = 0.55 - cifar.losses(cifar.HONAKER, size)[stamps] / 100
    elif config.family in ("file", "dense"):
        base = {"FFT": 0.66, "MF(k": 0.6 + stamps / 100}.get(stem[:4].rstrip("-"), 0.7)
        base += (
            0.1 * ("momentum" in stem)
            + 0.02 * ("cooldown" in stem)
            + 0.05 * (config.schema != "single")
            + 0.05 * stem.endswith("epochs")
        )
        base = base - 0.05 if stem.startswith(("FFT", "MF(k")) else base
    else:
        base = {"banded": 0.85, "tree": 0.6, "identity": 0.3, "none": 0.97}[
            config.family
        ] + 0.05 * (config.decoder == "full")
        base += 0.65 * (config.schema == "every_round") + 0.02 * (config.sampling is not None)
    large = (
        config.family == "file"
        if config.noise_multiplier is None
        else config.noise_multiplier < 0.5
    )
    off_best_rate = abs(math.log(config.server_learning_rate / (8.0 if large else 0.0625)))
    return (
        base
        + 0.02 * bool(config.cooldown)
        + 1e-5 * (config.claimed_cohort or config.cohort_size)
        - 1e-3 * off_best_rate
    )


def trained(sign):
    """In place of training: runs whose accuracy is `quality`, late in the run, and its opposite
    before; all of it the other way for -1.
    """

    def run(config):
        def accuracy_at(t):
            right = sign * (1 if t >= 0.8 * config.rounds else -1)
            return (
                0.5
                + right * (quality(config) - 0.5) / 2
                + 1e-6 * math.sin(config.seed + 2 * t + len(config.family))
            )

        most = (config.server_learning_rate / (config.epsilon or 1.0)) ** sign
        rows = [
            {
                **{"round": t, "examples": 1, "zeroed": round(100 * most)},
                **(
                    {
                        "validation": {
                            "accuracy": accuracy_at(t),
                            "loss": 1 / (t + 1) if sign == 1 else float(t),
                        }
                    }
                    if (t + 1) % 12 == 0
                    else {}
                ),
            }
            for t in range(config.rounds)
        ]
        final = {"accuracy": accuracy_at(config.rounds)}
        private = config.family != "none"
        plan = {
            "epsilon": (config.epsilon or 4 / config.noise_multiplier) if private else None,
            "noise_multiplier": config.noise_multiplier or 1.0,
            "task": {"headline_metric": "accuracy"},
        }
        return types.SimpleNamespace(
            path=str(config),
            config=config,
            plan=plan,
            metrics=rows,
            result={"validation": final, "test": final, "seconds": 1.0},
        )

    return lambda out, configs, request, check, **_: {
        name: run(config) for name, config in configs.items()
    }


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_verdict_follows_from_the_numbers(name, sign, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "_trained", trained(sign))
    monkeypatch.setattr(study, "_data", lambda *_: pathlib.Path("data"))
    result = results.run(ITEMS[name], Request(folder=tmp_path / name, scale="small"))
    assert result["holds"] == (sign == 1), result["verdict"]
    assert (tmp_path / name / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of all results: items of the same runs train them once."""
    return tmp_path_factory.mktemp("papers")


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_every_item_is_made(name, folder):
    result = results.run(ITEMS[name], Request(folder=folder / name, scale="tiny"))
    assert not result["holds"] or name in (
        "denisov-table-4",
        "multi-epoch-figure-12",
        "multi-epoch-table-2",
    )  # one seed shows nothing
    assert result["reduced"]
    table = list(csv.DictReader((folder / name / "numbers.csv").open()))
    assert len(table) > 1
    assert (folder / name / "figure.png").stat().st_size > 10_000
    # The test split is read by runs that are reported alone.
    for path in folder.glob("sweeps/*/runs/*/result.json"):
        assert bool(json.loads(path.read_text())["test"]) != path.parent.name.endswith("seed=0")
    # Once more, from the runs on disk.
    finished = {
        path: path.stat().st_mtime_ns for path in folder.glob("sweeps/*/runs/*/result.json")
    }
    again = results.run(ITEMS[name], Request(folder=folder / name, scale="tiny"))
    assert again["verdict"] == result["verdict"]
    assert {
        path: path.stat().st_mtime_ns for path in folder.glob("sweeps/*/runs/*/result.json")
    } == finished


def test_the_paper_s_size_asks_for_its_data(tmp_path):
    with pytest.raises(ValueError, match="data is missing: scale full"):
        results.run(ITEMS["banded-figure-5"], Request(folder=tmp_path / "x", scale="full"))
