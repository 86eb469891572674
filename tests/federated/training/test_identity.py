"""A resume needs the same run; it takes another program only if that is accepted explicitly."""

import dataclasses
import functools
import shutil

import numpy as np
import pytest
import tensorflow as tf

from fedmf.mechanisms import BandedMechanism
from fedmf.privacy.describe import plan_summary
from fedmf.runs.folder import Run, RunFolder
from fedmf.runs.notes import figures_note
from fedmf.training.checked_task import CheckedTask
from fedmf.training.execution.base import RunOptions
from fedmf.training.resuming import reopen_run
from fedmf.training.run_setup import new_run
from fedmf.training.task import SPLITS
from tests.federated.small_runs import config, train
from tests.federated.small_task import small_task, task_of_arrays
from tests.refusals import refusal

VERSIONED = small_task(data_version="1")
SETTINGS = config(cohort_size=6)


def checked(task, settings):
    """Checks a task, whose model is traced once for each seed."""
    same = task is VERSIONED and settings == SETTINGS
    return _versioned() if same else CheckedTask.of(task, settings, splits=SPLITS)


@functools.cache
def _versioned():
    return CheckedTask.of(VERSIONED, SETTINGS, splits=SPLITS)


def begin(folder, task=VERSIONED, settings=SETTINGS, plan=None, **options):
    """Returns the folder of a run before round 0."""
    options = RunOptions(progress=False, **options)
    setup = new_run(checked(task, settings), settings, folder, 9, plan, options)
    with setup.folder.locked():
        setup.write()
    return RunFolder.open(folder)


def resume_run(folder, task=VERSIONED, settings=SETTINGS, plan=None, **options):
    options = RunOptions(progress=False, **options)
    with folder.locked():
        return reopen_run(checked(task, settings), settings, folder, plan, options)


def seeded_by(offset):
    return lambda seed: small_task().build_model(seed + offset)


@pytest.fixture(scope="module")
def begun_folder(tmp_path_factory):
    return begin(tmp_path_factory.mktemp("begun") / "run")


def test_a_resume_of_the_same_task_is_accepted(begun_folder, recwarn):
    assert resume_run(begun_folder).noise_seed == 9
    assert not [warning for warning in recwarn if "data_version" in str(warning.message)]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"loss": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=False)},
            "another program: loss from_logits is false .the run has true",
        ),
        ({"batch_size": 3}, "batch_size=3 .*4"),
        (
            {"build_model": seeded_by(1)},
            "another program: layer 0 embeddings_initializer.config.seed is 4 .the run has 3",
        ),
        ({"client_ids": small_task().client_ids[::-1]}, "client_ids"),
        ({"data_version": "2"}, "data_version='2' .*'1'"),
    ],
    ids=["loss", "batch size", "initial weights", "order of clients", "data"],
)
def test_another_task_is_refused(begun_folder, changes, match):
    with refusal(rf"cannot resume .* {match}.*start a new folder"):
        resume_run(begun_folder, dataclasses.replace(VERSIONED, **changes))


def weighted(task_weights=(1.0, 2.0), last_class=1.0):
    """Returns a task of clients with two examples of the classes 0 and 1; no client has class 2."""
    labels = np.arange(24) % 2
    weights = None if task_weights is None else np.asarray(task_weights)[labels]
    class_weight = None if last_class is None else {0: 1.0, 1: 0.5, 2: last_class}
    return task_of_arrays(
        np.ones((24, 1), np.float32), labels, lambda: tf.keras.Sequential(
            [tf.keras.layers.Dense(3, kernel_initializer="zeros", input_shape=(1,))]
        ),
        client_ids=np.arange(24) // 2, sample_weight=weights, class_weight=class_weight,
        data_version="1",
    )  # fmt: skip


def test_other_class_weights_are_refused(tmp_path):
    folder = begin(tmp_path / "run", weighted())
    resume_run(folder, weighted())
    for other_task, match in (
        (weighted(last_class=3.0), r"class_weight=\[1.0, 0.5, 3.0\] .*1.0, 0.5, 1.0"),
        (weighted(last_class=None), "class_weight=None"),
    ):
        with refusal(f"cannot resume .* {match}"):
            resume_run(folder, other_task)


@pytest.mark.parametrize(
    "name", ["config.json", "plan.json", "mechanism.npz", "private/noise_seed"]
)
def test_a_file_that_changed_is_refused_before_round_0(tmp_path, name):
    folder = begin(tmp_path / "run")
    path = folder.path / name
    settings = SETTINGS
    if name == "config.json":  # The caller's config has the change too.
        settings = config(cohort_size=6, client_learning_rate=0.25)
        path.write_text(settings.to_json())
    elif name == "mechanism.npz":
        config(bands=1).fit().save(path)
    elif name == "plan.json":
        path.write_text(path.read_text().replace("arithmetic", "Arithmetic"))
    else:
        path.write_text("10\n")
    with refusal(f"{name} changed|mechanism.npz differs|other data"):
        resume_run(folder, settings=settings)


def test_another_mechanism_of_the_same_description_is_refused(tmp_path):
    def plan_of(a):
        diagonals = np.tile([a, np.sqrt(1 - a * a)], (SETTINGS.rounds, 1))
        # Columns have norm 1.
        diagonals[0, 1] = 0
        diagonals[-1, 0] = 1
        return dataclasses.replace(SETTINGS.plan(), mechanism=BandedMechanism(diagonals=diagonals))

    plan = plan_of(0.8)
    other_plan = plan_of(0.6)
    assert plan_summary(plan) == plan_summary(other_plan)
    folder = begin(tmp_path / "run", plan=plan)
    with refusal("with another plan: its mechanism has different matrices"):
        resume_run(folder, plan=other_plan)
    resume_run(folder, plan=plan)
    other_plan.mechanism.save(folder.path / "mechanism.npz")
    with refusal("mechanism.npz (changed|differs)"):
        resume_run(folder, plan=other_plan)


def test_a_changed_identity_is_refused(tmp_path):
    folder = begin(tmp_path / "run")
    path = folder.path / "private" / "identity.json"
    for content in ("{}", path.read_text().replace("batch_size", "size"), None):
        path.unlink() if content is None else path.write_text(content)
        with refusal(r"private/identity\.json changed since the run was begun"):
            resume_run(folder)


def test_a_missing_or_damaged_journal_is_refused(tmp_path):
    folder = begin(tmp_path / "run")
    path = folder.path / "private" / "journal" / "000000.npz"
    for content in (b"", path.read_bytes()[:-40], None):
        path.unlink() if content is None else path.write_bytes(content)
        with refusal("private/journal is missing or damaged"):
            resume_run(folder)


def test_a_damaged_noise_seed_is_refused_and_not_shown(tmp_path):
    folder = begin(tmp_path / "run")
    secret = "98765432109876543210"
    more_digits_than_python_reads = secret * 250
    for content in (f"{secret}x\n", f"-{secret}\n", more_digits_than_python_reads):
        (folder.path / "private" / "noise_seed").write_text(content)
        with refusal("the noise seed .* is damaged") as caught:
            resume_run(folder)
        assert secret[:6] not in str(caught.value)


def test_the_location_of_the_data_may_change(tmp_path):
    folder = begin(tmp_path / "run", settings=dataclasses.replace(SETTINGS, data="here.sqlite"))
    other_settings = dataclasses.replace(SETTINGS, data="there.sqlite")
    assert resume_run(folder, settings=other_settings).config == other_settings


def test_a_task_without_a_version_of_its_data_warns(begun_folder, tmp_path):
    folder = begin(tmp_path / "run", small_task())
    with pytest.warns(UserWarning, match="task 'small' has no data_version"):
        resume_run(folder, small_task())


def test_a_run_begun_in_python_resumes_in_python(tmp_path):
    folder = begin(tmp_path / "run")
    named_settings = dataclasses.replace(SETTINGS, task="my_module:task")
    with refusal("it was trained in Python, so resume it there, by federated.train"):
        resume_run(folder, settings=named_settings)


def test_the_end_is_declared_before_the_first_round(tmp_path):
    target = SETTINGS.plan().epsilon / 2
    ended_settings = dataclasses.replace(SETTINGS, stop_at_epsilon=target)
    folder = begin(tmp_path / "run", settings=ended_settings)
    assert resume_run(folder, settings=ended_settings).rounds() < SETTINGS.rounds
    for begun_settings, other_settings in (
        (folder, dataclasses.replace(SETTINGS, stop_at_epsilon=target / 2)),
        (folder, SETTINGS),
        (begin(tmp_path / "other"), ended_settings),
    ):
        with refusal("with another config: stop_at_epsilon="):
            resume_run(begun_settings, settings=other_settings)


def test_an_accepted_other_program_resumes_and_plan_json_records_it(tmp_path):
    train(tmp_path, task=VERSIONED, stop_after=2)
    other_task = dataclasses.replace(VERSIONED, build_model=seeded_by(1))
    with refusal("accept_changed_task=True"):
        train(tmp_path, task=other_task, resume=True)
    with pytest.warns(UserWarning, match="resume no copy of this folder"):
        train(tmp_path, task=other_task, resume=True, accept_changed_task=True, stop_after=2)
    with refusal("accept_changed_task=True"):  # Nothing was computed by that program.
        train(tmp_path, task=other_task, resume=True)
    with pytest.warns(UserWarning, match="embeddings_initializer.config.seed is 4"):
        train(tmp_path, task=other_task, resume=True, accept_changed_task=True, stop_after=4)
    run = train(tmp_path, task=other_task, resume=True)
    assert run.plan["programs"] == [0, 2]
    statement = " ".join((tmp_path / "final_statement.md").read_text().split())
    assert "rounds 0-1 and 2-5 were computed by different programs" in statement
    assert "rounds 0-1 and 2-5 were computed by different programs" in figures_note([run])


def test_no_file_outside_the_private_folder_has_the_version_of_the_data(tmp_path):
    # The version may be a digest of clients' examples, which confirms a guess of them.
    secret = "a-digest-of-all-examples"
    folder = tmp_path / "run"
    train(folder, task=small_task(data_version=secret))
    has_version = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and secret.encode() in path.read_bytes()
    }
    assert has_version == {"private/identity.json"}
    assert Run.load(folder).data_version == secret
    shutil.rmtree(folder / "private")
    assert Run.load(folder).data_version is None
