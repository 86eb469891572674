"""Tables and figures that no module here makes, and why."""

from fedmf.experiments.papers.item import Item, State

# (state, why) -> lines of "source | number | claim".
_LISTED: dict[tuple[State, str], str] = {
    ("needs the real file", "It trains on StackOverflow: docs/replication.md has the commands."): """
        denisov | Figure 2 | The optimal factorisation of the momentum matrix is the most accurate at every epsilon.
        denisov | Figure 3 | A learning-rate decay inside the mechanism helps more than one after it.
        denisov | Figure 6 | Momentum inside the mechanism is behind at first and ahead at the end of training.
        denisov | Table 3 | The grids that were searched for Figure 2.
        denisov | Table 4 | The best settings of those grids.
        multi-epoch | Figure 3 | The optimum for six epochs comes within 2% of training without noise at epsilon 8.8.
        multi-epoch | Figure 10 | Accuracy without noise by clients per round and rates.
        multi-epoch | Figure 11 | Updates of huge magnitude come early and are few.
        multi-epoch | Figure 12 | Figure 3 with all learning rates.
        multi-epoch | Table 2 | Zeroing huge updates prevents most divergences.
        multi-epoch | Table 4 | Accuracies of DP-SGDM and DP-GDM.
        multi-epoch | Table 5 | Accuracies of the factorisations.
        banded | Figure 5 | Banded matrices are the most accurate for phones (the right half is a production system's, not public).
        banded | Figure 12 | Convergence of all runs of Figure 5 (a).
    """,
    ("needs the real file", "It trains on CIFAR-10, example by example."): """
        multi-epoch | Figure 1 | The multi-epoch optimum beats DP-SGD from epsilon 4 up.
        multi-epoch | Figure 7 | Honaker's tree is best with a number of stamps in the middle.
        multi-epoch | Figure 8 | Accuracy rises as the epochs fitted for come near those trained.
        multi-epoch | Figure 9 | Figure 1, larger.
        banded | Figure 1 | With sampling, banded matrices are never worse than DP-SGD or the multi-epoch optimum.
        banded | Figure 10 | Figure 1 (a) with more of epsilon.
        slides | Accuracy of nu-DP-FTRL | On CIFAR-10 and StackOverflow nu-DP-FTRL is as accurate as the best matrices.
    """,
    ("not reproducible", "It defines terms and has no result."): """
        denisov | Table 1 | The factorisations with which one algorithm gives four mechanisms.
        banded | Table 1 | Notation.
    """,
    ("not reproducible", "It is pseudocode: `make bench-noise` measures what it costs."): """
        banded | Figure 13 | Multiplying by a banded matrix, or by its inverse, costs its bands a row.
    """,
    ("not reproducible", "Its data are a company's and not public."): """
        slides | Production model | BLT noise is as good as the dense optimum's in a production keyboard.
    """,
}

ITEMS = tuple(
    Item(
        name=f"{source}-{number.lower().replace(' ', '-')}",
        source=source,
        number=number,
        state=state,
        why=why,
        claim=claim,
    )
    for (state, why), lines in _LISTED.items()
    for source, number, claim in (line.strip().split(" | ") for line in lines.strip().splitlines())
)
