"""The command that a statement prints makes the same statement again, for every kind of plan.

An option that the command left out would claim too much.
"""

import dataclasses
import json

import pytest

from fedmf.mechanisms.budget import Budget
from fedmf.participation.schema import Participation
from fedmf.privacy.describe import calibrate_command, plan_summary, statement, statement_values
from fedmf.privacy.plan import Plan
from fedmf.privacy.private_metrics import PrivateMetrics
from fedmf.privacy.quantile_clipping import QuantileClipping
from fedmf.privacy.sampling import SCHEMES, CyclicPoisson, takes
from fedmf.privacy.stopping import stopped_after
from fedmf.privacy.trial_count import TrialCount
from tests.cli.program import fedmf, printed_by, refused
from tests.privacy.plans import banded

ROUNDS = 48
BANDED = banded(ROUNDS, 0.8, 0.5, 0.3, 0.1)
LIMITS = {
    "single": {},
    "every_round": {},
    "fixed_epoch": {"min_sep": 12, "max_participations": 3},
    "min_sep": {"min_sep": 6, "max_participations": 5},
}


def participation(schema):
    """Returns the participation of a schema with its limits."""
    return Participation(rounds=ROUNDS, schema=schema, **LIMITS[schema])


def plan(schema="min_sep", **changes):
    """Returns a plan of the banded mechanism."""
    arguments = {
        "participation": None if "sampling" in changes else participation(schema),
        "mechanism": BANDED,
        "noise_multiplier": 1.1,
        "clip_norm": 0.3,
        "delta": 2.5e-7,
        **changes,
    }
    return Plan(**arguments)


def printed_again(stated_plan, folder):
    """Returns the JSON that the printed command prints in the folder of its mechanism."""
    stated_plan.mechanism.save(folder / "mechanism.npz")
    (command,) = statement_values(stated_plan)["commands"]
    assert command == calibrate_command(stated_plan)
    assert command.startswith("fedmf ")
    return printed_by(command)


def check_command(stated_plan, folder):
    """Checks that the printed command makes the same statement."""
    printed_values = printed_again(stated_plan, folder)
    assert printed_values["epsilon"] == plan_summary(stated_plan)["epsilon"]
    assert printed_values["stddev"] == stated_plan.stddev
    assert printed_values["statement"] == statement(stated_plan)
    assert printed_values["statement_values"] == statement_values(stated_plan)
    printed_summary = {name: printed_values[name] for name in plan_summary(stated_plan)}
    assert printed_summary == json.loads(json.dumps(plan_summary(stated_plan)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# The mechanism has 4 bands; the scheme may have 8 partitions.
@pytest.mark.parametrize(
    ("partitions", "simulated"), [pytest.param(None, True, marks=pytest.mark.slow), (8, False)]
)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_command_of_every_sampling_scheme_repeats_its_statement(
    folder, quick, scheme, partitions, simulated
):
    setting = "min_sep" if takes(scheme, "min_sep") else "partitions"
    # The bins of balls in bins follow from the cohort size.
    partitions = partitions and (32 if scheme == "balls-in-bins" else partitions)
    settings = {"partitions": None, "min_sep": None} | {setting: partitions}
    stated_plan = plan(
        sampling=SCHEMES[scheme].configured(population=640, cohort_size=20, **settings)
    )
    if scheme != "balls-in-bins":
        assert getattr(stated_plan.sampling, setting) == (partitions or 4)
    if simulated:
        stated_plan = stated_plan.simulating(simulated=2, claimed=20)
    check_command(stated_plan, folder)


QUANTILE = QuantileClipping(quantile=0.3, share=0.1, every=7)
METRICS = PrivateMetrics(share=0.03, largest_loss=4.0)
PLANS = {
    **{schema: plan(schema) for schema in LIMITS},
    "without noise": plan("single", noise_multiplier=0),
    "simulated": plan().simulating(simulated=7, claimed=90),
    "a quantile": plan(quantile_clipping=QUANTILE).simulating(simulated=7, claimed=90),
    "private metrics": plan(private_metrics=METRICS),
    "both": plan(private_metrics=METRICS, quantile_clipping=QUANTILE),
    "private selection": plan(selection=TrialCount(mean_trials=7.5, shape=0.5)),
    "Poisson trials": plan(selection=TrialCount(mean_trials=3, distribution="poisson")),
    "a budget": plan(participation=Budget.of(BANDED, participation("min_sep")).participation),
}


@pytest.mark.parametrize("stated_plan", PLANS.values(), ids=PLANS)
def test_the_command_of_every_plan_repeats_its_statement(folder, stated_plan):
    check_command(stated_plan, folder)


def test_the_command_of_a_run_that_ends_early_repeats_its_statement(folder):
    stated_plan = stopped_after(plan(), 20)
    stated_plan.longer.mechanism.save(folder / "mechanism.npz")
    printed_values = printed_by(calibrate_command(stated_plan))
    assert printed_values["statement_values"] == json.loads(
        json.dumps(statement_values(stated_plan))
    )
    assert "--stop-after 20" in calibrate_command(stated_plan)


def test_every_field_of_a_plan_is_in_one_of_the_tests_above():
    # A new field needs a field of `PlanConfig`, or the command leaves it out.
    assert {field.name for field in dataclasses.fields(Plan)} == {
        *("mechanism", "participation", "noise_multiplier", "clip_norm", "delta", "sampling"),
        *("simulation", "quantile_clipping", "private_metrics", "selection", "longer"),
    }
    assert {field.name for kind in SCHEMES.values() for field in dataclasses.fields(kind)} == {
        *("population", "cohort_size", "partitions", "bins", "min_sep"),
    }


def test_a_log_with_groups_is_audited_by_the_printed_command(folder):
    stated_plan = plan(sampling=CyclicPoisson(population=640, cohort_size=20, partitions=8))
    stated_plan.mechanism.save(folder / "mechanism.npz")
    (folder / "log.csv").write_text(
        "client,round\n" + "".join(f"{t % 8},{t}\n" for t in range(ROUNDS))
    )
    calibrate = calibrate_command(stated_plan).replace("calibrate", "audit log log.csv")
    fedmf(calibrate, "first.json")
    first_values = json.loads((folder / "first.json").read_text())
    assert first_values["guarantee"]["epsilon"] == stated_plan.epsilon
    (command,) = first_values["commands"]
    fedmf(command.replace("first.json", "again.json"))
    repeated_values = json.loads((folder / "again.json").read_text())
    assert repeated_values | {"commands": 0} == first_values | {"commands": 0}


def test_the_table_has_the_cohorts_of_a_simulation(folder):
    stated_plan = plan().simulating(simulated=7, claimed=90)
    stated_plan.mechanism.save(folder / "mechanism.npz")
    printed_text = fedmf(calibrate_command(stated_plan).replace("--statement", "")).stdout
    rows = dict(line.split(maxsplit=1) for line in printed_text.splitlines())
    assert (rows["simulated_cohort"], rows["claimed_cohort"]) == ("7", "90")
    # Calibrated, the noise of the claimed run is scaled as well.
    target = f"calibrate mechanism.npz --rounds {ROUNDS} --min-sep 6 --epsilon 8"
    claimed_values = printed_by(target)
    printed_text = printed_by(f"{target} --cohort-size 7 --claimed-cohort 70")
    assert printed_text["epsilon"] == claimed_values["epsilon"]
    assert printed_text["stddev"] == pytest.approx(claimed_values["stddev"] / 10, rel=1e-14)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--cohort-size 20 --claimed-cohort 20", "--claimed-cohort 20 must be above"),
        (
            "--sampling poisson --population 640 --cohort-size 20 --partitions 3",
            "determines the separation",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused_in_one_sentence(folder, options, words):
    BANDED.save(folder / "mechanism.npz")
    refused(f"calibrate mechanism.npz --rounds {ROUNDS} --min-sep 6 --epsilon 8 {options}", words)


def test_the_command_names_the_file_and_the_accounting(folder):
    stated_plan = plan()
    stated_plan.mechanism.save(folder / "b 1.npz")
    printed_text = fedmf(calibrate_command(stated_plan, "b 1.npz", rdp=True)).stdout
    (line,) = [line for line in printed_text.splitlines() if line.startswith("    fedmf calibrate")]
    assert line.strip() == calibrate_command(stated_plan, "b 1.npz", rdp=True)
    assert "Renyi" in printed_text
