"""`fedmf.Server`: its releases follow the plan, it refuses clients that are not eligible, and it
resumes bitwise identically.
"""

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
from tests.power import FALSE_POSITIVE_RATE, MISS_RATE, missed_by_variance, trials_that_detect
from tests.refusals import assert_refused, refusal
from tests.server.plans import SHAPES, draws_of_host, make_server, plan_of, update
from tests.server.test_crashes import in_a_child


def flat(arrays):
    return np.concatenate([np.ravel(array) for array in arrays]).astype(np.float64)


class TestReleases:
    @every_mechanism
    def test_releases_are_the_noisy_mean_of_the_plan(self, build):
        """(sum + row t of N Z) / clients_per_round, with N of the mechanism and Z of the seed's
        source.
        """
        plan = plan_of(build(12))
        server = make_server(plan=plan)
        N = plan.mechanism.stream().causal().as_contraction().contraction
        noise = plan.stddev * (N @ draws_of_host(5, 12, 10))
        for t in range(12):
            total = np.zeros(10)
            for i in range(t % 4):
                sent_update = update(100 * t + i)
                server.add(sent_update, client=100 * t + i)
                total += flat(sent_update)
            release = server.release()
            assert [(array.shape, array.dtype) for array in release] == [
                (shape, np.float32) for shape in SHAPES
            ]
            np.testing.assert_allclose(
                flat(release), (total + noise[t]) / 3, rtol=2e-5, atol=1e-5 * plan.stddev
            )
        assert server.round == 12

    def test_releases_have_the_variance_of_the_plan(self):
        """In distribution, without the source: C times the releases is white, with the variance of
        the plan. A variance that is 3% off would be detected.
        """
        trials = trials_that_detect(
            lambda trials: max(missed_by_variance(trials, ratio) for ratio in (0.97, 1.03))
        )
        plan = plan_of(MECHANISMS["banded"](12))
        server = make_server(plan=plan, shapes=[(-(-trials // 12),)])
        releases = np.stack([server.release()[0] for _ in range(12)]).astype(np.float64)
        white = plan.mechanism.encoder() @ releases * 3 / plan.stddev

        def fits(samples):
            squares = float(np.square(samples).sum())
            count = samples.size
            tails = scipy.stats.chi2.cdf(squares, count), scipy.stats.chi2.sf(squares, count)
            return 2 * min(tails) > FALSE_POSITIVE_RATE

        assert white.size >= trials
        assert missed_by_variance(white.size, 1.03) <= MISS_RATE
        assert fits(white)
        assert not fits(1.03**0.5 * white)  # This is the negative control.

    def test_released_arrays_are_read_only(self, tmp_path):
        """Otherwise `last_release` could differ from the returned release."""
        server = make_server(tmp_path / "server")
        handed_out = server.release()
        server.close()
        for arrays in (handed_out, fedmf.Server.open(tmp_path / "server").last_release):
            with pytest.raises(ValueError, match="read-only"):
                arrays[0][...] = 7

    def test_add_sum_gives_the_release_of_its_updates(self):
        update_server = make_server()
        sum_server = make_server()
        for i in range(3):
            update_server.add(update(i), client=i)
        updates = [update(i) for i in range(3)]
        total = [sum(leaf_updates) for leaf_updates in zip(*updates, strict=True)]
        sum_server.add_sum(total, clients=[0, 1, 2])
        np.testing.assert_allclose(
            flat(update_server.release()), flat(sum_server.release()), rtol=1e-5
        )
        long = [array.astype(np.float64) for array in update(0, length=1.01)]
        with refusal("total has norm 1.01, and clipped updates of 2 clients have at most 1:"):
            sum_server.add_sum(long, clients=[8, 9])
        assert sum_server.counts["clients"] == 0


class TestWhoTakesPart:
    def test_ids_that_look_alike_are_one_client(self):
        server = make_server()
        server.add(update(), client="zo\u00e9")
        with refusal("is in round 0 already"):
            server.add(update(), client="zoe\u0301")
        assert_refused(
            lambda: server.add(update(), client=7), TypeError, "name all of them by ints"
        )
        for bad_id, words in (
            (" ann", "blanks around"),
            ("a\ud800", "half of a character"),
            (10**5000, "of more than 64 bits"),
            (True, "`client` is a bool"),
        ):
            with refusal(words, (TypeError, ValueError)):
                server.add(update(), client=bad_id)

    def test_add_refuses_more_clients_than_the_divisor(self):
        server = make_server()
        for i in range(3):
            server.add(update(), client=i)
        with refusal("round 0 has its clients_per_round=3"):
            server.add(update(), client=3)

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
    def test_add_accepts_exactly_what_the_participation_allows(self, participation, data):
        """By the definition of the participation, for random clients; the ledger satisfies the
        plan, and the audit agrees.
        """
        mechanism = MECHANISMS["banded"](12)
        keeps = participation
        if participation == "budget":
            separated = fedmf.Participation(rounds=12, schema="min_sep", min_sep=4)
            keeps = fedmf.Budget.of(mechanism, separated)
            participation = keeps.participation
        plan = plan_of(mechanism, participation=participation)
        server = make_server(plan=plan, clients_per_round=5)
        rounds_by_client = {client: [] for client in "abcde"}
        for t in range(12):
            for client in data.draw(st.sets(st.sampled_from("abcde"))):
                if keeps.allows([*rounds_by_client[client], t]):
                    server.add(update(), client=client)
                    rounds_by_client[client].append(t)
                else:
                    with refusal(f"client='{client}' took part in"):
                        server.add(update(), client=client)
            server.release()
        audit = server.audit()
        assert not audit.contradictions
        assert audit.epsilon <= server.plan.epsilon * (1 + 1e-9)
        assert audit.observed.participations == sum(map(len, rounds_by_client.values()))

    def test_cohort_draws_uniformly_from_eligible_clients_that_checked_in(self):
        counts = dict.fromkeys("abcdef", 0)
        for seed in range(300):
            for client in make_server(noise_seed=seed).cohort(available=list("abcdef")):
                counts[client] += 1
        # 900 draws, 150 each; sets of 3 without replacement only lower the variance.
        p_value = scipy.stats.chisquare(list(counts.values())).pvalue
        assert p_value > FALSE_POSITIVE_RATE
        server = make_server()
        drawn_cohort = server.cohort(available=list("abcdef"))
        assert drawn_cohort == server.cohort(available=list("fedcba"))
        for client in drawn_cohort:
            server.add(update(), client=client)
        server.release()
        assert set(server.cohort(available=list("abcdef"))).isdisjoint(drawn_cohort)
        assert_refused(server.cohort, ValueError, "available=None")

    def test_with_a_population_only_drawn_clients_are_added(self):
        server = make_server(population=9)
        cohort = server.cohort()
        assert len(cohort) == 3
        undrawn_client = next(client for client in range(9) if client not in cohort)
        with refusal(f"client={undrawn_client} was not drawn for round 0"):
            server.add(update(), client=undrawn_client)
        assert_refused(
            lambda: server.add(update(), client=9), ValueError, "client=9 is none of 0 .. 8"
        )
        assert_refused(lambda: server.cohort(available=[1]), ValueError, "population=9")
        server.add(update(), client=cohort[0])
        server.release()
        # A drawn client that did not take part is ineligible too.
        assert server.ledger.cohort(0).tolist() == cohort[:1]
        assert server.ledger.selected(0).tolist() == cohort
        assert set(server.cohort()).isdisjoint(cohort)

    def test_sampling_needs_a_population(self):
        scheme = fedmf.CyclicPoisson(population=60, cohort_size=3)
        plan = fedmf.calibrate(
            MECHANISMS["banded"](12), None, epsilon=8.0, delta=1e-6, sampling=scheme
        )
        assert_refused(lambda: make_server(plan=plan), ValueError, "population=None")
        server = make_server(plan=plan, population=60)
        sizes = set()
        for _ in range(12):
            cohort = server.cohort()
            sizes.add(len(cohort))
            for client in cohort:
                server.add(update(), client=client)
            server.release()
        assert len(sizes) > 1  # The cohort may exceed clients_per_round.
        audit = server.audit()
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
    def test_add_refuses_updates_of_other_dtypes_and_shapes(self, bad, kind, words):
        server = make_server()
        assert_refused(lambda: server.add(bad, client=1), kind, words)
        assert server.counts["clients"] == 0
        server.add(update(), client=1)

    def test_constructor_refuses_invalid_arguments_by_name(self, tmp_path):
        simulating = plan_of(MECHANISMS["banded"](12)).simulating(simulated=3, claimed=9)
        for call, kind, words in [
            (lambda: fedmf.Server("plan", shapes=SHAPES, clients_per_round=3, noise_seed=1),
             TypeError, "plan='plan' must be a fedmf.Plan"),
            (lambda: make_server(plan=simulating), ValueError, "plan simulates 9 clients with 3"),
            (lambda: make_server(shapes=[]), ValueError, r"shapes=\[\] have no entries"),
            (lambda: make_server(shapes=[3]), TypeError, r"shapes=\[3\] holds 3, no shape"),
            (lambda: make_server(clients_per_round=0), ValueError, "clients_per_round=0"),
            (lambda: make_server(noise_seed=None), ValueError, "noise_seed=None"),
            (lambda: make_server(noise_seed="8675309"), TypeError, "`noise_seed` is a str, not an"),
            (lambda: make_server(noise_seed=-8675309), ValueError, "`noise_seed` is negative"),
            (lambda: make_server(zeroing_norm=-1), ValueError, "zeroing_norm=-1"),
            (lambda: make_server(population=2), ValueError, "population=2"),
            (lambda: fedmf.Server.open(tmp_path / "none"), ValueError, "cannot open folder"),
            (lambda: fedmf.Server.open(tmp_path), ValueError, "holds no server"),
        ]:  # fmt: skip
            with refusal(words, kind) as caught:
                call()
            assert "8675309" not in str(caught.value)  # a mistyped secret

    def test_calls_after_the_last_round_are_refused(self):
        server = make_server()
        for _ in range(12):
            server.release()
        for call in (
            server.release,
            lambda: server.add(update(), client=1),
            lambda: server.cohort(available=[1]),
        ):
            assert_refused(call, ValueError, "all rounds=12 of the plan are released")

    def test_copies_and_second_servers_of_a_folder_are_refused(self, tmp_path):
        server = make_server(tmp_path / "server")
        for copy_function in (copy.copy, copy.deepcopy, pickle.dumps):
            assert_refused(
                lambda copy_function=copy_function: copy_function(server),
                TypeError,
                "cannot be copied",
            )
        assert_refused(
            lambda: fedmf.Server.open(tmp_path / "server"), ValueError, "in use by another server"
        )
        assert_refused(lambda: make_server(tmp_path / "server"), ValueError, "in use")
        assert b"another process" in in_a_child(lambda pipe: _tell_refusal(server, pipe))
        server.close()
        assert_refused(server.release, ValueError, "this server is closed")
        assert_refused(
            lambda: make_server(tmp_path / "server"), ValueError, "already holds a server"
        )
        fedmf.Server.open(tmp_path / "server").release()

    def test_noise_seed_is_in_its_private_file_alone(self, tmp_path):
        private_folder = tmp_path / "server" / "private"
        private_folder.mkdir(parents=True, mode=0o777)
        server = make_server(tmp_path / "server", noise_seed=918_273_645)
        server.add(update(), client=1)
        server.release()
        public_texts = [repr(server), server.statement()]
        for path in (tmp_path / "server").iterdir():
            if path.is_file():
                public_texts.append(path.read_bytes().decode("latin1"))
        assert not any("918273645" in text for text in public_texts)
        assert (private_folder / "noise_seed").read_text() == "918273645\n"
        log_path = tmp_path / "server" / "participation.jsonl"
        for path in (private_folder, private_folder / "noise_seed", log_path):
            assert path.stat().st_mode & 0o77 == 0


def _tell_refusal(server, pipe):
    """Writes the refusal of a forked process, which in a container may have the process id of its
    parent.
    """
    try:
        server.release()
    except ValueError as error:
        os.write(pipe, str(error).encode())


class TestResumes:
    @hypothesis.given(
        stops=st.sets(st.tuples(st.integers(0, 11), st.booleans()), max_size=5),
        population=st.sampled_from([None, 15]),
        seed=st.integers(0, 99),
    )
    @hypothesis.settings(max_examples=15)
    def test_open_resumes_bitwise_identically(self, stops, population, seed, tmp_path_factory):
        """The server is closed before a round, or while it collects one, and opened again."""
        clipping = fedmf.QuantileClipping(every=3)
        plan = plan_of(MECHANISMS["blt"](12), quantile_clipping=clipping)
        options = {"population": population, "zeroing_norm": 5.0}
        folder = tmp_path_factory.mktemp("servers") / "server"
        whole_server = make_server(plan=plan, **options)
        stopped_server = make_server(plan=plan, folder=folder, **options)
        rng = np.random.default_rng(seed)
        for t in range(12):
            if (t, False) in stops:
                stopped_server.close()
                stopped_server = fedmf.Server.open(folder)
            available = None if population else [f"client {i}" for i in range(12)]
            cohort = whole_server.cohort(available)
            adding_clients = cohort[: rng.integers(0, len(cohort) + 1)]
            if (t, True) in stops:
                for client in adding_clients[:2]:
                    stopped_server.add(update(7, length=3.0), client=client)
                stopped_server.close()
                stopped_server = fedmf.Server.open(folder)
            assert stopped_server.cohort(available) == cohort
            assert (
                stopped_server.client_params().clip_norm == whole_server.client_params().clip_norm
            )
            for client in adding_clients:
                for server in (whole_server, stopped_server):
                    server.add(update(t, length=0.6), client=client)
            for expected_array, resumed_array in zip(
                whole_server.release(), stopped_server.release(), strict=True
            ):
                np.testing.assert_array_equal(expected_array, resumed_array)
        stopped_server.close()
        with fedmf.Server.open(folder) as resumed_server:
            assert resumed_server.round == 12
            assert resumed_server.ledger.to_csv() == whole_server.ledger.to_csv()
            np.testing.assert_array_equal(
                flat(resumed_server.last_release), flat(whole_server.last_release)
            )

    def test_statement_agrees_with_the_audit_of_the_log(self, tmp_path):
        server = make_server(tmp_path / "my server")
        for t in range(7):
            for client in server.cohort(available=[f"no {i}" for i in range(9)]):
                server.add(update(t), client=client)
            server.release()
        server_audit = server.audit()
        path = tmp_path / "my server" / "participation.jsonl"
        log_audit = fedmf.audit_log(path, server.plan, rounds_run=7)
        assert (server_audit.epsilon, server_audit.rho) == (log_audit.epsilon, log_audit.rho)
        assert server_audit.observed.summary() == log_audit.observed.summary()
        text = server.statement()
        assert "| rounds | 12 | 7 |" in text
        assert "audit log 'my server/participation.jsonl' 'my server/mechanism.npz'" in text
        assert "--rounds-run 7" in text


def test_to_clients_is_the_old_name_of_client_params():
    server = make_server()
    assert server.to_clients().clip_norm == server.client_params().clip_norm
