"""fedmf evaluate, export and report --csv on a run of the command line."""

import contextlib
import json
import shutil

import numpy as np
import pytest

from fedmf.runs.folder import Run
from fedmf.tasks.stackoverflow import write_synthetic_corpus
from tests.cli.program import fedmf, printed_by, refused

pytestmark = pytest.mark.tensorflow


def test_evaluate_prints_the_metrics_of_the_run(run_folder, tmp_path):
    result = json.loads((run_folder / "result.json").read_text())
    printed_values = printed_by(f"evaluate {run_folder} --by-client --quiet")
    assert printed_values["test accuracy"] == pytest.approx(result["test"]["accuracy"])
    assert (printed_values["data"], printed_values["rounds"], printed_values["clients"]) == (
        "the run's",
        4,
        12,
    )
    deciles = printed_values["client accuracy, deciles"]
    assert len(deciles) == 9
    assert deciles == sorted(deciles) == Run.load(run_folder).clients["deciles"]
    assert (run_folder / "clients.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_clients_are_fine_tuned(run_folder, tmp_path):
    picture = tmp_path / "picture.png"
    options = f"--clients 5 --learning-rate 0.01,0.1 --out {picture}"
    finished_process = fedmf(f"evaluate {run_folder} --fine-tune 1 {options} --quiet")
    lines = dict(line.split(maxsplit=1) for line in finished_process.stdout.splitlines())
    fine_tuned = Run.load(run_folder).fine_tuned
    assert (fine_tuned["clients"], fine_tuned["measured_on"]) == (5, "the other half")
    mean = fine_tuned["metrics"]["loss"]["after"]["mean"]
    assert float(lines["fine_tuned.metrics.loss.after.mean"]) == pytest.approx(mean, rel=1e-4)
    assert fine_tuned["learning_rate"] == float(lines["fine_tuned.learning_rate"])
    assert list(fine_tuned["searched"]) == ["0.01", "0.1"]
    assert lines["picture"] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    for path in (picture, run_folder / "fine_tuned.json"):
        assert path.stat().st_mode & 0o777 == 0o600
    single_options = (
        "--clients 3",
        "--proximal-strength 1",
        "--learning-rate 1",
        f"--out {picture}",
    )
    for option in single_options:
        refused(f"evaluate {run_folder} {option}", option.split()[0], "need --fine-tune EPOCHS")
    for rate in ("0", "-1", "nan", "1e309", "abc", "0.1,"):
        refused(
            f"evaluate {run_folder} --fine-tune 1 --learning-rate {rate}", "--learning-rate", rate
        )


@pytest.mark.slow
def test_evaluate_on_other_data_uses_the_vocabulary_of_the_run(trained_run, corpus_file, tmp_path):
    folder, _ = trained_run
    printed_values = printed_by(
        f"evaluate {folder} --data {shutil.copy(corpus_file, tmp_path / 'copy')} --quiet"
    )
    result = json.loads((folder / "result.json").read_text())
    assert printed_values["test accuracy"] == pytest.approx(result["test"]["accuracy"])
    other_corpus = write_synthetic_corpus(
        tmp_path / "other.sqlite", clients=12, seed=5, sentences_per_client=9, progress=False
    )
    options = f"--data {other_corpus} --by-client --fine-tune 1 --split validation --quiet"
    other_values = printed_by(f"evaluate {folder} {options}")
    assert other_values["data"] == "not the run's"
    assert 0 <= other_values["validation accuracy"] <= 1
    assert other_values["fine_tuned"]["population"] == 12
    for name in ("clients", "fine_tuned"):  # These files describe the run's own data.
        assert not (folder / f"{name}.json").exists()
    from fedmf import tasks

    other_task = tasks.task_of_run(Run.load(folder), data=str(other_corpus), progress=False)
    assert "-" in other_task.data_version
    words = [
        task.data_version.partition("-")[2]
        for task in (other_task, tasks.task_of_run(Run.load(folder)))
    ]
    assert words[0] == words[1]


def test_export_writes_a_model_and_its_vocabulary(trained_run, tmp_path):
    folder, _ = trained_run
    printed_values = printed_by(f"export {folder} --out {tmp_path}/model.keras")
    assert printed_values["inputs"] == ["int32 (any, 4)"]
    assert printed_values["outputs"] == ["float32 (any, 4, 64)"]
    assert (tmp_path / "model.keras").stat().st_size > 4 * printed_values["parameters"]
    refused(f"export {folder} --out {folder}", "--out", "new or an empty folder")
    words = json.loads((folder / "vocabulary.json").read_text())
    assert json.loads((tmp_path / "model.vocabulary.json").read_text()) == words
    assert words["special_ids"]["end"] == 63
    assert "vocabulary.json" in json.loads((folder / "result.json").read_text())["sha256"]


@pytest.mark.parametrize("line", ["evaluate {run}", "export {run} --out {out}", "predict {run} a"])
def test_loading_a_model_shows_progress_from_the_start(line, trained_run, tmp_path, monkeypatch):
    shown_steps = []

    @contextlib.contextmanager
    def elapsed(description, *, disable=False):
        shown_steps.append((description, disable))
        yield

    monkeypatch.setattr("fedmf.terminal.progress_bar.elapsed", elapsed)
    command = line.format(run=trained_run[0], out=tmp_path / "model.keras")
    fedmf(command)
    assert shown_steps[:2] == [("reading the run", False), ("loading the model", False)]
    shown_steps.clear()
    fedmf(command.replace("model.keras", "again.keras"), "--json")
    assert all(is_quiet for _, is_quiet in shown_steps) == (not command.startswith("evaluate"))


@pytest.mark.slow
def test_exports_open_as_the_help_says(trained_run, tmp_path):
    """Exports open in each environment: Keras 2 of TensorFlow 2.14, or tf-keras and Keras 3 of a
    later version.
    """
    import keras
    import tensorflow as tf

    from fedmf import federated  # noqa: F401 (which chooses Keras 2)

    folder, _ = trained_run
    for export_name in ("model.keras", "saved"):
        fedmf(f"export {folder} --out {tmp_path / export_name}")
    words = np.array([[62, 1, 2, 3]], np.int32)
    expected = tf.keras.models.load_model(tmp_path / "model.keras")(words).numpy()
    for load in (tf.keras.models.load_model, tf.saved_model.load):
        np.testing.assert_allclose(load(str(tmp_path / "saved"))(words), expected, rtol=1e-5)
    if keras.__version__.startswith("3."):
        layer = keras.layers.TFSMLayer(tmp_path / "saved", call_endpoint="serving_default")
        np.testing.assert_allclose(layer(words)["logits"], expected, rtol=1e-5)
        for export_name in ("model.keras", "saved"):
            with pytest.raises((TypeError, ValueError)):
                keras.models.load_model(tmp_path / export_name)


def test_predict_shows_the_most_likely_words_without_data(trained_run, run_folder, corpus_file):
    words = json.loads((run_folder / "vocabulary.json").read_text())["words"]
    printed_values = printed_by(f"predict {run_folder} {words[0]} --count 100")
    assert printed_values["unknown"] == []
    assert set(printed_values["words"]) == {*words, "(end of the sentence)"}
    chances = list(printed_values["words"].values())
    assert chances == sorted(chances, reverse=True)
    assert 0 < sum(chances) < 1
    # The run's own model gives the expected probabilities.
    from fedmf import federated, tasks

    task = tasks.task_of_run(Run.load(run_folder))
    begin = json.loads((run_folder / "vocabulary.json").read_text())["special_ids"]["begin"]
    logits = federated.TrainedRun.of(Run.load(run_folder), task).model()(
        np.array([[begin, 1, 0, 0]])
    )
    scores = np.exp(logits[0, 1]) / np.exp(logits[0, 1]).sum()
    assert printed_values["words"][words[4]] == pytest.approx(float(scores[5]), rel=1e-4)
    # Only the last words count, and an unknown one counts as the unknown word.
    longer_values = printed_by(f"predict {run_folder} '{'no-such-word ' * 9}' --count 3")
    assert longer_values["unknown"] == ["no-such-word"] * 9
    assert len(longer_values["words"]) == 3
    (run_folder / "vocabulary.json").unlink()
    refused(f"predict {run_folder} a", "vocabulary.json")


def test_report_writes_a_csv_table(trained_run, tmp_path):
    folder, _ = trained_run
    fedmf(f"report {folder} --csv {tmp_path}/one.csv")
    assert (tmp_path / "one.csv").read_text() == (folder / "metrics.csv").read_text()
    refused(f"report {folder}", "--out", "--csv")


MODULE = '''
import dataclasses

import numpy as np
import tensorflow as tf

from fedmf import federated


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    width: int = 3


def visits(options: Options) -> federated.Task:
    """Eight clients of ten visits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, options.width)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int32)
    return federated.Task.from_arrays(
        name="visits", x=x[:80], y=y[:80], client_ids=np.repeat(np.arange(8), 10), batch_size=5,
        validation=(x[80:100], y[80:100]), test=(x[100:], y[100:]),
        model=lambda: tf.keras.Sequential(
            [tf.keras.Input((options.width,)), tf.keras.layers.Dense(1, activation="sigmoid")]
        ),
        loss=tf.keras.losses.BinaryCrossentropy(),
        metrics=lambda: [tf.keras.metrics.BinaryAccuracy("accuracy")],
    )


def others() -> federated.Task:
    return dataclasses.replace(visits(Options()), name="others")
'''


@pytest.mark.usefixtures("clients_in_turn")
@pytest.mark.slow
def test_a_run_trained_in_python_needs_its_task_on_the_command_line(tmp_path, monkeypatch):
    """The config of such a run does not name its task."""
    import fedmf as library
    from fedmf import federated

    (tmp_path / "visits_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    from visits_module import Options, visits

    config = library.TrainConfig(
        rounds=2, cohort_size=3, min_sep=1, epsilon=8.0, cooldown=0, warmup=0
    )
    run = federated.train(
        visits(Options(width=4)), config, folder=tmp_path / "run", noise_seed=1, progress=False
    )
    task = "--task visits_module:visits"
    for command in ("evaluate run", "export run --out model.keras"):
        refused(command, "trained in Python on task 'visits'")
        refused(f"{command} -o width=4", "--task-option belong")
        refused(f"{command} --task visits_module:others", "makes the task 'others'")
        refused(f"{command} {task}", "use the task that the run was trained on")
    printed_values = printed_by(
        f"evaluate run {task} -o width=4 --fine-tune 2 --split test --quiet"
    )
    assert printed_values["test accuracy"] == pytest.approx(run.result["test"]["accuracy"])
    assert printed_values["fine_tuned"] == run.evaluate_fine_tuned(2, split="test")
    export = f"export run {task} -o width=4 --out"
    assert printed_by(f"{export} model.keras")["parameters"] == 5
    assert "saved_model" in fedmf(f"{export} saved_model").stdout
    assert (tmp_path / "saved_model" / "saved_model.pb").exists()
    assert "width=3" in fedmf(f"evaluate {task} --help").stdout


def test_the_table_of_a_run_has_all_metrics(trained_run):
    folder, printed_values = trained_run
    printed_values = json.loads(printed_values)
    result = json.loads((folder / "result.json").read_text())
    for split in ("validation", "test"):
        values = {f"{split} {name}": value for name, value in result[split].items()}
        assert values.items() <= printed_values.items()
    assert (
        next(name for name in printed_values if name.startswith("validation"))
        == "validation accuracy"
    )
