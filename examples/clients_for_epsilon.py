"""How many clients does epsilon 2 need?

Cohorts and populations at which the noise is as small as you ask. No TensorFlow.

The noise in the running sum of mean updates is noise multiplier * rmse / cohort, in clip norms:
twice the cohort, half the noise. A client waits MIN_SEP rounds, so that the population must hold
MIN_SEP cohorts.

python examples/clients_for_epsilon.py
"""

import math

import fedmf

ROUNDS, MIN_SEP, DELTA = 500, 100, 1e-6
NOISE = 0.1  # in clip norms, in every round's model, as a root mean square
EPSILONS = (1.0, 2.0, 4.0, 8.0)

workload = fedmf.prefix_sum(ROUNDS)
participation = fedmf.Participation(rounds=ROUNDS, schema="min_sep", min_sep=MIN_SEP)
print(
    f"{ROUNDS} rounds, a client at most {participation.max_participations} times, noise "
    f"of {NOISE} clip norms\n"
)
print(f"{'epsilon':>7}  {'mechanism':<10}{'clients a round':>16}{'clients in all':>16}")
needed = {}
for family in ("identity", "tree", "banded"):
    mechanism = fedmf.fit(workload, participation, family=family)
    for epsilon in EPSILONS:
        plan = fedmf.calibrate(
            mechanism, participation, epsilon=epsilon, delta=DELTA, clip_norm=1.0
        )
        needed[epsilon, family] = math.ceil(
            fedmf.effective_rmse(plan, workload, cohort_size=1) / NOISE
        )
for (epsilon, family), cohort in sorted(needed.items()):
    print(f"{epsilon:>7g}  {family:<10}{cohort:>16,}{cohort * MIN_SEP:>16,}")
share = needed[2.0, "banded"] / needed[2.0, "identity"]
print(
    f"\nAt epsilon 2 correlated noise needs {100 * share:.0f}% of the clients that independent "
    "noise needs."
)
