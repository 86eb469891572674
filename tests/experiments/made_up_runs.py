"""Runs that nobody trained, whose accuracies reproduce every clause of the trained items."""

import dataclasses
import math
import pathlib
import types

from fedmf.experiments.papers import ITEMS, Request, cifar, study
from fedmf.experiments.papers import stackoverflow as grids
from fedmf.privacy.gaussian import gaussian_epsilon

FAMILIES = {
    "dense": 0.70,
    "banded": 0.85,
    "blt": 0.83,
    "toeplitz": 0.69,
    "tree": 0.55,
    "identity": 0.30,
    "none": 0.74,
}
# The longest prefix of a mechanism file's name decides.
FILES = {
    "prefix": 0.70,
    "prefix-epochs": 0.66,
    "momentum": 0.80,
    "Honaker-x": 0.51,
    "Honaker-x7.": 0.53,
    "Honaker, optimal decoder": 0.56,
    "FFT-x": 0.61,
    "FFT, plain": 0.58,
    "MF(k=1)-x": 0.56,
    "MF(k=1)-x1.": 0.54,
    "MF(k=7) x4": 0.60,
    "MF(k=14) x2": 0.62,
}


def epsilon_of(config):
    """Returns the epsilon of a plan with this target, and None without noise."""
    if config.family == "none":
        return None
    return config.epsilon or gaussian_epsilon(config.noise_multiplier, config.delta)


def quality(config, name):
    """Returns an accuracy that reproduces all clauses of the item `name`."""
    family = config.family
    epsilon = epsilon_of(config) or math.inf
    if family == "file":
        file = pathlib.Path(config.mechanism).name
        base = FILES[max((stem for stem in FILES if file.startswith(stem)), key=len)]
        base += 0.02 * ("cooldown" in file or "decay" in file)
        # Six epochs have one mechanism for all of them, or that of one epoch.
        base -= 0.12 * (config.schema == "fixed_epoch" and "momentum" in file)
        base += 0.01 * (config.schema == "fixed_epoch" and file.endswith("epochs.npz"))
        if file == "momentum-0.9-epochs.npz":
            base += 0.005 * math.log2(epsilon) - 0.01
    else:
        base = FAMILIES[family] + 0.05 * (config.decoder == "full")
    if config.schema == "single" and family != "none":
        base -= 0.25 if name.startswith("multi-epoch") else 0.1
    base += 0.42 * (config.schema == "every_round") + 0.02 * (config.sampling is not None)
    base += 0.02 * bool(config.cooldown or config.learning_rate_schedule)
    base += 1e-3 * (config.claimed_cohort or config.cohort_size) * (config.schema == "single")
    base += 1e-3 * config.cohort_size * (family == "none")
    base += 0.01 * math.log2(min(max(epsilon, 0.5), 64)) * (family != "none")
    return base + setting_term(config, name, epsilon)


def setting_term(config, name, epsilon):
    """Returns what a setting adds to the accuracy of its line."""
    rate = config.server_learning_rate
    if name.startswith("denisov"):
        step = math.log2(rate / (1 - config.server_momentum))
        best_step = math.log2({0.341: 20.0, 5.456: 0.0625}.get(config.noise_multiplier, 1.25))
        return -abs(step - best_step) * (0.5 if name == "denisov-table-4" else 1e-3)
    has_all_epochs = (config.mechanism or "").endswith("epochs.npz") or config.family == "none"
    gain = (0.002 if has_all_epochs else 0.001) if epsilon > 2.0 else -0.001
    if epsilon <= 2.0 and not has_all_epochs:
        gain = -0.002
    return {0.5: 0.0, 1.0: gain}.get(rate, -0.005)


def made_up_run(config, name):
    """Returns a run of a configuration, as `study` reads it."""

    def accuracy_at(t):
        """Returns the accuracy after a round, which is reversed in the body of training."""
        sign = 1 if t >= 0.8 * config.rounds else -1
        wave = 1e-6 * math.sin(3 * config.seed + 2 * t + len(config.family))
        return 0.5 + sign * (quality(config, name) - 0.5) / 2 + wave

    every = max(1, config.rounds // 16)
    rows = [
        {
            "round": t,
            "examples": 1,
            "zeroed": round(100 * config.server_learning_rate / (config.epsilon or 1.0)),
            "validation": {"accuracy": accuracy_at(t), "loss": 1 / (t + 1)},
        }
        for t in range(every - 1, config.rounds, every)
    ]
    final = {"accuracy": accuracy_at(config.rounds)}
    plan = {
        "epsilon": epsilon_of(config),
        "noise_multiplier": config.noise_multiplier or 1.0,
        "task": {"headline_metric": "accuracy"},
    }
    result = {"validation": final, "test": final, "seconds": 1.0}
    return types.SimpleNamespace(
        path=str(config), config=config, plan=plan, metrics=rows, result=result
    )


def train_nothing(patch, name):
    """Makes `study` take made-up runs for an item, and a number of bands in place of the search for
    the best, which takes most of the time (tests/privacy/test_bands.py).
    """

    def trained(out, configs, request, check, *, test):
        runs = {run: made_up_run(config, name) for run, config in configs.items()}
        for run in runs.values():
            if not test:
                run.result["test"] = {}
        return runs

    patch.setattr(study, "_data", lambda *_: pathlib.Path("data"))
    patch.setattr(study, "_trained", trained)
    patch.setattr(cifar, "best_bands", lambda size, epsilon: (4, True))
    patch.setattr(grids, "best_bands", lambda size, epsilon: 4)


def made_up_scores(patch, name, folder, *, scale="small", repeats=3):
    """Returns the scores of an item, with few seeds, and a function that judges scores."""
    train_nothing(patch, name)
    grid, judge = ITEMS[name].make.args
    few_seeds = dataclasses.replace(grid(scale), repeats=repeats)
    scores = study.run_study(few_seeds, Request(folder=folder, scale=scale))
    return scores, lambda scores: judge(scores, grid.sizes[scale]).clauses
