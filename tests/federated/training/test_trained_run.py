"""What a run gives back: weights, a model, metrics, files for Keras."""

import dataclasses
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("clients_in_turn")]

import fedmf  # noqa: E402
from fedmf import federated  # noqa: E402
from fedmf.federated.examples import NotFinite, count  # noqa: E402
from tests.federated.run_small import config  # noqa: E402
from tests.federated.small_task import small_task  # noqa: E402


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return federated.train(small_task(), config(), folder=folder, noise_seed=9, progress=False)


def test_the_model_has_the_run_s_weights_and_metrics(run):
    model = run.model()
    for weight, variable in zip(run.weights, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(weight, variable.numpy())
    assert run.evaluate("test") == run.result["test"]
    x, y = small_task().split("test")
    assert run.evaluate("test")["accuracy"] == pytest.approx(
        (model(x).numpy().argmax(-1) == y).mean()
    )


def test_the_table_has_a_line_for_each_round(run):
    table = run.table()
    assert table["round"] == list(range(6))
    assert np.isnan(table["validation_accuracy"]).tolist() == [True, False] * 3
    assert (run.path / "metrics.csv").read_text().splitlines()[0] == ",".join(table)
    assert (run.path / "metrics.csv").stat().st_mode & 0o077 == 0


def test_clients_one_by_one(run):
    task, model = small_task(), run.model()
    examples = [task.examples_of(client) for client in task.client_ids]
    accuracies = [(model(x).numpy().argmax(-1) == y).mean() for x, y in examples if count((x, y))]
    found = run.evaluate_clients()
    assert found["clients"] == len(accuracies) == 12 - found["clients_without_examples"] < 12
    assert found["mean"] == pytest.approx(np.mean(accuracies))
    assert found["deciles"][4] == pytest.approx(np.median(accuracies))
    assert len(found["deciles"]) == 9


def test_a_client_with_nan_is_left_out(run):
    class Broken(type(run.task)):
        def examples_of(self, client_id):
            if client_id == "client 3":
                raise NotFinite("NaN")
            return super().examples_of(client_id)

    values = {field.name: getattr(run.task, field.name) for field in dataclasses.fields(run.task)}
    found = dataclasses.replace(run, task=Broken(**values)).evaluate_clients()
    whole = run.evaluate_clients()
    assert (found["clients"], found["clients_undefined"]) == (whole["clients"] - 1, 1)


@pytest.mark.parametrize("execution", ["fast", "tff"])
def test_an_unfinished_run_has_the_weights_of_its_checkpoint(tmp_path, execution):
    def stop(t):
        if t == 3:
            raise RuntimeError

    settings = config(execution, checkpoint_every=2)
    with pytest.raises(RuntimeError):
        federated.train(
            small_task(),
            settings,
            folder=tmp_path / "run",
            noise_seed=9,
            progress=False,
            on_round=stop,
        )
    part = federated.TrainedRun.of(fedmf.Run.load(tmp_path / "run"), small_task())
    assert part.saved_rounds() == 4
    # Validated after the same round.
    assert part.evaluate("validation") == part.metrics[3]["validation"]


def test_a_run_without_a_checkpoint_or_of_another_model_is_refused(run, tmp_path):
    def stop(t):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        federated.train(
            small_task(),
            config(checkpoint_every=6),
            folder=tmp_path,
            noise_seed=9,
            progress=False,
            on_round=stop,
        )
    with pytest.raises(ValueError, match="no model yet"):
        _ = federated.TrainedRun.of(fedmf.Run.load(tmp_path), small_task()).weights
    other = dataclasses.replace(
        small_task(), build_model=lambda seed: tf.keras.Sequential([tf.keras.Input((5,))])
    )
    with pytest.raises(ValueError, match="take the task that the run was trained on"):
        federated.TrainedRun.of(run, other).model()


def test_export_replaces_a_file_and_refuses_a_full_folder(run, tmp_path):
    (tmp_path / "model.keras").write_text("old")
    run.export(tmp_path / "model.keras")
    x, _ = small_task().split("test")
    np.testing.assert_array_equal(
        tf.keras.models.load_model(tmp_path / "model.keras")(x), run.model()(x)
    )
    (tmp_path / "empty").mkdir()
    run.export(tmp_path / "empty")
    np.testing.assert_array_equal(tf.keras.models.load_model(tmp_path / "empty")(x), run.model()(x))
    for name, words in (("empty", "new or an empty folder"), ("model.h5", r"FILE\.keras")):
        with pytest.raises(ValueError, match=words):
            run.export(tmp_path / name)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_the_snippet_of_the_page_runs(tmp_path, monkeypatch):
    page = (pathlib.Path(__file__).parents[3] / "docs" / "run_folder.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "docs/run_folder.md", "exec"), {"__name__": "run_folder"})
    statement = (tmp_path / "runs" / "tuned" / "final_statement.md").read_text()
    said = (
        "table.keras, which was trained before this run; for clients whose data it was trained on "
        "as well, the losses add up"
    )
    assert said in " ".join(statement.split())
