"""A run goes on only as what it was begun with: nothing else gets the noise of rounds
that are done again.
"""

import dataclasses
import functools
import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

from fedmf import federated
from fedmf.federated.execution.base import RunOptions
from fedmf.federated.training.model_check import check_model
from fedmf.federated.training.run_setup import controller_of, new_run, reopen_run
from fedmf.runs.folder import RunFolder
from tests.federated.run_small import config
from tests.federated.small_task import CLASSES, small_task

pytestmark = pytest.mark.tensorflow
VERSIONED = dataclasses.replace(small_task(), data_version="1")
SETTINGS = config(cohort_size=6)


def begin(folder, task=VERSIONED, settings=SETTINGS, **options):
    """A run as it is before round 0."""
    model = check_model(task, settings)
    new_run(task, settings, folder, 9, None, model, RunOptions(progress=False, **options)).write()
    return RunFolder.open(folder)


def go_on(folder, task=VERSIONED, settings=SETTINGS, stop_at_epsilon=None):
    return reopen_run(task, settings, folder, None, check_model(task, settings), stop_at_epsilon)


def examples_with(client, change):
    """The clients' examples, of which one client's inputs are changed."""

    def examples(name):
        x, y = small_task().client_examples(name)
        return (change(x) if name == client else x), y

    return examples


def seeded_by(more):
    return lambda seed: small_task().build_model(seed + more)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    return begin(tmp_path_factory.mktemp("begun") / "run")


def first_clients(folder):
    cohort = go_on(folder).controller().cohort(0)
    return [VERSIONED.client_ids[client] for client in cohort if client % 10]  # those with examples


def test_the_same_goes_on(begun, recwarn):
    assert go_on(begun).noise_seed == 9
    assert not [warning for warning in recwarn if "data_version" in str(warning.message)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"loss": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=False)},
            "with another model or loss",
        ),
        ({"batch_size": 3}, r"with batch_size=3 \(the run has 4\)"),
        (
            {"build_model": seeded_by(1)},
            "with another initial model: build_model must give the same weights",
        ),
        (
            {"client_ids": small_task().client_ids[::-1]},
            "with other client_ids, or in another order",
        ),
    ],
    ids=["loss", "batch size", "initial weights", "order of clients"],
)
def test_another_task_is_refused(begun, changes, said):
    with pytest.raises(
        ValueError, match=rf"cannot resume .* {said}.*; take the run's own, or start a new folder"
    ):
        go_on(begun, dataclasses.replace(VERSIONED, **changes))


def test_other_examples_of_one_client_are_refused(begun):
    client = first_clients(begun)[-1]
    other = dataclasses.replace(
        VERSIONED, client_examples=examples_with(client, lambda x: (x + 1) % CLASSES)
    )
    with pytest.raises(
        ValueError, match=rf"on other data: client '{client}' has other examples than when .* begun"
    ):
        go_on(begun, other)


def test_a_first_round_without_clients_binds_the_data_all_the_same(tmp_path):
    settings = next(
        settings
        for seed in range(99)
        if not len(
            controller_of(
                VERSIONED, settings := config(cohort_size=1, dropout=0.5, seed=seed)
            ).cohort(0)
        )
    )
    folder = begin(tmp_path / "run", settings=settings)
    go_on(folder, settings=settings)
    other = dataclasses.replace(
        VERSIONED, client_examples=lambda name: small_task().client_examples("1")
    )
    with pytest.raises(ValueError, match="on other data"):
        go_on(folder, other, settings)


def test_other_initial_weights_do_not_matter_once_there_is_a_checkpoint(tmp_path):
    federated.train(
        VERSIONED, config(), folder=tmp_path, noise_seed=9, progress=False, stop_after=1
    )
    go_on(
        RunFolder.open(tmp_path), dataclasses.replace(VERSIONED, build_model=seeded_by(1)), config()
    )


def test_other_software_is_named(begun):
    path = begun.path / "plan.json"
    kept = path.read_text()
    identity = begun.path / "private" / "identity.json"
    bound = json.loads(identity.read_text())
    try:
        path.write_text(kept.replace('"tensorflow": "', '"tensorflow": "1.'))
        with pytest.raises(ValueError, match="plan.json changed since the run was begun"):
            go_on(begun)
        begun.begin(SETTINGS, bound["run"] | {"model": "0"})
        with pytest.raises(
            ValueError,
            match=r"another model or loss.*it was begun with .*'tensorflow': '1\..*may differ",
        ):
            go_on(begun)
    finally:
        path.write_text(kept)
        begun.begin(SETTINGS, bound["run"])
    assert json.loads(identity.read_text()) == bound


@pytest.mark.parametrize(
    "name", ["config.json", "plan.json", "mechanism.npz", "private/noise_seed"]
)
def test_a_file_that_changed_is_refused_before_the_first_checkpoint(tmp_path, name):
    folder = begin(tmp_path / "run")
    path, settings = folder.path / name, SETTINGS
    if name == "config.json":  # and the caller's config with it
        settings = config(cohort_size=6, client_learning_rate=0.25)
        path.write_text(settings.to_json())
    elif name == "mechanism.npz":
        config(bands=1).fit().save(path)
    elif name == "plan.json":
        path.write_text(path.read_text().replace("arithmetic", "Arithmetic"))
    else:
        path.write_text("10\n")
    said = (
        f"{name} changed since the run was begun|its plan.json or mechanism.npz differs|on "
        "other data: description="
    )
    with pytest.raises(ValueError, match=said):
        go_on(folder, settings=settings)


@pytest.mark.parametrize(
    "content", [None, "", "{}", '{"files": {}, "run": {}}', '["files", "run"]']
)
def test_a_missing_or_damaged_identity_is_refused(tmp_path, content):
    folder = begin(tmp_path / "run")
    path = folder.path / "private" / "identity.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(
        ValueError,
        match=r"private/identity\.json is missing or damaged.* put back its own, or start",
    ):
        go_on(folder)


@pytest.mark.parametrize(
    "left_out", ["first_cohort", "batch_size", "model", "client_ids", "initial_weights"]
)
def test_an_identity_without_an_entry_is_refused(tmp_path, left_out):
    folder = begin(tmp_path / "run")
    kept = folder.identity()
    del kept[left_out]
    folder.begin(SETTINGS, kept)
    with pytest.raises(ValueError, match="cannot resume"):
        go_on(folder)


def test_the_place_of_the_data_may_change(tmp_path):
    folder = begin(tmp_path / "run", settings=dataclasses.replace(SETTINGS, data="here.sqlite"))
    go_on(folder, settings=dataclasses.replace(SETTINGS, data="there.sqlite"))


def test_functions_that_are_not_pure_are_refused_before_anything_is_written(begun, tmp_path):
    client, reads = first_clients(begun)[-1], itertools.count()
    impure = dataclasses.replace(
        VERSIONED, client_examples=examples_with(client, lambda x: (x + next(reads)) % CLASSES)
    )
    with pytest.raises(
        ValueError,
        match=f"client '{client}' of task 'small' has other examples when they are read again",
    ):
        begin(tmp_path / "run", impure)
    assert not (tmp_path / "run").exists()


def test_examples_that_depend_on_who_was_read_before_are_refused_at_the_resume(tmp_path):
    """A generator that goes on from client to client, behind a cache:
    one process always sees the same.
    """

    def task():
        rng = np.random.default_rng(0)
        reads = functools.cache(
            lambda name: tuple(
                rng.integers(0, CLASSES, array.shape, np.int32)
                for array in VERSIONED.client_examples(name)
            )
        )
        return dataclasses.replace(VERSIONED, client_examples=reads)

    folder = begin(tmp_path / "run", task())
    with pytest.raises(
        ValueError, match="on other data: client 'client .* has other examples than when .* begun"
    ):
        go_on(folder, task())


def test_a_task_without_a_version_of_its_data_warns(begun, tmp_path):
    folder = begin(tmp_path / "run", small_task())
    with pytest.warns(
        UserWarning,
        match="task 'small' has no data_version: only the first cohort's examples are known",
    ):
        go_on(folder, small_task())


def test_the_end_is_declared_before_the_first_round(tmp_path):
    target = SETTINGS.plan().epsilon / 2
    folder = begin(tmp_path / "run", stop_at_epsilon=target)
    assert (
        go_on(folder).rounds() == go_on(folder, stop_at_epsilon=target).rounds() < SETTINGS.rounds
    )
    with pytest.raises(
        ValueError,
        match=rf"stop_at_epsilon={target / 2}, which was {target} when .* leave it out, or",
    ):
        go_on(folder, stop_at_epsilon=target / 2)
    with pytest.raises(
        ValueError, match=rf"stop_at_epsilon={target}, which was None when the run was begun"
    ):
        go_on(begin(tmp_path / "other"), stop_at_epsilon=target)
