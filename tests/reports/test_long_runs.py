"""A report of 100,000 rounds takes less than a minute and a gigabyte."""

import subprocess
import sys

import pytest

ROUNDS = 100_000
# The run was never trained: it has a real plan and mechanism, and rows from a formula. Beyond the
# process's limit of data, 1 GB, Python raises MemoryError.
PROGRAM = f"""
import json, pathlib, resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (10**9, 10**9))
import numpy as np
import fedmf
from fedmf.reports import write_report
from fedmf.runs.plan_record import plan_record

n = {ROUNDS}
config = fedmf.TrainConfig(
    family="blt", rounds=n, min_sep=2000, cohort_size=10, epsilon=8.0, task="regression"
)
plan = config.plan()
rows = [
    {{"round": t, "clients": 10, "examples": 200, "train_loss": 0.5 + 0.5**t}} for t in range(n)
]
for row in rows[19::20]:
    row["validation"] = {{"accuracy": 0.8 - 0.1 / (row["round"] + 1), "loss": 0.5}}
task = {{"name": "regression", "description": "", "headline_metric": "accuracy", "clients": 20_000}}
recorded = plan_record(config, plan) | {{
    "task": task,
    "workload": "prefix_sum",
    "rmse": fedmf.rmse(plan.mechanism, config.fit_workload(), plan.participation),
    "versions": {{"fedmf": "0.1.0"}},
}}
run = fedmf.Run(
    path=pathlib.Path("/runs/long"),
    config=config,
    plan=json.loads(json.dumps(recorded)),
    metrics=rows,
    timings=[],
    statement=fedmf.statement(plan),
    mechanism=plan.mechanism,
    result=None,
)
write_report([run], sys.argv[1], title="long")
usage = resource.getrusage(resource.RUSAGE_SELF)
# Its ru_maxrss would be that of the process which started this one, where that is larger.
status = pathlib.Path("/proc/self/status").read_text()
peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
print(usage.ru_utime + usage.ru_stime, peak.split()[1])
"""


@pytest.mark.slow
def test_a_report_of_100_000_rounds_takes_a_minute_and_a_gigabyte_at_most(tmp_path):
    completed_process = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path], capture_output=True, text=True, check=False
    )
    assert completed_process.returncode == 0, completed_process.stderr[-2000:]
    seconds, kilobytes = map(float, completed_process.stdout.split())
    assert seconds < 60
    assert kilobytes < 10**6
    assert len(list((tmp_path / "plots").iterdir())) >= 4
