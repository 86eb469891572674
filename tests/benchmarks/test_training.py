"""The benchmarks of training rounds, at toy size."""

import json

import pytest

from benchmarks import adaptive, aggregator, canaries, gradients, simulation

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


@pytest.fixture
def bench(tmp_path, monkeypatch, capfd):
    """Returns a function that runs a benchmark program and returns its JSON."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def run(program, *arguments):
        program.main.main(["--small", *arguments, "--json"], standalone_mode=False)
        return json.loads(capfd.readouterr().out)

    return run


def test_cluster_and_stock_tff_rounds_have_equal_losses(bench):
    """The kind "cluster" trains in compiled C, as other kinds of rounds of fedmf's loop do.

    tests/federated/client_training compares all kinds of client work.
    """
    kinds = ["cluster", "stock"]
    words = [word for kind in kinds for word in ("--kind", kind)]
    rounds = bench(simulation, *words)["demo"]["2"]
    assert sorted(rounds) == kinds
    for rows in rounds.values():
        assert len(rows) == 3
        assert min(min(row["seconds"], row["peak"]) for row in rows) > 0
    # Equal cohorts, models and noise show that both kinds time the same training.
    losses = [[row["loss"] for row in rounds[kind]] for kind in kinds]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_every_way_to_compute_single_gradients_is_measured(bench):
    costs = bench(gradients)
    assert list(costs) == ["side by side", "loop", "batch", "TF Privacy"]
    assert all(len(rows) == 1 and min(rows[0]) > 0 for rows in costs.values())


def test_rounds_of_the_aggregator_and_of_the_plain_mean_are_measured(bench):
    results = bench(aggregator, "--passes", "1")
    kinds = ["plain mean", "blt, 4 buffers / precomputed", "blt, 4 buffers / graph"]
    assert list(results["rounds"]) == kinds
    assert all(len(seconds) == 1 and min(seconds) > 0 for seconds in results["rounds"].values())
    assert results["rows"][kinds[1]] > results["rows"][kinds[2]] == results["rows"][kinds[0]] == 0


def test_the_cost_of_canaries_is_printed(capfd):
    canaries.main.main(["--small", "--canaries", "3", "--rounds", "1"], standalone_mode=False)
    lines = capfd.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "a round of 2 clients", "along all directions", "a canary in the cohort",
    ]  # fmt: skip


def test_results_of_adaptive_optimizers_are_printed(capfd):
    words = "--task regression --rates 0.4 --seed 0 --way clip_quantile=0.5"
    adaptive.main.main(words.split(), standalone_mode=False)
    assert "clip_quantile=0.5" in capfd.readouterr().out


def test_the_stock_model_uses_the_layer_of_keras():
    import tensorflow as tf

    from benchmarks.clients import random_sentences

    fedmf_model, keras_model = (
        random_sentences("demo", 1, keras_lstm=is_keras).build_model(3)
        for is_keras in (False, True)
    )
    assert all(
        (fedmf_weight == keras_weight).all()
        for fedmf_weight, keras_weight in zip(
            fedmf_model.get_weights(), keras_model.get_weights(), strict=True
        )
    )
    changed_layers = [
        type(keras_layer)
        for fedmf_layer, keras_layer in zip(fedmf_model.layers, keras_model.layers, strict=True)
        if type(fedmf_layer) is not type(keras_layer)
    ]
    assert changed_layers == [tf.keras.layers.LSTM]
