"""The papers' tables, computed again: `python -m fedmf.experiments.paper_tables [--quick] [table
...]`.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator

from fedmf.experiments import error_tables, privacy_tables, tuning_tables
from fedmf.experiments import paper_figures as figures
from fedmf.experiments.table_cells import Cell, exit_status

TABLES: dict[str, Callable[[bool], Iterator[Cell]]] = {
    "denisov-2": error_tables.denisov_table_2,
    "multi-epoch-1": error_tables.multi_epoch_table_1,
    "multi-epoch-6": error_tables.multi_epoch_table_6,
    "banded-2": error_tables.banded_table_2,
    "banded-3": privacy_tables.banded_table_3,
    "banded-4": privacy_tables.banded_table_4,
    "banded-5": privacy_tables.banded_table_5,
    "banded-bands": privacy_tables.banded_bands,
    "banded-6": tuning_tables.banded_table_6,
    "banded-7": tuning_tables.banded_table_7,
    "banded-k1": privacy_tables.banded_k_1,
    "multi-epoch-3": privacy_tables.multi_epoch_table_3,
    "slides": error_tables.slides_max_error,
}


def main(arguments: list[str] | None = None) -> int:
    """Prints the tables; exit status 1 if a figure differs for no known reason."""
    parser = argparse.ArgumentParser(
        prog="python -m fedmf.experiments.paper_tables", description=__doc__
    )
    parser.add_argument(
        "tables", nargs="*", metavar="table", help=f"some of {', '.join(TABLES)}; all by default"
    )
    parser.add_argument("--quick", action="store_true", help="only rows that take seconds")
    options = parser.parse_args(arguments)
    for name in options.tables:
        if name not in TABLES:
            parser.error(f"unknown table {name}: choose from {', '.join(TABLES)}")
    count: Counter[str] = Counter()
    for name in options.tables or TABLES:
        print(f"\n{name}: {str(TABLES[name].__doc__).splitlines()[0]}", flush=True)
        began = time.perf_counter()
        for cell in TABLES[name](options.quick):
            seconds = time.perf_counter() - began
            line = (
                f"  {cell.row:34s} {cell.column:16s} {cell.printed:>8s} "
                f"{cell.ours:>12.6g}  {cell.verdict(name)}"
            )
            print(f"{line}   [{seconds:.1f} s]", flush=True)
            count["as printed" if cell.as_printed else "nearly" if cell.agrees else "not"] += 1
            count["unexplained"] += cell.agrees == (
                (name, cell.row, cell.column) in figures.KNOWN_DIFFERENCES
            )
            began = time.perf_counter()
    print(
        f"\n{count['as printed']} figures as printed, {count['nearly']} nearly, "
        f"{count['not']} not, {count['unexplained']} against what is known of them"
    )
    return int(count["unexplained"] > 0)


if __name__ == "__main__":
    sys.exit(exit_status(main))
