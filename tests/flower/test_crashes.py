"""Runs that are killed, interrupted, fail, or have files of other runs.

Whatever happens, one sum of each round is released, the model is what the strategy makes of these
releases, and the run goes on.
"""

import itertools
import os
import shutil
import signal
import sys

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg, FedAvgM

import fedmf
from fedmf.server.server import Server
from tests.flower.made_up import (
    COHORT,
    MODEL,
    Grid,
    answer,
    arrays_of,
    flat,
    honest,
    initial,
    plan,
    trained,
    wrapped,
)
from tests.refusals import refusal
from tests.server.test_crashes import in_a_child

NODES = list(range(101, 116))
MOMENTUM = 0.5


def with_momentum():
    return FedAvgM(fraction_evaluate=0.0, server_momentum=MOMENTUM)


def models_of(means):
    """Returns the models that `with_momentum` makes of these releases."""
    model = np.ones(8, np.float32)
    velocity = None
    for mean in means:
        velocity = -mean if velocity is None else MOMENTUM * velocity - mean
        model = model - velocity
        yield model


class Watched:
    """Records every release that `release` or `open` returns, by its round."""

    def __init__(self, monkeypatch):
        self.by_round = {}
        release = Server.release
        honest_open = Server.open.__func__

        def watched_release(server, **options):
            t = server.round
            mean = release(server, **options)
            self._note(t, mean)
            return mean

        def watched_open(kind, folder):
            server = honest_open(kind, folder)
            if server.round:
                self._note(server.round - 1, server.last_release)
            return server

        monkeypatch.setattr(Server, "release", watched_release)
        monkeypatch.setattr(Server, "open", classmethod(watched_open))

    def _note(self, t, mean):
        self.by_round.setdefault(t, set()).add(
            np.concatenate([array.ravel() for array in mean]).tobytes()
        )

    def means(self):
        """Returns the releases of all rounds, each of which was released with one sum."""
        assert all(len(sums) == 1 for sums in self.by_round.values())
        return [np.frombuffer(*self.by_round[t], np.float32) for t in sorted(self.by_round)]


@pytest.fixture
def watched_releases(monkeypatch):
    return Watched(monkeypatch)


def other_pull(message):
    """Returns another update of a node, for the time after a restart."""
    arrays = trained(message.metadata.dst_node_id + 1, arrays_of(message))
    return [answer(message, arrays)]


def dies(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)


def is_third(strategy):
    return strategy._server is not None and strategy.server.round == 2


def killed_in(owner, name, after=False):
    """Replaces a method by one that kills the process in round 3."""

    def arrange(strategy, monkeypatch):
        call = getattr(owner, name)

        def dying(*args, **options):
            if is_third(strategy) and not after:
                dies()
            result = call(*args, **options)
            if strategy._server is not None and strategy.server.round == 3 and after:
                dies()
            return result

        monkeypatch.setattr(owner, name, dying)

    return arrange


POINTS = {
    "messages made": killed_in(FedAvgM, "configure_train"),
    "messages out": killed_in(Grid, "send_and_receive"),
    "updates added": killed_in(Server, "add"),
    "release being written": killed_in(os, "link"),
    "release written": killed_in(os, "unlink"),
    "step being made": killed_in(FedAvgM, "aggregate_train", after=True),
}


@pytest.mark.parametrize("point", POINTS)
def test_killed_run_resumes_with_the_same_releases(point, tmp_path, watched_releases):
    folder = tmp_path / "server"

    def work(pipe):
        strategy = wrapped(folder, with_momentum())
        with pytest.MonkeyPatch.context() as patch:
            POINTS[point](strategy, patch)
            strategy.start(Grid(NODES), initial(), 4)

    assert in_a_child(work) is None
    whole_strategy = wrapped(None, with_momentum())
    expected = Grid(NODES)
    whole_strategy.start(expected, initial(), 3)
    whole_means = watched_releases.means()
    watched_releases.by_round.clear()
    strategy = wrapped(folder, with_momentum())
    grid = Grid(NODES, dict.fromkeys(NODES, other_pull))
    result = strategy.start(grid, initial(), 4)
    num_committed = 4 - len(grid.asked)
    assert num_committed in (2, 3)
    released_means = watched_releases.means()
    # The last release of the killed process is that of `open`.
    np.testing.assert_array_equal(released_means[0], whole_means[num_committed - 1])
    models = list(models_of([*whole_means[:num_committed], *released_means[1:]]))
    np.testing.assert_allclose(flat(result.arrays), models[-1], atol=1e-5)
    sent_model = np.concatenate([array.ravel() for array in grid.sent[0].values()])
    np.testing.assert_allclose(sent_model, models[num_committed - 1], atol=1e-5)


RECORDED = ("open", "fsync", "replace", "link", "unlink", "mkdir", "truncate", "write")


def written(folder):
    """Returns a digest of a folder that changes with every write."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def test_run_resumes_from_every_prefix_of_its_writes(tmp_path, monkeypatch, watched_releases):
    folder = tmp_path / "server"
    prefixes = []
    states = [{}]

    def recording(call):
        def recorded(*args, **options):
            if (folder / "server.json").exists() and written(folder) != states[-1]:
                states.append(written(folder))
                prefixes.append(tmp_path / f"prefix {len(prefixes)}")
                with monkeypatch.context() as patch:
                    for name, original in originals.items():
                        patch.setattr(os, name, original)
                    shutil.copytree(folder, prefixes[-1])
            return call(*args, **options)

        return recorded

    originals = {name: getattr(os, name) for name in RECORDED}
    strategy = wrapped(folder, with_momentum())
    with monkeypatch.context() as patch:
        for name, call in originals.items():
            patch.setattr(os, name, recording(call))
        strategy.start(Grid(NODES), initial(), 2)
    strategy.server.close()
    whole_means = watched_releases.means()
    models = [np.ones(8, np.float32), *models_of(whole_means)]
    rounds = []
    for prefix in prefixes:
        watched_releases.by_round.clear()
        resumed_strategy = wrapped(prefix, with_momentum())
        grid = Grid(NODES, dict.fromkeys(NODES, other_pull))
        resumed_strategy.start(grid, initial(), 3)
        resumed_strategy.server.close()
        num_committed = 3 - len(grid.asked)
        rounds.append(num_committed)
        sent_model = np.concatenate([array.ravel() for array in grid.sent[0].values()])
        np.testing.assert_allclose(sent_model, models[num_committed], atol=1e-5)
        for t in range(num_committed - 1, num_committed):
            assert t < 0 or watched_releases.by_round[t] == {whole_means[t].tobytes()}
    assert rounds == sorted(rounds)
    assert set(rounds) == {0, 1, 2}
    assert len(rounds) > 10


def test_release_is_durable_before_a_message_is_sent(tmp_path, monkeypatch):
    """The file of each round, and then its name, are on disk when the next messages are sent."""
    events = []
    fsync = os.fsync
    link = os.link
    send = Grid.send_and_receive

    def noted_fsync(descriptor):
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        event = "name" if target.endswith("/journal") else "file"
        events.append(event)
        fsync(descriptor)

    def noted_link(source, target, **options):
        events.append("link")
        link(source, target, **options)

    def noted_send(grid, messages, **options):
        messages = list(messages)
        if messages:
            events.append("send")
        return send(grid, messages, **options)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    monkeypatch.setattr(Grid, "send_and_receive", noted_send)
    wrapped(tmp_path / "server").start(Grid(NODES), initial(), 3)
    rounds = [list(group) for is_send, group in itertools.groupby(events, "send".__eq__)]
    commits = [group for group in rounds if group[0] != "send"]
    assert len(commits) == 4  # The first name is that of the new folder.
    for commit in commits:
        at = commit.index("link")
        assert "file" in commit[:at]
        assert "name" in commit[at:]


class Failing(FedAvgM):
    """A strategy that raises in its second step until it is fixed."""

    is_mended = False

    def __init__(self):
        super().__init__(fraction_evaluate=0.0, server_momentum=MOMENTUM)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        if server_round == 2 and not type(self).is_mended:
            raise ZeroDivisionError
        return arrays, metrics


@pytest.mark.parametrize("restart", [False, True])
def test_fixed_strategy_repeats_no_round(restart, tmp_path, watched_releases, monkeypatch):
    folder = tmp_path / "server" if restart else None
    strategy = wrapped(folder, Failing())
    for behave in (honest, other_pull):
        with pytest.raises(ZeroDivisionError):
            strategy.start(Grid(NODES, dict.fromkeys(NODES, behave)), initial())
        if restart:
            strategy.server.close()
            strategy = wrapped(folder, Failing())
    monkeypatch.setattr(Failing, "is_mended", True)
    result = strategy.start(Grid(NODES, dict.fromkeys(NODES, other_pull)), initial())
    *_, last_model = models_of(watched_releases.means())
    np.testing.assert_allclose(flat(result.arrays), last_model, atol=1e-5)


def test_release_that_could_not_be_written_is_released_later(
    tmp_path, watched_releases, monkeypatch
):
    """The same process releases the same sum, without new messages to the clients."""
    strategy = wrapped(tmp_path / "server", with_momentum())
    grid = Grid(NODES)
    strategy.start(grid, initial(), 1)

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                strategy.start(grid, initial(), 3)
    result = strategy.start(grid, initial(), 3)
    assert [len(nodes) for nodes in grid.asked] == [COHORT] * 3
    *_, last_model = models_of(watched_releases.means())
    np.testing.assert_allclose(flat(result.arrays), last_model, atol=1e-5)


def interrupted_at(number, call):
    """Returns whether `call` was interrupted before the number-th line of fedmf that it runs."""
    lines = itertools.count()

    def interrupt(frame, event, argument):
        path = frame.f_code.co_filename.replace(os.sep, "/")
        is_ours = "fedmf/server/" in path or "fedmf/flower/" in path
        if not is_ours or path.endswith("/calls.py"):
            return None
        if event == "line" and next(lines) == number:
            raise KeyboardInterrupt
        return interrupt

    past_trace = sys.gettrace()
    sys.settrace(interrupt)
    try:
        call()
    except KeyboardInterrupt:
        return True, next(lines)
    finally:
        sys.settrace(past_trace)
    return False, next(lines)


def test_interrupted_run_resumes_in_the_same_process(watched_releases):
    """Ctrl-C comes at 12 places that are spread over three rounds, other places in each run of the
    test.
    """
    rng = np.random.default_rng()
    short_plan = plan(rounds=3)

    def run(strategy):
        return strategy.start(Grid(NODES), initial())

    _, total = interrupted_at(-1, lambda: run(wrapped(None, with_momentum(), short_plan)))
    for place_index in range(12):
        number = int(total * (place_index + rng.uniform()) / 12)
        watched_releases.by_round.clear()
        strategy = wrapped(None, with_momentum(), short_plan)
        interrupted_at(number, lambda strategy=strategy: run(strategy))
        if strategy._server is not None and strategy.server._is_torn:  # It logs this, and ends.
            continue
        result = run(strategy)
        *_, last_model = models_of(watched_releases.means())
        np.testing.assert_allclose(flat(result.arrays), last_model, atol=1e-5, err_msg=str(number))
        assert strategy.server.round == 3, number


def test_interrupt_between_updates_asks_the_other_clients_again(monkeypatch):
    calls = itertools.count()
    add = Server.add

    def interrupted(server, *args, **options):
        if next(calls) == 2:
            raise KeyboardInterrupt
        add(server, *args, **options)

    monkeypatch.setattr(Server, "add", interrupted)
    strategy = wrapped()
    grid = Grid(NODES)
    with pytest.raises(KeyboardInterrupt):
        strategy.start(grid, initial(), 2)
    strategy.start(grid, initial(), 2)
    first_nodes, remaining_nodes, second_nodes = grid.asked
    assert remaining_nodes == first_nodes[3:]
    assert not set(second_nodes) & set(first_nodes)
    # The third update had reached the server before the interrupt: it may count, and its node is
    # not asked again.
    assert strategy.server.ledger.cohort(0).tolist() == [0, 1, 2]


class TestFiles:
    """Tests of folders that are copied, edited or in use."""

    @pytest.fixture
    def folder(self, tmp_path):
        return self.begun(tmp_path / "server")

    def begun(self, folder, rounds=2, **changes):
        strategy = wrapped(folder, with_momentum(), **changes)
        strategy.start(Grid(NODES), initial(), rounds)
        strategy.server.close()
        return folder

    def newest(self, folder, rounds=2):
        return folder / "private" / "journal" / f"{rounds:06d}.npz"

    def check_refused(self, folder, words):
        grid = Grid(NODES)
        with refusal(words):
            wrapped(folder, with_momentum()).start(grid, initial())
        assert grid.asked == []

    def test_journal_has_all_that_a_run_needs(self, folder):
        assert not list(folder.glob("*model*"))
        assert len(list((folder / "private" / "journal").iterdir())) == 1
        assert self.newest(folder).stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("how", ["missing", "cut", "of another run", "old"])
    def test_journal_of_another_run_is_refused(self, how, folder, tmp_path):
        path = self.newest(folder)
        content = path.read_bytes()
        if how == "missing":
            path.unlink()
        elif how == "cut":
            path.write_bytes(content[: len(content) // 2])
        elif how == "of another run":
            shutil.copy(self.newest(self.begun(tmp_path / "other", seed=8)), path)
        else:
            self.begun(folder, 4)
            self.newest(folder, 4).unlink()
            path.write_bytes(content)
        self.check_refused(folder, "begin a new server, with another seed")

    @pytest.mark.parametrize("entry", range(1, 4))
    def test_edited_arrays_are_refused(self, entry, folder):
        """The whole file is written again, with another model or momentum."""
        path = self.newest(folder)
        with np.load(path) as file:
            content = dict(file)
        names = [name for name in content if content[name].dtype == np.float32 and name != "mean"]
        content[names[entry - 1]] = content[names[entry - 1]] + 1000
        path.unlink()
        np.savez(path, **content)
        self.check_refused(folder, "cannot be resumed .the model or the strategy's state")

    def test_model_of_another_round_is_refused(self, tmp_path):
        """Its arrays have a valid digest."""
        folder = self.begun(tmp_path / "server", 1)
        with np.load(self.newest(folder, 1)) as file:
            older = {name: entry for name, entry in file.items() if name.startswith("before")}
        self.begun(folder, 2)
        path = self.newest(folder)
        with np.load(path) as file:
            content = {n: entry for n, entry in file.items() if not n.startswith("before")}
        path.unlink()
        np.savez(path, **content, **older)
        assert older
        self.check_refused(folder, "the model in its journal is of round 1")

    def test_folder_of_a_plain_server_is_refused(self, tmp_path):
        folder = tmp_path / "server"
        with fedmf.Server(
            plan(),
            shapes=list(MODEL.values()),
            clients_per_round=COHORT,
            noise_seed=7,
            folder=folder,
            zeroing_norm=1e6,
        ) as server:
            server.release()
        self.check_refused(folder, "its releases were not committed by this strategy")

    def test_second_process_on_a_folder_is_refused(self, folder):
        first_strategy = wrapped(folder, with_momentum())
        first_strategy.start(Grid(NODES), initial(), 3)

        def work(pipe):
            try:
                wrapped(folder, with_momentum()).start(Grid(NODES), initial())
            except ValueError as error:
                os.write(pipe, str(error).encode())

        assert b"is in use by another server" in in_a_child(work)
        assert first_strategy.start(Grid(NODES), initial()).arrays

    def test_moved_folder_stops_its_run(self, folder, tmp_path):
        """Another run in its place is not changed."""
        first_strategy = wrapped(folder, with_momentum())
        first_strategy.start(Grid(NODES), initial(), 3)
        folder.rename(tmp_path / "aside")
        self.begun(folder, 3, seed=9)
        content = self.newest(folder, 3).read_bytes()
        with refusal("was moved, replaced, closed or resumed elsewhere"):
            first_strategy.start(Grid(NODES), initial())
        assert self.newest(folder, 3).read_bytes() == content
        self.begun(folder, 4, seed=9)


class Counting(FedAvg):
    """A strategy that records its calls in its state."""

    calls = ()

    def __init__(self):
        super().__init__(fraction_evaluate=1.0)

    def note(self, name, number):
        self.calls = (*self.calls, (name, number))

    def configure_train(self, server_round, *args):
        self.note("configure_train", server_round)
        return super().configure_train(server_round, *args)

    def aggregate_train(self, server_round, replies):
        self.note("aggregate_train", server_round)
        return super().aggregate_train(server_round, replies)

    def configure_evaluate(self, server_round, *args):
        self.note("configure_evaluate", server_round)
        return super().configure_evaluate(server_round, *args)

    def aggregate_evaluate(self, server_round, replies):
        self.note("aggregate_evaluate", server_round)
        return super().aggregate_evaluate(server_round, replies)


STEPS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_calls_of_a_strategy_count_once_after_interrupts(name, restart, tmp_path, monkeypatch):
    """Each repeated call begins with the state of before."""
    call = getattr(FedAvg, name)
    interrupts = []

    def interrupted(self, server_round, *args):
        if server_round == 2 and len(interrupts) < 2 and strategy._wrapped.is_tried:
            interrupts.append(name)
            raise KeyboardInterrupt
        return call(self, server_round, *args)

    monkeypatch.setattr(FedAvg, name, interrupted)
    folder = tmp_path / "server" if restart else None
    strategy = wrapped(folder, Counting())
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            strategy.start(Grid(NODES), initial(), 3)
        if restart:
            strategy.server.close()
            strategy = wrapped(folder, Counting())
            strategy._wrapped.is_tried = True
    strategy.start(Grid(NODES), initial(), 3)
    assert strategy.strategy.calls == tuple(
        (step_name, t) for t in (1, 2, 3) for step_name in STEPS
    )


class Unkeepable:
    """An object that no file can hold."""

    count = 0


def test_interrupt_leaves_values_that_no_folder_holds(monkeypatch):
    class Holding(FedAvg):
        memory = None

        def aggregate_train(self, server_round, replies):
            self.memory = self.memory or Unkeepable()
            self.memory.count += 1
            return super().aggregate_train(server_round, replies)

    send = Grid.send_and_receive

    def interrupted(grid, messages, **options):
        messages = list(messages)
        if len(grid.asked) == 2 and not grid.is_over:
            grid.is_over = True
            raise KeyboardInterrupt
        return send(grid, messages, **options)

    monkeypatch.setattr(Grid, "is_over", False, raising=False)
    monkeypatch.setattr(Grid, "send_and_receive", interrupted)
    strategy = wrapped(None, Holding(fraction_evaluate=0.0))
    grid = Grid(NODES)
    with pytest.raises(KeyboardInterrupt):
        strategy.start(grid, initial(), 4)
    strategy.start(grid, initial(), 4)
    assert strategy.strategy.memory.count == 4
