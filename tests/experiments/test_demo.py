"""The demo's driver, at a size for tests; the real size is `make demo`."""

import dataclasses
import json
import pathlib

import pytest

import fedmf
from fedmf import tasks
from fedmf.experiments import demo
from fedmf.sweeps.results import validation_of
from tests.cli.program import fedmf as program
from tests.cli.program import printed_by
from tests.federated.small_runs import Calls
from tests.refusals import refusal

pytestmark = pytest.mark.tensorflow
COMMITTED = pathlib.Path(__file__).parents[2] / "docs" / "images" / "demo.json"
# Other processors round float32 sums in another way, from which runs differ by less than this.
ROUNDING = 0.005


@pytest.fixture
def tiny(monkeypatch, clients_in_turn):
    monkeypatch.setattr(demo, "CLIENTS", 12)
    monkeypatch.setattr(demo, "SENTENCES_PER_CLIENT", 12.0)
    small = {
        "rounds": 4, "cohort_size": 4, "min_sep": 2, "evaluate_every": 2,
        "task_options": demo.TASK_OPTIONS
        | {"lstm_size": 8, "embedding_size": 8, "sequence_length": 4, "max_sentences": 8}
        | {"validation_sentences": 40, "test_sentences": 40},
    }  # fmt: skip
    monkeypatch.setattr(demo, "SETTINGS", demo.SETTINGS | small)
    # Only these train; the settings of all are compared below.
    monkeypatch.setattr(demo, "FAMILIES", ("none", "tree"))
    # The task is one object for all runs, so that it is traced once.
    make, made = tasks.task_from_config, {}

    def once(config):
        if config.data not in made:
            made[config.data] = make(config, progress=False)
        return made[config.data]

    monkeypatch.setattr(tasks, "task_from_config", once)


@pytest.mark.slow
def test_demo_resumes_after_ctrl_c_also_by_another_path(tiny, tmp_path, monkeypatch):
    from fedmf import federated

    train = federated.train

    def interrupted(*arguments, **options):
        def stop(t):
            if t == 2:
                raise KeyboardInterrupt

        return train(*arguments, **options, callbacks=[Calls(stop)])

    seeds = "--seed 1 --seed 2"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(federated, "train", interrupted)
    said = program(f"demo --out demo {seeds}", status=130).stderr.splitlines()[-1]
    assert "interrupted after 3 of 4 rounds" in said
    assert said.endswith("give the same command again to resume")

    monkeypatch.setattr(federated, "train", train)
    monkeypatch.chdir("/")
    out = tmp_path / "demo"
    first = printed_by(f"demo --out {out} {seeds}")["accuracy"]
    assert {family: len(values) for family, values in first.items()} == {"none": 2, "tree": 2}
    html = (out / "report" / "report.html").read_text()
    for label in ("Tree", "No noise", "Privacy statement"):
        assert label in html
    runs = [fedmf.Run.load(path) for path in (out / "runs").iterdir()]
    for run in runs:
        epsilon = run.plan["epsilon"]
        assert epsilon is None if run.config.family == "none" else epsilon <= 8.0
        assert run.config.claimed_cohort is None  # the demo's guarantee is that of its own runs
    noise_seeds = {path.read_text() for path in (out / "runs").glob("*/private/noise_seed")}
    assert len(noise_seeds) == len(runs) == 4

    # Finished runs are kept: another call trains nothing and says the same.
    monkeypatch.setattr(federated, "train", None)
    assert printed_by(f"demo --out {out} {seeds}")["accuracy"] == first


def test_everything_but_the_mechanism_and_its_rate_is_equal():
    none, *private = demo.demo_configs(pathlib.Path("c.sqlite"), seed=3, epsilon=4.0)
    for config in private:
        changed = {k for k, v in vars(config).items() if v != getattr(none, k)}
        assert changed - {"decoder"} == {"family", "epsilon", "server_learning_rate"}
    # One rule for all: the product of rate and error to the 0.95 is the same (banded paper, App.
    # I).
    errors = [fedmf.rmse(c.fit(), c.fit_workload(), c.participation()) for c in private]
    products = [
        c.server_learning_rate * error**0.95 for c, error in zip(private, errors, strict=True)
    ]
    assert products == pytest.approx([demo.RATE_FACTOR] * 3, rel=1e-2)


def test_unwritable_folder_is_one_sentence(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with refusal("cannot write to folder"):
        demo.run_demo(tmp_path / "file" / "demo", seeds=[1], epsilon=8.0)


@pytest.mark.slow
def test_the_demo_repeats_the_accuracies_that_readme_and_front_page_name(tmp_path):
    """These are the three of the text; the picture has the tree's, too."""
    from fedmf.tasks.stackoverflow import write_synthetic_corpus

    accuracy_by_family = json.loads(COMMITTED.read_text())
    corpus = tmp_path / "corpus.sqlite"
    write_synthetic_corpus(
        corpus,
        clients=demo.CLIENTS,
        seed=0,
        sentences_per_client=demo.SENTENCES_PER_CLIENT,
        vocabulary_size=demo.WORDS,
    )
    for config in demo.demo_configs(corpus, seed=1, epsilon=8.0):
        if config.family == "tree":
            continue
        # Validations before the last one change nothing in it.
        config = dataclasses.replace(config, evaluate_every=config.rounds)
        run = demo._run(config, tmp_path / config.family, demo.noise_seed(1, config))
        [committed_accuracy] = accuracy_by_family[config.family]
        assert validation_of(run) == pytest.approx(committed_accuracy, abs=ROUNDING), config.family
