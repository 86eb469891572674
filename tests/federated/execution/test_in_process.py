"""The fast execution with compiled client work: the same model as stock TFF, repeatable, resumable,
and quick to stop.
"""

import ctypes
import dataclasses
import functools
import gc
import os
import pathlib
import signal
import sys
import threading
import time

import numpy as np
import pytest

from fedmf.federated.execution.base import RunOptions
from fedmf.federated.execution.choice import build_execution
from fedmf.federated.execution.client_setup import ClientSetup
from fedmf.tasks.stackoverflow import (
    StackOverflowOptions,
    stackoverflow_nwp,
    write_synthetic_corpus,
)
from fedmf.terminal import interrupts
from tests.federated.small_runs import assert_close, config, small_task, start_of, train
from tests.refusals import refusal

SIZES = {
    "vocabulary_size": 30, "sequence_length": 5, "embedding_size": 6, "lstm_size": 10,
    "batch_size": 4, "validation_sentences": 20, "test_sentences": 20, "max_sentences": 10,
}  # fmt: skip


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    corpus = tmp_path_factory.mktemp("corpus") / "corpus.sqlite"
    write_synthetic_corpus(
        corpus, clients=12, seed=0, sentences_per_client=9.0, vocabulary_size=259
    )
    options = StackOverflowOptions(data=corpus, loss="masked", **SIZES)
    made = stackoverflow_nwp(options, progress=False)
    if made.compiled_epoch() is None:
        pytest.skip("no C compiler")
    return made


def run(task, settings, *, rounds=6, state=None, first=0, **options):
    """Weights and rows of metrics after some rounds, noise on; and the execution and its state."""
    plan = settings.plan()
    execution = build_execution(task, plan, settings, 9, options=RunOptions(**options))
    state = execution.init() if state is None else execution.from_leaves(state)
    rows = []
    for t in range(first, rounds):
        clients = [(3 * t + i) % len(task.client_ids) for i in range(4)]
        state, row = execution.next(
            state, [[task.client_examples(task.client_ids[c])] for c in clients]
        )
        rows.append(row)
    return execution.weights(state), rows, execution.leaves(state)


@pytest.mark.slow
def test_the_same_model_as_stock_tff(task):
    """tests/tasks/test_compiled.py has the other losses."""
    settings = {"client_learning_rate": 1.0, "zeroing_norm": 1.0}
    fast, rows, _ = run(task, config(**settings))
    stock, expected, _ = run(task, config("tff", **settings))
    assert 0 < sum(row["zeroed"] for row in rows) < 4 * len(rows)
    assert any(row["clip_fraction"] > 0 for row in rows)
    assert all(np.abs(a - b).max() > 0.05 for a, b in zip(fast, start_of(task), strict=True))
    assert_close(fast, stock, rtol=1e-7, atol=3e-6)  # float32, six rounds
    for one, other in zip(rows, expected, strict=True):
        assert one.pop("train_loss") == pytest.approx(other.pop("train_loss"), rel=1e-5)
        assert one == pytest.approx(other)


@pytest.mark.slow
def test_threads_change_no_bit_and_a_run_resumes(task):
    whole, rows, _ = run(task, config(), threads=1)
    _, before, state = run(task, config(), rounds=3, threads=3)
    parts, after, _ = run(task, config(), first=3, state=state, threads=3)
    assert before + after == rows
    np.testing.assert_equal(parts, whole)


def execution_of(epoch, **options):
    """A fast execution whose clients train by `epoch`, and its first state."""
    settings = config()
    with_epoch = small_task(compiled_epoch=lambda: epoch)
    execution = build_execution(
        with_epoch, settings.plan(), settings, 9, options=RunOptions(**options)
    )
    assert execution.client_work == "compiled"
    return execution, execution.init()


def test_updates_are_summed_in_the_cohort_s_order():
    """Clients that finish in another order: the sum of floats that depend on it is the same."""
    rng = np.random.default_rng(1)
    shift = {count: float(10.0 ** rng.uniform(-6, 0)) for count in range(1, 9)}

    def epoch(weights, x, y, rate, update, slow):
        time.sleep(0.05 * (len(x) % 3 if slow else 0))
        for part in update:
            part[...] = shift[len(x)]
        return 0.0

    cohort = [[(np.ones((count, 5), np.int32),) * 2] for count in shift]
    sums = []
    for slow, threads in ((False, 1), (True, 4)):
        execution, state = execution_of(functools.partial(epoch, slow=slow), threads=threads)
        sums.append(execution.weights(execution.next(state, cohort)[0]))
    np.testing.assert_equal(*sums)


def test_so_many_clients_train_side_by_side():
    together, trained = threading.Barrier(3), []

    def epoch(weights, x, y, rate, update):
        trained.append(together.wait(60))  # which fails where fewer are under way
        return 0.0

    execution, state = execution_of(epoch, threads=3)
    execution.next(state, [[(np.ones((2, 5), np.int32),) * 2]] * 3)
    assert sorted(trained) == [0, 1, 2]


def test_ctrl_c_stops_between_clients_and_waits_for_those_that_train():
    started, ended = [], []

    def epoch(weights, x, y, rate, update):
        started.append(len(x))
        if len(x) == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.1)
        ended.append(len(x))
        return 0.0

    execution, state = execution_of(epoch, threads=2)
    cohort = [[(np.ones((count, 5), np.int32),) * 2] for count in (1, 2, 2, 2, 2, 2, 2, 2)]
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        execution.next(state, cohort)
    assert 1 in started
    assert len(started) < len(cohort)
    assert sorted(started) == sorted(ended)
    # What was started before is over: the next round is undisturbed.
    assert execution.next(state, [])[1]["examples"] == 0


@pytest.mark.parametrize("threads", [0, 1.5, "2", True])
def test_options_are_checked(threads):
    with refusal(f"threads={threads!r}", (TypeError, ValueError)):
        RunOptions(threads=threads)


@pytest.mark.slow
@pytest.mark.usefixtures("clients_in_turn")
def test_without_a_compiler_the_keras_model_trains(task):
    without = dataclasses.replace(task, compiled_epoch=lambda: None)
    settings = config()
    execution = build_execution(without, settings.plan(), settings, 9)
    assert execution.client_work == "autodiff"
    assert "install a C compiler, or name one in FEDMF_CC" in execution.slow
    quiet = dataclasses.replace(task, compiled_epoch=None)
    assert not build_execution(quiet, settings.plan(), settings, 9).slow
    with refusal("install a C compiler here too"):  # as on a worker that has none
        ClientSetup(task=without, config=settings, kind="compiled").work(1)


def memory_in_use():
    """In bytes, and not the peak; what was freed is given back first, whatever other tests took."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells how much memory is in use")
def test_memory_does_not_grow(task, tmp_path):
    """Of `federated.train`. The control keeps 4 KB of each update: 6 MB in 400 rounds."""
    in_use = []

    def look(t):
        if t in (99, 498):
            in_use.append(memory_in_use())

    settings = config(rounds=500, min_sep=3, checkpoint_every=50, evaluate_every=500)
    train(tmp_path / "run", settings, task, on_round=look)
    assert in_use[1] - in_use[0] <= 4 << 20
    before = memory_in_use()
    kept = [bytes(4096) for _ in range(4 * 400)]
    assert memory_in_use() - before > 4 << 20
    assert len(kept) == 1600
