"""Warm starts: the source of the weights, the files that a resume needs, and the statement."""

import zipfile

import numpy as np
import pytest
import tensorflow as tf

from fedmf.training.initial_weights import starting_task
from tests.federated.small_runs import broken_off, config, small_task, train
from tests.refusals import refusal


@pytest.fixture(scope="module")
def keras_file(whole_run, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "pretrained.keras"
    whole_run.export(path)
    return path


@pytest.mark.parametrize(
    ("kind", "execution"),
    [("file", "fast"), ("run", "fast"), pytest.param("run", "tff", marks=pytest.mark.slow)],
)
def test_the_first_round_starts_from_the_weights(whole_run, keras_file, tmp_path, kind, execution):
    """Without noise, zeroed updates do not change the model."""
    path, sentence = {
        "file": (keras_file, "the initial model is pretrained.keras (SHA-256 digest "),
        "run": (whole_run.path, "that of the run first"),
    }[kind]
    settings = config(
        execution, rounds=2, min_sep=1, family="none", noise_multiplier=None, zeroing_norm=1e-9,
        initial_model=str(path),
    )  # fmt: skip
    with pytest.warns(UserWarning, match="zeroed"):
        run = train(tmp_path / "run", settings)
    np.testing.assert_equal(run.weights, whole_run.weights)
    for name in ("statement.md", "final_statement.md"):
        text = " ".join((run.path / name).read_text().split())
        assert sentence in text
        assert "The data used for it is not covered." in text


@pytest.mark.slow
def test_a_resume_does_not_need_the_file_of_weights(keras_file, tmp_path):
    model_file = tmp_path / "own.keras"
    model_file.write_bytes(keras_file.read_bytes())
    settings = config(initial_model=str(model_file))
    folders = [broken_off(tmp_path / f"{rounds}", rounds, settings) for rounds in (1, 4)]
    model_file.unlink()
    runs = [train(folder, settings, resume=True) for folder in folders]
    np.testing.assert_equal(runs[0].weights, runs[1].weights)


def test_a_resume_from_other_weights_is_refused(keras_file, tmp_path):
    settings = config(initial_model=str(keras_file))
    path = broken_off(tmp_path / "run", 1, settings) / "initial_model.npz"
    with np.load(path) as arrays:
        changed_arrays = {name: arrays[name] + 1 for name in arrays.files}
    np.savez(path, **changed_arrays)
    for _ in range(2):
        with refusal(r"initial_model\.npz is missing or changed"):
            train(tmp_path / "run", settings, resume=True)
        path.unlink(missing_ok=True)


@pytest.mark.slow
def test_frozen_weights_are_taken_too(tmp_path):
    def build_model(seed, frozen=True):
        frozen_layer = tf.keras.layers.Dense(
            4, kernel_initializer=tf.keras.initializers.RandomNormal(seed=seed)
        )
        frozen_layer.trainable = not frozen
        embedding_layer, dense_layer = small_task().build_model(seed).layers
        return tf.keras.Sequential(
            [tf.keras.Input((5,), dtype=tf.int32), embedding_layer, frozen_layer, dense_layer]
        )

    task = small_task(build_model=build_model)
    build_model(7, frozen=False).save(tmp_path / "all_trained.keras")
    run = train(tmp_path / "run", config(initial_model=str(tmp_path / "all_trained.keras")), task)
    started_model = starting_task(task, config(initial_model=str(run.path)), None).build_model(11)
    for model in (run.model(), started_model):
        np.testing.assert_array_equal(model.layers[1].kernel, build_model(7).layers[1].kernel)
    assert run.evaluate("test") == run.result["test"]


def test_weights_and_files_that_do_not_fit_are_refused(whole_run, tmp_path):
    other_model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
    other_model.save(tmp_path / "other.keras")
    (tmp_path / "text.keras").write_text("no model")
    with zipfile.ZipFile(tmp_path / "keras3.keras", "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.5.0"}')
    infinite = whole_run.model()
    infinite.set_weights([weight * np.inf for weight in infinite.get_weights()])
    infinite.save(tmp_path / "infinite.keras")
    for name, match in {
        "other.keras": r"the shapes \[\(3, 2\), \(2,\)\]",
        "text.keras": "Keras cannot load it",
        "keras3.keras": "Keras 3.5.0 has written it.*Keras 2",
        "infinite.keras": "not all finite",
        ".": "holds no run",
        "missing.keras": "does not exist",
    }.items():
        with pytest.raises((ValueError, FileNotFoundError), match=f"(?s)initial_model=.*{match}"):
            train(tmp_path / "run", config(initial_model=str(tmp_path / name)))
    assert not (tmp_path / "run").exists()
