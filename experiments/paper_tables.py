"""The papers' tables, computed again: `python -m experiments.paper_tables [--quick] [table ...]`."""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import fedmf
from fedmf.experiments import paper_figures as figures
from fedmf.experiments import privacy_tables, tuning_tables
from fedmf.experiments.sign_constraints import constrained_encoder
from fedmf.experiments.table_cells import Cell, NotThereYet, fit, one_participation
from fedmf.mechanisms import stamp


def denisov_table_2(quick: bool = False) -> Iterator[Cell]:
    """Denisov et al. 2022, App. H, Table 2."""
    for row in figures.DENISOV_TABLE_2:
        if quick and not row.quick:
            continue
        n = row.rounds
        workload, single = fedmf.prefix_sum(n), one_participation(n)
        fits: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
            ("Honaker", row.honaker, "tree", {"decoder": "online"}),
            ("optimum", row.optimum, "dense", {"tolerance": 1e-4}),
            ("efficient", row.efficient, "low_rank", {"bands": row.bands, "rank": row.rank}),
        )
        for column, printed, family, options in fits:
            cell = functools.partial(Cell, table="denisov-2", row=f"{n} rounds", column=column, printed=printed)
            try:
                mechanism = fit(workload, single, family, **options)
            except NotThereYet as missing:
                yield cell(ours=None, note=str(missing))
                continue
            yield cell(ours=float(np.sqrt(fedmf.loss(mechanism, workload, single))))


# Multi-epoch, Table 1: 20 epochs of 100 rounds.
_EPOCHS = fedmf.Participation(rounds=2000, schema="fixed_epoch", min_sep=100)


def stamped_of(row: figures.StampedRow) -> Any:
    """The mechanism of a row of the multi-epoch paper's Table 1.

    Trees are completed as in its App. D.3 ("virtual"), trees with Honaker's online decoder are restarted and all other
    stamps use the optimal decoder (App. D.4).
    """
    n = 2000 // row.times
    part: Any
    if row.mechanism in ("honaker", "optimal honaker"):
        decoder = "online" if row.mechanism == "honaker" else "full"
        part = fit(fedmf.prefix_sum(n), one_participation(n), "tree", decoder=decoder, completion="virtual")
        return stamp(part, row.times, decoder="restarted")
    if row.mechanism in ("fft", "optimal fft"):
        decoder = "plain" if row.mechanism == "fft" else "optimal"
        part = fit(fedmf.prefix_sum(n), one_participation(n), "fft", decoder=decoder)
        return stamp(part, row.times, decoder="restarted")
    several = row.participations is not None and row.participations > 1
    participation = (
        fedmf.Participation(rounds=n, schema="fixed_epoch", min_sep=100) if several else one_participation(n)
    )
    part = fit(fedmf.prefix_sum(n), participation, "dense", tolerance=2e-3 if several else 1e-6)
    return stamp(part, row.times)


def multi_epoch_table_1(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2022, App. D.5, Table 1, with the lower bound of its caption."""
    workload = fedmf.prefix_sum(2000)
    for row in figures.MULTI_EPOCH_TABLE_1:
        if quick and not row.quick:
            continue
        cell = functools.partial(Cell, table="multi-epoch-1", row=row.label, printed=row.printed)
        try:
            mechanism = stamped_of(row)
        except NotThereYet as missing:
            yield cell(column="loss", ours=None, note=str(missing))
            continue
        loss = fedmf.loss(mechanism, workload, _EPOCHS)
        yield cell(column="loss", ours=loss)
        if "fft" in row.mechanism:
            spectral = _spectral_sensitivity(mechanism.encoder(), _EPOCHS)
            ours = fedmf.sensitivity(mechanism, _EPOCHS).value
            yield cell(column="loss, Thm. 2.1", ours=loss * (spectral / ours) ** 2)
        if row.participations == 20:
            bound = mechanism.part.certificate.lower_bound
            yield Cell(
                table="multi-epoch-1",
                row=row.label,
                column="lower bound",
                printed=figures.MULTI_EPOCH_TABLE_1_BOUND,
                ours=bound,
            )


def _spectral_sensitivity(C: np.ndarray, participation: fedmf.Participation) -> float:
    """sqrt(k) times the largest spectral norm of C's columns of one client (multi-epoch paper, Thm. 2.1, claim 1)."""
    b, k = participation.min_sep, participation.max_participations
    largest, transposed = 0.0, np.ascontiguousarray(C.T)
    for start in range(b):
        columns = transposed[start::b]
        largest = max(largest, float(np.linalg.eigvalsh(columns @ columns.T)[-1]))
    return float(np.sqrt(k * largest))


def multi_epoch_table_6(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2022, App. I.3, Table 6. Its sensitivity is for scalar contributions, so that ours is, here.

    The library accounts with the sensitivity for vectors, which the note of each row compares to it.
    """
    participation = fedmf.Participation(rounds=6, schema="fixed_epoch", min_sep=2)
    pairs = np.subtract.outer(np.arange(6), np.arange(6)) % 2 == 0
    for row in figures.MULTI_EPOCH_TABLE_6:
        workload = fedmf.prefix_sum(6) if row.workload == "prefix_sum" else fedmf.momentum_sgd(6, momentum=0.95)
        C = constrained_encoder(workload.matrix, min_sep=2, constraints=row.constraints)
        X = C.T @ C
        note = f"vectors: {fedmf.sensitivity(C, participation).value:.6f} times the sensitivity for scalars"
        cell = functools.partial(Cell, table="multi-epoch-6", row=f"{row.workload}, {row.constraints}")
        yield cell(column="min X", printed=row.smallest, ours=float(X.min()))
        yield cell(column="min X, pairs", printed=row.smallest_of_pairs, ours=float(X[pairs].min()))
        yield cell(
            column="error", printed=row.error, ours=float(np.linalg.norm(workload.matrix @ np.linalg.inv(C))), note=note
        )


def banded_table_2(quick: bool = False) -> Iterator[Cell]:
    """Choquette-Choo et al. 2023, App. C, Table 2. Errors are in units of the row "MF"; minutes, and none of it quick."""
    if quick:
        return
    n = 2052
    workload = fedmf.prefix_sum(n)
    epochs = fedmf.Participation(rounds=n, schema="fixed_epoch", min_sep=342)
    separated = fedmf.Participation(rounds=n, schema="min_sep", min_sep=342)
    unit: float | None = None
    try:
        unit = fedmf.rmse(fit(workload, epochs, "dense", tolerance=2e-3), workload, epochs)
    except NotThereYet as missing:
        yield Cell(table="banded-2", row="MF", column="unit", printed="", ours=None, note=str(missing))
    for row in figures.BANDED_TABLE_2:
        cell = functools.partial(Cell, table="banded-2", row=row.label)
        options = {"tolerance": 2e-3} if row.family == "dense" else {}
        try:
            mechanism = fit(workload, epochs, row.family, **row.options, **options)
        except NotThereYet as missing:
            yield cell(column="(A)", printed=row.error_fixed_epoch, ours=None, note=str(missing))
            continue
        once, under_epochs, under_min_sep = (
            fedmf.sensitivity(mechanism, participation) for participation in (one_participation(n), epochs, separated)
        )
        rmse = fedmf.rmse(mechanism, workload, epochs)
        apart = under_min_sep.value / under_epochs.value
        yield cell(column="k = 1", printed=row.once, ours=once.value / under_epochs.value, note=once.method)
        yield cell(column="(6, 342)", printed=row.fixed_epoch, ours=1.0, note=under_epochs.method)
        yield cell(column="b >= 342", printed=row.min_sep, ours=apart, note=under_min_sep.method)
        if unit is not None:
            yield cell(column="(A)", printed=row.error_fixed_epoch, ours=rmse / unit)
            yield cell(column="(B)", printed=row.error_min_sep, ours=rmse * apart / unit)


def slides_max_error(quick: bool = False) -> Iterator[Cell]:
    """Slides, "optimal max error": log(n) / pi + constant, and banded Toeplitz and BLT beside it."""
    for n in figures.SLIDES_ROUNDS:
        if quick and n > 1024:
            continue
        workload, single = fedmf.prefix_sum(n), one_participation(n)
        fits: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("optimal Toeplitz", "toeplitz", {"coefficients": "sqrt"}),
            ("Toeplitz, 32 bands", "toeplitz", {"bands": 32, "objective": "max"}),
            ("BLT, 4 buffers", "blt", {"buffers": 4, "objective": "max"}),
        )
        for label, family, options in fits:
            cell = functools.partial(Cell, table="slides", row=f"{label}, {n} rounds", column="max error")
            known = label == "optimal Toeplitz"
            printed = f"{np.log(n) / np.pi + figures.SLIDES_CONSTANT:.3f}" if known else ""
            try:
                mechanism = fit(workload, single, family, **options)
            except NotThereYet as missing:
                yield cell(printed=printed, ours=None, note=str(missing))
                continue
            yield cell(printed=printed, ours=float(fedmf.per_round_error(mechanism, workload, single).max()))


TABLES: dict[str, Callable[[bool], Iterator[Cell]]] = {
    "denisov-2": denisov_table_2,
    "multi-epoch-1": multi_epoch_table_1,
    "multi-epoch-6": multi_epoch_table_6,
    "banded-2": banded_table_2,
    "banded-3": privacy_tables.banded_table_3,
    "banded-4": privacy_tables.banded_table_4,
    "banded-5": privacy_tables.banded_table_5,
    "banded-bands": privacy_tables.banded_bands,
    "banded-6": tuning_tables.banded_table_6,
    "banded-7": tuning_tables.banded_table_7,
    "banded-k1": privacy_tables.banded_k_1,
    "multi-epoch-3": privacy_tables.multi_epoch_table_3,
    "slides": slides_max_error,
}


def main(arguments: list[str] | None = None) -> int:
    """Prints the tables that are asked for; exit status 1 if a figure differs for no known reason."""
    parser = argparse.ArgumentParser(prog="python -m experiments.paper_tables", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="table", help=f"some of {', '.join(TABLES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="only rows that take seconds")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.tables if name not in TABLES]
    if unknown:
        parser.error(f"unknown table {unknown[0]}: choose from {', '.join(TABLES)}")
    agreeing = nearly = differing = unexplained = 0
    for name in options.tables or TABLES:
        table = TABLES[name]
        print(f"\n{name}: {str(table.__doc__).splitlines()[0]}", flush=True)
        began = time.perf_counter()
        for cell in table(options.quick):
            ours = "-" if cell.ours is None else f"{cell.ours:.6g}"
            line = f"  {cell.row:34s} {cell.column:16s} {cell.printed:>8s} {ours:>12s}  {cell.verdict}"
            print(f"{line}   [{time.perf_counter() - began:.1f} s]", flush=True)
            known = (cell.table, cell.row, cell.column) in figures.KNOWN_DIFFERENCES
            compared = cell.ours is not None and bool(cell.printed)
            agreeing += compared and cell.as_printed
            nearly += compared and cell.agrees and not cell.as_printed
            differing += compared and not cell.agrees
            unexplained += compared and cell.agrees == known
            began = time.perf_counter()
    print(
        f"\n{agreeing} figures as printed, {nearly} nearly, {differing} not, {unexplained} against what is known of them"
    )
    return int(unexplained > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("stopped; fits that ended are in the cache and are not repeated", file=sys.stderr)
        sys.exit(130)
