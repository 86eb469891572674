"""Tables and figures that no module here makes, and why."""

from fedmf.experiments.papers.item import State, add

# (state, why) -> lines of "source | number | claim".
_LISTED: dict[tuple[State, str], str] = {
    (
        "needs the real file",
        "It trains on CIFAR-10 and StackOverflow: `fedmf sweep` takes the family, coefficients "
        "`nu`, from a file.",
    ): """
slides | Accuracy of nu-DP-FTRL | On CIFAR-10 and StackOverflow nu-DP-FTRL is as accurate as the \
best matrices.
""",
    (
        "not reproducible",
        "It is the grid of Figure 2, which experiments/papers/stackoverflow_sizes.py has as data.",
    ): """
denisov | Table 3 | The grids that were searched for Figure 2.
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

for (_state, _why), _lines in _LISTED.items():
    for _line in _lines.strip().splitlines():
        _source, _number, _claim = _line.split(" | ")
        add(_source, _number, _claim, state=_state, why=_why)
