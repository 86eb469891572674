"""`fedmf.Server`: what it releases is the plan, whom it refuses, and that it resumes to the bit."""

import copy
import os
import pickle

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.stats

import fedmf
from tests.mechanisms.registry import MECHANISMS, every_mechanism
from tests.power import FALSE_POSITIVE_RATE, MISS_RATE, missed_by_variance, trials_that_see
from tests.refusals import assert_refused, refusal
from tests.server.plans import SHAPES, draws_of_host, plan_of, server, update
from tests.server.test_crashes import in_a_child


def flat(arrays):
    return np.concatenate([np.ravel(array) for array in arrays]).astype(np.float64)


class TestReleases:
    @every_mechanism
    def test_are_the_plan_s_mean(self, build):
        """(sum + row t of N Z) / clients_per_round: N of the mechanism, Z of the seed's source."""
        plan = plan_of(build(12))
        keeper = server(plan=plan)
        N = plan.mechanism.stream().causal().as_contraction().contraction
        noise = plan.stddev * (N @ draws_of_host(5, 12, 10))
        for t in range(12):
            total = np.zeros(10)
            for i in range(t % 4):
                sent = update(100 * t + i)
                keeper.add(sent, client=100 * t + i)
                total += flat(sent)
            release = keeper.release()
            assert [(array.shape, array.dtype) for array in release] == [
                (shape, np.float32) for shape in SHAPES
            ]
            np.testing.assert_allclose(
                flat(release), (total + noise[t]) / 3, rtol=2e-5, atol=1e-5 * plan.stddev
            )
        assert keeper.round == 12

    def test_have_the_plan_s_noise(self):
        """In law, without the source: C times the releases is white, of the plan's variance; a
        variance that is 3% off would be seen.
        """
        trials = trials_that_see(
            lambda trials: max(missed_by_variance(trials, ratio) for ratio in (0.97, 1.03))
        )
        plan = plan_of(MECHANISMS["banded"](12))
        keeper = server(plan=plan, shapes=[(-(-trials // 12),)])
        releases = np.stack([keeper.release()[0] for _ in range(12)]).astype(np.float64)
        white = plan.mechanism.encoder() @ releases * 3 / plan.stddev

        def fits(samples):
            squares, count = float(np.square(samples).sum()), samples.size
            ends = scipy.stats.chi2.cdf(squares, count), scipy.stats.chi2.sf(squares, count)
            return 2 * min(ends) > FALSE_POSITIVE_RATE

        assert white.size >= trials
        assert missed_by_variance(white.size, 1.03) <= MISS_RATE
        assert fits(white)
        assert not fits(1.03**0.5 * white)  # the control

    def test_cannot_be_changed(self, tmp_path):
        """Else `last_release` would be another one than was handed out."""
        keeper = server(tmp_path / "server")
        handed_out = keeper.release()
        keeper.close()
        for arrays in (handed_out, fedmf.Server.open(tmp_path / "server").last_release):
            with pytest.raises(ValueError, match="read-only"):
                arrays[0][...] = 7

    def test_of_a_sum_from_elsewhere_are_those_of_its_updates(self):
        one, other = server(), server()
        for i in range(3):
            one.add(update(i), client=i)
        other.add_sum([sum(parts) for parts in zip(*map(update, range(3)), strict=True)],
                      clients=[0, 1, 2])  # fmt: skip
        np.testing.assert_allclose(flat(one.release()), flat(other.release()), rtol=1e-5)
        long = [array.astype(np.float64) for array in update(0, length=1.01)]
        with refusal("total has norm 1.01, and clipped updates of 2 clients have at most 1:"):
            other.add_sum(long, clients=[8, 9])
        assert other.counts["clients"] == 0


class TestWhoTakesPart:
    def test_ids_that_look_alike_are_one_client(self):
        keeper = server()
        keeper.add(update(), client="zo\u00e9")
        with refusal("is in round 0 already"):
            keeper.add(update(), client="zoe\u0301")
        assert_refused(
            lambda: keeper.add(update(), client=7), TypeError, "name all of them by ints"
        )
        for bad, words in (
            (" ann", "blanks around"),
            ("a\ud800", "half of a character"),
            (10**5000, "of more than 64 bits"),
            (True, "`client` is a bool"),
        ):
            with refusal(words, (TypeError, ValueError)):
                keeper.add(update(), client=bad)

    def test_no_more_than_the_divisor(self):
        keeper = server()
        for i in range(3):
            keeper.add(update(), client=i)
        with refusal("round 0 has its clients_per_round=3"):
            keeper.add(update(), client=3)

    @pytest.mark.parametrize(
        "participation",
        [
            fedmf.Participation(rounds=12, schema="single"),
            fedmf.Participation(rounds=12, schema="min_sep", min_sep=4, max_participations=2),
            fedmf.Participation(rounds=12, schema="fixed_epoch", min_sep=4, max_participations=2),
            fedmf.Participation(rounds=12, schema="every_round"),
            "budget",
        ],
        ids=str,
    )
    @hypothesis.given(data=st.data())
    @hypothesis.settings(max_examples=12)
    def test_exactly_what_the_participation_allows(self, participation, data):
        """By its definition, for random clients; the ledger keeps to the plan and the audit says
        so.
        """
        mechanism = MECHANISMS["banded"](12)
        keeps = participation
        if participation == "budget":
            apart = fedmf.Participation(rounds=12, schema="min_sep", min_sep=4)
            keeps = fedmf.Budget.of(mechanism, apart)
            participation = keeps.participation
        plan = plan_of(mechanism, participation=participation)
        keeper = server(plan=plan, clients_per_round=5)
        taken = {client: [] for client in "abcde"}
        for t in range(12):
            for client in data.draw(st.sets(st.sampled_from("abcde"))):
                if keeps.allows([*taken[client], t]):
                    keeper.add(update(), client=client)
                    taken[client].append(t)
                else:
                    with refusal(f"client='{client}' took part in"):
                        keeper.add(update(), client=client)
            keeper.release()
        audit = keeper.audit()
        assert not audit.contradictions
        assert audit.epsilon <= keeper.plan.epsilon * (1 + 1e-9)
        assert audit.observed.participations == sum(map(len, taken.values()))

    def test_those_who_checked_in_are_drawn_evenly_and_may_come(self):
        counts = dict.fromkeys("abcdef", 0)
        for seed in range(300):
            for client in server(noise_seed=seed).cohort(available=list("abcdef")):
                counts[client] += 1
        # 900 draws, 150 each; sets of 3 without replacement only lower the variance.
        p = scipy.stats.chisquare(list(counts.values())).pvalue
        assert p > FALSE_POSITIVE_RATE
        keeper = server()
        drawn = keeper.cohort(available=list("abcdef"))
        assert drawn == keeper.cohort(available=list("fedcba"))
        for client in drawn:
            keeper.add(update(), client=client)
        keeper.release()
        assert set(keeper.cohort(available=list("abcdef"))).isdisjoint(drawn)
        assert_refused(keeper.cohort, ValueError, "available=None")

    def test_a_population_is_drawn_from_and_nobody_else_comes(self):
        keeper = server(population=9)
        cohort = keeper.cohort()
        assert len(cohort) == 3
        other = next(client for client in range(9) if client not in cohort)
        with refusal(f"client={other} was not drawn for round 0"):
            keeper.add(update(), client=other)
        assert_refused(
            lambda: keeper.add(update(), client=9), ValueError, "client=9 is none of 0 .. 8"
        )
        assert_refused(lambda: keeper.cohort(available=[1]), ValueError, "population=9")
        keeper.add(update(), client=cohort[0])
        keeper.release()
        # Who was drawn and did not come rests too.
        assert keeper.ledger.cohort(0).tolist() == cohort[:1]
        assert keeper.ledger.selected(0).tolist() == cohort
        assert set(keeper.cohort()).isdisjoint(cohort)

    def test_sampling_needs_the_server_to_draw(self):
        scheme = fedmf.CyclicPoisson(population=60, cohort_size=3)
        plan = fedmf.calibrate(
            MECHANISMS["banded"](12), None, epsilon=8.0, delta=1e-6, sampling=scheme
        )
        assert_refused(lambda: server(plan=plan), ValueError, "population=None")
        keeper = server(plan=plan, population=60)
        sizes = set()
        for _ in range(12):
            cohort = keeper.cohort()
            sizes.add(len(cohort))
            for client in cohort:
                keeper.add(update(), client=client)
            keeper.release()
        assert len(sizes) > 1  # also more than clients_per_round
        audit = keeper.audit()
        assert not audit.contradictions
        assert audit.amplified_epsilon <= plan.epsilon


class TestRefuses:
    @pytest.mark.parametrize(
        ("bad", "kind", "words"),
        [
            ([np.zeros((2, 3), int), np.zeros(4)], TypeError, r"update\[0\] holds int64 entries"),
            ([np.zeros((2, 3)), np.zeros(4, complex)], TypeError, r"update\[1\] holds complex"),
            (
                [np.zeros((3, 2)), np.zeros(4)],
                ValueError,
                r"`update` has arrays of shapes \[\(3, 2\), \(4,\)\]: give",
            ),
            ([np.zeros((2, 3))], ValueError, r"`update` has arrays of shapes \[\(2, 3\)\]: give"),
            (np.zeros(10), TypeError, "`update` is a ndarray"),
        ],
    )
    def test_updates_of_another_kind(self, bad, kind, words):
        keeper = server()
        assert_refused(lambda: keeper.add(bad, client=1), kind, words)
        assert keeper.counts["clients"] == 0
        keeper.add(update(), client=1)

    def test_what_it_cannot_be_made_of(self, tmp_path):
        simulating = plan_of(MECHANISMS["banded"](12)).simulating(simulated=3, claimed=9)
        for call, kind, words in [
            (lambda: fedmf.Server("plan", shapes=SHAPES, clients_per_round=3, noise_seed=1),
             TypeError, "plan='plan' must be a fedmf.Plan"),
            (lambda: server(plan=simulating), ValueError, "the plan simulates 9 clients with 3"),
            (lambda: server(shapes=[]), ValueError, r"shapes=\[\] have no entries"),
            (lambda: server(shapes=[3]), TypeError, r"shapes=\[3\] holds 3, no shape"),
            (lambda: server(clients_per_round=0), ValueError, "clients_per_round=0"),
            (lambda: server(noise_seed=None), ValueError, "noise_seed=None"),
            (lambda: server(noise_seed="8675309"), TypeError, "`noise_seed` is a str, not an int"),
            (lambda: server(noise_seed=-8675309), ValueError, "`noise_seed` is negative"),
            (lambda: server(zeroing_norm=-1), ValueError, "zeroing_norm=-1"),
            (lambda: server(population=2), ValueError, "population=2"),
            (lambda: fedmf.Server.open(tmp_path / "none"), ValueError, "cannot be opened"),
            (lambda: fedmf.Server.open(tmp_path), ValueError, "holds no server"),
        ]:  # fmt: skip
            with refusal(words, kind) as caught:
                call()
            assert "8675309" not in str(caught.value)  # a mistyped secret

    def test_rounds_after_the_last(self):
        keeper = server()
        for _ in range(12):
            keeper.release()
        for call in (
            keeper.release,
            lambda: keeper.add(update(), client=1),
            lambda: keeper.cohort(available=[1]),
        ):
            assert_refused(call, ValueError, "all rounds=12 of the plan are released")

    def test_a_second_of_itself(self, tmp_path):
        keeper = server(tmp_path / "server")
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            assert_refused(lambda copied=copied: copied(keeper), TypeError, "cannot be copied")
        assert_refused(
            lambda: fedmf.Server.open(tmp_path / "server"), ValueError, "in use by another server"
        )
        assert_refused(lambda: server(tmp_path / "server"), ValueError, "in use")
        assert b"another process" in in_a_child(lambda pipe: _tell_refusal(keeper, pipe))
        keeper.close()
        assert_refused(keeper.release, ValueError, "this server is closed")
        assert_refused(lambda: server(tmp_path / "server"), ValueError, "holds a server")
        fedmf.Server.open(tmp_path / "server").release()

    def test_to_tell_its_seed(self, tmp_path):
        private = tmp_path / "server" / "private"
        private.mkdir(parents=True, mode=0o777)
        keeper = server(tmp_path / "server", noise_seed=918_273_645)
        keeper.add(update(), client=1)
        keeper.release()
        said = [repr(keeper), keeper.statement()]
        for path in (tmp_path / "server").iterdir():
            if path.is_file():
                said.append(path.read_bytes().decode("latin1"))
        assert not any("918273645" in text for text in said)
        assert (private / "noise_seed").read_text() == "918273645\n"
        log = tmp_path / "server" / "participation.jsonl"
        for path in (private, private / "noise_seed", log):
            assert path.stat().st_mode & 0o77 == 0


def _tell_refusal(keeper, pipe):
    """In a forked process, which may have its parent's number where it is in a container."""
    try:
        keeper.release()
    except ValueError as error:
        os.write(pipe, str(error).encode())


class TestResumes:
    @hypothesis.given(
        stops=st.sets(st.tuples(st.integers(0, 11), st.booleans()), max_size=5),
        population=st.sampled_from([None, 15]),
        seed=st.integers(0, 99),
    )
    @hypothesis.settings(max_examples=15)
    def test_to_the_bit(self, stops, population, seed, tmp_path_factory):
        """Stopped before a round, or in the middle of collecting it, and opened again."""
        clipping = fedmf.QuantileClipping(every=3)
        plan = plan_of(MECHANISMS["blt"](12), quantile_clipping=clipping)
        options = {"population": population, "zeroing_norm": 5.0}
        folder = tmp_path_factory.mktemp("servers") / "server"
        whole, stopped = server(plan=plan, **options), server(plan=plan, folder=folder, **options)
        rng = np.random.default_rng(seed)
        for t in range(12):
            if (t, False) in stops:
                stopped.close()
                stopped = fedmf.Server.open(folder)
            available = None if population else [f"client {i}" for i in range(12)]
            cohort = whole.cohort(available)
            come = cohort[: rng.integers(0, len(cohort) + 1)]
            if (t, True) in stops:
                for client in come[:2]:
                    stopped.add(update(7, length=3.0), client=client)
                stopped.close()
                stopped = fedmf.Server.open(folder)
            assert stopped.cohort(available) == cohort
            assert stopped.client_params().clip_norm == whole.client_params().clip_norm
            for client in come:
                for keeper in (whole, stopped):
                    keeper.add(update(t, length=0.6), client=client)
            for one, other in zip(whole.release(), stopped.release(), strict=True):
                np.testing.assert_array_equal(one, other)
        stopped.close()
        with fedmf.Server.open(folder) as ended:
            assert ended.round == 12
            assert ended.ledger.to_csv() == whole.ledger.to_csv()
            np.testing.assert_array_equal(flat(ended.last_release), flat(whole.last_release))

    def test_and_states_what_an_audit_of_its_log_does(self, tmp_path):
        keeper = server(tmp_path / "my server")
        for t in range(7):
            for client in keeper.cohort(available=[f"no {i}" for i in range(9)]):
                keeper.add(update(t), client=client)
            keeper.release()
        ours = keeper.audit()
        path = tmp_path / "my server" / "participation.jsonl"
        log = fedmf.audit_log(path, keeper.plan, rounds_run=7)
        assert (ours.epsilon, ours.rho) == (log.epsilon, log.rho)
        assert ours.observed.summary() == log.observed.summary()
        text = keeper.statement()
        assert "| rounds | 12 | 7 |" in text
        assert "audit log 'my server/participation.jsonl' 'my server/mechanism.npz'" in text
        assert "--rounds-run 7" in text


def test_to_clients_is_the_old_name_of_client_params():
    keeper = server()
    assert keeper.to_clients().clip_norm == keeper.client_params().clip_norm
