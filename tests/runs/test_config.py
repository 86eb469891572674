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

NAN, INF = float("nan"), float("inf")
BASE = {"rounds": 8, "min_sep": 4, "family": "identity", "epsilon": 8.0}


def config(**changes):
    return TrainConfig(**{**BASE, **changes})


def test_defaults_are_the_banded_papers():
    published = TrainConfig(epsilon=8, min_sep=342)
    assert (published.rounds, published.server_momentum) == (2052, 0.95)
    assert (published.clip_norm, published.delta) == (1.0, 1e-6)
    assert published.participation().max_participations == 6
    schedule = published.server_schedule()
    assert schedule.rounds == BANDED_SCHEDULE["rounds"]
    assert (schedule.warmup, schedule.cooldown, schedule.floor) == (0.15, 0.25, 0.05)


ZERO_ALLOWED = set(
    "client_momentum proximal_strength seed noise_multiplier server_momentum warmup cooldown "
    "dropout canaries private_metrics".split()
)
TAKES_ANY_TEXT = ("data", "task", "mechanism", "initial_model")


@pytest.mark.parametrize("field", dataclasses.fields(TrainConfig), ids=lambda field: field.name)
def test_every_field_refuses_what_cannot_work(field):
    name = field.name
    assert field.metadata["help"].endswith(".")
    others = {"epsilon": None} if name == "noise_multiplier" else {}
    values = [-1, NAN, INF, "8", ["a"], {1: 2}] + [0] * (name not in ZERO_ALLOWED)
    values += [None] * (field.default is not None and name != "zeroing_norm")
    for value in values:
        if value == "8" and name in TAKES_ANY_TEXT:
            continue
        with refusal(f"^{name}=", (TypeError, ValueError), naming=[value]):
            config(**others, **{name: value})
    if name in ZERO_ALLOWED:
        assert getattr(config(**others, **{name: 0}), name) == 0


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
def test_the_ends_of_ranges(call, kind, words):
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
def test_fields_that_contradict_each_other(changes, words):
    assert_refused(lambda: config(**changes), ValueError, words)


def test_no_noise_without_or_with_zero():
    for sigma in (None, 0.0):
        plan = config(family="none", epsilon=None, noise_multiplier=sigma).plan()
        assert plan.noise_multiplier == plan.stddev == 0
        assert plan.epsilon == math.inf
        assert plan.mechanism.family == "identity"
    # Under another family it is said and not assumed.
    assert config(epsilon=None, noise_multiplier=0.0).plan().epsilon == math.inf


class TestPlan:
    def test_by_epsilon(self):
        plan = config(clip_norm=0.3, delta=1e-5, epsilon=2).plan()
        assert plan.noise_multiplier == gaussian_noise_multiplier(2.0, 1e-5)
        assert plan.epsilon <= 2
        assert (plan.clip_norm, plan.delta) == (0.3, 1e-5)
        assert plan.participation == config().participation()

    def test_a_claimed_cohort_scales_the_noise(self):
        plan = config(cohort_size=10, claimed_cohort=50).plan()
        assert plan.stddev == pytest.approx(config().plan().stddev / 5)

    def test_a_mechanism_from_a_file(self, tmp_path):
        path = tmp_path / "m.npz"
        config(family="banded", bands=3).fit().save(path)
        loaded = config(family="file", mechanism=str(path)).fit()
        assert (loaded.family, loaded.bands) == ("banded", 3)
        with refusal("mechanism has 8 rounds but rounds=9"):
            config(family="file", mechanism=str(path), rounds=9).fit()

    def test_unequal_column_norms(self):
        """With a limit below the epoch's rounds, which is one of the participation and not of the
        optimum that is asked for; and where clients are sampled.
        """
        unequal = {"family": "banded", "mechanism_options": {"equal_norms": False}}
        limited = config(**unequal, min_sep=2, max_participations=2).fit()
        columns = np.linalg.norm(limited.encoder(), axis=0)
        assert np.ptp(columns) > 0.01 * columns.max()
        drawn = {"sampling": "poisson", "population": 40, "cohort_size": 10, "min_sep": None}
        sampled = config(**unequal, bands=2, **drawn)
        assert sampled.plan().epsilon <= sampled.epsilon

    def test_a_budget(self):
        made = config(schema="budget", family="banded", budget=3.0)
        assert made.plan().sensitivity.value == pytest.approx(3.0)
        assert config(schema="budget", family="banded").plan().participation.budget > 0


FALLING = {"learning_rate_schedule": "6:0.15", "server_learning_rate": 2.0}


class TestALearningRateSchedule:
    def test_is_followed_by_training_and_counted_by_the_workload(self):
        made = config(**FALLING, workload="momentum_sgd", workload_momentum=0.5)
        shares = np.repeat([1.0, 0.15], [6, 2])
        np.testing.assert_array_equal(made.server_schedule().learning_rates(), 2.0 * shares)
        expected = fedmf.momentum_sgd(8, 0.5, shares)
        np.testing.assert_array_equal(made.fit_workload().matrix, expected.matrix)
        own_input = config(**FALLING, workload="identity").fit_workload()
        np.testing.assert_array_equal(own_input.matrix, np.eye(8))

    def test_decides_the_mechanism(self):
        fitted = [config(family="dense", learning_rate_schedule=s).fit() for s in (None, "6:0.15")]
        workload = config(**FALLING).fit_workload()
        constant, falling = (fedmf.loss(m, workload, config().participation()) for m in fitted)
        assert falling < 0.999 * constant

    def test_is_the_same_from_a_list_a_file_and_its_command(self, tmp_path):
        path = tmp_path / "shares"
        path.write_text("\n".join(["1"] * 6 + ["0.15"] * 2))
        from_file, from_list = (
            config(learning_rate_schedule=value) for value in (str(path), [1] * 6 + [0.15] * 2)
        )
        path.unlink()
        assert from_file == from_list == TrainConfig.from_json(from_file.to_json())
        words = shlex.split(" ".join(from_file.flags()))
        written = words[words.index("--learning-rate-schedule") + 1]
        assert config(learning_rate_schedule=written) == from_file
        assert from_file.pinned_to(from_file.plan()).learning_rate_schedule == written

    def test_takes_the_place_of_warmup_and_cooldown(self):
        config(**FALLING, warmup=0.0, cooldown=0.0)
        for name in ("warmup", "cooldown"):
            with refusal(f"{name}=0.1 needs a run without `learning"):
                config(**FALLING, **{name: 0.1})


# Values that differ from the defaults, for the round trips.
other_configs = st.builds(
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


def test_numpys_numbers_become_plain_ones():
    numpys = config(rounds=np.int64(8), epsilon=8, warmup=np.float32(0.5))
    assert numpys.to_json() == config(epsilon=8.0, warmup=0.5).to_json()


@settings(max_examples=30)
@given(other_configs)
def test_json_round_trip(made):
    again = TrainConfig.from_mapping(json.loads(made.to_json()), "here")
    assert again == made
    assert again.to_json() == made.to_json()


@pytest.mark.parametrize("text", ['{"rounds": 8, "rounds": 9}', "[]"])
def test_json_that_is_no_config(text):
    with refusal("JSON ha|JSON holds"):
        TrainConfig.from_json(text)


def test_an_option_of_a_family_that_is_there_twice():
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
def test_bad_fields_name_their_file(field, words):
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
def test_files_that_cannot_be_read_are_named(tmp_path, name, text, words):
    path = tmp_path / name
    path.write_text(text)
    with refusal(words, naming=[path]):
        read_config_file(path)
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "none.toml"))):
        read_config_file(tmp_path / "none.toml")
