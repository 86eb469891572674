"""What a report says of its figures."""

from fedmf.runs.notes import figures_note

NOTE = "Accuracy leaves out unknown words."


def test_the_note_counts_seeds(make_run):
    one, other, tree = make_run("banded"), make_run("banded", seed=1), make_run("tree")
    for run in (one, other, tree):
        run.plan["task"]["metric_note"] = "leaves out unknown words"
    assert figures_note([one, tree]) == f"{NOTE} Figures are of one seed."
    assert figures_note([one, other, tree]) == f"{NOTE} Some figures are of one seed."
    assert figures_note([one, other]) == NOTE
    assert figures_note([make_run("banded"), other]) == ""
