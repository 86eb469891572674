import dataclasses
import math
import re
import warnings

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmf.accountants import gaussian_epsilon
from fedmf.accounting import Plan
from fedmf.controller import ParticipationController, PoolRanDryWarning, audit_ledger
from fedmf.ledger import ParticipationLedger
from fedmf.mechanisms import BandedMechanism, IdentityMechanism, TreeMechanism
from fedmf.participation import Participation
from tests.oracles import allowed_sets
from tests.paper_figures import BANDED_SECTION_6

# Of every statistical test here: the chance that it fails although the code is right.
FALSE_POSITIVE_RATE = 1e-6


@st.composite
def settings_of_controllers(draw):
    """Arguments that need not work: construction refuses those that cannot."""
    rounds = draw(st.integers(1, 10))
    schema = draw(st.sampled_from(["single", "fixed_epoch", "min_sep", "every_round"]))
    if schema in ("single", "every_round"):
        participation = Participation(rounds=rounds, schema=schema)
    else:
        min_sep = draw(st.integers(1, rounds))
        most = draw(st.one_of(st.none(), st.integers(1, -(-rounds // min_sep))))
        participation = Participation(rounds=rounds, schema=schema, min_sep=min_sep, max_participations=most)
    size = draw(st.integers(1, 3))
    population = draw(st.integers(size, size * (rounds + 2)))
    return {
        "participation": participation,
        "population": population,
        "cohort_size": size,
        "seed": draw(st.integers(0, 9)),
    }


@st.composite
def controllers_that_work(draw):
    given = draw(settings_of_controllers())
    p, size = given["participation"], given["cohort_size"]
    if p.schema == "fixed_epoch":
        given["participation"] = p = dataclasses.replace(p, max_participations=-(-p.rounds // p.min_sep))
    least = max(size * p.min_sep, -(-size * p.rounds // p.max_participations))
    return given | {"population": max(given["population"], least)}


def available_to(probability):
    """A pure mask of the round, some clients away."""
    return lambda t: np.random.default_rng([7, t]).random(population_of[0]) < probability


population_of = [0]


def run(controller, rounds=None):
    """All cohorts; warnings do not matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PoolRanDryWarning)
        return [controller.cohort(t).tolist() for t in range(rounds or controller.participation.rounds)]


def refusal(given):
    """What the constructor objects to; nothing if the arguments work."""
    try:
        ParticipationController(**given)
    except ValueError as error:
        return str(error)
    return ""


def min_sep_controller(**changes):
    given = {"population": 30, "cohort_size": 4, "seed": 3, **changes}
    participation = given.pop("participation", Participation(rounds=20, schema="min_sep", min_sep=5))
    return ParticipationController(participation, **given)


class TestCohorts:
    @settings(deadline=None)
    @given(controllers_that_work(), st.sampled_from([None, 0.9, 0.4, 0.0]))
    def test_nothing_the_participation_forbids(self, given, probability):
        population_of[0] = given["population"]
        availability = None if probability is None else available_to(probability)
        controller = ParticipationController(**given, availability=availability)
        cohorts = run(controller)
        allowed = set(allowed_sets(given["participation"]))  # from the words of the schema, not from `allows`
        for client in range(given["population"]):
            rounds = tuple(t for t, cohort in enumerate(cohorts) if client in cohort)
            assert not rounds or rounds in allowed
            assert given["participation"].allows(rounds)
        for t, cohort in enumerate(cohorts):
            assert len(set(cohort)) == len(cohort) <= given["cohort_size"]
            assert all(0 <= client < given["population"] for client in cohort)
            if availability is not None:
                assert availability(t)[cohort].all()

    @settings(deadline=None)
    @given(controllers_that_work())
    def test_the_full_cohort_always_where_only_separation_binds(self, given):
        # With the default max_participations nothing but separation keeps clients away, and construction checked that.
        p = given["participation"]
        given["participation"] = Participation(
            rounds=p.rounds, schema=p.schema, min_sep=None if p.schema in ("single", "every_round") else p.min_sep
        )
        controller = ParticipationController(**given)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sizes = {len(controller.cohort(t)) for t in range(p.rounds)}
        assert sizes == {given["cohort_size"]}

    def test_type(self):
        cohort = min_sep_controller().cohort(0)
        assert cohort.dtype == np.int64
        assert cohort.shape == (4,)
        assert (np.diff(cohort) > 0).all()
        assert min_sep_controller(seed=np.int64(3)).cohort(np.int64(0)).tolist() == cohort.tolist()

    def test_different_seeds_differ(self):
        assert len({tuple(min_sep_controller(seed=seed).cohort(0)) for seed in range(20)}) > 10
        fixed = Participation(rounds=20, schema="fixed_epoch", min_sep=5)
        assert len({tuple(min_sep_controller(participation=fixed, seed=seed).cohort(0)) for seed in range(20)}) > 10

    def test_different_rounds_differ(self):
        everyone = Participation(rounds=20, schema="every_round")
        assert len({tuple(c) for c in run(min_sep_controller(participation=everyone))}) > 10

    def test_fixed_epoch_keeps_one_order(self):
        fixed = Participation(rounds=17, schema="fixed_epoch", min_sep=5)
        cohorts = run(min_sep_controller(participation=fixed))
        assert all(cohorts[t] == cohorts[t - 5] for t in range(5, 17))
        seen = sorted(client for cohort in cohorts[:5] for client in cohort)
        assert len(set(seen)) == 20
        # Not simply in the order of the indices.
        assert cohorts[0] != [0, 1, 2, 3]

    def test_a_client_of_the_fixed_order_who_misses_an_epoch_comes_back_in_its_turn(self):
        fixed = Participation(rounds=15, schema="fixed_epoch", min_sep=5)
        everyone = run(min_sep_controller(participation=fixed))
        away = everyone[2][0]

        def availability(t):
            mask = np.ones(30, bool)
            mask[away] = t != 7
            return mask

        cohorts = run(min_sep_controller(participation=fixed, availability=availability))
        assert [t for t, cohort in enumerate(cohorts) if away in cohort] == [2, 12]
        assert len(cohorts[7]) == 3  # nobody out of turn replaces it


class TestPurity:
    @settings(deadline=None)
    @given(controllers_that_work(), st.integers(0, 10), st.booleans())
    def test_a_new_controller_continues_from_the_ledger(self, given, stop, some_away):
        population_of[0] = given["population"]
        availability = available_to(0.7) if some_away else None
        whole = run(ParticipationController(**given, availability=availability))
        stop = min(stop, len(whole))
        first = ParticipationController(**given, availability=availability)
        if stop:
            assert run(first, stop) == whole[:stop]
        again = ParticipationLedger.from_csv(first.ledger.to_csv(), rounds=stop, cohort_size=given["cohort_size"])
        assert run(ParticipationController(**given, availability=availability, ledger=again)) == whole

    def test_old_rounds_come_from_the_ledger(self):
        controller = min_sep_controller()
        whole = run(controller)
        assert [controller.cohort(t).tolist() for t in reversed(range(20))] == whole[::-1]
        assert len(controller.ledger) == 20
        # From the ledger, and not drawn again: with another seed they are the same.
        other = min_sep_controller(seed=99, ledger=controller.ledger)
        assert run(other) == whole

    def test_the_given_ledger_is_not_written_to(self):
        ledger = ParticipationLedger(cohort_size=4)
        min_sep_controller(ledger=ledger).cohort(0)
        assert len(ledger) == 0

    def test_rounds_recorded_from_outside_count(self):
        # A deployment records who really came; the next draw must respect that.
        controller = min_sep_controller(population=20)
        controller.ledger.append(np.array([0, 1, 2, 3]))
        cohorts = run(controller, 5)
        assert sorted(client for cohort in cohorts for client in cohort) == list(range(20))

    def test_numpys_global_generator_is_left_alone(self):
        np.random.seed(1)  # noqa: NPY002  (the one under test)
        before = np.random.get_state()[1].copy()  # noqa: NPY002
        first = run(min_sep_controller())
        assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
        np.random.seed(2)  # noqa: NPY002
        assert run(min_sep_controller()) == first

    @pytest.mark.parametrize(
        ("t", "kind"), [(1, ValueError), (-1, ValueError), (20, ValueError), (0.0, TypeError), (True, TypeError)]
    )
    def test_rounds_out_of_order(self, t, kind):
        controller = min_sep_controller()
        with pytest.raises(kind, match=f"t={t}"):
            controller.cohort(t)
        assert len(controller.ledger) == 0

    def test_no_round_after_the_last(self):
        controller = min_sep_controller()
        run(controller)
        with pytest.raises(ValueError, match="t=20 cannot be drawn"):
            controller.cohort(20)


class TestDryPool:
    def test_warns_and_returns_fewer(self):
        controller = min_sep_controller(availability=lambda t: np.arange(30) < (2 if t == 1 else 30))
        assert len(controller.cohort(0)) == 4
        with pytest.warns(PoolRanDryWarning, match="round 1: only [012] of cohort_size=4"):
            assert len(controller.cohort(1)) <= 2
        assert len(controller.cohort(2)) == 4
        assert controller.ledger.observed().short_rounds == 1

    def test_nobody_at_all(self):
        controller = min_sep_controller(availability=lambda t: np.zeros(30, bool))
        with pytest.warns(PoolRanDryWarning, match="only 0 of"):
            cohort = controller.cohort(0)
        assert cohort.shape == (0,)
        assert cohort.dtype == np.int64

    @pytest.mark.parametrize(
        "mask",
        [np.ones(29, bool), np.ones((30, 1), bool), np.ones(30), [True] * 29],
        ids=["short", "2-D", "floats", "list"],
    )
    def test_a_mask_of_another_shape(self, mask):
        controller = min_sep_controller(availability=lambda t: mask)
        with pytest.raises(ValueError, match=r"availability\(0\) gave .* must give a boolean mask of shape \(30,\)"):
            controller.cohort(0)
        assert len(controller.ledger) == 0


class TestRefusals:
    @settings(deadline=None, max_examples=300)
    @given(settings_of_controllers())
    def test_every_number_suggested_works(self, given):
        message = refusal(given)
        if not message:
            return
        ways = re.findall(r"(?:lower|raise|use) (?:the )?(\w+)(?: to at most | to |=)(\d+)", message)
        assert ways, message
        for name, number in ways:
            changed = dict(given)
            p = given["participation"]
            # Not counting on defaults: everything else stays as it was, except limits that no longer fit.
            if name in ("population", "cohort_size"):
                changed[name] = int(number)
            elif name == "max_participations":
                changed["participation"] = dataclasses.replace(p, max_participations=int(number))
            elif name == "min_sep":
                changed["participation"] = Participation(rounds=p.rounds, schema=p.schema, min_sep=int(number))
            else:
                assert (name, p.schema) == ("rounds", "single")
                changed["participation"] = Participation(rounds=int(number), schema="single")
            second = refusal(changed)
            if second:
                # One change can bring up the other limit, max_participations, which was given on purpose.
                assert p.max_participations < -(-p.rounds // p.min_sep), (message, name, number, second)
                assert "max_participations" in second

    @settings(deadline=None, max_examples=300)
    @given(settings_of_controllers())
    def test_refused_exactly_when_it_cannot_work(self, given):
        p, size, population = given["participation"], given["cohort_size"], given["population"]
        by_separation = size * p.min_sep <= population
        by_count = size * p.rounds <= population * p.max_participations
        whole_order = p.schema != "fixed_epoch" or p.max_participations == -(-p.rounds // p.min_sep)
        assert (not refusal(given)) == (by_separation and by_count and whole_order)

    @pytest.mark.parametrize(
        ("change", "kind", "words"),
        [
            ({"participation": 5}, TypeError, ["participation=5", "fedmf.Participation"]),
            ({"population": 0}, ValueError, ["population=0", "number of clients"]),
            ({"population": 30.0}, TypeError, ["population=30.0", "number of clients"]),
            ({"cohort_size": 0}, ValueError, ["cohort_size=0", "clients a round"]),
            ({"cohort_size": 31}, ValueError, ["cohort_size=31", "population=30", "at most 30"]),
            ({"cohort_size": 7}, ValueError, ["cohort_size=7", "min_sep=5", "= 35", "population=30", "at most 6"]),
            ({"seed": -1}, ValueError, ["seed=-1", "non-negative"]),
            ({"seed": None}, TypeError, ["seed=None", "non-negative"]),
            ({"seed": 1.5}, TypeError, ["seed=1.5", "non-negative"]),
            ({"availability": np.ones(30, bool)}, TypeError, ["availability=", "function of the round"]),
        ],
    )
    def test_refused_in_one_sentence(self, change, kind, words):
        with pytest.raises(kind) as caught:
            min_sep_controller(**change)
        message = str(caught.value)
        assert ". " not in message
        for word in words:
            assert word in message

    def test_the_seed_has_no_default(self):
        with pytest.raises(TypeError, match="seed"):
            ParticipationController(Participation(rounds=2, schema="single"), population=4, cohort_size=1)

    @pytest.mark.parametrize(
        ("cohorts", "words"),
        {
            "too soon": ([[0], [1], [2], [3], [0]], "round 4 has client 0"),
            "other population": ([[30]], "round 0 names client 30, outside 0..29"),
            "other cohort size": ([[0, 1, 2, 3, 4]], "round 0 has 5 clients, cohort_size=4"),
            "longer run": ([[]] * 21, "has a round 20 but the run has rounds=20"),
        }.values(),
    )
    def test_a_ledger_that_breaks_the_participation(self, cohorts, words):
        ledger = ParticipationLedger(cohort_size=4, cohorts=[np.array(c, np.int64) for c in cohorts])
        with pytest.raises(ValueError, match=words) as caught:
            min_sep_controller(ledger=ledger)
        assert "another run" in str(caught.value)

    def test_a_fixed_order_of_another_seed(self):
        # Going on from it would bring clients back in another than their turn, which nothing later would notice.
        fixed = Participation(rounds=20, schema="fixed_epoch", min_sep=5)
        first = min_sep_controller(participation=fixed)
        run(first, 3)
        with pytest.raises(ValueError, match="another run"):
            min_sep_controller(participation=fixed, seed=4, ledger=first.ledger)


class TestUniformity:
    """Chi-square over the cohorts of many seeds; each test fails for right code with probability FALSE_POSITIVE_RATE."""

    def test_over_pairs_of_the_first_round(self):
        # All 15 cohorts of 2 out of 6: uniform over the sets and not only over the clients.
        counts = self._sets(lambda seed: ParticipationController(
            Participation(rounds=2, schema="min_sep", min_sep=2), population=6, cohort_size=2, seed=seed
        ).cohort(0))  # fmt: skip
        assert len(counts) == 15
        assert scipy.stats.chisquare(counts).pvalue > FALSE_POSITIVE_RATE

    def test_over_the_eligible_of_a_later_round(self):
        def cohort(seed):
            first = ParticipationLedger(cohort_size=2, cohorts=[np.array([1, 4])])
            participation = Participation(rounds=2, schema="min_sep", min_sep=2)
            return ParticipationController(participation, population=8, cohort_size=2, seed=seed, ledger=first).cohort(
                1
            )

        counts = self._sets(cohort)
        assert len(counts) == 15  # of the 6 clients that are left
        assert scipy.stats.chisquare(counts).pvalue > FALSE_POSITIVE_RATE

    def test_of_the_fixed_order(self):
        def second_cohort(seed):
            participation = Participation(rounds=3, schema="fixed_epoch", min_sep=3)
            controller = ParticipationController(participation, population=6, cohort_size=2, seed=seed)
            controller.cohort(0)
            return controller.cohort(1)

        counts = self._sets(second_cohort)
        assert len(counts) == 15
        assert scipy.stats.chisquare(counts).pvalue > FALSE_POSITIVE_RATE

    def test_a_preference_is_seen(self):
        # Negative control: the same test on draws in which client 0 has one and a half times the others' weight.
        weights = np.array([1.5, 1, 1, 1, 1, 1])
        counts = self._sets(
            lambda seed: np.random.default_rng(seed).choice(6, size=2, replace=False, p=weights / weights.sum())
        )
        assert scipy.stats.chisquare(counts).pvalue < FALSE_POSITIVE_RATE

    def test_rounds_are_independent(self):
        # Whether client 0 comes in round 0 says nothing of round 1 when every round is allowed.
        everyone = Participation(rounds=2, schema="every_round")
        table = np.zeros((2, 2))
        for seed in range(3000):
            controller = ParticipationController(everyone, population=4, cohort_size=2, seed=seed)
            table[int(0 in controller.cohort(0)), int(0 in controller.cohort(1))] += 1
        assert scipy.stats.chi2_contingency(table)[1] > FALSE_POSITIVE_RATE

    @staticmethod
    def _sets(cohort_of_seed, seeds=4000):
        _, counts = np.unique([sorted(cohort_of_seed(seed)) for seed in range(seeds)], axis=0, return_counts=True)
        return counts


def banded(rounds, bands, seed=0):
    """A banded C with columns of norm 1 and positive entries."""
    C = np.tril(np.random.default_rng(seed).uniform(0.1, 1.0, (rounds, rounds)))
    C[np.subtract.outer(np.arange(rounds), np.arange(rounds)) >= bands] = 0
    C /= np.linalg.norm(C, axis=0)
    diagonals = np.zeros((rounds, bands))
    for j in range(bands):
        diagonals[j:, j] = np.diagonal(C, -j)
    return BandedMechanism(diagonals=diagonals)


def plan_of(mechanism, participation, noise_multiplier=1.3):
    return Plan(
        mechanism=mechanism, participation=participation, noise_multiplier=noise_multiplier, clip_norm=0.5, delta=1e-6
    )


def worst_client(C, ledger):
    """The largest ||C u|| over the clients of the ledger, all updates along one line: for C >= 0 no update does more."""
    rounds = ledger.rounds_of_clients().values()
    return max(np.linalg.norm(C[:, taken].sum(axis=1)) for taken in rounds)


class TestAudit:
    @settings(deadline=None, max_examples=60)
    @given(
        controllers_that_work(),
        st.sampled_from([IdentityMechanism, TreeMechanism, lambda rounds: banded(rounds, min(3, rounds))]),
        st.sampled_from([1.0, 0.6]),
    )
    def test_obeyed_is_never_worse_than_planned(self, given, family, probability):
        population_of[0] = given["population"]
        plan = plan_of(family(rounds=given["participation"].rounds), given["participation"])
        controller = ParticipationController(**given, availability=available_to(probability))
        run(controller)
        audit = controller.audit(plan)
        assert audit.planned is plan
        assert audit.epsilon <= plan.epsilon
        assert audit.rho <= plan.rho
        if audit.achieved is None:
            assert controller.ledger.observed().participations == 0
            return
        # What was added is what it was.
        assert audit.achieved.stddev >= plan.stddev * (1 - 1e-12)
        # Nor does it claim more than the worst client of this very ledger allows.
        exposed = 0.5 * worst_client(plan.mechanism.encoder(), controller.ledger) / plan.stddev
        assert audit.rho >= exposed**2 / 2 * (1 - 1e-9)

    @pytest.mark.parametrize(
        ("cohorts", "seen"),
        [
            ([[0], [1], [0], [2], [3], [4], [5], [6]], (2, 2)),  # client 0 after 2 rounds instead of 4
            ([[0], [0], [1], [2], [3], [4], [5], [6]], (1, 2)),
            ([[0], [1], [2], [0], [3], [4], [0], [5]], (3, 3)),  # too soon and too often
        ],
    )
    def test_broken_on_purpose(self, cohorts, seen):
        participation = Participation(rounds=8, schema="min_sep", min_sep=4)
        plan = plan_of(banded(8, 4), participation)
        ledger = ParticipationLedger(cohort_size=1, cohorts=[np.array(c) for c in cohorts])
        audit = audit_ledger(ledger, plan)
        assert (audit.observed.min_separation, audit.observed.max_participations) == seen
        assert audit.epsilon > plan.epsilon
        assert audit.rho > plan.rho
        # Independently: the worst set of rounds with the separation and count seen, by trying all.
        C = plan.mechanism.encoder()
        loose = Participation(rounds=8, schema="min_sep", min_sep=seen[0], max_participations=seen[1])
        worst = max(np.linalg.norm(C[:, list(taken)].sum(axis=1)) for taken in allowed_sets(loose))
        planned = max(np.linalg.norm(C[:, list(taken)].sum(axis=1)) for taken in allowed_sets(participation))
        multiplier = 1.3 * planned / worst
        # Where three rounds are seen the sensitivity of overlapping columns is an upper bound: epsilon may be above, never below.
        exact = audit.achieved.sensitivity.exact
        assert audit.achieved.noise_multiplier == pytest.approx(multiplier, rel=1e-12 if exact else 0.05)
        assert audit.achieved.noise_multiplier <= multiplier * (1 + 1e-12)
        assert exact == (seen[1] == 2)
        if exact:
            assert audit.epsilon == pytest.approx(gaussian_epsilon(multiplier, 1e-6), rel=1e-6)

    def test_a_fixed_order_broken_only_in_its_turn(self):
        # Five rounds apart instead of four: far enough for min_sep, and yet not what fixed_epoch was accounted for.
        participation = Participation(rounds=12, schema="fixed_epoch", min_sep=4)
        C = np.eye(12)
        C[9, 0] = C[9, 5] = 3.0  # rounds 0 and 5 add up; rounds 0, 4, 8 do not
        from fedmf.mechanisms import DenseMechanism

        plan = plan_of(DenseMechanism(matrix=np.tril(C)), participation)
        cohorts = [[]] * 12
        cohorts[0] = cohorts[5] = [0]
        ledger = ParticipationLedger(cohort_size=1, cohorts=[np.array(c, np.int64) for c in cohorts])
        audit = audit_ledger(ledger, plan)
        assert audit.observed.min_separation == 5
        expected = 1.3 * plan.sensitivity.value / np.linalg.norm(C[:, 0] + C[:, 5])
        assert audit.achieved.noise_multiplier == pytest.approx(expected, rel=1e-12)
        assert audit.epsilon > plan.epsilon

    def test_one_participation_each_achieves_more_than_planned(self):
        plan = plan_of(IdentityMechanism(rounds=9), Participation(rounds=9, schema="min_sep", min_sep=3))
        ledger = ParticipationLedger(cohort_size=1, cohorts=[np.array([t]) for t in range(9)])
        audit = audit_ledger(ledger, plan)
        # sqrt(3) times the noise that single participation needs.
        assert audit.achieved.noise_multiplier == pytest.approx(1.3 * math.sqrt(3))
        assert audit.rho == pytest.approx(plan.rho / 3)

    def test_nobody_took_part(self):
        plan = plan_of(IdentityMechanism(rounds=2), Participation(rounds=2, schema="single"))
        audit = audit_ledger(ParticipationLedger(cohort_size=1, cohorts=[np.zeros(0, np.int64)]), plan)
        assert (audit.achieved, audit.epsilon, audit.rho) == (None, 0.0, 0.0)

    def test_no_noise_achieves_nothing(self):
        plan = plan_of(IdentityMechanism(rounds=2), Participation(rounds=2, schema="single"), noise_multiplier=0)
        audit = audit_ledger(ParticipationLedger(cohort_size=1, cohorts=[np.array([0])]), plan)
        assert audit.epsilon == audit.rho == math.inf

    def test_a_simulation_stays_one(self):
        plan = plan_of(IdentityMechanism(rounds=2), Participation(rounds=2, schema="single"))
        plan = plan.simulating(simulated=1, claimed=5)
        audit = audit_ledger(ParticipationLedger(cohort_size=1, cohorts=[np.array([0])]), plan)
        assert (audit.achieved.simulated_cohort, audit.achieved.claimed_cohort) == (1, 5)
        assert audit.achieved.stddev == plan.stddev

    def test_the_ledger_of_a_longer_run(self):
        plan = plan_of(IdentityMechanism(rounds=2), Participation(rounds=2, schema="single"))
        ledger = ParticipationLedger(cohort_size=1, cohorts=[np.array([t]) for t in range(3)])
        with pytest.raises(ValueError, match="ledger has 3 rounds but the plan covers 2"):
            audit_ledger(ledger, plan)

    def test_the_papers_story(self):
        # Banded paper, Sec. 6: 400 bands, planned separation 400, achieved 385, so that columns of one client overlap and
        # Alg. 4 has to be used. A tenth of the size, same proportions: 200 rounds, 40 bands, planned 40, achieved 38.
        figures = {name: round(value / 10) for name, value in BANDED_SECTION_6.items()}
        rounds, planned, achieved = figures["rounds"], figures["planned"], figures["achieved"]
        participation = Participation(rounds=rounds, schema="min_sep", min_sep=planned)
        mechanism = banded(rounds, figures["bands"])
        plan = plan_of(mechanism, participation)
        assert plan.sensitivity.exact
        assert plan.sensitivity.value == pytest.approx(math.sqrt(5))  # 5 participations, columns of norm 1
        ledger = ParticipationLedger(
            cohort_size=1, cohorts=[np.array([t % achieved if t < 2 * achieved else 1000 + t]) for t in range(rounds)]
        )
        audit = audit_ledger(ledger, plan)
        assert audit.observed.min_separation == achieved == 38
        assert audit.observed.max_participations == 2
        # Two participations 38 apart: exact by trying all pairs, here again from the definition.
        C = mechanism.encoder()
        worst = max(np.linalg.norm(C[:, i] + C[:, j]) for i in range(rounds) for j in range(i + achieved, rounds))
        assert audit.achieved.sensitivity.value == pytest.approx(worst, rel=1e-12)
        assert worst > math.sqrt(2)  # the overlap costs something
        # Counting participations alone, as if the separation had been kept, would have claimed too much.
        assert audit.achieved.noise_multiplier < 1.3 * math.sqrt(5) / math.sqrt(2)

        # All five participations at the achieved separation: an upper bound, and more epsilon than planned.
        often = ParticipationLedger(cohort_size=1, cohorts=[np.array([t % achieved]) for t in range(5 * achieved)])
        audit = audit_ledger(often, plan)
        assert audit.observed.max_participations == 5
        assert not audit.achieved.sensitivity.exact
        assert audit.epsilon > plan.epsilon
        assert audit.achieved.sensitivity.value >= worst_client(C, often)
