"""DP-FedAvg against BandMF in one figure: one task, one epsilon, the same cohorts.

Only the noise differs.

python examples/dp_fedavg_against_bandmf.py       writes dp_fedavg_against_bandmf.png
"""

import tempfile

import matplotlib.pyplot as plt

import fedmf
from fedmf import federated, tasks

EPSILON = 2.0
LABELS = {"none": "no noise (not private)", "banded": "BandMF", "identity": "DP-FedAvg"}
LINES = {"none": "k:", "banded": "C0-", "identity": "C1--"}


def trained(family):
    config = fedmf.TrainConfig(
        task="regression",
        task_options={"clients": 1000},
        rounds=60,
        cohort_size=50,
        min_sep=20,  # a client waits 20 rounds: it takes part at most 3 times
        family=family,
        epsilon=None if family == "none" else EPSILON,
        client_learning_rate=0.1,
        server_learning_rate=0.2,
        server_momentum=0.9,
        warmup=0.0,
        evaluate_every=5,
    )
    task = tasks.task_from_config(config, progress=False)
    return federated.train(task, config, folder=tempfile.mkdtemp(), noise_seed="os", progress=False)


figure, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for family, label in LABELS.items():
    run = trained(family)
    rows = [row for row in run.metrics if "validation" in row]
    errors = [row["validation"]["mean_squared_error"] for row in rows]
    ax.plot([row["round"] + 1 for row in rows], errors, LINES[family], label=label)
    print(f"{label:<24} test error {run.result['test']['mean_squared_error']:.3f}   {run.path}")
ax.set(
    xlabel="rounds completed",
    ylabel="validation squared error",
    yscale="log",
    title=f"Epsilon {EPSILON:g}",
)
ax.legend(frameon=False)
figure.savefig("dp_fedavg_against_bandmf.png", dpi=150)
