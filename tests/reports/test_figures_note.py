"""What a report says of its figures."""

from fedmf.runs.figures import figures_note

NOTE = "Accuracy leaves out unknown words."


def noted(run):
    run.plan["task"]["metric_note"] = "leaves out unknown words"
    return run


def test_the_note_counts_seeds(make_run):
    one, other, tree = (
        noted(make_run("banded")),
        noted(make_run("banded", seed=1)),
        noted(make_run("tree")),
    )
    assert figures_note([one, tree]) == f"{NOTE} Figures are of one seed."
    assert figures_note([one, other, tree]) == f"{NOTE} Some figures are of one seed."
    assert figures_note([one, other]) == NOTE
    assert figures_note([make_run("banded"), other]) == ""
