"""How many bands? Few are amplified more where the server samples clients, many leave less noise in
the sums. No TensorFlow.

python examples/choose_bands.py       writes choose_bands.png
"""

import matplotlib.pyplot as plt

import fedmf

ROUNDS, POPULATION, COHORT = 256, 10_240, 80
figure, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for epsilon, line in ((0.5, "-o"), (2.0, "--s"), (8.0, ":^")):
    choice = fedmf.choose_bands(
        fedmf.prefix_sum(ROUNDS),
        population=POPULATION,
        cohort_size=COHORT,
        epsilon=epsilon,
        delta=1e-6,
        bands=[1, 2, 4, 8, 16, 32, 64, 128],
    )
    best = choice.best
    print(
        f"epsilon {epsilon:g}: {best.bands} bands, noise in the model "
        f"{best.effective_rmse:.3f} clip norms"
    )
    ax.plot(
        [row.bands for row in choice.rows],
        [row.effective_rmse / best.effective_rmse for row in choice.rows],
        line,
        label=f"epsilon {epsilon:g}",
    )
ax.set(xscale="log", yscale="log", xlabel="bands", ylabel="error over the best error")
ax.set_title(f"{ROUNDS} rounds, cohorts of {COHORT} out of {POPULATION:,} clients")
ax.set_xticks([1, 2, 4, 8, 16, 32, 64, 128], ["1", "2", "4", "8", "16", "32", "64", "128"])
ax.legend(frameon=False)
figure.savefig("choose_bands.png", dpi=150)
