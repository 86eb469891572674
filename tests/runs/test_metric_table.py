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
    csv_rows = list(csv.DictReader(io.StringIO(metrics_csv({"first": ROWS}))))
    assert [row["round"] for row in csv_rows] == ["0", "1"]
    assert csv_rows[0]["validation_loss"] == ""
    assert float(csv_rows[1]["validation_loss"]) == 0.1 + 0.2
    assert "run" not in csv_rows[0]


def test_several_runs_have_a_column_for_their_name():
    text = metrics_csv({"first": ROWS, "second": ROWS[:1]})
    csv_rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["run"] for row in csv_rows] == ["first", "first", "second"]


def test_a_run_without_rounds_has_a_header_only():
    assert metrics_csv({"first": []}) == "round\n"
