"""Compiled client work has the same sum with any number of threads, and stops soon after Ctrl-C."""

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

from fedmf.tasks.stackoverflow import (
    StackOverflowOptions,
    stackoverflow_nwp,
    write_synthetic_corpus,
)
from fedmf.terminal import interrupts
from fedmf.training.execution.base import RunOptions
from fedmf.training.learner import Machine
from tests.federated.small_runs import config, small_task, start_of, train
from tests.refusals import refusal


def epoch_examples(count):
    """Returns one epoch of so many examples."""
    return [(np.ones((count, 5), np.int32),) * 2]


def trained_by(epoch):
    return small_task(compiled_epoch=lambda: epoch)


def test_clipped_updates_are_summed_in_the_cohort_s_order(sums_of):
    """The order holds also if the first client ends last: float64 sums depend on it."""
    shift = {1: 1.0} | dict.fromkeys(range(2, 9), 8e-18)
    settings = config(clip_norm=1.0)
    another_is_done = threading.Event()

    def epoch(weights, x, y, rate, update, wait):
        assert rate == settings.client_learning_rate
        if wait and len(x) == 1:
            another_is_done.wait(60)
        for leaf in update:
            leaf[...] = shift[len(x)]
        if len(x) > 1:
            another_is_done.set()
        return 0.5 * len(x)

    cohort = [*map(epoch_examples, shift), []]  # One update is not finite.
    sums = []
    for wait, threads in ((False, 1), (True, 4)):
        task = trained_by(functools.partial(epoch, wait=wait))
        another_is_done.clear()
        sums.append(sums_of(task, settings, 0, threads)(cohort))
    np.testing.assert_equal(*sums)
    assert (sums[0].loss_sum, sums[0].examples, sums[0].not_finite) == (18.0, 36, 1)
    assert (sums[0].clients, sums[0].clipped, sums[0].zeroed) == (9, 1, 1)
    longest = sum(map(np.size, start_of(small_task()))) ** -0.5
    for leaf in sums[0].values:
        np.testing.assert_allclose(leaf, longest, rtol=1e-5)


def test_as_many_clients_as_threads_train_in_parallel(sums_of):
    barrier = threading.Barrier(3)
    trained = []

    def epoch(weights, x, y, rate, update):
        # The barrier fails if fewer clients train at the same time.
        trained.append(barrier.wait(60))
        return 0.0

    sums_of(trained_by(epoch), config(), 0, threads=3)([epoch_examples(2)] * 3)
    assert sorted(trained) == [0, 1, 2]


def test_ctrl_c_stops_between_clients_and_waits_for_those_that_train(sums_of):
    started_clients = []
    ended_clients = []

    def epoch(weights, x, y, rate, update):
        started_clients.append(len(x))
        if len(x) == 1:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.1)
        ended_clients.append(len(x))
        return 0.0

    cohort = [epoch_examples(1), *[epoch_examples(2)] * 7]
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        sums_of(trained_by(epoch), config(), 0, threads=2)(cohort)
    assert 1 in started_clients
    assert len(started_clients) < len(cohort)
    assert sorted(started_clients) == sorted(ended_clients)


@pytest.mark.parametrize("threads", [0, 1.5])
def test_invalid_threads_are_refused(threads):
    with refusal(f"threads={threads!r}", (TypeError, ValueError)):
        RunOptions(threads=threads)


def test_without_a_compiler_the_keras_model_trains():
    task = small_task(compiled_epoch=lambda: None)
    settings = task.client_settings(config())
    learner = task.learner
    assert learner.work_kind(settings) == "autodiff"
    autodiff_settings = dataclasses.replace(settings, work_kind="autodiff")
    assert "install a C compiler, or name one in FEDMF_CC" in learner.slowness_warning(
        autodiff_settings
    )
    assert not small_task().learner.slowness_warning(autodiff_settings)
    with refusal("install a C compiler here too"):  # A worker may have no compiler.
        learner.client_work(dataclasses.replace(settings, work_kind="compiled"), Machine(threads=1))


def memory_in_use():
    """Returns the bytes in use, and not their peak, after freed memory has been returned."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells how much memory is in use")
def test_memory_does_not_grow(tmp_path):
    """The negative control keeps 4 KB of each update: 6 MB in 400 rounds."""
    corpus = tmp_path / "corpus.sqlite"
    write_synthetic_corpus(corpus, clients=12, seed=0, sentences_per_client=9, vocabulary_size=259)
    options = StackOverflowOptions(
        data=corpus, loss="masked", vocabulary_size=30, sequence_length=5, embedding_size=6,
        lstm_size=10, batch_size=4, validation_sentences=20, test_sentences=20, max_sentences=10,
    )  # fmt: skip
    in_use = []

    def look(t):
        if t in (99, 498):
            in_use.append(memory_in_use())

    settings = config(rounds=500, min_sep=3, evaluate_every=500)
    task = stackoverflow_nwp(options, progress=False)
    train(tmp_path / "run", settings, task, on_round=look)
    assert in_use[1] - in_use[0] <= 4 << 20
    grown = []
    small_blocks = []
    for _ in range(3):  # Other objects may be freed meanwhile.
        bytes_before = memory_in_use()
        small_blocks.append([bytes(4096) for _ in range(4 * 400)])
        grown.append(memory_in_use() - bytes_before)
    assert max(grown) > 4 << 20
