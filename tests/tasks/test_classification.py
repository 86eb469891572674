"""The classification task on a user's own rows: its data, its models, and a run without noise."""

import numpy as np
import pytest

import fedmf
from fedmf import TrainConfig, tasks
from fedmf.tasks.classification import import_rows
from fedmf.tasks.classification.data import hashed_word
from fedmf.tasks.data_file import is_labelled
from fedmf.tasks.row_table import ImportOptions
from tests.cli.program import fedmf as program
from tests.cli.program import printed_by, refused
from tests.refusals import refusal

pytestmark = pytest.mark.tensorflow

RUN = (
    "--rounds 30 --cohort-size 10 --min-sep 2 --family none --client-learning-rate 1 "
    "--clip-norm 5 --server-learning-rate 1 --server-momentum 0 --warmup 0 --evaluate-every 30 "
    "--quiet"
)


@pytest.fixture(scope="module")
def data_files(tmp_path_factory):
    """Returns data files of numbers, of the same numbers in other units, of texts, and of numbers
    that are split in time, by name.
    """
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    lines = ["user,label,size,weight,body,t"]
    for i in range(400):
        label = rng.integers(2)
        size = 3 * label + rng.normal()
        words = " ".join(rng.permutation(["the", "a", ["goal", "bread"][label]]))
        lines.append(f"u{i % 50},{'ab'[label]},{size},{1e6 - 1000 * size},{words},{i}")
    (folder / "rows.csv").write_text("\n".join(lines))
    numbers = {"label_column": "label", "number_columns": "size,weight"}
    options_by_name = {
        "numbers": numbers,
        "one": numbers | {"number_columns": "size"},
        "texts": {"label_column": "label", "text_column": "body"},
        "times": numbers | {"time_column": "t"},
    }
    for name, options in options_by_name.items():
        import_rows(folder / "rows.csv", folder / name, ImportOptions(**options), progress=False)
    assert all(is_labelled(folder / name) for name in options_by_name)
    return {name: str(folder / name) for name in options_by_name}


def task_of(data, **task_options):
    config = tasks.completed(
        TrainConfig(family="none", min_sep=1, data=data, task_options=task_options)
    )
    assert config.task == "classification"
    return tasks.task_from_config(config, progress=False)


@pytest.mark.usefixtures("clients_in_turn")
@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("numbers", "logistic"),
        pytest.param("numbers", "dense", marks=pytest.mark.slow),
        pytest.param("texts", "pooled-text", marks=pytest.mark.slow),
    ],
)
def test_each_model_learns(data_files, tmp_path, name, model):
    line = f"train --data {data_files[name]} -o model={model} -o hashed-words=50 {RUN}"
    values = printed_by(f"{line} --out {tmp_path / 'run'}")
    # The best classifier of two normal distributions that are 3 apart has an accuracy of 0.93.
    assert values["test accuracy"] > 0.85
    run = fedmf.Run.load(tmp_path / "run")
    assert "computed without noise" in run.plan["task"]["description"]
    assert "computed without noise" in (tmp_path / "run" / "statement.md").read_text()


def test_numbers_are_standardised(data_files):
    task = task_of(data_files["numbers"])
    x = np.concatenate([task.examples_of(client)[0] for client in task.client_ids])
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(x[:, 0], -x[:, 1], atol=1e-4)


def test_words_are_hashed_and_filled_up(data_files):
    x, _ = task_of(data_files["texts"], text_words=5, hashed_words=1000).split("validation")
    known = {hashed_word(word, 1000) for word in (b"the", b"a", b"goal", b"bread")}
    assert set(x[:, :3].ravel()) == known
    assert not x[:, 3:].any()


def test_clients_of_the_splits_are_disjoint_or_the_same(data_files):
    for name, is_same in (("numbers", False), ("times", True)):
        task = task_of(data_files[name])
        num_examples = sum(len(task.examples_of(client)[1]) for client in task.client_ids)
        evaluated = [len(task.split(split)[1]) for split in ("validation", "test")]
        assert num_examples + sum(evaluated) == 400
        assert (len(task.client_ids) == 50) == is_same


def test_another_file_has_the_classes_and_units_of_the_run(data_files, tmp_path):
    """A file whose statistics differ is read with those of the run."""
    rows = ["user,label,size,weight"] + [
        f"v{i},{'bc'[i % 2] if i > 1 else 'a'},{100 + i},{i}" for i in range(40)
    ]
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    options = ImportOptions(label_column="label", number_columns="size,weight")
    import_rows(tmp_path / "rows.csv", tmp_path / "new", options, progress=False)
    with refusal("has the class 'c', which .* has not"):
        task_of(str(tmp_path / "new"), classes_data=data_files["numbers"])
    (tmp_path / "rows.csv").write_text("\n".join(rows).replace(",c,", ",a,"))
    import_rows(tmp_path / "rows.csv", tmp_path / "new", options, overwrite=True, progress=False)
    x, _ = task_of(str(tmp_path / "new"), classes_data=data_files["numbers"]).split("validation")
    # The numbers of the run have a mean of about 1.5 and a standard deviation of about 1.8.
    assert x[:, 0].min() > 40


def test_data_that_change_are_another_version(data_files, tmp_path):
    copy = tmp_path / "rows.sqlite"
    with open(data_files["numbers"], "rb") as file:
        content = bytearray(file.read())
    copy.write_bytes(content)
    line = f"train --data {copy} {RUN} --out {tmp_path / 'run'}"
    program(f"{line} --stop-after 1")
    place = content.rindex(b"numbers")
    content[place + 20] ^= 1
    copy.write_bytes(content)
    refused(f"train --resume --quiet --out {tmp_path / 'run'}", "data")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("numbers", {"model": "pooled-text"}, "whose rows have numbers: use logistic or dense"),
        ("texts", {"model": "dense"}, "whose rows have a text: use pooled-text"),
        ("numbers", {"model": "cnn"}, "model='cnn'"),
        ("numbers", {"hidden_units": 0}, "hidden.units=0"),
    ],
)
def test_options_that_do_not_suit_the_file_are_refused(data_files, name, options, words):
    with refusal(words):
        task_of(data_files[name], **options)


def test_files_of_other_columns_are_refused(data_files):
    with refusal("import both with the same columns"):
        task_of(data_files["one"], classes_data=data_files["numbers"])
    with refusal("names no data file"):
        tasks.task_from_config(TrainConfig(task="classification", family="none", min_sep=1))


@pytest.mark.slow
def test_proposed_settings_learn(tmp_path, monkeypatch):
    """The best classifier of these rows has an accuracy of 0.93, and a constant one of 0.5."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=3000)
    sizes = 3 * labels + rng.normal(size=3000)
    lines = [f"u{i % 600},{labels[i]},{sizes[i]}" for i in range(3000)]
    (tmp_path / "rows.csv").write_text("\n".join(["user,label,size", *lines]))
    columns = "--user-column user --label-column label --number-columns size"
    program(f"data import rows.csv {columns} --out rows.sqlite --quiet")
    settings = "plan settings --data rows.sqlite -o model=logistic --epsilon 8 --quiet"
    command = printed_by(settings)["command"]
    finished_process = program(f"{command} --quiet --stop-on-divergence --out run")
    assert "diverges" not in finished_process.stderr
    run = fedmf.Run.load("run")
    assert run.plan["epsilon"] == pytest.approx(8, abs=1e-3)
    assert run.result["test"]["accuracy"] > 0.85
