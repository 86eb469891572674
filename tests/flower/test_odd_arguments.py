"""Invalid arguments of each public call of fedmf.flower are refused in a sentence that names them.

A new public name is a line of CALLS; see tests/test_odd_arguments.py.
"""

import dataclasses
import doctest

import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedmf.flower
from fedmf.flower import MatrixFactorizationDP, tell_partition
from tests.flower.made_up import Grid, initial, plan, wrapped
from tests.odd_arguments import Call, Reached

NODES = range(101, 116)
PLAN = plan()


def call(function, accepts=None, **arguments):
    return Call(function=function, arguments=arguments, accepts=accepts or {})


def new(**options):
    return wrapped(strategy=FedAvg(fraction_evaluate=0.0), given=PLAN, **options)


def of_a_new(name, is_asked=False):
    """Returns a method of a new strategy; within a round if `is_asked`."""

    def run(**arguments):
        strategy = new()
        if is_asked:
            strategy.configure_train(1, initial(), ConfigRecord(), Grid(NODES))
        return getattr(strategy, name)(**arguments)

    return run


def start(**arguments):
    return new().start(**arguments)


CALLS = {
    "MatrixFactorizationDP": call(
        MatrixFactorizationDP,
        {
            "clients_per_round": "", "noise_seed": "0 10**20", "folder": "None text",
            "population": "None", "zeroing_norm": "None 0.5 10**20",
        },
        strategy=FedAvg(fraction_evaluate=0.0), plan=PLAN, clients_per_round=4, noise_seed=1,
        folder=None, population=None, zeroing_norm=None,
    ),
    "MatrixFactorizationDP.start": call(
        start,
        {
            "num_rounds": "None", "timeout": "None 0 0.5 10**20",
            **dict.fromkeys(("train_config", "evaluate_config", "evaluate_fn"), "None"),
        },
        grid=Grid(NODES), initial_arrays=initial(), num_rounds=2, timeout=1.0,
        train_config=ConfigRecord(), evaluate_config=ConfigRecord(),
        evaluate_fn=lambda number, arrays: None,
    ),
    "MatrixFactorizationDP.configure_train": call(
        of_a_new("configure_train"), {"server_round": "10**20"},
        server_round=1, arrays=initial(), config=ConfigRecord(), grid=Grid(NODES),
    ),
    "MatrixFactorizationDP.aggregate_train": call(
        of_a_new("aggregate_train", is_asked=True),
        {"server_round": "10**20", "replies": "[] generator"},
        server_round=1, replies=[],
    ),
    "MatrixFactorizationDP.configure_evaluate": call(
        of_a_new("configure_evaluate"), {"server_round": "10**20"},
        server_round=1, arrays=initial(), config=ConfigRecord(), grid=Grid(NODES),
    ),
    "MatrixFactorizationDP.aggregate_evaluate": call(
        of_a_new("aggregate_evaluate"), {"server_round": "10**20", "replies": "[] generator"},
        server_round=1, replies=[],
    ),
    "tell_partition": call(tell_partition, app=ClientApp()),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_invalid_arguments_are_refused_by_name(name, tmp_path, monkeypatch):
    def stop(*args, **options):
        raise Reached

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MatrixFactorizationDP, "_train", stop)
    monkeypatch.setattr(fedmf.flower.nodes.log, "disabled", True)
    if name != "tell_partition":  # An app has one such folder.
        CALLS[name].run()
    assert CALLS[name].faults() == []


def test_every_public_name_has_a_case():
    methods = {
        f"MatrixFactorizationDP.{name}"
        for name, value in vars(MatrixFactorizationDP).items()
        if callable(value) and not name.startswith("_")
    }
    without_arguments = {"MatrixFactorizationDP.summary"}
    assert {*fedmf.flower.__all__, *methods} - without_arguments == set(CALLS)


def test_an_empty_model_is_refused():
    with pytest.raises(ValueError, match="initial_arrays is empty"):
        new().start(Grid(NODES), ArrayRecord())


def test_the_example_of_the_strategy_runs():
    (example,) = doctest.DocTestFinder(recurse=False).find(MatrixFactorizationDP)
    results = doctest.DocTestRunner().run(example)
    assert results.failed == 0
    assert results.attempted >= 4


def test_plans_of_trials_are_refused():
    trial_plan = dataclasses.replace(PLAN, selection=fedmf.TrialCount(mean_trials=4.0))
    with pytest.raises(ValueError, match="states the guarantee of a private selection"):
        wrapped(strategy=FedAvg(), given=trial_plan)
