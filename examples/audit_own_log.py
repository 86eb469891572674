"""Audit a log of a system of your own: what did the participation that really happened guarantee?

No TensorFlow.

The log here is made up: a client should have waited 20 rounds, and 1 in 200 came back early.

python examples/audit_own_log.py      writes log.csv and audit_statement.md
"""

import csv

import numpy as np

import fedmf

ROUNDS, MIN_SEP, CLIENTS, COHORT = 100, 20, 1000, 40
participation = fedmf.Participation(rounds=ROUNDS, schema="min_sep", min_sep=MIN_SEP)
mechanism = fedmf.fit(fedmf.prefix_sum(ROUNDS), participation, family="banded")
plan = fedmf.calibrate(mechanism, participation, epsilon=4.0, delta=1e-6, clip_norm=1.0)

rng = np.random.default_rng(0)
ready = np.zeros(CLIENTS, dtype=int)  # the first round in which each client may come again
with open("log.csv", "w", newline="") as file:
    log = csv.writer(file)
    log.writerow(["device", "t"])
    for t in range(ROUNDS):
        cohort = rng.choice(np.flatnonzero(ready <= t), COHORT, replace=False)
        log.writerows((f"device-{client}", t) for client in cohort)
        ready[cohort] = t + MIN_SEP
        early = cohort[rng.random(COHORT) < 1 / 200]
        ready[early] = t + MIN_SEP - 5

form = fedmf.LogForm(client_column="device", round_column="t")
audit = fedmf.audit_log("log.csv", plan, form=form)
print(f"planned: at least {MIN_SEP} rounds apart, epsilon {plan.epsilon:.3f}")
print(
    f"observed: {audit.observed.min_separation} rounds apart, "
    f"{audit.observed.max_participations} times at most"
)
print(
    f"achieved: epsilon {audit.epsilon:.3f}, the same noise with the sensitivity of what happened"
)
print("broken promises:", "; ".join(audit.contradictions) or "none")
with open("audit_statement.md", "w") as file:
    file.write(audit.statement())
