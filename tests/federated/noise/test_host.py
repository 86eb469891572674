"""Noise made by the host: every strategy writes the same rows, resumes, and reaches the graph in its own round only."""

import collections
import json
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
from fedmf.federated.noise.rows import NoiseRows
from fedmf.federated.noise.source import gaussian_source
from fedmf.mechanisms import BandedMechanism, DenseMechanism
from fedmf.noise.strategies import NOISE_FILE, ROWS_TOGETHER, choose_host_strategy, room_for_noise
from fedmf.terminal import progress_bar
from tests.mechanisms.registry import every_form

pytestmark = pytest.mark.tensorflow
SIZE, SEED = 37, 5


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Several tiles, the last one short, for a model of 37 parameters."""
    for module in ("fedmf.federated.noise.host", "fedmf.federated.noise.file"):
        monkeypatch.setattr(f"{module}.TILE", 16)


def plan_of(mechanism):
    participation = fedmf.Participation(rounds=mechanism.rounds, schema="min_sep", min_sep=min(3, mechanism.rounds))
    return fedmf.Plan(mechanism=mechanism, participation=participation, noise_multiplier=1.0, clip_norm=1.0, delta=1e-6)


def possible(mechanism):
    names = []
    for name in ("recurrent", "regenerated", "spilled"):
        try:
            choose_host_strategy(mechanism.stream().causal(), SIZE, name=name)
        except ValueError:
            continue
        names.append(name)
    return names


def banded(rounds=40, bands=6):
    return fedmf.fit(
        fedmf.prefix_sum(rounds),
        fedmf.Participation(rounds=rounds, schema="single"),
        family="banded",
        bands=bands,
    )


@every_form
@pytest.mark.parametrize("rounds", [1, 35])
def test_every_strategy_writes_the_causal_rows(build, rounds, monkeypatch):
    mechanism = build(rounds)
    plan = plan_of(mechanism)
    L, draw = mechanism.stream().causal().as_contraction().contraction, gaussian_source(SEED, SIZE)
    Z = np.stack([draw(i).numpy() for i in range(rounds)]).astype(np.float64)
    scale = np.abs(L).sum(axis=1, keepdims=True).max() * np.abs(Z).max()
    for name in possible(mechanism):
        for memory in (None, 4 * 6 * SIZE + 4 * (rounds + ROWS_TOGETHER) * SIZE) if name == "regenerated" else (None,):
            noise = federated.HostNoise(plan, SIZE, noise_seed=SEED, strategy=name, memory_bytes=memory)
            if rounds > 6 and memory:
                assert noise.strategy.length < rounds
            out = np.stack([noise.row(t) for t in range(rounds)])
            assert out.dtype == np.float32
            np.testing.assert_allclose(out, L @ Z, rtol=0, atol=1e-6 * scale, err_msg=name)


def test_the_rows_are_those_of_the_graph():
    mechanism = banded()
    rows = NoiseRows(stream=mechanism.stream(), size=SIZE, noise_seed=SEED)
    state, graph = rows.initial_state(), []
    for _ in range(40):
        row, state = rows.next(state)
        graph.append(row.numpy())
    host = federated.HostNoise(plan_of(mechanism), SIZE, noise_seed=SEED)
    np.testing.assert_allclose([host.row(t) for t in range(40)], graph, rtol=0, atol=3e-6)
    other = federated.HostNoise(plan_of(mechanism), SIZE, noise_seed=SEED + 1)
    assert np.abs(other.row(0) - graph[0]).max() > 0.1


@pytest.mark.parametrize("strategy", ["recurrent", "regenerated", "spilled"])
def test_any_round_at_any_time_gives_the_same_bits(strategy):
    plan = plan_of(banded())

    def make():
        return federated.HostNoise(plan, SIZE, noise_seed=SEED, strategy=strategy)

    in_order, jumping = make(), make()
    whole = [in_order.row(t) for t in range(40)]
    for t in (7, 7, 8, 39, 0, 21, 20):
        np.testing.assert_array_equal(jumping.row(t), whole[t])
    row = jumping.row(3)
    row[:] = 0
    np.testing.assert_array_equal(jumping.row(3), whole[3])


@pytest.mark.parametrize("strategy", ["recurrent", "regenerated", "spilled"])
@pytest.mark.parametrize("stop", [1, 7, 16, 32, 33])
def test_a_snapshot_goes_on_bit_for_bit(strategy, stop, monkeypatch):
    plan = plan_of(banded())
    first = federated.HostNoise(plan, SIZE, noise_seed=SEED, strategy=strategy)
    whole = np.stack([first.row(t) for t in range(40)])
    stopped = federated.HostNoise(plan, SIZE, noise_seed=SEED, strategy=strategy)
    for t in range(stop):
        stopped.row(t)
    kept = [np.array(leaf) for leaf in stopped.snapshot()]
    again = federated.HostNoise(plan, SIZE, noise_seed=SEED, strategy=strategy)
    assert again.restore(kept)
    np.testing.assert_array_equal([again.row(t) for t in range(stop, 40)], whole[stop:])
    if strategy == "recurrent":
        other = federated.HostNoise(plan, SIZE, noise_seed=SEED, strategy="regenerated")
        assert not other.restore(kept)
        np.testing.assert_allclose(other.row(stop), whole[stop], rtol=0, atol=3e-6)
        resumed = federated.HostNoise(plan, SIZE, noise_seed=SEED, strategy="recurrent")
        assert resumed.restore(kept)
        drawn = []
        monkeypatch.setattr(
            host._Tiles, "draw", lambda self, first, count, tile, out: drawn.append(first) or out.fill(0)
        )
        resumed.row(stop)
        assert min(drawn) == kept[0][0] * kept[0][1]  # nothing before the block was made again


class TestADenseMechanism:
    """Rows that are contracted from all draws: how many at a time is a matter of room, and changes nothing."""

    ROUNDS = 300

    def make(self, **options):
        matrix = np.tril(np.random.default_rng(1).uniform(0, 0.1, (self.ROUNDS, self.ROUNDS))) + np.eye(self.ROUNDS)
        mechanism = DenseMechanism(matrix=matrix, certificate_reason="made for a test")
        return federated.HostNoise(plan_of(mechanism), SIZE, noise_seed=SEED, **options)

    def test_no_bit_depends_on_the_room(self):
        row = 4 * SIZE
        whole = self.make(strategy="spilled")
        assert whole.strategy.length == self.ROUNDS
        rows = [whole.row(t) for t in range(self.ROUNDS)]
        tight = 4 * (self.ROUNDS + ROWS_TOGETHER) * SIZE
        others = [
            self.make(strategy="spilled", disk_bytes=150 * row),
            self.make(strategy="spilled", disk_bytes=260 * row),
            self.make(strategy="regenerated"),
            self.make(strategy="regenerated", memory_bytes=200 * row + tight),
        ]
        assert [noise.strategy.length for noise in others] == [128, 256, self.ROUNDS, 128]
        for noise in others:
            for t in (0, 100, 127, 128, 299, 5, 257, 256):
                np.testing.assert_array_equal(noise.row(t), rows[t], err_msg=str(t))

    def test_unasked_a_file_takes_two_thirds_of_the_free_disk(self, tmp_path, monkeypatch):
        usage = collections.namedtuple("usage", "total used free")
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage(0, 0, 3000))
        assert room_for_noise(tmp_path / "not" / "there") == 2000
        (tmp_path / NOISE_FILE).write_bytes(bytes(8192))  # an older file makes way
        assert room_for_noise(tmp_path) == (3000 + (tmp_path / NOISE_FILE).stat().st_blocks * 512) * 2 // 3
        asked = []
        monkeypatch.setattr(host, "room_for_noise", lambda folder: asked.append(folder) or 260 * 4 * SIZE)
        assert self.make(strategy="regenerated", folder=tmp_path).strategy.disk == 0
        assert asked == [tmp_path]


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
        with pytest.raises(ValueError, match="noise_strategy='precomputed'"):
            noise.hand_in(self.process(plan, strategy="regenerated").initialize())
        with pytest.raises(ValueError, match="noise_seed and key: give exactly one"):
            federated.HostNoise(plan, SIZE)
        with pytest.raises(ValueError, match="use HostNoise.for_state"):
            federated.HostNoise(plan, SIZE, noise_seed="os")
        with pytest.raises(TypeError, match="plan=None"):
            federated.HostNoise(None, SIZE, noise_seed=1)
        with pytest.raises(ValueError, match="planned for rounds=5"):
            noise.row(5)


def ill_conditioned(below=1.9, rounds=32):
    """N has entries of 1.9^32: rounded to float32, it is the noise of an encoder of 20 times the sensitivity."""
    C = np.tril(np.full((rounds, rounds), 0.01)) + np.eye(rounds) + below * np.eye(rounds, k=-1)
    return DenseMechanism(matrix=C)


def test_noise_that_float32_does_not_hold_is_refused():
    words = "too ill-conditioned for float32, in which its noise is made"
    with pytest.raises(ValueError, match=words):
        federated.HostNoise(plan_of(ill_conditioned()), SIZE, noise_seed=SEED)
    with pytest.raises(ValueError, match=words):
        NoiseRows(stream=ill_conditioned().stream(), size=SIZE, noise_seed=SEED, strategy="regenerated")
    for strategy in ("regenerated", None):
        federated.HostNoise(plan_of(ill_conditioned(below=0.9)), SIZE, noise_seed=SEED, strategy=strategy)


@pytest.mark.parametrize("strategy", ["recurrent", "regenerated", "spilled"])
def test_recurrences_that_float32_does_not_hold_are_refused(strategy):
    def two_bands(below):
        diagonals = np.array([[1.0, 0.0]] + [[1.0, below]] * 35)
        return plan_of(BandedMechanism(diagonals=diagonals))

    with pytest.raises(ValueError, match="too ill-conditioned for float32"):
        federated.HostNoise(two_bands(2.0), SIZE, noise_seed=SEED, strategy=strategy)
    federated.HostNoise(two_bands(0.9), SIZE, noise_seed=SEED, strategy=strategy)
    if strategy != "spilled":
        stream = two_bands(2.0).mechanism.stream()
        with pytest.raises(ValueError, match="too ill-conditioned for float32"):
            NoiseRows(stream=stream, size=SIZE, noise_seed=SEED, strategy=strategy)


class TestTheFile:
    """Spilled noise: what a crash, another run's file or a damaged disk does to it."""

    def make(self, folder, seed=SEED, bands=6, disk_bytes=None):
        plan = plan_of(banded(bands=bands))
        return federated.HostNoise(
            plan, SIZE, noise_seed=seed, strategy="spilled", folder=folder, disk_bytes=disk_bytes
        )

    @pytest.fixture
    def whole(self):
        noise = self.make(None)
        return np.stack([noise.row(t) for t in range(40)])

    def count_draws(self, monkeypatch):
        drawn = []
        draw = host._Tiles.draw
        monkeypatch.setattr(
            host._Tiles,
            "draw",
            lambda self, first, count, tile, out: drawn.append(first) or draw(self, first, count, tile, out),
        )
        return drawn

    def test_is_private_and_goes_on_where_it_was(self, tmp_path, whole, monkeypatch):
        first = self.make(tmp_path / "private")
        for t in range(30):
            first.row(t)
        assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700
        for path in (tmp_path / "private").iterdir():
            assert path.stat().st_mode & 0o777 == 0o600
        drawn = self.count_draws(monkeypatch)
        again = self.make(tmp_path / "private")
        np.testing.assert_array_equal([again.row(t) for t in range(28, 40)], whole[28:])
        assert min(drawn) >= 27  # the check of the last block, and what comes after it

    def test_the_later_of_two_has_the_file(self, tmp_path, whole):
        first = self.make(tmp_path, seed=SEED + 1)
        first.row(8)
        later = self.make(tmp_path)
        with pytest.raises(ValueError, match=r"taken over by a later HostNoise of this process"):
            [first.row(t) for t in range(9, 40)]
        np.testing.assert_array_equal([later.row(t) for t in range(40)], whole)

    def test_two_processes_do_not_share_the_file(self, tmp_path, whole):
        program = f"""
from tests.federated.noise.test_host import TestTheFile
noise = TestTheFile().make({str(tmp_path)!r})
noise.row(30)
print("made", flush=True)
input()
"""
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as other:
            assert other.stdout.readline() == "made\n"
            with pytest.raises(ValueError, match=r"another process makes its noise in .*: wait for it, stop it"):
                self.make(tmp_path, seed=SEED + 1)
            other.kill()
        again = self.make(tmp_path)
        np.testing.assert_array_equal([again.row(t) for t in range(28, 40)], whole[28:])

    def test_an_earlier_round_is_made_again(self, tmp_path, whole):
        first = self.make(tmp_path)
        first.row(39)
        np.testing.assert_array_equal(self.make(tmp_path).row(2), whole[2])

    @pytest.mark.parametrize("how", ["flipped", "truncated", "emptied", "header", "header type", "nan", "moved header"])
    def test_damage_is_seen(self, tmp_path, whole, how):
        first = self.make(tmp_path)
        for t in range(30):
            first.row(t)
        data, header = tmp_path / "noise_history", tmp_path / "noise_history.json"
        content = bytearray(data.read_bytes())
        if how == "flipped":
            content[3] ^= 0x40
        elif how == "nan":
            content[-4096:-4092] = np.float32(np.nan).tobytes()  # the last tile's last row begins the last page
        elif how == "truncated":
            del content[-5000:]
        elif how == "emptied":
            content = bytearray()
        data.write_bytes(content)
        if how == "header":
            header.write_text(header.read_text()[:-5])
        elif how == "header type":
            header.write_text("[1, 2]")
        elif how == "moved header":
            values = json.loads(header.read_text())
            header.write_text(json.dumps(values | {"end": values["end"] + 1}))
        again = self.make(tmp_path)
        np.testing.assert_array_equal([again.row(t) for t in range(29, 40)], whole[29:])

    def test_another_seed_or_mechanism_does_not_read_it(self, tmp_path, whole):
        self.make(tmp_path).row(20)
        other = self.make(tmp_path, seed=SEED + 1)
        assert np.abs(other.row(20) - whole[20]).max() > 0.1
        np.testing.assert_array_equal(self.make(tmp_path).row(20), whole[20])
        wider = self.make(tmp_path, bands=8).row(20)
        np.testing.assert_array_equal(wider, self.make(None, bands=8).row(20))

    def test_kill_9_in_the_middle_of_a_block(self, tmp_path, whole):
        program = f"""
import os, signal
from fedmf.federated.noise import host as host_noise, file as noise_file
from tests.federated.noise.test_host import TestTheFile
for module in (host_noise, noise_file):
    module.TILE = 16
write = noise_file.TileFile.write
def dying(self, tile, t, rows):
    if t >= 20 and tile.start == 16:
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, tile, t, rows)
noise_file.TileFile.write = dying
noise = TestTheFile().make({str(tmp_path)!r})
for t in range(40):
    noise.row(t)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
        again = self.make(tmp_path)
        np.testing.assert_array_equal([again.row(t) for t in range(17, 40)], whole[17:])

    def test_a_bar_for_whoever_asks(self, monkeypatch, capsys):
        bar = progress_bar.bar
        monkeypatch.setattr(progress_bar, "bar", lambda *args, **options: bar(*args, **options | {"delay": 0}))
        noise = self.make(None)
        noise.row(0)
        assert "tile" not in capsys.readouterr().err
        noise.show_progress()
        noise.row(39)
        assert "noise:" in capsys.readouterr().err

    def test_a_full_disk_is_refused_before_the_run(self, tmp_path, monkeypatch):
        usage = collections.namedtuple("usage", "total used free")
        monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10, 9, 1))
        with pytest.raises(ValueError, match="GB free and the noise needs"):
            self.make(tmp_path, disk_bytes=10**9)
        with pytest.raises(ValueError, match="allow more memory or disk"):
            self.make(tmp_path)

    def test_a_temporary_file_has_no_name(self, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        noise = self.make(None)
        noise.row(0)
        noise.row(39)
        assert not list(tmp_path.iterdir())
