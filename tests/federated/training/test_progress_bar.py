"""The progress bar shows the newest validation, its loss first, and the last round."""

import re
import types

import pytest

from fedmf.training import callbacks


def shown_after(rows, headline, monkeypatch):
    """Returns what the bar shows beside its rounds after these rows."""
    postfixes = []

    class ShownBar:
        def set_postfix(self, values, refresh):
            postfixes.append(dict(values))

        def update(self):
            pass

    monkeypatch.setattr(callbacks.progress_bar, "bar", lambda **options: ShownBar())
    training = types.SimpleNamespace(
        config=types.SimpleNamespace(rounds=9, family="banded"),
        task=types.SimpleNamespace(headline=headline),
        done=0,
        seconds=2.0,
    )
    bar = callbacks.Bar()
    bar.on_start(training)
    for row in rows:
        bar.on_round(training, {"clients": 5, "train_loss": 6.54321} | row)
    return postfixes


def test_the_loss_shows_progress_while_the_accuracy_is_0(monkeypatch):
    """A next-word model first learns the ends of sentences, which its accuracy leaves out."""
    rows = [
        {},
        {"validation": {"accuracy": 0.0, "accuracy_no_pad": 0.1, "loss": 6.9}},
        {},
        {"validation": {"accuracy": 0.0, "accuracy_no_pad": 0.1, "loss": 5.25}},
    ]
    postfixes = shown_after(rows, "accuracy", monkeypatch)
    assert postfixes[0] == {"loss": "6.543", "clients/s": "2.5"}
    assert [values.get("validation loss") for values in postfixes] == [
        None,
        "6.900",
        "6.900",
        "5.250",
    ]
    # A narrow terminal cuts the end of the bar.
    assert [*postfixes[-1]] == ["validation loss", "accuracy", "loss", "clients/s"]
    assert postfixes[-1]["accuracy"] == "0.0000"


@pytest.mark.parametrize(
    ("metrics", "headline", "names"),
    [
        ({"loss": 1.5}, "loss", ["validation loss"]),
        ({"accuracy": 0.5}, "accuracy", ["accuracy"]),
        ({"auc": float("nan"), "loss": float("inf")}, "auc", ["validation loss", "auc"]),
    ],
)
def test_each_metric_of_a_validation_is_shown_once(metrics, headline, names, monkeypatch):
    [values] = shown_after([{"validation": metrics}], headline, monkeypatch)
    assert [*values] == [*names, "loss", "clients/s"]
    assert all(re.fullmatch(r"[\d.]+|nan|inf", value) for value in values.values())
