"""README.md is short, its snippets run and print what it says, and its numbers are those of the
files that they come from.
"""

import importlib.util
import json
import pathlib
import re
import tomllib

import numpy as np
import pytest

import fedmf
from fedmf.experiments.papers import ITEMS, results

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
INDEX = (ROOT / "docs" / "index.md").read_text()
# The snippets: a run, TFF, Flower, a server and PyTorch. tests/flower runs that of Flower.
RUN, TFF, FLOWER, SERVER, _ = re.findall(r"```python\n(.*?)```", README, re.S)
[PLAN] = re.findall(r"^(plan = .*)$", RUN, re.M)


def execute(snippet, names):
    exec(compile(snippet, "README.md", "exec"), names)


def docs_extension(name):
    path = ROOT / "docs" / "extensions" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plan():
    names = {"fedmf": fedmf}
    execute(PLAN, names)
    return names["plan"]


def test_the_readme_is_short():
    lines = README.splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 100


def test_the_run_is_short_and_prints_what_the_text_says(capsys):
    """The noise is random. A printed weight rounds to another digit at 15 standard deviations."""
    _, _, after_data = RUN.partition("\n\n")
    assert len(after_data.partition("\n\n")[2].splitlines()) <= 12
    execute(RUN, {})
    weights, _, statement = capsys.readouterr().out.partition("\n")
    text = " ".join(README.split())
    assert f"The program prints `{weights}`, and a [privacy statement]" in text
    [sentence] = re.findall(r' that says: "([^"]*)"', text)
    assert sentence in " ".join(statement.split())


def test_the_own_server_trains_a_round(plan):
    weights = [np.zeros(4), np.zeros(1)]
    trained_clients = []

    def train_client(client, weights):
        trained_clients.append(client)
        return [np.full_like(array, 0.1) for array in weights]

    names = {
        "fedmf": fedmf,
        "plan": plan,
        "shapes": [array.shape for array in weights],
        "clients": range(20),
        "train_client": train_client,
        "weights": weights,
    }
    execute(SERVER, names)
    assert len(trained_clients) == 5
    assert names["server"].round == 1
    assert all(np.any(array) for array in names["weights"])


@pytest.mark.tensorflow
@pytest.mark.slow
def test_the_tff_snippet_trains_a_round(plan, tff, tmp_path, monkeypatch):
    import tensorflow as tf

    from fedmf import federated

    def model_fn():
        layer = tf.keras.layers.Dense(1, kernel_initializer="zeros", input_shape=[2])
        model = tf.keras.Sequential([layer])
        spec = (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1]))
        return tff.learning.models.from_keras_model(
            model, loss=tf.keras.losses.MeanSquaredError(), input_spec=spec
        )

    pipeline = {
        "model_fn": model_fn,
        "client_optimizer_fn": tff.learning.optimizers.build_sgdm(0.1),
        "server_optimizer_fn": tff.learning.optimizers.build_sgdm(0.1, 0.9),
    }
    examples = tf.data.Dataset.from_tensor_slices(([[1.0, 0.0]], [[1.0]])).batch(2)
    names = {
        "fedmf": fedmf,
        "federated": federated,
        "plan": plan,
        "build_unweighted_fed_avg": tff.learning.algorithms.build_unweighted_fed_avg,
        "pipeline": pipeline,
        "sizes": {"population": 40, "cohort_size": 5, "seed": 1},
        "client_data": lambda client: examples,
    }
    monkeypatch.chdir(tmp_path)
    execute(TFF, names)
    training = names["training"]
    assert training.round == len(training.ledger) == 1
    kernel, _ = names["process"].get_model_weights(names["output"].state).trainable
    assert np.any(kernel)


def test_the_table_of_results_is_computed():
    assert docs_extension("verdicts").table() in README


def test_the_number_of_trained_results_is_counted():
    folder = ROOT / "docs" / "papers"
    verdicts = [
        result["verdict"]
        for item in ITEMS.values()
        if item.study is not None and (result := results.load(folder / f"{item.name}.json"))
    ]
    assert "not judged" not in verdicts
    assert f"{len(verdicts)} results come from small models on synthetic data." in README


def test_the_docs_say_how_many_results_did_not_hold_at_their_first_setting():
    """The numbers are counted from the Git history of docs/papers, which later results keep."""
    sentence = docs_extension("verdicts").first_results()
    assert sentence.startswith("14 of the 22 trained results did not hold at their first setting.")
    assert "For 11 of these" in sentence
    assert "A further 2 held at first" in sentence


def test_the_expected_number_of_false_verdicts_is_that_of_judged_intervals(tmp_path):
    """A clause without an interval rests on exact numbers or is not judged."""
    clauses = [{"interval": [0.1, 0.2]}] * 30 + [{"interval": None}] * 50
    for name in ("banded-figure-5", "banded-figure-12"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"clauses": clauses}))
    sentence = docs_extension("verdicts").false_verdicts(tmp_path)
    assert sentence.startswith("60 clauses are judged by a 95% interval")
    assert "at most 1.5 of these verdicts" in sentence


def test_accuracies_are_those_of_the_demo():
    """A slow test of tests/experiments/test_demo.py computes them again."""
    accuracies = json.loads((ROOT / "docs" / "images" / "demo.json").read_text())
    percent = {family: 100 * np.mean(values) for family, values in accuracies.items()}
    text = " ".join(README.split())
    assert (
        f"twice the accuracy of DP-FedAvg: {percent['banded']:.1f}% against "
        f"{percent['identity']:.1f}%. "
        f"Training without noise has an accuracy of {percent['none']:.1f}%."
    ) in text
    assert percent["banded"] / percent["identity"] == pytest.approx(2, abs=0.05)


def test_the_repository_is_named_once_it_has_an_address():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    address = project["urls"].get("Repository", "URL")
    assert f"git clone {address} fedmf\npip install ./fedmf\n" in README


def test_names_and_links_exist():
    for name in set(re.findall(r"fedmf\.([A-Z]\w+|train|training)\b", README)):
        assert hasattr(fedmf, name), name
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert link.startswith("https://") or (ROOT / link.partition("#")[0]).exists(), link


def test_the_front_page_shows_the_readme():
    assert "```{include} ../README.md" in INDEX
