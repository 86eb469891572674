"""Noise made by the host: every strategy writes the same rows, resumes, and reaches the graph in its own round only."""

import collections
import os
import pathlib
import signal
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedmf
from fedmf import federated
from fedmf.federated.noise import host
from fedmf.federated.noise.source import gaussian_source
from fedmf.mechanisms import DenseMechanism
from fedmf.noise import strategies
from fedmf.noise.strategies import ROWS_TOGETHER
from fedmf.terminal import progress_bar
from tests.federated.plans import plan_of
from tests.mechanisms.registry import every_form

pytestmark = pytest.mark.tensorflow
SIZE, SEED = 37, 5
# (strategy, whether its rows are in a memory map)
# Of 6 bands and 40 rounds: working arrays of blocks of one round, or of the whole run, and one byte less than the rows themselves.
MEMORY = {"recurrent": 8 * 6 * 16 + 4 * SIZE * 5 - 1, "regenerated": 4 * (40 + ROWS_TOGETHER) * 16 + 4 * SIZE - 1}
WAYS = [("recurrent", False), ("recurrent", True), ("regenerated", False), ("regenerated", True)]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles, the last one short, for a model of 37 parameters."""
    for module in (host, strategies):
        monkeypatch.setattr(module, "TILE", 16)


def noise_of(mechanism, name=None, mapped=False, seed=SEED, **options):
    """The strategy of that name with all the room that it wants, or with memory for the working arrays of `banded()` only."""
    if mapped:
        options["memory_bytes"] = MEMORY[name]
    noise = federated.HostNoise(plan_of(mechanism), SIZE, noise_seed=seed, strategy=name, **options)
    assert (noise.strategy.disk > 0) == mapped
    return noise


def banded(rounds=40, bands=6):
    participation = fedmf.Participation(rounds=rounds, schema="single")
    return fedmf.fit(fedmf.prefix_sum(rounds), participation, family="banded", bands=bands)


def dense(rounds=300):
    matrix = np.tril(np.random.default_rng(1).uniform(0, 0.1, (rounds, rounds))) + np.eye(rounds)
    return DenseMechanism(matrix=matrix, certificate_reason="made for a test")


@every_form
@pytest.mark.parametrize("rounds", [1, 35])
def test_every_strategy_writes_the_causal_rows(build, rounds):
    mechanism = build(rounds)
    L, draw = mechanism.stream().causal().as_contraction().contraction, gaussian_source(SEED, SIZE)
    Z = np.stack([draw(i).numpy() for i in range(rounds)]).astype(np.float64)
    scale = np.abs(L).sum(axis=1, keepdims=True).max() * np.abs(Z).max()
    for name in ("recurrent", "regenerated"):
        noise = noise_of(mechanism, name)
        out = [noise.row(t) for t in range(rounds)]
        assert out[0].dtype == np.float32
        np.testing.assert_allclose(out, L @ Z, rtol=0, atol=1e-6 * scale, err_msg=name)


@pytest.mark.parametrize(("name", "mapped"), WAYS)
def test_any_round_at_any_time_gives_the_same_bits(name, mapped):
    in_order, jumping = noise_of(banded(), name, mapped), noise_of(banded(), name, mapped)
    whole = [in_order.row(t) for t in range(40)]
    np.testing.assert_allclose(noise_of(banded(), name).row(39), whole[39], rtol=0, atol=3e-6)
    for t in (7, 7, 8, 39, 0, 21, 20):
        np.testing.assert_array_equal(jumping.row(t), whole[t])
    row = jumping.row(3)
    row[:] = 0
    np.testing.assert_array_equal(jumping.row(3), whole[3])


def test_no_bit_of_a_dense_mechanism_depends_on_the_room():
    whole = noise_of(dense(), "regenerated")
    assert whole.strategy.length == 300
    rows, scratch = [whole.row(t) for t in range(300)], 4 * (300 + ROWS_TOGETHER) * 16
    for room, length in ((200, 128), (299, 256)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(strategies, "default_disk", lambda folder: 0)
            noise = noise_of(dense(), "regenerated", memory_bytes=room * 4 * SIZE + scratch)
        assert noise.strategy.length == length
        for t in (0, 100, 127, 128, 299, 5, 257, 256):
            np.testing.assert_array_equal(noise.row(t), rows[t], err_msg=str(t))


@pytest.mark.parametrize("name", ["recurrent", "regenerated"])
class TestTheMemoryMap:
    """Rows in a private file: nothing of it outlives the process, and no half of a block is read."""

    def test_it_has_no_name_and_is_in_the_folder(self, tmp_path, name):
        noise = noise_of(banded(), name, mapped=True, folder=tmp_path / "private")
        noise.row(39)
        assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700
        assert list((tmp_path / "private").iterdir()) == []
        assert str(tmp_path / "private") in pathlib.Path("/proc/self/maps").read_text()

    @pytest.mark.slow
    def test_kill_9_in_the_middle_of_a_block(self, tmp_path, name):
        """The next process makes the same rows, from the source: nothing half written is there to read."""
        program = f"""
import os, signal
from fedmf.federated.noise import host
from fedmf.noise import strategies
from tests.federated.noise.test_host import banded, noise_of
host.TILE = strategies.TILE = 16
noise, draw = noise_of(banded(), {name!r}, mapped=True, folder={str(tmp_path)!r}), host._Tiles.draw
print(*noise.row(0).tolist(), flush=True)
def dying(self, first, count, tile, out):
    if tile.start == 16:
        os.kill(os.getpid(), signal.SIGKILL)
    draw(self, first, count, tile, out)
host._Tiles.draw = dying
noise._maker._made = range(0)
noise.row(39)
"""
        killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert list(tmp_path.iterdir()) == []
        again = noise_of(banded(), name, mapped=True, folder=tmp_path)
        np.testing.assert_array_equal(again.row(0), np.array(killed.stdout.split(), np.float32))

    @pytest.mark.parametrize("mapped", [False, True])
    def test_an_interrupted_block_is_made_again(self, name, mapped, monkeypatch):
        """Ctrl-C in the middle of a block leaves it half written: none of it is taken for a round's noise."""
        whole = [noise_of(banded(), name, mapped).row(t) for t in (0, 39)]
        noise, draw = noise_of(banded(), name, mapped), host._Tiles.draw
        if name == "recurrent":
            noise.row(0)

        def interrupted(self, first, count, tile, out):
            if tile.start == 16:
                raise KeyboardInterrupt
            draw(self, first, count, tile, out)

        for t, expected in zip((39, 0), whole[::-1], strict=True):
            with monkeypatch.context() as patch:
                patch.setattr(host._Tiles, "draw", interrupted)
                if t:
                    with pytest.raises(KeyboardInterrupt):
                        noise.row(t)
            np.testing.assert_array_equal(noise.row(t), expected)

    def test_a_disk_without_room_is_refused_before_the_run(self, name, monkeypatch):
        def full(descriptor, offset, size):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space left"):
            noise_of(banded(), name, mapped=True)


def test_a_bar_for_those_who_ask(monkeypatch, capsys):
    bar = progress_bar.bar
    monkeypatch.setattr(progress_bar, "bar", lambda *args, **options: bar(*args, **options | {"delay": 0}))
    noise = noise_of(banded(), "recurrent", mapped=True)
    noise.row(0)
    assert "tile" not in capsys.readouterr().err
    noise.show_progress()
    noise.row(39)
    assert "noise:" in capsys.readouterr().err


class TestHandingIn:
    TYPE: ClassVar = tff.to_type(
        collections.OrderedDict(w=tff.TensorType(np.float32, [5, 7]), b=tff.TensorType(np.float32, [2]))
    )
    ZERO: ClassVar = collections.OrderedDict(w=np.zeros([5, 7], np.float32), b=np.zeros(2, np.float32))

    def process(self, plan, seed=SEED, strategy="precomputed"):
        factory = federated.dp_aggregator(plan, clients_per_round=2, noise_seed=seed, noise_strategy=strategy)
        return factory.create(self.TYPE)

    def test_in_a_tff_process(self):
        plan = plan_of(banded(rounds=5, bands=3))
        process = self.process(plan, seed="os")
        state = process.initialize()
        noise = federated.HostNoise.for_state(plan, state)
        for t in range(5):
            output = process.next(noise.hand_in(state), [self.ZERO, self.ZERO])
            flat = np.concatenate([np.ravel(output.result["w"]), np.ravel(output.result["b"])])
            sorted_by_name = np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(output.result)])
            expected = noise.row(t) * np.float32(plan.stddev) / 2
            assert any(np.allclose(found, expected, rtol=0, atol=1e-6) for found in (flat, sorted_by_name))
            if t == 3:
                with pytest.raises(Exception, match="no noise was handed in"):
                    process.next(output.state, [self.ZERO])
            state = output.state

    def test_refusals(self):
        plan = plan_of(banded(rounds=5, bands=3))
        state = self.process(plan).initialize()
        noise = federated.HostNoise.for_state(plan, state)
        with pytest.raises(ValueError, match="another noise seed"):
            federated.HostNoise(plan, SIZE, noise_seed=SEED + 1).hand_in(state)
        other = plan_of(banded(rounds=5, bands=2))
        for mixed in (
            federated.HostNoise.for_state(other, state),
            federated.HostNoise(other, SIZE, key=noise._key),
        ):
            with pytest.raises(ValueError, match="made with another plan"):
                mixed.hand_in(state)
        with pytest.raises(ValueError, match="holds 0 NoiseStates"):
            noise.hand_in({"weights": [1.0]})
        with pytest.raises(ValueError, match="holds 2 NoiseStates"):
            noise.hand_in([state, state])
        for mechanism in (banded(rounds=5, bands=3), banded(rounds=5, bands=2)):  # two rows in the state, and one
            plan = plan_of(mechanism)
            in_graph = self.process(plan, strategy="recurrent").initialize()
            with pytest.raises(ValueError, match="noise_strategy='precomputed'"):
                federated.HostNoise.for_state(plan, in_graph).hand_in(in_graph)
        with pytest.raises(ValueError, match="noise_seed and key: give exactly one"):
            federated.HostNoise(plan, SIZE)
        with pytest.raises(ValueError, match="use HostNoise.for_state"):
            federated.HostNoise(plan, SIZE, noise_seed="os")
        with pytest.raises(TypeError, match="plan=None"):
            federated.HostNoise(None, SIZE, noise_seed=1)
        with pytest.raises(ValueError, match="planned for rounds=5"):
            noise.row(5)
