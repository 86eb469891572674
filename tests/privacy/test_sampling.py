"""Sampling schemes: probabilities, participations, bands, and the names that they are read by."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import fedmf
from fedmf.mechanisms import DenseMechanism, ToeplitzMechanism
from fedmf.privacy.bands import BandSearch
from fedmf.privacy.comparison import Comparison
from fedmf.privacy.sampling import (
    CyclicFixedSize,
    CyclicPoisson,
    CyclicRandomAllocation,
    scheme_class,
)
from fedmf.privacy.sampling.bin_losses import bin_gram
from fedmf.privacy.sampling.description import Description
from fedmf.privacy.sampling.encoder_checks import proven_bands
from tests.cli.program import printed_by
from tests.refusals import refusal

SCHEMES = (CyclicPoisson, CyclicFixedSize, CyclicRandomAllocation)


def test_example_f1_of_the_banded_paper_is_reproduced():
    # q = B / (m / b) and ceil(n / b) events, m users and n rounds (docs/papers/banded.md).
    scheme = CyclicPoisson(population=342_000, cohort_size=1000, partitions=18)
    assert scheme.probability == 1000 / (342_000 / 18)
    assert scheme.compositions(2052) == 114


def test_example_f4_of_the_banded_paper_is_reproduced():
    # App. F.4: m = 50,000, B = 500; two bands give q = 2% and 1,000 events for 2,000 rounds, 100
    # bands give q = 1.
    assert CyclicPoisson(population=50_000, cohort_size=500, partitions=2).probability == 0.02
    assert (
        CyclicPoisson(population=50_000, cohort_size=500, partitions=2).compositions(2000) == 1000
    )
    assert CyclicPoisson(population=50_000, cohort_size=500, partitions=100).probability == 1


@given(st.integers(1, 400), st.integers(1, 40), st.integers(1, 20), st.integers(1, 120))
def test_the_participation_is_the_most_that_sampling_can_do(
    population, cohort_size, groups, rounds
):
    for scheme_type in SCHEMES:
        try:
            scheme = scheme_type(population=population, cohort_size=cohort_size, partitions=groups)
        except ValueError:
            continue
        participation = scheme.participation(rounds)
        if scheme_type is CyclicRandomAllocation:
            sampled_rounds = range(0, rounds, scheme.epoch)
        else:
            assert 0 < scheme.probability <= 1
            sampled_rounds = range(0, rounds, groups)  # drawn whenever it can be
            assert len(sampled_rounds) == scheme.compositions(rounds)
        assert participation.allows(sampled_rounds)
        assert len(sampled_rounds) == participation.max_participations


def test_long_toeplitz_encoders_are_accounted_without_their_matrix(monkeypatch):
    column = np.array([1.0, 0.5, 0.25, 0.125])
    toeplitz = ToeplitzMechanism(rounds=11, coefficients=column)
    dense_mechanism = DenseMechanism(matrix=toeplitz.encoder())
    expected = [bin_gram(dense_mechanism, bins) for bins in (1, 3, 4, 11)]
    assert proven_bands(dense_mechanism) == 4
    monkeypatch.setattr(ToeplitzMechanism, "encoder", lambda self: pytest.fail("a dense encoder"))
    assert proven_bands(toeplitz) == 4
    for bins, gram in zip((1, 3, 4, 11), expected, strict=True):
        assert_allclose(bin_gram(toeplitz, bins), gram, rtol=1e-12)


def test_a_description_refuses_a_relation_that_the_statement_does_not_explain():
    clauses = {"selection": "a coin each", "accountant": "coins", "accounted": "12 coins"}
    with refusal("relation='swap' is unknown: choose one of add-or-remove, replace, zero-out"):
        Description(**clauses, relation="swap")


class TestFormerNameOfRandomAllocation:
    """For one release "reshuffle" and `CyclicShuffle` are read; only the new names are written."""

    def test_the_former_name_is_read_from_configs_and_plans(self):
        values = {"sampling": "reshuffle", "population": 80, "cohort_size": 10, "rounds": 16}
        values |= {"family": "identity", "noise_multiplier": 2.0}
        config = fedmf.PlanConfig.from_mapping(values, "plan.json")
        assert config == fedmf.PlanConfig(**values | {"sampling": "random-allocation"})
        assert "reshuffle" not in config.to_json()
        assert type(config.plan().sampling) is fedmf.CyclicShuffle is CyclicRandomAllocation
        assert scheme_class("reshuffle") is CyclicRandomAllocation

    def test_the_former_name_is_read_by_the_search_for_bands_and_the_comparison(self):
        size = {"population": 80, "cohort_size": 10}
        search = BandSearch(
            workload=fedmf.prefix_sum(16), epsilon=4.0, delta=1e-5, sampling="reshuffle", **size
        )
        assert search.sampling == "random-allocation"
        comparison = Comparison.of(
            {"rounds": 16, "min_sep": 2, "cohort_size": 10, "bands": 2},
            population=80,
            families=["identity"],
            schemes=["reshuffle"],
            epsilons=[4.0],
            parameters=10,
        )
        assert comparison.schemes == ("random-allocation",)

    def test_the_former_name_is_read_from_the_command_line(self):
        options = "--rounds 16 --population 80 --cohort-size 10 --partitions 2 --sampling reshuffle"
        assert printed_by(f"plan participation {options}")["sampling"] == "random-allocation"
