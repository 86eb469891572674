"""Figures of Choquette-Choo et al. 2023 (banded matrix factorization) that are made without
training.
"""

import functools

import numpy as np

import fedmf
from fedmf.experiments.papers import printed
from fedmf.experiments.papers.band_sweep import noise_curve, sweep
from fedmf.experiments.papers.drawing import Line, Lines, heat_maps
from fedmf.experiments.papers.fits import epochs, fit, say, sums_once
from fedmf.experiments.papers.item import Outcome, Request, figure
from fedmf.experiments.papers.noise_tables import effective_rmse
from fedmf.privacy.gaussian import gaussian_noise_multiplier

DELTA = 1e-6


def span(values: np.ndarray) -> str:
    """Returns text with the smallest and the largest of some values."""
    return f"{values.min():.2f} to {values.max():.2f}"


@figure("banded-figure-4")
def figure_4(request: Request) -> Outcome:
    """Compares the error (rmse) of three mechanisms over epsilon and epochs.

    The error is that of mean updates, in units of the clip norm over one epoch's cohort. A run of k
    epochs has cohorts of k times that size.
    """
    all_epsilons = tuple(2.0**i for i in range(-5, 5))
    rounds, epsilons = request.pick(
        (16, (1.0, 8.0)), (256, all_epsilons[::3]), (1024, all_epsilons)
    )
    numbers = tuple(2**i for i in range(rounds.bit_length()))
    sweep_results = sweep(rounds=rounds, delta=DELTA, epsilons=epsilons, epochs=numbers)
    workload = fedmf.prefix_sum(rounds)
    dense_noise = []
    for k in numbers:
        say(f"fitting the dense optimum of {k} epochs")
        order = epochs(rounds, k)
        mechanism = fit(workload, order, "dense", tolerance=1e-3)
        dense_noise.append(fedmf.rmse(mechanism, workload, order))
    noise = [gaussian_noise_multiplier(epsilon, DELTA) for epsilon in epsilons]
    dp_sgd = sweep_results.rmse[:, :, 0] / numbers
    multi_epoch = np.outer(noise, dense_noise) / numbers
    banded = sweep_results.rmse.min(axis=-1) / numbers
    over_sgd = banded / dp_sgd
    over_mf = banded / multi_epoch
    noise_ratio = multi_epoch / dp_sgd
    ratios = {"BandMF / DP-SGD": over_sgd, "BandMF / multi-epoch MF": over_mf}
    panels = [
        Lines(
            {f"epsilon {e:g}": ratio[i] for i, e in enumerate(epsilons)},
            "epochs",
            "ratio of rmse",
            x=numbers,
            title=title,
            log="xy",
        )
        for title, ratio in (ratios | {"multi-epoch MF / DP-SGD": noise_ratio}).items()
    ]
    return Outcome(
        panels,
        f"BandMF has {span(over_sgd)} times the rmse of DP-SGD and {span(over_mf)} times "
        f"that of multi-epoch MF, which has {span(noise_ratio)} times that of DP-SGD.",
        (over_sgd <= 1).all()
        and over_mf.max() < 1.15
        and noise_ratio.min() < 1 < noise_ratio.max(),
        columns=("epsilon", "epochs", "DP-SGD", "multi-epoch MF", "BandMF", "bands"),
        rows=[
            (
                epsilon,
                k,
                dp_sgd[i, j],
                multi_epoch[i, j],
                banded[i, j],
                int(sweep_results.best[i, j]),
            )
            for i, epsilon in enumerate(epsilons)
            for j, k in enumerate(numbers)
        ],
        reduced=f"n = {rounds} in place of 1024 and {len(epsilons)} epsilons"
        if rounds < 1024
        else "",
    )


# Sizes for Figures 2, 3 and 8, small enough to draw: the number of parts of the population (b in
# the paper), of rounds (n), of clients (m), and of clients in a round (B), and a seed.
PARTS, ROUNDS, POPULATION, COHORT, SEED = 3, 9, 24, 3, 1


@figure("banded-figure-2")
def figure_2(request: Request) -> Outcome:
    """Draws the clients that take part in each round, sampled by the controller as in Alg. 6 with
    subsets of fixed size. Round t samples from part t mod b, where b is the number of parts.
    """
    scheme = fedmf.CyclicFixedSize(population=POPULATION, cohort_size=COHORT, partitions=PARTS)
    controller = fedmf.ParticipationController(
        scheme.participation(ROUNDS),
        population=POPULATION,
        cohort_size=COHORT,
        seed=SEED,
        sampling=scheme,
    )
    cohorts = [list(map(int, controller.cohort(t))) for t in range(ROUNDS)]
    client_parts = [
        sorted({i for t in range(j, ROUNDS, PARTS) for i in cohorts[t]}) for j in range(PARTS)
    ]
    # Every client is in one part of the population only. A client in two parts would occur twice in
    # this list.
    order = [i for part in client_parts for i in part]
    are_disjoint = len(order) == len(set(order))
    places = [(t, order.index(client)) for t in range(ROUNDS) for client in cohorts[t]]
    series = {
        f"part {j + 1}": Line(*np.array([(t + 1, at) for t, at in places if t % PARTS == j]).T)
        for j in range(PARTS)
    }
    sizes = {len(cohort) for cohort in cohorts}
    return Outcome(
        [Lines(series, "round", "place, by part", points=True)],
        f"In {ROUNDS} rounds of {COHORT} out of {POPULATION} clients "
        f"{'no' if are_disjoint else 'a'} client came in rounds of two parts; cohorts have "
        f"{', '.join(map(str, sorted(sizes)))} clients.",
        are_disjoint and sizes == {COHORT},
        columns=("round", "part", "clients"),
        rows=[(t + 1, t % PARTS + 1, " ".join(map(str, c))) for t, c in enumerate(cohorts)],
        seeds=(SEED,),
    )


def _decomposed(rounds: int, request: Request) -> Outcome:
    """Draws the rows of C x that one client's participations change, where C is a banded encoder
    and x the updates.
    """
    C = fit(*sums_once(rounds), "banded", bands=PARTS).encoder()
    touched_rows = [
        [np.flatnonzero(C[:, t]) for t in range(j, rounds, PARTS)] for j in range(PARTS)
    ]
    are_disjoint = all(
        np.unique(np.concatenate(rows), return_counts=True)[1].max() == 1 for rows in touched_rows
    )
    panels = []
    for j, rows in enumerate(touched_rows):
        image = np.where(C != 0, 0.1, 0.0)
        for k, here in enumerate(rows):
            # The image shows successive participations of a client in different colours.
            image[here, j + k * PARTS] = (-1) ** k
        panels.append((f"part {j + 1} of {PARTS}", image))
    return Outcome(
        heat_maps(panels, PARTS, height=6.2 / PARTS),
        f"With {PARTS} bands the rows that two participations of one client touch have "
        f"{'nothing' if are_disjoint else 'rows'} in common.",
        are_disjoint,
        columns=("part", "round", "rows of C x"),
        rows=[
            (j + 1, j + k * PARTS + 1, " ".join(str(i + 1) for i in rows))
            for j in range(PARTS)
            for k, rows in enumerate(touched_rows[j])
        ],
    )


figure("banded-figure-3")(functools.partial(_decomposed, 9))
figure("banded-figure-8")(functools.partial(_decomposed, 18))


@figure("banded-figure-6")
def figure_6(request: Request) -> Outcome:
    """Draws C and C^-1, the encoder and its inverse, of eight factorisations for n = 64 rounds."""
    n = 64
    workload, once = sums_once(n)
    four_epochs = epochs(n, 4)
    mechanisms = {
        "single-epoch": fit(workload, once, "dense"),
        "DP-SGD": fit(workload, once, "identity"),
        "8 epochs": fit(workload, epochs(n, 8), "dense"),
        "4 epochs": fit(workload, four_epochs, "dense"),
        "8 bands": fit(workload, four_epochs, "banded", bands=8, equal_norms=False),
        "EN, 8 bands": fit(workload, four_epochs, "banded", bands=8),
        "16 bands": fit(workload, four_epochs, "banded", bands=16, equal_norms=False),
        "EN, 16 bands": fit(workload, four_epochs, "banded", bands=16),
    }
    panels = []
    rows = []
    for name, m in mechanisms.items():
        C = m.encoder()
        panels += [(f"{name}, C", C), (f"{name}, C⁻¹", m.noising())]
        norms = np.linalg.norm(C, axis=0)
        bands = int(max(i - j for i, j in np.argwhere(np.abs(C) > 1e-12))) + 1
        rows.append((name, bands, norms.max() / norms.min(), fedmf.rmse(m, workload, four_epochs)))
    rmse = {row[0]: row[-1] for row in rows}
    best_name = min(rmse, key=lambda name: rmse[name])
    return Outcome(
        heat_maps(panels, 4, height=1.75),
        f"For 4 epochs the least rmse is {rmse[best_name]:.3f}, of the factorisation for "
        f"{best_name}; 16 bands with equal norms have {rmse['EN, 16 bands']:.3f}, without "
        f"{rmse['16 bands']:.3f}, and DP-SGD {rmse['DP-SGD']:.3f}.",
        best_name == "4 epochs"
        and all(row[2] < 1 + 1e-9 for row in rows if row[0].startswith("EN")),
        columns=(
            "mechanism",
            "bands",
            "largest over smallest column norm",
            "rmse under (k, b) = (4, 16)",
        ),
        rows=rows,
    )


@figure("banded-figure-7")
def figure_7(request: Request) -> Outcome:
    """Draws the transposed encoder of the tree mechanism, and the encoder's pseudo-inverse."""
    n = 64
    mechanism = fit(*sums_once(n), "tree", decoder="full")
    C = mechanism.encoder()
    N = mechanism.noising()
    error = np.abs(N - np.linalg.pinv(C)).max()
    levels = sorted({int(row.sum()) for row in C})
    panels = [("Cᵀ of the binary tree", C.T), ("pseudo-inverse of C", N)]
    return Outcome(
        heat_maps(panels, 1, height=2.3, shared=False),
        f"The encoder has {len(C)} nodes, of {', '.join(map(str, levels))} rounds each; "
        f"the full decoder is its pseudo-inverse to {error:.0e}.",
        len(C) == 2 * n - 1 and error < 1e-9,
        columns=("quantity", "value"),
        rows=[
            ("nodes", len(C)),
            ("rounds", n),
            ("largest difference of N from numpy's pseudo-inverse", error),
        ],
    )


@figure("banded-figure-9")
def figure_9(request: Request) -> Outcome:
    """Draws the total error of BandMF, divided by the error of DP-SGD and by the error of
    multi-epoch MF.

    The setting is CIFAR-10 with n = 2000 rounds, k = 20 epochs and m = 50,000 images.
    """
    epsilons = request.pick(
        (1.0, 8.0),
        tuple(2.0**i for i in range(-2, 5)),
        tuple(2.0 ** (i / 2) for i in range(-4, 11)),
    )
    is_tiny = request.scale == "tiny"
    cohort = 500
    delta = 1e-5
    n, b, size = (80, 4, 2000) if is_tiny else (2000, 100, 50_000)
    candidates = [c for c in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 100) if c <= b]
    workload, single = sums_once(n)
    order = epochs(n, n // b)
    errors = np.empty((len(candidates), len(epsilons)))
    for i, bands in enumerate(candidates):
        say(f"{bands} bands")
        probability = min(1.0, bands * cohort / size)
        compositions = -(-n // bands)
        noise = noise_curve(epsilons, delta, probability=probability, compositions=compositions)
        mechanism = fit(workload, single, "banded", bands=bands)
        errors[i] = noise * fedmf.rmse(mechanism, workload, single)
    dense_rmse = fedmf.rmse(fit(workload, order, "dense", tolerance=2e-3), workload, order)
    over_mf = errors.min(axis=0) / [
        gaussian_noise_multiplier(e, delta) * dense_rmse for e in epsilons
    ]
    over_sgd = errors.min(axis=0) / errors[0]
    bands_of = [candidates[i] for i in errors.argmin(axis=0)]
    panel = Lines(
        {"BandMF / DP-SGD": over_sgd, "BandMF / multi-epoch MF": over_mf},
        "epsilon",
        "ratio of rmse",
        x=epsilons,
        beside={"as good": Line([np.inf], [1.0])},
        log="x",
        ticks=epsilons,
        ylim=(0, None),
    )
    # The ratio of the error to that of multi-epoch MF rises with epsilon. The crossing is the
    # epsilon at which the ratio is 1, interpolated between the epsilons that were tried.
    crossing = np.exp(np.interp(0.0, np.log(over_mf), np.log(epsilons)))
    return Outcome(
        [panel],
        f"Over DP-SGD the ratio is {span(over_sgd)}; over multi-epoch MF it passes 1 at "
        f"epsilon {crossing:.1f} (printed: about 5). Bands: {', '.join(map(str, bands_of))}.",
        bool((over_sgd <= 1).all() and (is_tiny or 4 < crossing < 8)),
        columns=("epsilon", "bands", *panel.series),
        rows=list(zip(epsilons, bands_of, over_sgd, over_mf, strict=True)),
        reduced=request.pick("n = 80", "seven epsilons", ""),
    )


@figure("banded-figure-11")
def figure_11(request: Request) -> Outcome:
    """Draws tuned server learning rates over the effective rmse of sums and of single gradients
    (banded paper, Eq. 11).

    The rates are those of Table 6.
    """
    is_tiny = request.scale == "tiny"
    rows = [
        row
        for row in printed.BANDED_TABLE_6
        if not is_tiny or row.mechanism in ("DP-SGD", "Optimal TreeAgg")
    ]
    rates = np.array([float(row.optimum) for row in rows])
    names = np.array([row.mechanism for row in rows])
    panels: list[Lines] = []
    columns = []
    fits = []
    for name, workload in (("prefix sums", "prefix_sum"), ("single gradients", "identity")):
        errors = np.array([effective_rmse(r, amplified=False, workload=workload) for r in rows])
        slope, intercept = np.polyfit(np.log(errors), np.log(rates), 1)
        correlation = np.corrcoef(np.log(errors), np.log(rates))[0, 1]
        error_range = np.array([errors.min(), errors.max()])
        panels.append(
            Lines(
                {m: Line(errors[names == m], rates[names == m]) for m in dict.fromkeys(names)},
                f"effective rmse, {name}",
                "" if panels else "best server rate",
                beside={"regression": Line(error_range, np.exp(intercept) * error_range**slope)},
                points=True,
                log="xy",
                title=f"slope {slope:.2f}, correlation {correlation:.2f}",
            )
        )
        columns.append(errors)
        fits.append((slope, intercept, correlation))
    (slope, intercept, correlation), (*_, of_single) = fits
    return Outcome(
        panels,
        f"For prefix sums the regression is log(rate) = {slope:.2f} log(rmse) "
        f"{intercept:+.2f} (printed: -0.95 and -4.64), with correlation {correlation:.3f}; "
        f"for single gradients the correlation is {of_single:.3f}.",
        is_tiny
        or (
            abs(slope + 0.95) < 0.03
            and abs(intercept + 4.64) < 0.15
            and abs(correlation) > 0.98 > abs(of_single)
        ),
        columns=("mechanism", "epsilon", "best rate", "prefix sums", "single gradients"),
        rows=[
            (row.mechanism, row.epsilon, row.optimum, *errors)
            for row, *errors in zip(rows, *columns, strict=True)
        ],
        reduced="two of the five mechanisms" if is_tiny else "",
    )
