"""The grid of a sweep: which configs it has, and how values are written on the command line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedmf
from fedmf import tasks
from fedmf.sweeps.grid import Range, sweep_configs, varied_values
from tests.refusals import refusal

FIXED = {"rounds": 8, "min_sep": 4, "cohort_size": 2}


def test_options_that_a_family_lacks_are_left_out_and_no_config_occurs_twice():
    varied_options = {
        "family": ["none", "identity", "banded", "tree"],
        "bands": [2, 4],
        "equal_norms": [True],
        "decoder": ["online", "full"],
        "epsilon": [2.0, 8.0],
    }
    configs = sweep_configs(FIXED, varied_options)
    count = {
        family: sum(config.family == family for config in configs.values())
        for family in varied_options["family"]
    }
    assert count == {"none": 1, "identity": 2, "banded": 4, "tree": 4}
    assert len(set(configs.values())) == len(configs)
    assert "family=none" in configs
    expected = fedmf.TrainConfig(family="tree", decoder="full", epsilon=2.0, **FIXED)
    assert configs["family=tree,decoder=full,epsilon=2"] == tasks.completed(expected)


def test_schedules_are_varied_like_other_fields():
    name, values = varied_values("learning-rate-schedule=6:0.15,2:0.5 6:0.1")
    configs = sweep_configs({"rounds": 8, "min_sep": 4, "family": "none"}, {name: values})
    assert {run: config.learning_rate_schedule for run, config in configs.items()} == {
        "learning_rate_schedule=6-0.15": "6:0.15",
        "learning_rate_schedule=2-0.5-6-0.1": "2:0.5 6:0.1",
    }


def test_a_colon_is_a_range_between_numbers_alone():
    assert varied_values("zeroing-norm=none,100") == ("zeroing_norm", [None, 100.0])
    assert varied_values("server-learning-rate=0.1:2")[1] == Range(0.1, 2.0)
    assert varied_values("bands = 2 : 64") == ("bands", Range(2, 64))
    assert varied_values("buffers=1:4") == ("buffers", Range(1, 4))  # an option of a family
    assert varied_values("availability=independent:0.1")[1] == ["independent:0.1"]
    assert varied_values("task-option.loss=a:b")[1] == ["a:b"]
    assert 0.1 in Range(0.1, 2.0)
    assert not any(value in Range(0.1, 2.0) for value in (None, "1", 2.1))
    assert Range(1, 4).whole
    assert not Range(1.0, 4.0).whole


def test_options_of_the_task_are_varied_like_fields():
    name, values = varied_values("task-option.lstm-size=8,16")
    configs = sweep_configs(FIXED | {"epsilon": 1.0, "task_option.loss": "masked"}, {name: values})
    assert list(configs) == ["task_option.lstm_size=8", "task_option.lstm_size=16"]
    assert [config.task_options["lstm_size"] for config in configs.values()] == [8, 16]
    assert {config.task_options["loss"] for config in configs.values()} == {"masked"}
    with refusal("`task_option` 'size' is none of the task stackoverflow_nwp"):
        sweep_configs(FIXED | {"epsilon": 1.0}, {"task_option.size": ["8"]})


def test_an_option_of_a_family_at_its_default_is_omitted():
    configs = sweep_configs(
        FIXED | {"epsilon": 8.0}, {"family": ["banded", "dense"], "equal_norms": [True, False]}
    )
    assert [(config.family, dict(config.mechanism_options)) for config in configs.values()] == [
        ("banded", {}),
        ("banded", {"equal_norms": False}),
        ("dense", {"equal_norms": True}),
        ("dense", {}),
    ]


@pytest.mark.parametrize(
    ("fixed", "varied", "words"),
    [
        (FIXED, {}, "vary is missing"),
        (FIXED | {"epsilon": 2.0}, {"epsilon": [1.0, 2.0]}, "leave one of them out"),
        (FIXED, {"epsilon": [1.0, 1.0]}, "different values"),
        (FIXED, {"family": ["none"], "epsilon": [1.0, 2.0]}, "epsilon belongs to no family"),
        ({"min_sep": 4, "epsilon": 1.0}, {"rounds": [8, "x"]}, "run rounds=x: .*Expected `int`"),
        (
            FIXED | {"family": "file"},
            {"epsilon": [1.0], "mechanism": ["a/b.npz", "c/b.npz"]},
            "two runs would be named",
        ),
    ],
)
def test_values_that_cannot_be_varied_are_refused(fixed, varied, words):
    with refusal(words):
        sweep_configs(fixed, varied)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epsilon", "names no values"),
        ("colour=1", "names no option"),
        ("rounds=1.5", "'1.5' is not a whole number"),
        ("epsilon=1,,2", "'' is not a number"),
        ("rounds=1.5:3", "'1.5' is not a whole number"),
        ("server-learning-rate=1:2:3", "'2:3' is not a number"),
        ("server-learning-rate=2:2", "range 2.0:2.0 must go from a number to a larger one"),
    ],
)
def test_texts_that_name_no_values_are_refused(text, words):
    with refusal(words):
        varied_values(text)


@given(st.lists(st.floats(min_value=1e-6, max_value=1e6), min_size=1, max_size=6, unique=True))
def test_different_values_have_different_names_that_are_read_back(rates):
    configs = sweep_configs(FIXED | {"epsilon": 1.0}, {"server_learning_rate": rates})
    assert len(configs) == len(rates)
    for name, config in configs.items():
        assert varied_values(name) == ("server_learning_rate", [config.server_learning_rate])
        assert "/" not in name
