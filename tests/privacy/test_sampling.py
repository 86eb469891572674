import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmf.privacy.sampling import CyclicFixedSize, CyclicPoisson, CyclicShuffle

SCHEMES = (CyclicPoisson, CyclicFixedSize, CyclicShuffle)


def test_example_f1_of_the_banded_paper_with_its_letters_put_right():
    # q = B / (m / b) and ceil(n / b) events, m users and n rounds (docs/fidelity.md).
    scheme = CyclicPoisson(population=342_000, cohort_size=1000, partitions=18)
    assert scheme.probability == 1000 / (342_000 / 18)
    assert scheme.compositions(2052) == 114


def test_example_f4_of_the_banded_paper():
    # App. F.4: m = 50,000, B = 500; two bands give q = 2% and 1,000 events for 2,000 rounds, 100 bands give q = 1.
    assert CyclicPoisson(population=50_000, cohort_size=500, partitions=2).probability == 0.02
    assert CyclicPoisson(population=50_000, cohort_size=500, partitions=2).compositions(2000) == 1000
    assert CyclicPoisson(population=50_000, cohort_size=500, partitions=100).probability == 1


@given(st.integers(1, 400), st.integers(1, 40), st.integers(1, 20), st.integers(1, 120))
def test_what_holds_with_certainty_is_what_the_draw_can_do(population, cohort_size, groups, rounds):
    for kind in SCHEMES:
        try:
            scheme = kind(population=population, cohort_size=cohort_size, partitions=groups)
        except ValueError:
            continue
        participation = scheme.participation(rounds)
        if kind is CyclicShuffle:
            taken = range(0, rounds, scheme.epoch)
        else:
            assert 0 < scheme.probability <= 1
            taken = range(0, rounds, groups)  # drawn whenever it can be
            assert len(taken) == scheme.compositions(rounds)
        assert participation.allows(taken)
        assert len(taken) == participation.max_participations


@given(st.integers(1, 6), st.integers(2, 6), st.integers(1, 60))
def test_a_new_order_each_epoch_keeps_at_least_groups_apart(groups, positions, rounds):
    shuffle = CyclicShuffle(population=groups * positions * 3, cohort_size=3, partitions=groups, reshuffle=True)
    # Last place of one epoch, first place of the next: as near as it gets.
    taken = [t for t in ((positions - 1) * groups, positions * groups) if t < rounds]
    assert shuffle.participation(rounds).allows(taken)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: CyclicPoisson(population=10, cohort_size=11), ValueError, ["cohort_size=11", "population=10", "at most 10"]),
        (lambda: CyclicPoisson(population=100, cohort_size=30, partitions=4), ValueError,
         ["4 partitions", "at most 25", "at most 3 bands"]),
        (lambda: CyclicFixedSize(population=0, cohort_size=1), ValueError, ["population=0"]),
        (lambda: CyclicFixedSize(population=10, cohort_size=1.5), TypeError, ["cohort_size=1.5"]),
        (lambda: CyclicPoisson(population=10, cohort_size=1, partitions=0), ValueError, ["partitions=0"]),
        (lambda: CyclicShuffle(population=1000, cohort_size=10, partitions=3), ValueError,
         ["partitions=3", "does not divide", "100 rounds"]),
        (lambda: CyclicShuffle(population=10, cohort_size=1, reshuffle=1), TypeError, ["reshuffle=1"]),
        (lambda: CyclicPoisson(population=10, cohort_size=1).probability, ValueError, ["partitions=None"]),
    ],
)  # fmt: skip
def test_refused_in_one_sentence(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert all(word in str(caught.value) for word in words), caught.value
