"""`TrainConfig`: what it refuses, the plan and schedule that it describes, and its files."""

import dataclasses
import json
import math
import re
import shlex

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedmf
from fedmf.privacy.gaussian import gaussian_noise_multiplier
from fedmf.runs.config import TrainConfig, read_config_file
from tests.paper_figures import BANDED_SCHEDULE
from tests.refusals import assert_refused, named, refusal

NAN = float("nan")
INF = float("inf")
BASE = {"rounds": 8, "min_sep": 4, "family": "identity", "epsilon": 8.0}


def config(**changes):
    """Returns the config of a short run, with some fields replaced."""
    return TrainConfig(**{**BASE, **changes})


def test_defaults_are_those_of_the_banded_paper():
    default_config = TrainConfig(epsilon=8, min_sep=342)
    assert default_config.rounds == 2052
    assert default_config.server_momentum == 0.95
    assert default_config.clip_norm == 1.0
    assert default_config.delta == 1e-6
    assert default_config.participation().max_participations == 6
    schedule = default_config.server_schedule()
    assert schedule.rounds == BANDED_SCHEDULE["rounds"]
    assert schedule.warmup == 0.15
    assert schedule.cooldown == 0.25
    assert schedule.floor == 0.05


FIELDS_THAT_ACCEPT_ZERO = set(
    "client_momentum proximal_strength seed noise_multiplier server_momentum warmup cooldown "
    "dropout canaries private_metrics".split()
)
FIELDS_THAT_ACCEPT_ANY_TEXT = ("data", "task", "mechanism", "initial_model")


@pytest.mark.parametrize("field", dataclasses.fields(TrainConfig), ids=lambda field: field.name)
def test_each_field_refuses_invalid_values(field):
    name = field.name
    assert field.metadata["help"].endswith(".")
    changes = {"epsilon": None} if name == "noise_multiplier" else {}
    values = [-1, NAN, INF, "8", ["a"], {1: 2}] + [0] * (name not in FIELDS_THAT_ACCEPT_ZERO)
    values += [None] * (field.default is not None and name != "zeroing_norm")
    for value in values:
        if value == "8" and name in FIELDS_THAT_ACCEPT_ANY_TEXT:
            continue
        with refusal(f"^{name}=", (TypeError, ValueError), naming=[value]):
            config(**changes, **{name: value})
    if name in FIELDS_THAT_ACCEPT_ZERO:
        assert getattr(config(**changes, **{name: 0}), name) == 0


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    named(
        ValueError,
        config,
        delta=[1.0, 1e-20],
        epsilon=[5000.0],
        server_momentum=[1.0],
        warmup=[1.1],
        cooldown=[0.9],
        dropout=[1.1],
        availability=["sometimes", "independent:2", "independent"],
    ),
)
def test_fields_refuse_values_at_the_ends_of_their_ranges(call, kind, words):
    assert_refused(call, kind, words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"noise_multiplier": 0.6}, "epsilon=8.0 and noise_multiplier=0.6"),
        ({"epsilon": None}, "epsilon=None and"),
        ({"family": "none"}, "family=none.*epsilon"),
        ({"claimed_cohort": 100}, "claimed_cohort=100.* cohort_size=100"),
        ({"canaries": 5, "execution": "tff"}, "canaries=5.* execution=tff"),
        ({"canaries": 5, "claimed_cohort": 200}, "canaries=5.* claimed_cohort=200"),
        ({"bands": 9, "family": "banded"}, "bands=9.* rounds=8"),
        ({"family": "file"}, "family=file"),
        ({"mechanism": "m.npz"}, "mechanism=m.npz.* family=file"),
        ({"bands": 2, "family": "tree"}, "bands=2.* family=tree"),
        ({"family": "tree", "mechanism_options": {"equal_norms": True}}, "equal_norms=True"),
        ({"workload_momentum": 0.5}, "workload_momentum=0.5"),
        ({"budget": 3.0}, "budget=3.0"),
        ({"server_optimizer": "adam", "scale_every": 2}, "scale_every=2.* adam"),
        ({"client_optimizer": "adam", "client_momentum": 0.5}, "client_momentum=0.5.* adam"),
        ({"sampling": "poisson", "min_sep": None}, "population=None"),
        ({"population": 12}, "population=12"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(changes, words):
    assert_refused(lambda: config(**changes), ValueError, words)


def test_plans_without_noise_have_an_infinite_epsilon():
    for sigma in (None, 0.0):
        plan = config(family="none", epsilon=None, noise_multiplier=sigma).plan()
        assert plan.noise_multiplier == plan.stddev == 0
        assert plan.epsilon == math.inf
        assert plan.mechanism.family == "identity"
    # Other families need an explicit noise multiplier of zero.
    assert config(epsilon=None, noise_multiplier=0.0).plan().epsilon == math.inf


class TestPlan:
    def test_the_plan_has_the_noise_multiplier_for_epsilon(self):
        plan = config(clip_norm=0.3, delta=1e-5, epsilon=2).plan()
        assert plan.noise_multiplier == gaussian_noise_multiplier(2.0, 1e-5)
        assert plan.epsilon <= 2
        assert plan.clip_norm == 0.3
        assert plan.delta == 1e-5
        assert plan.participation == config().participation()

    def test_the_plan_scales_the_noise_to_a_claimed_cohort(self):
        plan = config(cohort_size=10, claimed_cohort=50).plan()
        assert plan.stddev == pytest.approx(config().plan().stddev / 5)

    def test_the_plan_uses_a_mechanism_from_a_file(self, tmp_path):
        path = tmp_path / "m.npz"
        config(family="banded", bands=3).fit().save(path)
        loaded_mechanism = config(family="file", mechanism=str(path)).fit()
        assert loaded_mechanism.family == "banded"
        assert loaded_mechanism.bands == 3
        with refusal("mechanism has 8 rounds but rounds=9"):
            config(family="file", mechanism=str(path), rounds=9).fit()

    def test_the_plan_accepts_unequal_column_norms_with_few_participations_or_sampling(self):
        unequal = {"family": "banded", "mechanism_options": {"equal_norms": False}}
        limited = config(**unequal, min_sep=2, max_participations=2).fit()
        columns = np.linalg.norm(limited.encoder(), axis=0)
        assert np.ptp(columns) > 0.01 * columns.max()
        sampling = {"sampling": "poisson", "population": 40, "cohort_size": 10, "min_sep": None}
        sampled_config = config(**unequal, bands=2, **sampling)
        assert sampled_config.plan().epsilon <= sampled_config.epsilon

    def test_the_plan_has_the_sensitivity_of_a_budget(self):
        budget_config = config(schema="budget", family="banded", budget=3.0)
        assert budget_config.plan().sensitivity.value == pytest.approx(3.0)
        assert config(schema="budget", family="banded").plan().participation.budget > 0


FALLING_SCHEDULE = {"learning_rate_schedule": "6:0.15", "server_learning_rate": 2.0}


class TestALearningRateSchedule:
    def test_training_follows_a_schedule_that_the_workload_counts(self):
        momentum_config = config(**FALLING_SCHEDULE, workload="momentum_sgd", workload_momentum=0.5)
        factors = np.repeat([1.0, 0.15], [6, 2])
        learning_rates = momentum_config.server_schedule().learning_rates()
        np.testing.assert_array_equal(learning_rates, 2.0 * factors)
        expected_workload = fedmf.momentum_sgd(8, 0.5, factors)
        workload = momentum_config.fit_workload()
        np.testing.assert_array_equal(workload.matrix, expected_workload.matrix)
        identity_workload = config(**FALLING_SCHEDULE, workload="identity").fit_workload()
        np.testing.assert_array_equal(identity_workload.matrix, np.eye(8))

    def test_a_schedule_changes_the_fitted_mechanism(self):
        mechanisms = [
            config(family="dense", learning_rate_schedule=schedule).fit()
            for schedule in (None, "6:0.15")
        ]
        workload = config(**FALLING_SCHEDULE).fit_workload()
        participation = config().participation()
        constant_loss, falling_loss = (
            fedmf.loss(mechanism, workload, participation) for mechanism in mechanisms
        )
        assert falling_loss < 0.999 * constant_loss

    def test_a_schedule_is_equal_from_a_list_a_file_and_a_command_line(self, tmp_path):
        path = tmp_path / "shares"
        path.write_text("\n".join(["1"] * 6 + ["0.15"] * 2))
        from_file = config(learning_rate_schedule=str(path))
        path.unlink()
        assert config(learning_rate_schedule=[1] * 6 + [0.15] * 2) == from_file
        assert TrainConfig.from_json(from_file.to_json()) == from_file
        flags = shlex.split(" ".join(from_file.flags()))
        flag_value = flags[flags.index("--learning-rate-schedule") + 1]
        assert config(learning_rate_schedule=flag_value) == from_file
        assert from_file.pinned_to(from_file.plan()).learning_rate_schedule == flag_value

    def test_a_schedule_is_refused_beside_warmup_or_cooldown(self):
        config(**FALLING_SCHEDULE, warmup=0.0, cooldown=0.0)
        for name in ("warmup", "cooldown"):
            with refusal(f"{name}=0.1 needs a run without `learning"):
                config(**FALLING_SCHEDULE, **{name: 0.1})


# Configs with other values than the defaults.
random_configs = st.builds(
    config,
    rounds=st.integers(4, 10**6),
    seed=st.integers(0, 2**62),
    data=st.none()
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=8),
    epsilon=st.floats(1e-6, 4999.0),
    delta=st.floats(1e-15, 0.999),
    zeroing_norm=st.none() | st.floats(1e-3, 1e9),
    claimed_cohort=st.none() | st.integers(101, 10**9),
    warmup=st.floats(0, 0.5),
    family=st.sampled_from(["identity", "tree", "banded", "dense"]),
)


def test_numbers_of_numpy_become_plain_numbers():
    numpy_config = config(rounds=np.int64(8), epsilon=8, warmup=np.float32(0.5))
    assert numpy_config.to_json() == config(epsilon=8.0, warmup=0.5).to_json()


@settings(max_examples=30)
@given(random_configs)
def test_a_config_is_equal_after_a_round_trip_through_json(train_config):
    text = train_config.to_json()
    read_config = TrainConfig.from_mapping(json.loads(text), "here")
    assert read_config == train_config
    assert read_config.to_json() == text


@pytest.mark.parametrize("text", ['{"rounds": 8, "rounds": 9}', "[]"])
def test_json_that_is_no_config_is_refused(text):
    with refusal("JSON ha|JSON holds"):
        TrainConfig.from_json(text)


def test_an_option_of_a_family_that_occurs_twice_is_refused():
    with refusal("buffers is given twice"):
        TrainConfig.from_mapping({"buffers": 3, "mechanism_options": {"buffers": 2}}, "c.json")


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"epsilno": 8}, "has an unknown field 'epsilno': did you mean `epsilon`?"),
        ({"colour": 8}, "has an unknown field 'colour': the fields are `rounds`, .*`noise_m"),
        ({"rounds": "8"}, "rounds='8'"),
    ],
)
def test_errors_of_fields_name_the_file(field, words):
    call = lambda: TrainConfig.from_mapping(BASE | field, "my.toml")  # noqa: E731
    assert_refused(call, ValueError, f"my.toml.*{words}")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("c.toml", "rounds = ", "not valid TOML"),
        ("c.json", "{", "not valid JSON"),
        ("c.json", "[" * 100_000, "not valid JSON"),
        ("c.json", "[1]", "must hold fields of TrainConfig, not a list"),
    ],
)
def test_errors_of_unreadable_files_name_the_file(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    with refusal(words, naming=[path]):
        read_config_file(path)
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "none.toml"))):
        read_config_file(tmp_path / "none.toml")
