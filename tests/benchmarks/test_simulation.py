import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]


def test_rounds_of_all_kinds_are_measured_and_train_alike(tmp_path):
    from fedmf.federated.execution import c_library

    if c_library.compiler() is None:
        pytest.skip("no C compiler")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulation", "--small", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]  # checkpoints of the published model are 100 MB
    found = json.loads(done.stdout)
    assert len(found["numpy"]["2"]) == 4
    assert min(found["numpy"]["2"]) > 1e9
    costs = found["clients"]["2"]
    assert list(costs) == ["compiled", "differentiated", "tff", "stock"]
    for cost in costs.values():
        assert min(*cost["seconds"], *cost["cpu"], cost["first"], cost["peak"]) > 0
        # The same cohorts, models and noise: what is timed side by side is the same training.
        assert cost["loss"] == pytest.approx(costs["tff"]["loss"], rel=1e-4)
        assert len(cost["loss"]) == 3
        assert len(cost["seconds"]) == 1
    parts = costs["compiled"]["parts"]
    assert min(parts.values()) > 0
    assert parts["of which clip and sum"] < parts["clients"] < sum(costs["compiled"]["seconds"])


def test_stock_is_keras_own_layer():
    import tensorflow as tf

    from benchmarks.next_word_clients import random_sentences

    ours, keras = (
        random_sentences("demo", 1, "zipf", keras_lstm=keras_lstm).build_model(3) for keras_lstm in (False, True)
    )
    assert all((one == other).all() for one, other in zip(ours.get_weights(), keras.get_weights(), strict=True))
    changed = [type(new) for old, new in zip(ours.layers, keras.layers, strict=True) if type(old) is not type(new)]
    assert changed == [tf.keras.layers.LSTM]


def test_operations_are_those_of_the_products():
    """By hand, for the published model: 64 sentences of 20 words, each product forward and twice backward."""
    from benchmarks.next_word_clients import every_position, operations

    steps = 64 * 19 * 670 * 2680  # from state to state
    words = 64 * 20 * (96 * 2680 + 670 * 96 + 96 * 10004)
    assert operations("full", every_position("full")) == pytest.approx(6 * (steps + words))
    assert round(operations("full", every_position("full")) / 1e9, 1) == 22.9  # docs/simulation.md


def test_what_sentences_share_is_counted_once():
    import numpy as np

    from benchmarks.next_word_clients import distinct_positions, every_position, sentences

    # Beginnings: 1; 1 2, 1 3; 1 2 3, 1 2 4, 1 3 3. Words: 1, 2, 3, 4.
    found = distinct_positions(np.array([[1, 2, 3], [1, 2, 4], [1, 3, 3], [1, 2, 3]]))
    assert (found.all, found.followed, found.words) == (6, 3, 4)
    two_batches = distinct_positions(np.tile([1, 2, 3], (20, 1)))
    assert (two_batches.all, two_batches.followed, two_batches.words) == (6, 4, 6)
    every = every_position("full")
    for law, all_start_alike in (("zipf", True), ("uniform", False)):
        words = sentences("full", law, 0)
        assert words.shape == (64, 21)
        assert (len(set(words[:, 0])) == 1) == all_start_alike
        found = distinct_positions(words[:, :-1])
        assert found.words < found.all < every.all + 1
    assert found.all > every.all - 64  # uniform words have next to nothing in common


def test_what_does_not_fit_the_memory_is_left_out():
    import pathlib

    from benchmarks.simulation import missing_memory

    if not pathlib.Path("/proc/meminfo").exists():
        pytest.skip("the system does not tell")
    assert missing_memory(10**6).startswith("TFF is left out: 1000000 clients would take some 45005 GB and ")
