"""Each argument of each public call answers odd values in a sentence that names it.

A new public name is a line of CALLS, with arguments that fit and the odd values that fit too.
tests/federated/test_odd_arguments.py has the calls that need TensorFlow.
"""

import dataclasses

import numpy as np
import pytest

import fedmf
from fedmf import partition
from fedmf.mechanisms import IdentityMechanism
from fedmf.server.audit import audit_mechanism
from tests.odd_arguments import Call, Reached

WORKLOAD = fedmf.prefix_sum(4)
TWICE = fedmf.Participation(rounds=4, schema="min_sep", min_sep=2)
MECHANISM = IdentityMechanism(rounds=4)
BUDGET = fedmf.Budget.of(MECHANISM, TWICE)
PLAN = fedmf.calibrate(MECHANISM, TWICE, epsilon=8.0, delta=1e-6)
WITH_METRICS = dataclasses.replace(PLAN, private_metrics=fedmf.PrivateMetrics(share=0.1))
LEDGER = fedmf.ParticipationLedger(cohort_size=2, cohorts=[np.array([0, 1])])
AUDIT = fedmf.audit_ledger(LEDGER, PLAN)
RISK = fedmf.attack_risk(PLAN)
SELECTION = fedmf.private_selection(PLAN)
CONFIG = fedmf.PlanConfig(rounds=4, min_sep=2, epsilon=8.0)
SCHEDULED = dataclasses.replace(CONFIG, learning_rate_schedule="1 1 1 0.5")
POISSON = fedmf.CyclicPoisson(population=10, cohort_size=2, partitions=2)
BINS = fedmf.BallsInBins(population=10, bins=2)
LABELS = [0, 1]
UPDATE = [np.ones(2)]
# Odd values that fit numbers of a kind.
REAL = "0.5 10**20"
SHARE = "0 0.5"
COUNT = "10**20"
SEED = "0 10**20"
LIST = "[] generator"
RUN = {
    "path": "run", "config": fedmf.TrainConfig(rounds=4, min_sep=2, epsilon=8.0), "plan": {},
    "metrics": [], "timings": [], "statement": "", "mechanism": MECHANISM, "result": None,
    "clients": None, "fine_tuned": None,
}  # fmt: skip


def server(plan=PLAN, **changes):
    options = {"shapes": [(2,)], "clients_per_round": 2, "noise_seed": 1, **changes}
    return fedmf.Server(plan, **options)


def controller():
    return fedmf.ParticipationController(TWICE, population=10, cohort_size=2, seed=1)


def stop(*args, **options):
    """Raises `Reached` in place of the work behind the checks."""
    raise Reached


def defaults(config, leave_out=()):
    """Returns the fields of a config with their defaults."""
    return {
        field.name: {} if field.default is dataclasses.MISSING else field.default
        for field in dataclasses.fields(config)
        if field.name not in leave_out
    }


def call(function, accepts=None, /, **arguments):
    return Call(function=function, arguments=arguments, accepts=accepts or {})


def of_mapping(**values):
    return fedmf.TrainConfig.from_mapping(values, "here")


PLAN_FIELDS = {**defaults(fedmf.PlanConfig), "rounds": 4, "min_sep": 2, "epsilon": 8.0}
TRAIN_FIELDS = defaults(fedmf.TrainConfig, leave_out=PLAN_FIELDS) | {"min_sep": 2, "epsilon": 8.0}
PLAN_ACCEPTS = {
    **dict.fromkeys(
        "claimed_cohort max_participations budget sampling population partitions mechanism bands "
        "decoder learning_rate_schedule noise_multiplier advantage true_positive_rate "
        "mean_trials".split(),
        "None",
    ),
    "mechanism_options": "{}", "epsilon": "0.5", "delta": "0.5", "clip_norm": REAL,
    "clip_quantile": "None 0.5", "private_metrics": SHARE,
}  # fmt: skip
TRAIN_ACCEPTS = {
    "task": "None text", "data": "None text", "task_options": "{}", "dropout": SHARE,
    "zeroing_norm": f"None {REAL}", "canaries": "0", "client_learning_rate": REAL,
    "client_momentum": SHARE, "client_batches": "None", "proximal_strength": f"0 {REAL}",
    "server_learning_rate": REAL, "server_momentum": SHARE, "server_epsilon": REAL,
    "warmup": SHARE, "cooldown": SHARE, "seed": SEED, "initial_model": "None text",
    "stop_at_epsilon": f"None {REAL}", "epsilon": "0.5",
}  # fmt: skip
ERROR_ARGUMENTS = {"mechanism": MECHANISM, "workload": WORKLOAD, "participation": TWICE}
NOISE = {"noise_multiplier": f"0 {REAL}"}
# By the public name, or the public class and its method.
CALLS = {
    "AttackRisk": call(
        fedmf.AttackRisk, {"mu": f"inf 0 {REAL}", "pairs": "[]", "failure": SHARE},
        mu=1.0, pairs=(), devices=1, failure=0.0,
    ),
    "AttackRisk.success": call(RISK.success, {"prior": SHARE}, prior=0.1),
    "AttackRisk.true_positive_rate": call(
        RISK.true_positive_rate, {"false_positive_rate": SHARE}, false_positive_rate=0.1
    ),
    "Audit": call(
        fedmf.Audit,
        {
            **dict.fromkeys(("achieved", "noncompliant_clients", "log", "everyone"), "None"),
            "contradictions": f"{LIST} texts", "most_spent": f"None 0 {REAL}", "shares_spent": "{}",
            "unrecorded": "None empty text",
        },
        **{field.name: getattr(AUDIT, field.name) for field in dataclasses.fields(AUDIT)},
    ),
    "Audit.statement": call(
        AUDIT.statement,
        {"cohort_size": f"None {COUNT}", "population": f"None {COUNT}", "system": "None"},
        cohort_size=2, population=10, system=None,
    ),
    "Audit.statement_values": call(
        AUDIT.statement_values,
        {
            "cohort_size": f"None {COUNT}", "population": f"None {COUNT}", "subject": "None",
            "pretraining": "None empty text", "canaries": f"0 {COUNT}",
            "commands": f"None {LIST} texts",
        },
        cohort_size=2, population=10, subject=None, pretraining=None, canaries=0, commands=None,
    ),
    "BallsInBins": call(fedmf.BallsInBins, population=10, bins=2),
    "BallsInBins.draws": call(BINS.draws, {"seed": SEED}, seed=0),
    "BallsInBins.epsilon": call(
        BINS.epsilon, {"noise": f"0 {REAL}", "delta": "0.5"}, mechanism=MECHANISM, noise=2.0,
        delta=1e-4,
    ),
    "BallsInBins.facts": call(BINS.facts, rounds=4),
    "BallsInBins.for_mechanism": call(BINS.for_mechanism, mechanism=MECHANISM),
    "BallsInBins.participation": call(BINS.participation, rounds=4),
    "BallsInBins.resized": call(BINS.resized, population=20, cohort_size=5),
    "Budget": call(
        fedmf.Budget, mechanism=MECHANISM, participation=BUDGET.participation, pace=2
    ),
    "Budget.of": call(fedmf.Budget.of, mechanism=MECHANISM, participation=TWICE),
    "Budget.allows": call(
        BUDGET.allows, {"rounds_of_one_client": LIST}, rounds_of_one_client=[0]
    ),
    "Certificate": call(
        fedmf.Certificate,
        {
            "loss": COUNT, "lower_bound": "0.5", "iterations": f"0 {COUNT}",
            "seconds": f"0 {REAL}", "participation": "None",
        },
        loss=2.0, lower_bound=1.0, iterations=1, seconds=0.0, participation=TWICE,
    ),
    "CyclicFixedSize": call(
        fedmf.CyclicFixedSize, {"partitions": "None"}, population=10, cohort_size=2, partitions=2
    ),
    "CyclicPoisson": call(
        fedmf.CyclicPoisson, {"partitions": "None"}, population=10, cohort_size=2, partitions=2
    ),
    "CyclicPoisson.draws": call(POISSON.draws, {"seed": SEED}, seed=0),
    "CyclicPoisson.epsilon": call(
        POISSON.epsilon, {"noise": f"0 {REAL}", "delta": "0.5"}, mechanism=MECHANISM, noise=2.0,
        delta=1e-4,
    ),
    "CyclicPoisson.resized": call(POISSON.resized, population=20, cohort_size=4),
    "CyclicRandomAllocation": call(
        fedmf.CyclicRandomAllocation, {"partitions": "None"},
        population=12, cohort_size=2, partitions=2,
    ),
    "LogForm": call(
        fedmf.LogForm, {"client_column": "text", "round_column": "text", "first_round": "0"},
        client_column="client", round_column="round", first_round=0, duplicates="refuse",
    ),
    "Mechanism": call(
        IdentityMechanism, {"certificate": "None", "certificate_reason": "empty text"},
        rounds=4, certificate=None, certificate_reason="",
    ),
    "Mechanism.save": call(MECHANISM.save, {"path": "text"}, path="mechanism.npz"),
    "MinSepPoisson": call(
        fedmf.MinSepPoisson, {"min_sep": "None"}, population=10, cohort_size=2, min_sep=2
    ),
    "Participation": call(
        fedmf.Participation, {"max_participations": "None", "budget": "None"},
        rounds=4, schema="min_sep", min_sep=2, max_participations=2, budget=None,
    ),
    "Participation.affords": call(
        BUDGET.participation.affords, {"spent_squared": "nan inf -1 0 0.5 3-D nans"},
        spent_squared=1.0,
    ),
    "Participation.allows": call(
        TWICE.allows, {"rounds_of_one_client": LIST}, rounds_of_one_client=[0]
    ),
    "ParticipationController": call(
        fedmf.ParticipationController,
        {"seed": SEED, "availability": "None", "sampling": "None", "behavior": "None"},
        participation=TWICE, population=10, cohort_size=2, seed=1, availability=None,
        sampling=None, behavior=None,
    ),
    "ParticipationController.audit": call(controller().audit, plan=PLAN),
    "ParticipationController.cohort": call(controller().cohort, {"t": "0"}, t=0),
    "ParticipationController.eligible": call(controller().eligible, {"t": "0"}, t=0),
    "ParticipationController.record_cohort": call(
        lambda t, clients: controller().record_cohort(t, clients),
        {"t": "0", "clients": "[]"}, t=0, clients=[1, 2],
    ),
    "ParticipationController.resume_from": call(
        lambda ledger: controller().resume_from(ledger), ledger=LEDGER
    ),
    "ParticipationLedger": call(
        fedmf.ParticipationLedger, {"cohort_size": f"None {SEED}", "cohorts": LIST},
        cohort_size=2, cohorts=[np.array([0, 1])],
    ),
    "ParticipationLedger.append": call(
        lambda **clients: fedmf.ParticipationLedger(cohort_size=2).append(**clients),
        {"cohort": "[]", "selected": "None", "noncompliant": "None []"},
        cohort=np.array([0]), selected=np.array([0]), noncompliant=np.array([], int),
    ),
    "ParticipationLedger.cohort": call(LEDGER.cohort, {"t": "0"}, t=0),
    "ParticipationLedger.first": call(LEDGER.first, {"rounds": SEED}, rounds=1),
    "ParticipationLedger.from_csv": call(
        fedmf.ParticipationLedger.from_csv, {"text": "text", "cohort_size": f"None {SEED}"},
        text="round,client\n0,1\n", rounds=1, cohort_size=2,
    ),
    "ParticipationLedger.load": call(
        fedmf.ParticipationLedger.load, {"path": "text"}, path="ledger"
    ),
    "ParticipationLedger.noncompliant": call(
        LEDGER.noncompliant, {"participation": "None"}, participation=TWICE
    ),
    "ParticipationLedger.save": call(LEDGER.save, {"path": "text"}, path="ledger"),
    "ParticipationLedger.selected": call(LEDGER.selected, {"t": "0"}, t=0),
    "ParticipationLedger.to_csv": call(LEDGER.to_csv, {"path": "None text"}, path="ledger.csv"),
    "Plan": call(
        fedmf.Plan,
        {
            "noise_multiplier": f"0 {REAL}", "clip_norm": REAL, "delta": "0.5", "sampling": "None",
            "simulation": "None", "quantile_clipping": "None", "private_metrics": "None",
            "longer": "None",
        },
        mechanism=MECHANISM, participation=TWICE, noise_multiplier=1.0, clip_norm=1.0, delta=1e-6,
        sampling=None, simulation=None, quantile_clipping=None, private_metrics=None, longer=None,
    ),
    "Plan.group_epsilon": call(PLAN.group_epsilon, devices=2),
    "Plan.simulating": call(PLAN.simulating, {"claimed": COUNT}, simulated=2, claimed=4),
    "PlanConfig": call(fedmf.PlanConfig, PLAN_ACCEPTS, **PLAN_FIELDS),
    "PlanConfig.budget_with": call(CONFIG.budget_with, mechanism=MECHANISM),
    "PlanConfig.fit": call(CONFIG.fit, {"show_progress": "True"}, show_progress=False),
    "PlanConfig.flags": call(
        CONFIG.flags, dict.fromkeys(("leave_out", "always"), f"{LIST} texts"),
        leave_out=(), always=(),
    ),
    "PlanConfig.from_json": call(fedmf.PlanConfig.from_json, text=CONFIG.to_json()),
    "PlanConfig.from_mapping": call(
        lambda values: fedmf.PlanConfig.from_mapping(values, "values"), values=CONFIG.flat()
    ),
    "PlanConfig.custom_schedule": call(SCHEDULED.custom_schedule, {"peak": REAL}, peak=1.0),
    "PlanConfig.of": call(fedmf.PlanConfig.of, plan=PLAN),
    "PlanConfig.plan": call(CONFIG.plan, {"mechanism": "None"}, mechanism=MECHANISM),
    "PlanConfig.plan_with": call(
        CONFIG.plan_with, NOISE, mechanism=MECHANISM, noise_multiplier=1.0
    ),
    "PlanConfig.pinned_to": call(CONFIG.pinned_to, {"mechanism": "text"}, plan=PLAN, mechanism="m"),
    "PrivateMetrics": call(
        fedmf.PrivateMetrics, {"share": "0.5", "largest_loss": "0.5"}, share=0.1, largest_loss=10.0
    ),
    "PrivateMetrics.noise_multiplier": call(
        fedmf.PrivateMetrics(share=0.1).noise_multiplier, NOISE, noise_multiplier=1.0
    ),
    "PrivateMetrics.other_noise_multiplier": call(
        fedmf.PrivateMetrics(share=0.1).other_noise_multiplier, NOISE, noise_multiplier=1.0
    ),
    "QuantileClipping": call(
        fedmf.QuantileClipping, {"quantile": "0.5", "share": "0.5", "learning_rate": REAL},
        quantile=0.5, share=0.04, every=10, learning_rate=1.0,
    ),
    "QuantileClipping.bit_noise_multiplier": call(
        fedmf.QuantileClipping().bit_noise_multiplier, NOISE, noise_multiplier=1.0
    ),
    "QuantileClipping.update_noise_multiplier": call(
        fedmf.QuantileClipping().update_noise_multiplier, NOISE, noise_multiplier=1.0
    ),
    "QuantileClipping.with_bit_noise": call(
        fedmf.QuantileClipping.with_bit_noise,
        {
            "bit_noise": COUNT, "noise_multiplier": "0.5", "quantile": "0.5",
            "learning_rate": REAL,
        },
        bit_noise=20.0, noise_multiplier=1.0, quantile=0.5, every=10, learning_rate=1.0,
    ),
    "Run": call(
        fedmf.Run,
        {
            "path": "text", "plan": "{}", "metrics": "[]", "timings": "[]",
            "statement": "empty text",
            **dict.fromkeys(("result", "clients", "fine_tuned"), "None {}"),
        },
        **RUN,
    ),
    "Run.load": call(fedmf.Run.load, {"path": "text"}, path="run"),
    "Sensitivity": call(
        fedmf.Sensitivity, {"value": f"0 {REAL}", "exact": "True", "method": "empty text"},
        value=1.0, exact=True, method="by hand",
    ),
    "Server": call(
        server,
        {
            "noise_seed": SEED, "folder": "None text", "zeroing_norm": f"None {REAL}",
            "population": "None",
        },
        plan=PLAN, shapes=[(2,)], clients_per_round=2, noise_seed=1, folder=None,
        zeroing_norm=None, population=None,
    ),
    "Server.add": call(
        lambda **update: server().add(**update), {"client": "text -1 0", "metrics": "None"},
        update=UPDATE, client="ann", metrics=None,
    ),
    "Server.add (metrics)": call(
        lambda metrics: server(WITH_METRICS).add(UPDATE, client="ann", metrics=metrics),
        {"metrics": "None"}, metrics={"accuracy": 0.5, "loss": 1.0},
    ),
    "Server.add_sum": call(
        lambda **sums: server().add_sum(**sums), {"clients": "texts", "clipped": "None 0"},
        total=[np.ones(2) / 10], clients=["ann", "bo"], clipped=None,
    ),
    "Server.cohort": call(
        server().cohort, {"available": f"{LIST} {{}} texts"}, available=["ann", "bo"]
    ),
    "Server.cohort (population)": call(
        server(population=10, noise_seed=2).cohort, {"available": "None"}, available=None
    ),
    "Server.open": call(fedmf.Server.open, folder="server"),
    "TrainConfig": call(fedmf.TrainConfig, TRAIN_ACCEPTS, **TRAIN_FIELDS),
    "TrainConfig.from_mapping": call(
        of_mapping, PLAN_ACCEPTS | TRAIN_ACCEPTS, **PLAN_FIELDS | TRAIN_FIELDS
    ),
    "WarmupCooldown": call(
        fedmf.WarmupCooldown,
        {"peak": REAL, "warmup": SHARE, "cooldown": SHARE, "floor": "0.5"},
        rounds=4, peak=1.0, warmup=0.15, cooldown=0.25, floor=0.05,
    ),
    "Workload": call(fedmf.Workload, {"name": "empty text"}, name="w", matrix=np.eye(2)),
    "Workload.from_inverse": call(
        fedmf.Workload.from_inverse, {"name": "empty text"}, name="w",
        inverse_diagonals=[[1.0], [1.0]],
    ),
    "audit_mechanism": call(
        audit_mechanism, {"seed": SEED, "coordinates": "None", "trials": "0"},
        plan=PLAN, seed=1, coordinates=300, trials=0,
    ),
    "attack_risk": call(fedmf.attack_risk, plan=PLAN, devices=1),
    "PrivateSelection": call(
        fedmf.PrivateSelection, plan=PLAN, trials=fedmf.TrialCount(mean_trials=10)
    ),
    "PrivateSelection.delta": call(SELECTION.delta, {"epsilon": f"0 {REAL}"}, epsilon=8.0),
    "PrivateSelection.epsilon": call(SELECTION.epsilon, {"delta": "0.5"}, delta=1e-6),
    "PrivateSelection.source": call(SELECTION.source, {"delta": "0.5"}, delta=1e-6),
    "TrialCount": call(
        fedmf.TrialCount, {"shape": "0 0.5"},
        mean_trials=10.0, distribution="poisson", shape=1.0,
    ),
    "TrialCount.quantile": call(
        fedmf.TrialCount().quantile, {"probability": "0.5"}, probability=0.5
    ),
    "private_selection": call(
        fedmf.private_selection, {"shape": "0 0.5"},
        plan=PLAN, mean_trials=10.0, distribution="poisson", shape=1.0,
    ),
    "audit_ledger": call(
        fedmf.audit_ledger, {"unrecorded": "[]", "hint": "empty text"},
        ledger=LEDGER, plan=PLAN, unrecorded=(), hint="",
    ),
    "audit_log": call(
        fedmf.audit_log, {"path": "text", "rounds_run": "None", "folder": "None"},
        path="log.csv", plan=PLAN, form=fedmf.LogForm(), rounds_run=2, memory=10**9, folder=None,
    ),
    "audit_run": call(fedmf.audit_run, {"folder": "text"}, folder="run"),
    "calibrate": call(
        fedmf.calibrate,
        {"epsilon": "0.5", "delta": "0.5", "clip_norm": REAL, "sampling": "None"},
        mechanism=MECHANISM, participation=TWICE, epsilon=8.0, delta=1e-6, clip_norm=1.0,
        sampling=None,
    ),
    "calibrate (advantage)": call(
        lambda advantage: fedmf.calibrate(MECHANISM, TWICE, advantage=advantage, delta=1e-6),
        {"advantage": "0.5"}, advantage=0.1,
    ),
    "calibrate (true_positive_rate)": call(
        lambda true_positive_rate: fedmf.calibrate(
            MECHANISM, TWICE, true_positive_rate=true_positive_rate, delta=1e-6
        ),
        true_positive_rate=(0.01, 0.05),
    ),
    "choose_bands": call(
        fedmf.choose_bands, {"rounds": "None", "bands": "None", "epsilon": "0.5", "delta": "0.5"},
        workload=WORKLOAD, rounds=4, bands=[4], population=4, cohort_size=1, epsilon=8.0,
        delta=1e-3,
    ),
    "dp_event": call(fedmf.dp_event, plan=PLAN),
    "effective_rmse": call(
        fedmf.effective_rmse, plan=PLAN, workload=WORKLOAD, cohort_size=2
    ),
    "fit (tree)": call(
        lambda **options: fedmf.fit(WORKLOAD, TWICE, family="tree", **options),
        {"completion": "None"}, decoder="full", restarts=1, completion=None,
    ),
    "fit": call(
        fedmf.fit,
        {
            "tolerance": f"None {REAL}", "max_iterations": f"None {COUNT}", "progress": "None",
            "cache": "text True", "bands": "None", "equal_norms": "True",
        },
        workload=WORKLOAD, participation=TWICE, family="banded", tolerance=0.1, max_iterations=1,
        progress=None, cache=False, bands=2, equal_norms=True,
    ),
    "identity": call(fedmf.identity, n=3),
    "load_factorization": call(
        fedmf.load_factorization, {"path": "text", "workload": "None"},
        path="factors.npz", workload=None,
    ),
    "load_mechanism": call(fedmf.load_mechanism, {"path": "text"}, path="mechanism.npz"),
    "loss": call(fedmf.loss, **ERROR_ARGUMENTS),
    "max_error": call(fedmf.max_error, **ERROR_ARGUMENTS),
    "momentum_buffer": call(fedmf.momentum_buffer, {"momentum": SHARE}, n=3, momentum=0.9),
    "momentum_sgd": call(
        fedmf.momentum_sgd, {"momentum": SHARE, "learning_rates": "None"},
        n=3, momentum=0.9, learning_rates=None,
    ),
    "partition.assign_clients": call(
        partition.assign_clients, {"labels": "bools texts", "seed": SEED},
        partition="shards:1", labels=LABELS, clients=2, seed=0,
    ),
    "partition.dirichlet": call(
        partition.dirichlet, {"labels": "bools texts", "alpha": REAL, "seed": SEED},
        labels=LABELS, clients=2, alpha=1.0, seed=0,
    ),
    "partition.picture": call(
        partition.picture, {"labels": "bools texts", "client_ids": "bools texts"},
        labels=LABELS, client_ids=LABELS, path="picture.png",
    ),
    "partition.quantity_skew": call(
        partition.quantity_skew, {"sigma": f"0 {REAL}", "seed": SEED},
        examples=10, clients=2, sigma=1.0, seed=0,
    ),
    "partition.shards": call(
        partition.shards, {"labels": "bools texts", "seed": SEED},
        labels=LABELS, clients=2, per_client=1, seed=0,
    ),
    "per_round_error": call(fedmf.per_round_error, **ERROR_ARGUMENTS),
    "predicted_learning_rate": call(
        fedmf.predicted_learning_rate,
        {"effective_rmse": REAL, "clip_norm": REAL, "grid": f"None {COUNT}"},
        effective_rmse=1.0, clip_norm=1.0, grid=1.7,
    ),
    "prefix_sum": call(fedmf.prefix_sum, n=3),
    "rmse": call(fedmf.rmse, **ERROR_ARGUMENTS),
    "sensitivity": call(
        fedmf.sensitivity, encoder_or_mechanism=MECHANISM, participation=TWICE
    ),
    "sgd": call(fedmf.sgd, learning_rates=[1.0]),
    "stamp": call(fedmf.stamp, mechanism=MECHANISM, times=2, decoder="optimal"),
    "statement": call(fedmf.statement, plan=PLAN),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Writes the files that calls read; pictures, statements, fits and files of servers are left
    out.
    """
    monkeypatch.chdir(tmp_path)
    for work in (
        "fedmf.reports.label_bars.count_labels", "fedmf.audits.audit.markdown",
        "fedmf.privacy.bands.BandSearch.banded", "fedmf.runs.folder.RunFolder.open",
        "fedmf.server.audit.released_rows", "fedmf.server.server.ServerFolder.create",
        "fedmf.server.server.ServerFolder.read",
    ):  # fmt: skip
        monkeypatch.setattr(work, stop)
    MECHANISM.save("mechanism.npz")
    LEDGER.save("ledger")
    np.savez("factors.npz", B=np.tril(np.ones((4, 4))), C=np.eye(4))
    (tmp_path / "log.csv").write_text("client,round\nann,0\nbo,1\n")
    (tmp_path / "server").mkdir()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_odd_arguments_are_refused_in_a_sentence_that_names_them(name):
    CALLS[name].run()
    assert CALLS[name].faults() == []


@pytest.mark.parametrize(
    ("function", "value", "fault"),
    [
        (lambda rounds: rounds.start, 1, "AttributeError"),
        (lambda rounds: len(rounds), 1, "TypeError: object of type 'int'"),
        (lambda rounds: np.zeros(rounds), -1, "ValueError: negative dimensions"),
        (lambda rounds: partition.quantity_skew(rounds, 1, 1.0, 0), 0, "does not name it: examp"),
        (lambda rounds: rounds, 1, "accepted"),
    ],
)
def test_errors_of_other_libraries_and_accepted_values_are_detected(function, value, fault):
    """The negative control of `Call.fault`."""
    assert call(function, rounds=1).fault("rounds", value).startswith(fault)


def test_every_public_name_has_a_case():
    """Warnings are not called, a module's functions stand under its name, and `train` is in
    tests/training.
    """
    called = {
        name
        for name in (*fedmf.__all__, *(f"partition.{name}" for name in partition.__all__))
        if name not in ("PoolRanDryWarning", "train")
    }
    assert called - set(CALLS) == set()
