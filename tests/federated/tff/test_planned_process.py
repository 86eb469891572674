"""A `PlannedProcess` enforces its plan, and after any fault no noise vector meets two sums.

Most tests run a process of numpy in place of TFF's, so that they can fork and kill it many times.
"""

import collections
import contextlib
import errno
import json
import os
import shutil

import numpy as np
import pytest

import fedmf
from fedmf import federated
from fedmf.federated.tff import planned_process, tff
from fedmf.server.journal import Journal
from fedmf.server.state import NoiseState, plan_fingerprint, state_fingerprint
from tests.mechanisms.registry import MECHANISMS
from tests.privacy.plans import plan as sampled_plan
from tests.privacy.plans import two_bands
from tests.refusals import refusal
from tests.server.plans import plan_of
from tests.server.test_crashes import in_a_child, killed_at

ROUNDS = 6
POPULATION = 12
COHORT = 3
SIZE = 2
VALUE_TYPE = tff.TensorType(np.float32, [SIZE])
PLAN = plan_of(MECHANISMS["banded"](ROUNDS))
Output = collections.namedtuple("Output", "state result")
State = collections.namedtuple("State", "noise model")


class NumpyProcess:
    """A process whose noise vector follows from key and round, as in TFF.

    Attributes:
      results: (round, result) of all calls of `next`, which somebody within the process has seen.
    """

    def __init__(self, size=SIZE, plan=PLAN):
        self.size = size
        self.plan = plan
        self.results = []

    def initialize(self):
        fingerprint = state_fingerprint(plan_fingerprint(self.plan), "recurrent", 1, self.size)
        noise_state = NoiseState(
            key=np.frombuffer(os.urandom(32), np.uint64),
            next_round=np.int32(0),
            made_for=np.int32(-1),
            mechanism=np.uint64(fingerprint),
            rows=np.zeros((1, self.size), np.float32),
        )
        return State(noise_state, np.zeros(self.size, np.float32))

    def next(self, state, updates):
        t = int(state.noise.next_round)
        noise_row = np.random.default_rng([*state.noise.key, t]).standard_normal(self.size)
        result = np.float32(np.sum(updates, axis=0) + noise_row)
        self.results.append((t, result))
        next_noise = state.noise._replace(next_round=np.int32(t + 1), rows=result[None])
        return Output(State(next_noise, state.model + result), result)


@pytest.fixture(autouse=True)
def numpy_passes(monkeypatch):
    """Accepts processes of numpy, which `check_process` cannot read."""
    check_process = planned_process.check_process

    def check(process):
        return [] if isinstance(process, NumpyProcess) else check_process(process)

    monkeypatch.setattr(planned_process, "check_process", check)


def aggregator_of(plan=PLAN, noise_seed=1, **options):
    return federated.dp_aggregator(plan, clients_per_round=COHORT, noise_seed=noise_seed, **options)


def controller_of(participation=PLAN.participation, **options):
    sizes = {"population": POPULATION, "cohort_size": COHORT, "seed": 1}
    return fedmf.ParticipationController(participation, **(sizes | options))


def planned(folder, process=None, **changes):
    arguments = {
        "aggregator": aggregator_of(),
        "controller": controller_of(),
        "client_data": lambda client: np.float32([client, 1]),
        "folder": folder,
    }
    process = process or NumpyProcess()
    return federated.PlannedProcess(process, **(arguments | changes))


def finished(folder, **changes):
    """Returns the result of each round that is left, and the process."""
    with planned(folder, **changes) as training:
        results = [training.next().result for _ in range(training.round, ROUNDS)]
    return results, training


@pytest.fixture
def begun(tmp_path):
    """Returns the folder of a process that is before round 0. A copy of it has the same key."""
    planned(tmp_path / "begun").close()
    return tmp_path / "begun"


class Killed(BaseException):
    """Ends a call where a kill would end the process."""


def killed_before_commit(training, monkeypatch, clients=None):
    """Runs the next round, and ends the call before the commit."""

    def kill(*args, **options):
        raise Killed

    with monkeypatch.context() as patches:
        patches.setattr(Journal, "commit", kill)
        with pytest.raises(Killed):
            training.next(clients)


@pytest.mark.parametrize("stops", [(0,), (1, 4), (ROUNDS,)])
def test_a_resumed_process_equals_an_uninterrupted_one(begun, tmp_path, stops):
    whole_folder = shutil.copytree(begun, tmp_path / "whole")
    expected_results, whole_process = finished(whole_folder)
    results = []
    for stop in stops:
        with planned(begun) as training:
            results += [training.next().result for _ in range(training.round, stop)]
    last_results, training = finished(begun)
    np.testing.assert_array_equal(results + last_results, expected_results)
    np.testing.assert_array_equal(training.state.model, whole_process.state.model)
    assert training.ledger.to_csv() == whole_process.ledger.to_csv()
    assert training.audit().epsilon == whole_process.audit().epsilon <= PLAN.epsilon
    logs = [(folder / "participation.jsonl").read_text() for folder in (begun, whole_folder)]
    assert logs[0] == logs[1]
    audit = fedmf.audit_log(begun / "participation.jsonl", PLAN, rounds_run=ROUNDS)
    assert audit.epsilon == training.audit().epsilon
    with refusal(f"all rounds={ROUNDS} of the plan are over"), planned(begun) as training:
        training.next()


@pytest.mark.parametrize("rounds_before", [0, 2])
def test_a_round_that_was_killed_before_its_commit_has_the_same_sum_again(
    begun, rounds_before, monkeypatch
):
    killed_process = NumpyProcess()
    with planned(begun, killed_process) as training:
        for _ in range(rounds_before):
            training.next()
        eligible = np.flatnonzero(training.controller.eligible(rounds_before))
        chosen, other = eligible[-COHORT:], eligible[:COHORT]
        killed_before_commit(training, monkeypatch, chosen)
    resumed_process = NumpyProcess()
    with planned(begun, resumed_process) as training:
        assert training.round == rounds_before == len(training.ledger)
        with refusal("another cohort already"):
            training.next(other)
        assert resumed_process.results == []
        training.next()
        assert training.ledger.cohort(rounds_before).tolist() == chosen.tolist()
    seen_round, seen_result = killed_process.results[-1]
    assert seen_round == rounds_before
    np.testing.assert_array_equal(resumed_process.results[0][1], seen_result)


def test_a_kill_at_any_change_of_the_disk_loses_no_output_and_repeats_no_noise(begun, tmp_path):
    """The child is killed with SIGKILL, and the program that resumes asks for other clients."""
    with planned(begun) as training:
        training.next()
        chosen = np.flatnonzero(training.controller.eligible(1))[-COHORT:]
        other = np.flatnonzero(training.controller.eligible(1))[:COHORT]
    num_kills = 0
    while True:
        folder = shutil.copytree(begun, tmp_path / f"copy{num_kills}")
        child_output = in_a_child(next_round_killed_at(num_kills, folder, chosen)) or b""
        seen_bytes, is_returned, _ = child_output.partition(b"returned")
        with planned(folder) as training:
            if is_returned:
                assert training.round == 2
                break
            num_kills += 1
            if training.round == 1:
                has_cohort = (
                    (folder / "private" / "cohort.json").read_text().startswith('{"round": 1,')
                )
                assert has_cohort or not seen_bytes
                expected_error = contextlib.nullcontext()
                if has_cohort:
                    expected_error = refusal("another cohort already")
                with expected_error:
                    training.next(other)
                if has_cohort:
                    training.next()
            assert training.round == 2
            if seen_bytes:
                assert training.state.noise.rows.tobytes() == seen_bytes
    assert num_kills > 10


def next_round_killed_at(number, folder, clients):
    """Returns work that is killed at the number-th change of the disk within `next`. It writes the
    round's result, and then whether `next` has returned.
    """

    def work(pipe):
        write = os.write
        process = NumpyProcess()
        training = planned(folder, process)
        run_process = process.next

        def next_that_shows(state, updates):
            output = run_process(state, updates)
            write(pipe, output.result.tobytes())
            return output

        process.next = next_that_shows
        killed_at(number)
        training.next(clients)
        write(pipe, b"returned")

    return work


def test_on_a_full_disk_the_output_is_written_later_and_not_computed_again(begun, monkeypatch):
    process = NumpyProcess()
    with planned(begun, process) as training:
        with monkeypatch.context() as patches:

            def full(*args, **options):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            patches.setattr(os, "link", full)
            for _ in range(2):
                with pytest.raises(OSError, match="No space left"):
                    training.next()
        assert training.round == 0 == len(training.ledger)
        output = training.next()
        assert len(process.results) == 1
        assert output.result is process.results[0][1]
        training.next()
        assert training.round == 2 == len(process.results)


def private_files(folder):
    return sorted(path for path in (folder / "private").rglob("*") if path.is_file())


def test_truncated_files_are_refused(begun, tmp_path, monkeypatch):
    with planned(begun) as training:
        training.next()
        killed_before_commit(training, monkeypatch)
    names = [path.relative_to(begun) for path in private_files(begun)]
    assert len(names) == 5
    for name in names:
        content = (begun / name).read_bytes()
        for size in (0, len(content) // 2, len(content) - 3):
            folder = shutil.copytree(begun, tmp_path / f"{name.stem} {size}")
            (folder / name).write_bytes(content[:size])
            if name.name == "rounds.jsonl":  # The journal has its newest row too.
                planned(folder).close()
                continue
            words = "is damaged or not of this process|changed since the process was begun"
            with refusal(words):
                planned(folder)
    planned(begun).close()


def test_an_older_journal_beside_a_begun_round_is_refused(begun, tmp_path):
    folder = shutil.copytree(begun, tmp_path / "later")
    finished(folder)
    shutil.copy(folder / "private" / "cohort.json", begun / "private")
    with refusal("cohort.json has round 5 .* put back from a backup"):
        planned(begun)


OTHER_PLAN = plan_of(MECHANISMS["banded"](ROUNDS), noise_multiplier=0.8)
OTHER_ARGUMENTS = {
    "plan": lambda: {
        "aggregator": aggregator_of(OTHER_PLAN),
        "process": NumpyProcess(plan=OTHER_PLAN),
    },
    "noise_seed": lambda: {"aggregator": aggregator_of(noise_seed=2)},
    "controller.seed": lambda: {"controller": controller_of(seed=2)},
    "controller.population": lambda: {"controller": controller_of(population=13)},
    "process": lambda: {"process": NumpyProcess(size=3)},
}


@pytest.mark.parametrize("name", OTHER_ARGUMENTS)
def test_a_resume_with_another_argument_is_refused(begun, name):
    with refusal(f"was begun (with another {name},|by a {name} whose state has other arrays)"):
        planned(begun, **OTHER_ARGUMENTS[name]())
    planned(begun, aggregator=aggregator_of(noise_seed="os")).close()


INCONSISTENT_ARGUMENTS = {
    "controller has participation=": lambda: {
        "controller": controller_of(fedmf.Participation(rounds=ROUNDS, schema="min_sep", min_sep=2))
    },
    "controller has cohort_size=4": lambda: {"controller": controller_of(cohort_size=4)},
    "process aggregates with another plan": lambda: {"process": NumpyProcess(plan=OTHER_PLAN)},
    "or noise strategy": lambda: {"aggregator": aggregator_of(noise_strategy="precomputed")},
}


@pytest.mark.parametrize("words", INCONSISTENT_ARGUMENTS)
def test_process_aggregator_and_controller_must_be_of_one_plan(tmp_path, words):
    with refusal(words):
        planned(tmp_path, **INCONSISTENT_ARGUMENTS[words]())
    used_controller = controller_of()
    used_controller.cohort(0)
    with refusal("controller has sampled 1 rounds already"):
        planned(tmp_path, controller=used_controller)


def test_a_cohort_that_breaks_the_plan_is_refused_before_the_process_runs(begun):
    process = NumpyProcess()
    with planned(begun, process) as training:
        training.next([0, 1, 2])
        for clients, words in {
            (3, 4, 2): "round 1 has client 2, who may not take part then",
            (3, 4, 5, 6): f"round 1 has 4 clients, cohort_size={COHORT}",
            (3, POPULATION): f"names client {POPULATION}, outside",
            (3, 3): "must list different",
            (-1, 3): "non-negative",
        }.items():
            with refusal(words):
                training.next(clients)
        assert len(process.results) == 1 == len(training.ledger)
        training.next([5, 4])
        assert training.ledger.cohort(1).tolist() == [4, 5]


def test_a_sampled_cohort_is_the_schemes_own(tmp_path):
    scheme = fedmf.CyclicPoisson(population=POPULATION, cohort_size=COHORT, partitions=2)
    plan = sampled_plan(None, two_bands(ROUNDS), sampling=scheme, noise_multiplier=0.8)
    options = {
        "process": NumpyProcess(plan=plan),
        "aggregator": aggregator_of(plan),
        "client_data": lambda client: np.float32([client, 1]),
    }

    def new_controller():
        return controller_of(plan.participation, sampling=plan.sampling)

    with planned(tmp_path / "a", controller=new_controller(), **options) as training:
        with refusal("has to sample them: leave `clients` out"):
            training.next([0, 1, 2])
        training.next()
    with planned(tmp_path / "a", controller=new_controller(), **options) as training:
        training.next()
        expected_controller = new_controller()
        cohorts = [expected_controller.cohort(t).tolist() for t in range(2)]
        assert [training.ledger.cohort(t).tolist() for t in range(2)] == cohorts


def test_two_folders_with_one_noise_key_cause_a_warning(tmp_path):
    process = NumpyProcess()
    initial_state = process.initialize()
    process.initialize = lambda: initial_state
    planned(tmp_path / "first", process).close()
    with pytest.warns(UserWarning, match="two runs of this program have one noise seed .*second"):
        planned(tmp_path / "second", process).close()


def test_secrets_are_readable_by_their_owner_alone(begun):
    assert (begun / "private").stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in private_files(begun))
    assert set(json.loads((begun / "process.json").read_text())) == {"format", "warning"}


def test_a_process_of_tff_resumes_with_precomputed_noise(tmp_path):
    aggregator = aggregator_of(noise_strategy="precomputed")
    process = aggregator.create(VALUE_TYPE)
    options = {"process": process, "aggregator": aggregator}
    with planned(tmp_path / "begun", **options) as training:
        noise = federated.HostNoise.for_state(PLAN, training.state)
        training.next()
    with planned(tmp_path / "begun", **options) as training:
        result = training.next([]).result
    np.testing.assert_allclose(result * COHORT, noise.row(1) * PLAN.stddev, rtol=1e-6)


def test_a_process_that_releases_exact_sums_is_refused(tmp_path):
    process = tff.aggregators.UnweightedMeanFactory().create(VALUE_TYPE)
    with refusal("reaches its state or result without clipping and noise"):
        planned(tmp_path, process)
