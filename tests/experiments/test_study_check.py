"""Before a study trains: every run has passed its checks on data with as many clients as the real
ones, and its cost is known.
"""

import collections
import dataclasses
import functools
import json
import pathlib
import shutil

import numpy as np
import pytest

import fedmf
from fedmf.experiments.papers import (
    ITEMS,
    Request,
    cifar,
    cifar_mechanisms,
    stackoverflow,
    study,
    study_check,
)
from fedmf.noise import host_strategies
from fedmf.privacy import config as plan_config
from fedmf.tasks import data_file, example_proto
from fedmf.tasks.cifar10 import synthetic
from tests.cli.program import refused
from tests.refusals import refusal
from tests.tasks.data_files import execute

USERS, IMAGES = 342_477, 50_000
STUDIES = {id(item.study): item.study for item in ITEMS.values() if item.study is not None}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Task -> a file in the format of its real data, with as many clients, all alike."""
    folder = tmp_path_factory.mktemp("data")
    sentence = example_proto.encode_example({"tokens": b"how do i sort a list"})
    with data_file.create(folder / "users.sqlite", 0, overwrite=False) as connection:
        for split, users in (("train", USERS), ("heldout", 10), ("test", 50)):
            rows = [(split, str(user)) for user in range(users)]
            connection.executemany(
                "INSERT INTO examples VALUES (?, ?, ?)", ((*row, sentence) for row in rows)
            )
            connection.executemany(
                "INSERT INTO client_metadata VALUES (?, ?, 1)",
                ((user, split) for split, user in rows),
            )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            synthetic,
            "draw_pictures",
            lambda labels, rng: np.zeros((len(labels), 32, 32, 3), np.uint8),
        )
        synthetic.write_synthetic(
            folder / "images.tar.gz", examples=IMAGES, test_examples=1000, progress=False
        )
    return {"stackoverflow_nwp": folder / "users.sqlite", "cifar10": folder / "images.tar.gz"}


@pytest.fixture
def quick(monkeypatch):
    """No optimisation, no choice by error, and no calibration of amplified noise: mechanisms of the
    same rounds and bands stand in, whose rows float32 holds.

    What is left out is that these fits converge and that an accountant finds the amplified noise.
    `fedmf paper run --dry-run` has both.
    """
    monkeypatch.setattr(host_strategies, "check_float32", lambda *_: None)
    fit, calibrate = plan_config.fit, plan_config.calibrate

    def fitted(workload, participation, *, family, **options):
        if family == "banded":
            return fit(workload, participation, family="toeplitz", bands=options["bands"])
        return fit(
            workload, participation, family="identity" if family in ("dense", "tree") else family
        )

    def calibrated(mechanism, participation, *, delta, clip_norm, sampling, **target):
        if sampling is None:
            return calibrate(mechanism, participation, delta=delta, clip_norm=clip_norm, **target)
        return fedmf.Plan(
            mechanism=mechanism,
            noise_multiplier=1.0,
            delta=delta,
            clip_norm=clip_norm,
            sampling=sampling,
        )

    def identity(rounds):
        return fit(
            fedmf.prefix_sum(rounds),
            fedmf.Participation(rounds=rounds, schema="single"),
            family="identity",
        )

    monkeypatch.setattr(plan_config, "fit", fitted)
    monkeypatch.setattr(plan_config, "calibrate", calibrated)
    monkeypatch.setattr(
        stackoverflow,
        "optimum",
        lambda size, beta, fall, once: identity(size.rounds_once if once else size.rounds),
    )
    for module in (cifar, cifar_mechanisms):
        monkeypatch.setattr(module, "stamped", lambda kind, steps, stamps: identity(steps))
    monkeypatch.setattr(
        cifar, "for_some_epochs", lambda size, s: identity(size.participation.rounds)
    )
    monkeypatch.setattr(cifar, "best_stamps", lambda kind, size: 5)
    monkeypatch.setattr(
        cifar, "best_bands", lambda size, epsilon: (8, True) if epsilon < 8 else (100, False)
    )


def asked(tmp_path, data, grid, **options):
    return Request(
        folder=tmp_path / "item",
        scale="full",
        data=data[grid.fixed.get("task", "stackoverflow_nwp")],
        **options,
    )


def at_the_ends(configs):
    """Without those of a target between two others: the noise is between theirs."""
    of_line = collections.defaultdict(dict)
    for name, config in configs.items():
        rest = {f: getattr(config, f) and 1.0 for f in ("epsilon", "noise_multiplier")}
        rest["server_learning_rate"] = 1.0
        target = config.epsilon or config.noise_multiplier or 0.0
        of_line[dataclasses.replace(config, **rest)][target] = name
    return {
        n: configs[n] for found in of_line.values() for n in (found[min(found)], found[max(found)])
    }


@pytest.mark.slow
@pytest.mark.tensorflow
def test_every_run_of_every_study_can_begin(tmp_path, data, quick, monkeypatch):
    """In one check, which makes each task once; a refusal names the study and the run."""
    seen, check = [], study_check.check_runs
    monkeypatch.setattr(study_check, "check_runs", lambda *given: seen.append(given))
    for grid in STUDIES.values():  # each once
        made = grid("full")
        assert study.dry_run(made, asked(tmp_path, data, made)).repeats
    every = {f"{out.name} {run}": config for runs, out, _ in seen for run, config in runs.items()}
    check(at_the_ends(every), tmp_path, lambda: [write() for *_, write in seen])
    assert not list(tmp_path.glob("sweeps/*/runs"))


@pytest.mark.slow
@pytest.mark.tensorflow
def test_167_clients_do_not_last_for_2052_rounds(tmp_path, data, monkeypatch):
    """What the check is for: it took weeks of training to find out.

    No mechanism is fitted before.
    """
    monkeypatch.setattr(stackoverflow, "optimum", pytest.fail)
    grid = stackoverflow.epochs
    made = grid.make(dataclasses.replace(grid.sizes["full"], rounds_once=2052))
    with refusal(
        rf"7 of 44 settings cannot train, the first, .*rounds=2052 is "
        rf"too large: {USERS} clients"
    ):
        study.dry_run(made, asked(tmp_path, data, made))


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_dry_run_notices_a_file_with_500_users_too_few(tmp_path, data, monkeypatch):
    """Cohorts of 100 that simulate 1000 could be sampled, and no mechanism is fitted before."""
    path = pathlib.Path(shutil.copy(data["stackoverflow_nwp"], tmp_path / "fewer.sqlite"))
    first_500 = "split_name = 'train' AND CAST(client_id AS INT) < 500"
    execute(path, f"DELETE FROM client_metadata WHERE {first_500}")
    monkeypatch.setattr(stackoverflow, "optimum", pytest.fail)
    made = stackoverflow.phones("full")
    with refusal(f"the data has {USERS - 500:,} training clients and the claim needs 342,000"):
        study.dry_run(made, asked(tmp_path, {"stackoverflow_nwp": path}, made))


@pytest.mark.parametrize("done", [False, True])
def test_nothing_trains_before_the_check_nor_elsewhere_than_was_asked_for(
    done, tmp_path, monkeypatch
):
    asked_for = []

    def refuse(configs, folder, write_mechanisms):
        assert len(configs) == 9
        raise ValueError("a client is missing")

    def train_all(out, configs, training):
        asked_for.append((training.cluster, training.jobs))
        return {}

    monkeypatch.setattr(study_check, "check_runs", refuse)
    monkeypatch.setattr(study.sweep, "train_all", train_all)
    monkeypatch.setattr(
        study.sweep_folder, "state", lambda out, name: "finished" if done else "5 rounds done"
    )
    monkeypatch.setattr(study, "_data", lambda *_: pathlib.Path("data"))
    cluster = "ray://10.0.0.1:10001"
    request = Request(folder=tmp_path / "item", scale="tiny", jobs=7, cluster=cluster)
    # Runs that are all finished are read: there is none here.
    with pytest.raises(
        (ValueError, FileNotFoundError), match="config.json" if done else "a client is missing"
    ):
        study.run_study(stackoverflow.unnoised("tiny"), request)
    assert asked_for[:1] == [(cluster, 7)] * done


def priced(tmp_path, grid, **options):
    return study.cost_of(grid, Request(folder=tmp_path / "item", scale="full", **options))


def test_the_cost_of_a_study_follows_from_its_grid(tmp_path):
    """Denisov Fig. 2 has 4 * 120 settings, of which 40 are of two lines, and 4 * 5 best ones with
    ten seeds, all of 2048 rounds of 100.
    """
    cost = priced(tmp_path, stackoverflow.denisov("full"), test_sentences=100_000)
    assert (len(cost.tuning), len(cost.repeats)) == (440, 200)
    assert cost.clients == 640 * 2048 * 100
    validations = 103 + 1  # every 20 rounds and after the last, and for the result
    assert cost.examples == 640 * validations * 10_000 + 200 * 100_000
    assert cost.seconds == pytest.approx(cost.clients / 11 + cost.examples / 920)
    assert not cost.measured
    assert "about 147 days" in str(cost)
    # On 100 machines those that tune in 5 turns, then those that are reported in 2; on a thousand
    # no run is shorter than itself.
    tuned = 2048 * 100 / 11 + validations * 10_000 / 920
    reported = tuned + 100_000 / 920
    assert cost.seconds_on(100) == pytest.approx(4.4 * tuned + 2 * reported)
    assert cost.seconds_on(1000) == pytest.approx(tuned + reported)


@pytest.mark.slow
def test_the_table_in_the_docs_is_that_of_the_grids(tmp_path, monkeypatch):
    """Every figure that trains has its line: runs, days on two cores and on a cluster, data,
    and how many of its lines train at small scale.
    """
    monkeypatch.setattr(cifar, "best_stamps", lambda kind, size: 10)
    monkeypatch.setattr(cifar, "best_bands", lambda size, epsilon: (8, True))
    docs = pathlib.Path(__file__).parents[2] / "docs"
    stated = {}
    for line in (docs / "full_scale.md").read_text().splitlines():
        if line.startswith("### "):
            data = line.removeprefix("### ")
        cells = [cell.strip("` ") for cell in line.strip("|").split("|")]
        if cells[0] in ITEMS and len(cells) == 6:
            stated[cells[0]] = [data, *cells[1:]]

    @functools.cache
    def of(grid):
        made = grid("full")
        cost = priced(tmp_path, made)
        days = (cost.seconds_on(workers) / 86_400 for workers in (1, 10, 100))
        image = made.fixed.get("task") == "cifar10"
        lines = [len({line for line, _ in grid(scale).parts}) for scale in ("small", "full")]
        return (
            "CIFAR-10" if image else "StackOverflow",
            f"{len(cost.tuning)} + {len(cost.repeats)}",
            *(f"{day:.0f}" if day >= 2 else f"{day:.1f}" for day in days),
            f"{lines[0]} of {lines[1]}" if lines[0] < lines[1] else "all",
        )

    found = {}
    for name, item in ITEMS.items():
        if item.study is not None:
            found[name] = list(of(item.study))
    assert stated == found


def test_a_study_that_trains_already_tells_the_speed(tmp_path):
    grid = stackoverflow.unnoised("full")
    run = tmp_path / "sweeps" / "stackoverflow-unnoised-full" / "runs" / "one"
    run.mkdir(parents=True)
    rows = [{"round": t, "clients": 50} | ({"validation": {}} if t == 5 else {}) for t in range(12)]
    seconds = [60.0, *[2.5] * 4, 80.0, *[2.5] * 6]
    timings = [{"round": t, "seconds": s} for t, s in enumerate(seconds)]
    for name, lines in (("metrics", rows), ("timings", timings)):
        text = "".join(json.dumps(line) + "\n" for line in lines) + '{"rou'
        (run / f"{name}.jsonl").write_text(text)
    cost = priced(tmp_path, grid, jobs=2)
    assert cost.measured
    assert cost.clients_per_second == pytest.approx(2 * 50 / 2.5)
    assert cost.examples_per_second / 920 == pytest.approx(cost.clients_per_second / 11)
    (run / "timings.jsonl").write_text("")
    assert not priced(tmp_path, grid).measured


def test_a_limit_on_test_sentences_is_a_task_option(tmp_path):
    request = Request(
        folder=tmp_path / "item", scale="full", data=pathlib.Path("data"), test_sentences=5
    )
    targets = study._targets(stackoverflow.unnoised("full"), request, pathlib.Path("data"))
    limits = {
        c.task_options["test_sentences"] for named in targets.values() for c in named.values()
    }
    assert limits == {5}
    with refusal("'test-sentences' is none of the task cifar10"):
        study._targets(cifar.stamps("full"), request, pathlib.Path("data"))


def test_a_dry_run_is_refused_for_exact_items_and_without_data(tmp_path):
    out = f"--dry-run --out {tmp_path}"
    refused(f"paper run banded-app-k-1 {out}", "trains nothing")
    refused(f"paper run multi-epoch-figure-10 --scale full {out}", "name it in --data")
