"""The metrics of runs as flat tables."""

import csv
import io

from fedmf.runs.metric_table import metrics_csv

ROWS = [
    {"round": 0, "clients": 4, "train_loss": 1.5},
    {
        "round": 1,
        "clients": 3,
        "train_loss": 1.25,
        "validation": {"accuracy": 0.5, "loss": 0.1 + 0.2},
    },
]


def test_csv_reads_back_to_the_same_numbers():
    (first, second) = csv.DictReader(io.StringIO(metrics_csv({"one": ROWS})))
    assert first["validation_loss"] == ""
    assert float(second["validation_loss"]) == 0.1 + 0.2
    assert "run" not in first


def test_several_runs_have_a_column_for_their_name():
    rows = list(csv.DictReader(io.StringIO(metrics_csv({"one": ROWS, "two": ROWS[:1]}))))
    assert [row["run"] for row in rows] == ["one", "one", "two"]
    assert metrics_csv({"one": []}) == "round\n"
