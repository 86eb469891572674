"""Precomputed noise: every noise strategy computes the same rows, resumes, and serves each round
with its row.
"""

import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import fedmf
from fedmf.mechanisms import DenseMechanism
from fedmf.noise import blocks, host_strategies, layout, storage
from fedmf.server.host_noise import HostNoise
from fedmf.server.source import CHUNK, GaussianSource
from tests.mechanisms.registry import every_form
from tests.server.plans import draws_of_host, plan_of

SIZE = 2 * CHUNK - 1
SEED = 5
# (strategy, whether its rows are in a memory map)
# Of 6 bands and 40 rounds: working memory of blocks of one round, or of all draws, and less than
# the rows themselves.
MEMORY = {
    "recurrent": 8 * 7 * CHUNK + 4 * SIZE * 5 - 1,
    "regenerated": 8 * (40 + 16) * CHUNK + 4 * SIZE - 1,
}
WAYS = [("recurrent", False), ("recurrent", True), ("regenerated", False), ("regenerated", True)]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Sets two tiles, the last one short."""
    monkeypatch.setattr(layout, "TILE", CHUNK)


def noise_of(mechanism, name=None, mapped=False, seed=SEED, **options):
    """Returns noise by this strategy, with memory for all rows, or with rows in a memory map."""
    if mapped:
        options["memory_bytes"] = MEMORY[name]
    noise = HostNoise(plan_of(mechanism), SIZE, noise_seed=seed, strategy=name, **options)
    assert (noise.strategy.disk > 0) == mapped
    return noise


def banded(rounds=40, bands=6):
    participation = fedmf.Participation(rounds=rounds, schema="single")
    return fedmf.fit(fedmf.prefix_sum(rounds), participation, family="banded", bands=bands)


def dense(rounds=300):
    matrix = np.tril(np.random.default_rng(1).uniform(0, 0.1, (rounds, rounds))) + np.eye(rounds)
    return DenseMechanism(matrix=matrix, certificate_reason="made for a test")


# All of 12 rounds are in one block; 32 rounds are in two blocks of 16, which mix draws without a
# state.
@every_form
@pytest.mark.parametrize("rounds", [1, 12, 32, 35])
def test_every_noise_strategy_computes_the_causal_rows(build, rounds):
    mechanism = build(rounds)
    L = mechanism.stream().causal().as_contraction().contraction
    Z = draws_of_host(SEED, rounds, SIZE)
    scale = np.abs(L).sum(axis=1, keepdims=True).max() * np.abs(Z).max()
    for name in ("recurrent", "regenerated"):
        noise = noise_of(mechanism, name)
        noise_rows = [noise.row(t) for t in range(rounds)]
        assert noise_rows[0].dtype == np.float32
        np.testing.assert_allclose(noise_rows, L @ Z, rtol=0, atol=1e-6 * scale, err_msg=name)


@pytest.mark.parametrize(("name", "mapped"), WAYS)
def test_rows_are_bitwise_identical_in_any_order_of_rounds(name, mapped):
    in_order = noise_of(banded(), name, mapped)
    jumping = noise_of(banded(), name, mapped)
    ordered_rows = [in_order.row(t) for t in range(40)]
    np.testing.assert_allclose(
        noise_of(banded(), name).row(39), ordered_rows[39], rtol=0, atol=3e-6
    )
    for t in (7, 7, 8, 39, 0, 21, 20):
        np.testing.assert_array_equal(jumping.row(t), ordered_rows[t])
    row = jumping.row(3)
    row[:] = 0
    np.testing.assert_array_equal(jumping.row(3), ordered_rows[3])


def work_of_rows(noise, monkeypatch):
    """Returns the numbers drawn, and the multiplications of products, for each row in order."""
    work = np.zeros((noise.rounds, 2))
    fill = GaussianSource.fill
    matmul = np.matmul

    def counted_fill(self, out, row, start=0):
        work[t, 0] += out.size
        fill(self, out, row, start)

    def counted_matmul(left, right, out):
        work[t, 1] += len(left) * right.size
        return matmul(left, right, out=out)

    with monkeypatch.context() as patch:
        patch.setattr(GaussianSource, "fill", counted_fill)
        patch.setattr(np, "matmul", counted_matmul)
        for t in range(noise.rounds):
            noise.row(t)
    return work


# With memory for all draws, and for few of them.
@pytest.mark.parametrize(
    ("name", "most_rows"), [("recurrent", 1000), ("regenerated", 1000), ("regenerated", 40)]
)
@every_form
def test_no_row_costs_more_than_four_times_the_mean(build, name, most_rows, monkeypatch):
    rounds = 64
    size = 32 * CHUNK
    memory = most_rows * 4 * size + 8 * 2 * (rounds + 128) * CHUNK
    monkeypatch.setattr(storage, "default_disk", lambda folder: 0)
    options = {"noise_seed": SEED, "strategy": name, "memory_bytes": memory}
    work = work_of_rows(HostNoise(plan_of(build(rounds)), size, **options), monkeypatch)
    assert work[:, 0].sum() >= rounds * size
    assert (work.max(axis=0) <= 4 * work.mean(axis=0)).all()


def test_whole_blocks_at_a_time_would_cost_more(monkeypatch):
    """This is the negative control of the test above."""
    monkeypatch.setattr(host_strategies, "growing_blocks", blocks.equal_blocks)
    noise = HostNoise(plan_of(banded(64)), 32 * CHUNK, noise_seed=SEED, strategy="recurrent")
    work = work_of_rows(noise, monkeypatch)
    assert (work.max(axis=0) > 4 * work.mean(axis=0)).all()


def test_two_threads_compute_the_bits_of_one(monkeypatch):
    """Each thread computes products that use one thread: with more threads their bits may depend on
    how many.
    """
    thread_rows = {}
    fill = GaussianSource.fill

    def limits():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    def record(self, *arguments):
        if id(self) not in thread_rows:
            barrier.wait(60)  # The other thread could otherwise find all tiles computed.
        thread_rows[id(self)] = limits(), threading.get_ident()
        fill(self, *arguments)

    monkeypatch.setattr(GaussianSource, "fill", record)
    row_by_threads = {}
    for threads in (1, 2):
        thread_rows.clear()
        barrier = threading.Barrier(threads)
        with threadpool_limits(threads):
            row_by_threads[threads] = noise_of(banded(), "recurrent").row(0)
            assert limits() == {threads}
        assert all(limit == {1} for limit, _ in thread_rows.values())
        assert len({ident for _, ident in thread_rows.values()}) == threads
    np.testing.assert_array_equal(row_by_threads[1], row_by_threads[2])


def test_interrupt_waits_for_the_other_thread(monkeypatch):
    """Otherwise it would write into the block that is computed next."""
    ended_threads = []
    fill = GaussianSource.fill

    def slow(self, out, row, start=0):
        if not start:
            raise KeyboardInterrupt
        time.sleep(0.3)
        fill(self, out, row, start)
        ended_threads.append(start)

    monkeypatch.setattr(GaussianSource, "fill", slow)
    with threadpool_limits(2), pytest.raises(KeyboardInterrupt):
        noise_of(banded(), "recurrent").row(0)
    assert ended_threads in ([], [CHUNK])
    ended_before = list(ended_threads)
    time.sleep(0.5)
    assert ended_threads == ended_before


def test_narrow_integers_are_valid_sizes():
    """With the bit of the clip norm, uint8 255 overflowed to 0: rows without an entry."""
    plan = plan_of(banded(), quantile_clipping=fedmf.QuantileClipping(every=np.uint8(1)))
    assert len(HostNoise(plan, np.uint8(255), noise_seed=SEED).row(0)) == 256


def test_rows_of_dense_mechanisms_do_not_depend_on_the_memory():
    whole_noise = noise_of(dense(), "regenerated")
    assert whole_noise.strategy.layout.stored_draws == whole_noise.strategy.bounds[-2]
    rows = [whole_noise.row(t) for t in range(300)]
    scratch = 8 * (300 + whole_noise.strategy.product_rows) * CHUNK
    partitions = set()
    for room in (290, 150, 40):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(storage, "default_disk", lambda folder: 0)
            noise = noise_of(dense(), "regenerated", memory_bytes=room * 4 * SIZE + scratch)
        partitions.add((noise.strategy.length, noise.strategy.layout.stored_draws))
        for t in (0, 100, 127, 128, 299, 5, 257, 256):
            np.testing.assert_array_equal(noise.row(t), rows[t], err_msg=str(t))
    assert len(partitions) == 3


@pytest.mark.parametrize("name", ["recurrent", "regenerated"])
class TestTheMemoryMap:
    """Tests of rows in a private file: nothing of it outlives the process, and no unfinished block
    is read.
    """

    def test_memory_map_has_no_name_and_is_in_the_folder(self, tmp_path, name):
        noise = noise_of(banded(), name, mapped=True, folder=tmp_path / "private")
        noise.row(39)
        assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700
        assert list((tmp_path / "private").iterdir()) == []
        assert str(tmp_path / "private") in pathlib.Path("/proc/self/maps").read_text()

    @pytest.mark.slow
    def test_kill_within_a_block_leaves_no_file(self, tmp_path, name):
        """The next process computes the same rows from the source, because no unfinished file is
        there to read.
        """
        program = f"""
import os, signal
from tests.server.test_host_noise import *
layout.TILE = 1024
whole, dying = (noise_of(banded(), {name!r}, mapped=True, folder={str(tmp_path)!r}) for _ in "12")
print(*whole.row(39).tolist(), flush=True)
fill = GaussianSource.fill
GaussianSource.fill = lambda self, out, row, start=0: (
    os.kill(os.getpid(), signal.SIGKILL) if start else fill(self, out, row))
dying.row(39)
"""
        killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert list(tmp_path.iterdir()) == []
        restarted_noise = noise_of(banded(), name, mapped=True, folder=tmp_path)
        np.testing.assert_array_equal(
            restarted_noise.row(39), np.array(killed.stdout.split(), np.float32)
        )

    @pytest.mark.parametrize("mapped", [False, True])
    def test_interrupted_block_is_computed_again(self, name, mapped, monkeypatch):
        """Ctrl-C within a block leaves it unfinished, and no row of it is returned."""
        expected_rows = [noise_of(banded(), name, mapped).row(t) for t in (39, 0)]
        noise = noise_of(banded(), name, mapped)
        fill = GaussianSource.fill
        if name == "recurrent":
            noise.row(0)

        def interrupted(self, out, row, start=0):
            if start:
                raise KeyboardInterrupt
            fill(self, out, row)

        with monkeypatch.context() as patch:
            patch.setattr(GaussianSource, "fill", interrupted)
            with pytest.raises(KeyboardInterrupt):
                noise.row(39)
        np.testing.assert_array_equal([noise.row(t) for t in (39, 0)], expected_rows)

    @pytest.mark.parametrize("mapped", [False, True])
    def test_thread_left_by_a_second_interrupt_changes_no_row(self, name, mapped, monkeypatch):
        """The thread writes its tile after the next attempt has computed the block of that tile."""
        if name == "regenerated":
            pytest.skip("it has no threads")
        whole_noise, noise = (noise_of(banded(), name, mapped) for _ in range(2))
        expected = [whole_noise.row(t) for t in range(40)]
        length = noise.strategy.length
        fill = GaussianSource.fill
        is_inside = threading.Event()
        go_on = threading.Event()
        late = []

        def slow(self, out, row, start=0):
            if start:
                late.append(threading.current_thread())
                is_inside.set()
                assert go_on.wait(30)
            fill(self, out, row, start)
            out += 1

        def first_interrupt(self):
            assert is_inside.wait(30)
            raise KeyboardInterrupt

        def second_interrupt(self, **options):
            raise KeyboardInterrupt

        def after_a_block(self, out, row, start=0):
            if row >= length and not go_on.is_set():
                go_on.set()
                for thread in late:
                    thread.join()
            fill(self, out, row, start)

        with monkeypatch.context() as patch:
            patch.setattr(GaussianSource, "fill", slow)
            patch.setattr(concurrent.futures.Future, "result", first_interrupt)
            patch.setattr(concurrent.futures.ThreadPoolExecutor, "shutdown", second_interrupt)
            with threadpool_limits(2), pytest.raises(KeyboardInterrupt):
                noise.row(0)
        monkeypatch.setattr(GaussianSource, "fill", after_a_block)
        np.testing.assert_array_equal([noise.row(t) for t in range(40)], expected)
        assert go_on.is_set()
        assert len(late) == 1

    def test_full_disk_is_refused_before_the_run(self, name, monkeypatch):
        def full(descriptor, offset, size):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space left"):
            noise_of(banded(), name, mapped=True)
