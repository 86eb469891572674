"""Ids, labels, metrics and fingerprints of unusual types are taken by their value, or refused in
one sentence before round 0.
"""

import dataclasses
import functools
import json

import numpy as np
import pytest

from fedmf import training
from fedmf.identifiers import client_array
from fedmf.runs.round_metrics import FinishedRound, RoundMetric, compute_round_metrics
from fedmf.server.means import leaves_of
from fedmf.training.evaluation import Evaluator
from fedmf.training.example_checks import check_examples
from fedmf.training.examples import ClientData, Weighted, digest
from fedmf.training.learner import Machine, function_text
from tests.refusals import assert_one_sentence
from tests.training.numpy_task import (
    CLIENTS,
    OWNERS,
    X,
    Y,
    client_update,
    config,
    evaluate,
    initial_weights,
    learner,
    linear_task,
    train,
)  # fmt: skip

NO_NOISE = {"family": "none", "noise_multiplier": None, "min_sep": 2}


def message_of(call, *arguments, **options):
    """Returns the message of a refusal, in one sentence."""
    with pytest.raises((TypeError, ValueError)) as caught:
        call(*arguments, **options)
    assert_one_sentence(caught)
    return str(caught.value)


def test_a_digest_of_objects_is_that_of_their_values():
    texts = ["".join(["user", str(owner)]) for owner in OWNERS]
    same_texts = ["".join(["user", str(owner)]) for owner in OWNERS]
    first_digest, second_digest = (
        linear_task(client_ids=np.array(ids, object)).data_version for ids in (texts, same_texts)
    )
    assert first_digest == second_digest
    assert first_digest != linear_task(client_ids=np.array(texts[::-1], object)).data_version
    assert digest(np.array([1, "a"], object)) == digest(np.array([1, "".join("a")], object))
    assert digest(np.array([1, "a"], object)) != digest(np.array(["1", "a"], object))
    assert "of which there is no digest" in message_of(digest, np.array([object()], object))


@pytest.mark.parametrize(
    "ids", [[b"a", b"a\0"], [2**53, 2**53 + 1, 0.5], [2**60 + 1, 2**60, -0.5, 1.5]]
)
def test_ids_that_numpy_would_merge_are_refused(ids):
    assert "numpy makes the same" in message_of(client_array, "client_ids", ids)


def test_ids_of_a_list_keep_their_types():
    assert client_array("client_ids", [2**53, 2**53 + 1]).tolist() == [2**53, 2**53 + 1]
    assert client_array("client_ids", [1, 2, 2.5, 1]).tolist() == [1, 2, 2.5, 1]
    assert client_array("client_ids", ["b", "a", "b"]).tolist() == ["b", "a", "b"]


@pytest.mark.parametrize(
    "id_of", [int, lambda i: bytes([65 + i]), lambda i: (i, 1), lambda i: f"\ud800{i}"]
)
def test_clients_of_any_id_are_fine_tuned(tmp_path, id_of):
    client_ids = [id_of(i) for i in range(CLIENTS)]
    index_by_id = {client_id: i for i, client_id in enumerate(client_ids)}

    def client_examples(client_id):
        is_own = index_by_id[client_id] == OWNERS
        return X[is_own], Y[is_own]

    splits = {"validation": (X[:40], Y[:40]), "test": (X[40:80], Y[40:80])}
    task = training.Task(
        name="linear", client_ids=client_ids, client_examples=client_examples, batch_size=3,
        evaluation_examples=splits.__getitem__, learner=learner(), data_version="1",
    )  # fmt: skip
    settings = config(**NO_NOISE | {"rounds": 1, "min_sep": 1, "evaluate_every": 1})
    run = train(tmp_path / "run", settings, task)
    assert run.evaluate_fine_tuned(epochs=1, clients=3)["clients"] == 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("entry", [3.0, 1e30])
def test_a_step_of_fine_tuning_is_clipped_in_float64(dtype, entry):
    task = linear_task(
        initial_weights=lambda seed: [np.zeros(4, dtype)],
        client_update=lambda weights, epochs, settings: ([np.full(4, entry, dtype)], 1.0),
    )
    settings = task.client_settings(config(), max_step_norm=0.5)
    work = task.learner.client_work(settings, Machine())
    broadcast = training.client_work.Broadcast(
        task.initial_weights(0), training.client_work.ClientParams(np.inf, np.inf, ())
    )
    [group_sum] = work.sums(broadcast, [[ClientData([(X[:3], Y[:3])])]])
    np.testing.assert_allclose(group_sum.values[0], -0.25, rtol=1e-6)


def test_evaluate_gets_plain_labels_whatever_the_weights():
    def shares(weights, examples):
        x, y = examples
        return {"share": np.mean(np.round(y) == np.round(x @ weights[0])), "loss": 1.0}

    seen_labels = []
    for changes in ({}, {"sample_weight": np.full(len(Y), 2.0)}):
        task = linear_task(evaluate=shares, **changes)
        weights = [np.array([1.0, -2.0, 0.5]), np.zeros(1)]
        seen_labels.append(Evaluator(task, config())(weights, "test"))
        assert task.headline == "share"
    assert seen_labels[0] == seen_labels[1]
    assert 0.5 < seen_labels[0]["share"] < 1


def test_weighted_labels_cannot_be_taken_for_an_array():
    labels = Weighted(np.arange(3.0), np.ones(3))
    array = np.ones(3)
    for use in (
        lambda: array == labels,
        lambda: labels == array,
        lambda: labels != array,
        lambda: array - labels,
        lambda: labels - array,
        lambda: array @ labels,
        lambda: np.asarray(labels),
        lambda: np.mean(labels),
    ):
        with pytest.raises(TypeError):
            use()
    with pytest.raises(TypeError, match=r"take `y.labels`"):
        assert array == labels
    assert Weighted(1, 2) == Weighted(1, 2) != Weighted(1, 3)
    assert hash(Weighted(1, 2)) == hash((1, 2))


@pytest.mark.parametrize(
    "value", [1j, None, 10**400, "0.5", np.array("0.5"), np.ones(1), np.ma.masked]
)
def test_a_metric_or_a_loss_that_is_no_number_is_refused(value):
    task = linear_task(evaluate=lambda weights, examples: {"loss": 1.0, "odd": value})
    assert "'odd'" in message_of(lambda: task.headline)
    task = linear_task(
        client_update=lambda w, epochs, settings: ([array * 0 for array in w], value)
    )
    assert "returns the loss" in message_of(task.learner.check, task, config())

    class Odd(RoundMetric):
        name = "odd"

        def compute(self, finished):
            return value

    message = message_of(compute_round_metrics, [Odd()], FinishedRound(0, [], [], []))
    assert "round metric odd" in message


def test_metrics_have_the_same_names_on_all_examples(tmp_path):
    def other_names(weights, examples):
        values = evaluate(weights, examples)
        if len(examples[1]) < 40:
            values["other"] = values.pop("share within 1")
        return values

    evaluator = Evaluator(linear_task(evaluate=other_names), config())
    weights = initial_weights(3)
    evaluator(weights, "validation")
    for evaluate_examples in (evaluator.on, evaluator.on_marked):
        message = message_of(evaluate_examples, weights, (X[:3], Y[:3]))
        assert "['loss', 'other']" in message
        assert "['loss', 'share within 1']" in message


def test_masked_arrays_are_refused():
    masked = np.ma.masked_less(X, 0)
    assert "a masked array" in message_of(linear_task, x=masked)
    assert "update[0] is a masked array" in message_of(leaves_of, "update", [masked], [X.shape])
    assert "a masked array" in message_of(check_examples, (X, np.ma.array(Y)), "client 1")
    weights = message_of(learner(initial_weights=lambda seed: [np.ma.ones(3)]).initial_weights, 0)
    assert "a masked array" in weights
    task = linear_task(
        client_update=lambda w, epochs, settings: ([np.ma.array(array) for array in w], 1.0)
    )
    assert "none of them masked" in message_of(task.learner.check, task, config())


@dataclasses.dataclass(frozen=True)
class Update:
    rate: float
    offsets: tuple = ()

    def __call__(self, weights, epochs, settings):
        return client_update(weights, epochs, settings)

    def method(self, weights, epochs, settings):
        return client_update(weights, epochs, settings)


@pytest.mark.parametrize(
    ("function", "changed", "same"),
    [
        (functools.partial(max, 1), functools.partial(max, 2), functools.partial(max, 1)),
        (
            functools.partial(max, key=np.zeros(2)),
            functools.partial(max, key=np.ones(2)),
            functools.partial(max, key=np.zeros(2)),
        ),
        (Update(0.1), Update(0.2), Update(0.1)),
        (Update(0.1).method, Update(0.2).method, Update(0.1).method),
        (
            functools.partial(Update(0.1), {"a": [np.zeros(2)]}),
            functools.partial(Update(0.1), {"a": [np.ones(2)]}),
            functools.partial(Update(0.1), {"a": [np.zeros(2)]}),
        ),
    ],
)
def test_the_fingerprint_of_a_function_has_its_arguments_and_fields(function, changed, same):
    text = function_text(function)
    assert text == function_text(same) != function_text(changed)
    assert " at 0x" not in text


def test_a_run_with_another_argument_is_refused_at_a_resume(tmp_path):
    settings = config(rounds=3, **NO_NOISE)
    stop = [training.StopAfter(1)]
    train(tmp_path / "run", settings, linear_task(client_update=Update(0.1)), callbacks=stop)
    changed_task = linear_task(client_update=Update(0.2))
    message = message_of(train, tmp_path / "run", settings, changed_task, resume=True)
    assert "Update(rate=0.2, offsets=[])" in message


@pytest.mark.parametrize(
    "program", [{"a": np.zeros(1)}, {"a": np.nan}, {("a", 1): "b"}, {1: "a"}, ["a"]]
)
def test_a_fingerprint_that_is_no_dict_of_texts_is_refused_before_round_0(
    tmp_path, monkeypatch, program
):
    task = linear_task()
    monkeypatch.setattr(task.learner, "fingerprint", lambda seed: program)
    message = message_of(train, tmp_path / "run", task=task)
    assert "fingerprint of FunctionLearner" in message
    assert not (tmp_path / "run").exists()


def test_a_resume_with_other_shapes_names_them(tmp_path):
    settings = config(rounds=3, **NO_NOISE)
    train(tmp_path / "run", settings, callbacks=[training.StopAfter(1)])
    larger = linear_task(
        initial_weights=lambda seed: [np.zeros(3), np.zeros(2)],
        client_update=lambda weights, epochs, options: ([array * 0 for array in weights], 1.0),
        evaluate=lambda weights, examples: {"loss": 1.0, "share within 1": 0.5},
    )
    with pytest.warns(UserWarning, match="is resumed with another program"):
        message = message_of(
            train, tmp_path / "run", settings, larger, resume=True, accept_changed_task=True
        )
    assert "an array of float64 (1,)" in message
    assert "an array of float64 (2,)" in message


def test_a_resume_takes_the_noise_seed_of_the_run_alone(tmp_path):
    settings = config(rounds=3)
    train(tmp_path / "run", settings, callbacks=[training.StopAfter(1)])
    for other_seed in (10, "os"):
        message = message_of(train, tmp_path / "run", settings, resume=True, noise_seed=other_seed)
        assert "another `noise_seed`" in message
        assert "9" not in message.replace(str(tmp_path), "")
    assert train(tmp_path / "run", settings, resume=True, noise_seed=9).result is not None


def test_the_training_loss_of_a_round_without_examples_is_null(tmp_path):
    task = linear_task()
    empty = dataclasses.replace(task, client_examples=lambda client: (X[:0], Y[:0]))
    run = train(tmp_path / "run", config(rounds=2, **NO_NOISE), empty)
    for line in (run.path / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert (row["examples"], row["train_loss"]) == (0, None)


@pytest.mark.parametrize("name", ["statement.md", "final_statement.md"])
@pytest.mark.parametrize("is_given", [False, True])
def test_a_statement_says_where_the_initial_weights_are_from(tmp_path, name, is_given):
    task = linear_task()
    settings = config(rounds=2)
    if is_given:
        task = task.starting_from([np.ones(3), np.ones(1)])
    run = train(tmp_path / "run", settings, task)
    text = " ".join((run.path / name).read_text().replace("\\", "").split())
    origin = "the task was given by starting_from" if is_given else "the task makes with seed 3"
    expected = f"Pre-training: the initial weights are those that {origin} (SHA-256 digest"
    assert expected in text
    assert digest(task.initial_weights(3)) in text
    assert "The data used for it is not covered." in text
