"""How much noise is left in a Flower model at the same epsilon, and what reduces it?

Flower's own accounted mode counts every client in every round and adds independent noise. fedmf
accounts for the rounds between two participations of a client, which your system must ensure, and
correlates the noise. The example prints what each of the two saves. The error is that of the
running sum of updates, which is the model. No TensorFlow. No Flower either.

python examples/flower_accuracy.py
"""

import matplotlib.pyplot as plt
import numpy as np

import fedmf

ROUNDS, APART, EPSILON, DELTA = 200, 50, 8.0, 1e-5

workload = fedmf.prefix_sum(ROUNDS)
every_round = fedmf.Participation(rounds=ROUNDS, schema="every_round")
apart = fedmf.Participation(rounds=ROUNDS, schema="min_sep", min_sep=APART)
ways = {
    "Flower's accounted mode": (every_round, {"family": "identity"}),
    "clients apart, independent noise": (apart, {"family": "identity"}),
    "clients apart, BLT with 4 buffers": (apart, {"family": "blt", "buffers": 4}),
    f"clients apart, {APART} bands": (apart, {"family": "banded", "bands": APART}),
}

figure, axes = plt.subplots(figsize=(7, 4.5))
print(f"{ROUNDS} rounds, clients {APART} apart, epsilon {EPSILON:g}, delta {DELTA:g}\n")
print(f"{'':<36}{'noise multiplier':>17}{'rmse of the sum':>17}")
errors = {}
for name, (participation, options) in ways.items():
    mechanism = fedmf.fit(workload, participation, **options)
    plan = fedmf.calibrate(mechanism, participation, epsilon=EPSILON, delta=DELTA, clip_norm=1.0)
    # With a cohort of one: in clip norms, before the sum is divided by the clients of a round.
    errors[name] = fedmf.effective_rmse(plan, workload, cohort_size=1)
    by_round = fedmf.per_round_error(mechanism, workload, participation)
    rounds = np.arange(1, ROUNDS + 1)
    axes.plot(rounds, plan.noise_multiplier * by_round, label=f"{name}: {errors[name]:.2f}")
    print(f"{name:<36}{plan.noise_multiplier:>17.4f}{errors[name]:>17.2f}")

flower, independent, *_, best = errors.values()
print(f"\nClients {APART} rounds apart: {flower / independent:.1f} times less noise.")
print(f"Correlation with {APART} bands: {independent / best:.1f} times less again.")
axes.set(xlabel="round", ylabel="noise in the sum of updates, in clip norms", yscale="log")
axes.set_title(f"epsilon {EPSILON:g} for each client; rmse over the rounds in the legend")
axes.set_ylim(0.3, 200)
axes.legend(loc="lower right")
figure.tight_layout()
figure.savefig("flower_accuracy.png", dpi=120)
print("Figure: flower_accuracy.png")
