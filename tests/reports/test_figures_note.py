"""The note of a report on its metric and seeds."""

from fedmf.runs.notes import figures_note

NOTE = "Accuracy leaves out unknown words."


def test_the_note_counts_seeds(make_run):
    first_seed = make_run("banded")
    second_seed = make_run("banded", seed=1)
    tree_run = make_run("tree")
    for run in (first_seed, second_seed, tree_run):
        run.plan["task"]["metric_note"] = "leaves out unknown words"
    assert figures_note([first_seed, tree_run]) == (
        f"{NOTE} Figures are of one seed: they have no interval and are not ranked."
    )
    assert (
        figures_note([first_seed, second_seed, tree_run])
        == f"{NOTE} Some figures are of one seed: these have no interval and are not ranked."
    )
    assert figures_note([first_seed, second_seed]) == NOTE
    # A run that is named twice is one seed.
    assert "Figures are of one seed" in figures_note([first_seed, first_seed])
    assert figures_note([make_run("banded"), second_seed]) == ""
