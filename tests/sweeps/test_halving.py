"""Successive halving: which settings continue, by which losses, and after how many rounds."""

import math
import types
import warnings

import pytest

from fedmf.sweeps import halving
from fedmf.sweeps import run as sweep
from fedmf.sweeps.grid import sweep_configs
from fedmf.sweeps.run import SweepOptions

FIXED = {"rounds": 8, "min_sep": 2, "cohort_size": 2, "evaluate_every": 2}


@pytest.fixture
def continuing_runs(monkeypatch):
    """Returns a function that decides which runs with these validations continue.

    Its argument `curves` maps the name of a run to metrics for rounds 2, 4 and so on, or to None
    for a run that never began.
    """

    def decide(configs, curves, rung, headline="accuracy"):
        def run(out, name):
            if curves[name] is None:
                return None
            rows = [
                {"round": 2 * i + 1, "validation": metrics}
                for i, metrics in enumerate(curves[name])
            ]
            plan = {"task": {"headline_metric": headline}}
            return types.SimpleNamespace(config=configs[name], metrics=rows, plan=plan)

        monkeypatch.setattr(halving, "_run", run)
        return halving.runs_going_on(None, configs, rung)

    return decide


def losses(*values):
    """Returns validations whose accuracy is better for a larger loss, since it must not decide."""
    return [{"loss": loss, "accuracy": loss} for loss in values]


def rates(*values, **fixed):
    fixed = FIXED | {"family": "none"} | fixed
    configs = sweep_configs(fixed, {"server_learning_rate": list(values)})
    return configs, dict(zip(values, configs, strict=True))


def test_the_half_with_lower_losses_continues_for_each_compared_setting(continuing_runs):
    configs = sweep_configs(
        FIXED | {"epsilon": 8.0},
        {
            "family": ["tree", "identity"],
            "server_learning_rate": [0.1, 0.2, 0.5, 1.0, 2.0],
            "seed": [0, 1],
        },
    )

    def curve(config):
        # Trees train better with large rates, identity with small ones; a seed alone decides
        # nothing.
        rate = config.server_learning_rate * (-1 if config.family == "tree" else 1)
        loss = math.nan if config.server_learning_rate == 2.0 else 5 + rate + 0.05 * config.seed
        return losses(9.0, loss, 0.0)

    curves = {name: curve(config) for name, config in configs.items()}
    continued = {"tree": set(), "identity": set()}
    for name in continuing_runs(configs, curves, 4):
        continued[configs[name].family].add(
            (configs[name].server_learning_rate, configs[name].seed)
        )
    assert continued["tree"] == {(rate, seed) for rate in (0.2, 0.5, 1.0) for seed in (0, 1)}
    assert continued["identity"] == {(rate, seed) for rate in (0.1, 0.2, 0.5) for seed in (0, 1)}


@pytest.mark.parametrize("diverged", [5.1, math.nan, math.inf, None])
def test_settings_whose_loss_rose_or_is_not_finite_are_stopped(continuing_runs, diverged):
    configs, names = rates(0.1, 0.2, 0.5, 1.0)
    # Two of four settings would continue. The second lowest loss rose, and the others are worse or
    # not finite.
    curves = dict(zip(configs, [losses(5, diverged)] * 3 + [losses(9, 6)], strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert continuing_runs(configs, curves, 4) == [names[1.0]]


def test_the_lowest_loss_continues_with_a_warning_if_all_losses_rose(continuing_runs):
    configs, names = rates(0.1, 0.2, 0.5, 1.0, family="identity", epsilon=8.0)
    losses_by_rate = {0.1: (3, 4), 0.2: (3, 3.5), 0.5: (3, 3.2), 1.0: (3, math.nan)}
    curves = {names[rate]: losses(*values) for rate, values in losses_by_rate.items()}
    with pytest.warns(UserWarning, match=f"validation loss of every .*{names[0.5]} .* with 3.2;"):
        assert continuing_runs(configs, curves, 4) == [names[0.5]]


def test_failed_runs_do_not_warn(continuing_runs):
    configs, names = rates(0.1, 0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert continuing_runs(configs, dict.fromkeys(configs), 2) == [names[0.1]]
        curves = {names[0.1]: None, names[0.2]: losses(3, 2)}
        assert continuing_runs(configs, curves, 4) == [names[0.2]]


def test_a_task_without_a_loss_is_judged_by_its_headline_metric(continuing_runs):
    configs, names = rates(0.1, 0.2)
    for headline, best_rate in (("accuracy", 0.2), ("mean_squared_error", 0.1)):
        curves = {names[rate]: [{headline: 0.5}, {headline: rate}] for rate in names}
        assert continuing_runs(configs, curves, 4, headline) == [names[best_rate]]


def test_private_losses_decide_if_runs_have_them(monkeypatch):
    configs, names = rates(0.1, 0.2, family="identity", epsilon=8.0, private_metrics=0.1)

    def run(out, name):
        private_losses = {0.1: [4, 4, 3, 3], 0.2: [4, 4, 2, 2]}[configs[name].server_learning_rate]
        rows = [
            {
                "round": t,
                "private": {
                    "clients": 2.0, "loss": loss, "accuracy": 0.0, "stddev": {"clients": None}
                },
                "validation": {"loss": -loss},
            }
            for t, loss in enumerate(private_losses)
        ]  # fmt: skip
        return types.SimpleNamespace(config=configs[name], metrics=rows)

    monkeypatch.setattr(halving, "_run", run)
    assert halving.runs_going_on(None, configs, 4) == [names[0.2]]


def test_runs_of_different_lengths_are_compared_at_their_own_rungs(continuing_runs):
    short, _ = rates(0.1, 0.2)
    long, _ = rates(0.3, 0.4, rounds=16)
    configs = short | long
    curves = dict.fromkeys(configs, losses(9, 8, 7, 6))
    assert set(continuing_runs(configs, curves, 2)) == {next(iter(short)), *long}
    assert len(continuing_runs(configs, curves, 4)) == 2
    assert set(continuing_runs(configs, curves, 8)) == {*short, next(iter(long))}


@pytest.mark.parametrize(
    ("rounds", "evaluate_every", "expected"),
    [(8, 2, [2, 4]), (8, 8, []), (20, 10, [10]), (1, 1, [])],
)
def test_rungs_are_validated_rounds_before_the_last(rounds, evaluate_every, expected):
    [config] = sweep_configs(
        FIXED
        | {"family": "none", "rounds": rounds, "evaluate_every": evaluate_every, "min_sep": 1},
        {"seed": [0]},
    ).values()
    assert halving.rungs(config) == expected


def test_the_bar_counts_the_rounds_that_halving_will_train(monkeypatch, tmp_path):
    """Five settings of two seeds are compared after rounds 2 and 4 of 8.

    At first all ten runs are expected for two rounds, six for two more, and four to the end. All
    losses but one setting's rise.
    """
    configs = sweep_configs(
        FIXED | {"family": "none"},
        {"server_learning_rate": [0.1, 0.2, 0.5, 1.0, 2.0], "seed": [0, 1]},
    )
    rounds_by_run = dict.fromkeys(configs, 0)
    best_names = list(configs)[:2]
    totals = []

    def iter_finished_runs(out, names, options, failures, arguments=()):
        for name in names:
            rounds_by_run[name] = int(arguments[1]) if arguments else 8
            yield name

    class Bar:
        def __init__(self, *, total, initial, **_):
            self.total = total
            self.n = initial
            totals.append(total)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            totals.append(self.n)

        def update(self, count):
            self.n += count

        def refresh(self):
            totals.append(self.total)

    monkeypatch.setattr(sweep, "bar", Bar)
    monkeypatch.setattr(sweep, "iter_finished_runs", iter_finished_runs)
    monkeypatch.setattr(sweep, "num_rounds_done", lambda folder: rounds_by_run[folder.name])
    monkeypatch.setattr(sweep.RunFolder, "mark_stopped_by_data", lambda folder, rounds: None)
    monkeypatch.setattr(
        halving, "runs_going_on", lambda out, names, rung: [*names][:6] if rung == 2 else best_names
    )
    sweep.train_all(tmp_path, configs, SweepOptions(noise_seed="os", halving=True))
    assert totals == [10 * 2 + 6 * 2 + 4 * 4, 48, 4 * 2 + 4 * 4 + 2 * 8, 40]
    assert halving.expected_rounds(configs) == 48
