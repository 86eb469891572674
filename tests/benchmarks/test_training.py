"""The benchmarks of training rounds, at toy size."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.simulation import KINDS

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def bench(module, tmp_path, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", "--small", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_rounds_of_all_kinds_train_alike(tmp_path):
    rounds = bench("simulation", tmp_path, *(word for kind in KINDS for word in ("--kind", kind)))[
        "demo"
    ]["2"]
    assert list(rounds) == list(KINDS)
    for rows in rounds.values():
        assert len(rows) == 3
        assert min(min(row["seconds"], row["peak"]) for row in rows) > 0
        # The same cohorts, models and noise: what is timed side by side is the same training.
        assert [row["loss"] for row in rows] == pytest.approx(
            [row["loss"] for row in rounds["stock"]], rel=1e-4
        )


def test_single_gradients_of_all_ways(tmp_path):
    costs = bench("gradients", tmp_path)
    assert list(costs) == ["side by side", "loop", "batch", "TF Privacy"]
    assert all(len(rows) == 1 and min(rows[0]) > 0 for rows in costs.values())


def test_the_aggregators_rounds_stand_beside_the_plain_means(tmp_path):
    results = bench("aggregator", tmp_path, "--passes", "2")
    kinds = ["plain mean", "blt, 4 buffers / precomputed", "blt, 4 buffers / graph"]
    assert list(results["rounds"]) == kinds
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in results["rounds"].values())
    assert results["rows"][kinds[1]] > results["rows"][kinds[2]] == results["rows"][kinds[0]] == 0


def test_stock_is_keras_own_layer():
    import tensorflow as tf

    from benchmarks.clients import random_sentences

    ours, keras = (
        random_sentences("demo", 1, keras_lstm=own).build_model(3) for own in (False, True)
    )
    assert all(
        (one == other).all()
        for one, other in zip(ours.get_weights(), keras.get_weights(), strict=True)
    )
    changed = [
        type(new)
        for old, new in zip(ours.layers, keras.layers, strict=True)
        if type(old) is not type(new)
    ]
    assert changed == [tf.keras.layers.LSTM]
