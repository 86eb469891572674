"""Audits of participation, which compute the privacy guarantee from the rounds in which each client
took part.

An audit reads a record of (client, round) pairs. The record shows how often and how far apart
clients took part, and so the guarantee without amplification by sampling. It cannot show whether
the clients were sampled at random and the cohorts stayed secret: an amplified guarantee is repeated
as planned, with the evidence in the record against its sampling scheme.
"""

import dataclasses
import itertools
import os
import reprlib
from collections.abc import Callable, Sequence

import numpy as np

from fedmf import checks, fields
from fedmf.audits.achieved import (
    Achieved,
    NoncompliantClient,
    NoncompliantClients,
    Tally,
    later_rounds,
    unrecorded_sentence,
)
from fedmf.audits.audit import Audit
from fedmf.audits.log import DEFAULT_MEMORY, sorted_log
from fedmf.audits.log_file import LogForm
from fedmf.files import checked_path
from fedmf.mechanisms.sensitivity import Sensitivity, sensitivity
from fedmf.numpy_errors import with_numpy_defaults
from fedmf.participation.ledger import ParticipationLedger
from fedmf.participation.schema import EveryRound
from fedmf.participation.stats import ParticipationStats
from fedmf.privacy.plan import Plan, check_plan

# An upper bound on the memory of any machine, in bytes.
_MAX_MEMORY = 2**50


@with_numpy_defaults
def audit_ledger(
    ledger: ParticipationLedger, plan: Plan, *, unrecorded: Sequence[int] = (), hint: str = ""
) -> Audit:
    """Computes the privacy guarantee of a run from the participation that its ledger records.

    The standard deviation of the noise is that of the run; the observed sensitivity determines the
    noise multiplier (banded paper, Sec. 6: a separation of 400 planned, 385 observed). Clients that
    the ledger marks as non-compliant affect only their own guarantee (banded paper, App. K.1): the
    audit excludes them, and `everyone` includes them.

    Args:
      ledger: the participation of all clients.
      plan: of the run.
      unrecorded: rounds that were run after those of the ledger, increasing. Each client counts in
        them as often as the plan allows. If a client has broken the plan, the same may have
        happened in these rounds: every client then counts in all of them.
      hint: what to do about them, for the sentence in the audit.

    Returns:
      The planned, observed and achieved participation and guarantee.

    Raises:
      ValueError: the ledger is longer than the plan, or unrecorded rounds are not after it.
    """
    check_plan(plan)
    if not isinstance(ledger, ParticipationLedger):
        raise TypeError(
            f"ledger={reprlib.repr(ledger)} must be a fedmf.ParticipationLedger: audit a file with "
            "fedmf.audit_log"
        )
    unrecorded = later_rounds(unrecorded)
    hint = fields.plain_text("hint", hint)
    if len(ledger) > plan.participation.rounds:
        raise ValueError(
            f"ledger has {len(ledger)} rounds but the plan covers {plan.participation.rounds}: "
            "audit a run with its own plan"
        )
    round_ends = [len(ledger) - 1, *unrecorded, plan.participation.rounds]
    if any(a >= b for a, b in itertools.pairwise(round_ends)):
        raise ValueError(
            f"unrecorded={list(unrecorded)} must be increasing rounds from {len(ledger)} to "
            f"{plan.participation.rounds - 1}: those after the ledger's"
        )

    audit_of_all = _audit_clients(ledger, plan, unrecorded, hint)
    if not len(ledger.noncompliant()):
        return audit_of_all
    compliant_audit = _audit_clients(ledger.compliant(), plan, unrecorded, hint)
    return dataclasses.replace(
        compliant_audit,
        everyone=audit_of_all,
        noncompliant_clients=audit_of_all.noncompliant_clients,
    )


def _audit_clients(
    ledger: ParticipationLedger, plan: Plan, unrecorded: Sequence[int], hint: str
) -> Audit:
    """Returns the audit of all clients of a ledger, given arguments that are already checked."""
    client_ids, client_rounds = ledger.clients()
    client_tally = Tally(plan, unrecorded)
    for _ in client_tally.counted([client_rounds]):
        pass
    return _make_audit(
        ledger.observed(),
        client_tally,
        lambda row: int(client_ids[np.searchsorted(client_rounds.starts, row)]),
        unrecorded=unrecorded_sentence(client_tally, hint),
    )


@with_numpy_defaults
def audit_log(
    path: str | os.PathLike[str],
    plan: Plan,
    *,
    form: LogForm = LogForm(),  # noqa: B008  (frozen)
    rounds_run: int | None = None,
    memory: int = DEFAULT_MEMORY,
    folder: str | os.PathLike[str] | None = None,
) -> Audit:
    """Computes the privacy guarantee of a run from a log file of the clients in each round.

    The file may be CSV, JSON lines or Parquet, of any length: see `fedmf.audits.log.sorted_log`.

    Args:
      path: the file.
      plan: of the run.
      form: columns and numbering of the log.
      rounds_run: number of rounds after which the run ended; None for all of the plan's. In the
        rounds after the last one in the log, each client counts as often as the plan allows.
      memory, folder: for sorting, as for `sorted_log`.

    Returns:
      The planned, observed and achieved participation and guarantee.

    Raises:
      TypeError, ValueError, OSError: those of `sorted_log`.

    Example:
      >>> import pathlib, tempfile
      >>> import fedmf
      >>> twice = fedmf.Participation(rounds=8, schema="min_sep", min_sep=4)
      >>> identity = fedmf.fit(fedmf.prefix_sum(8), twice, family="identity")
      >>> plan = fedmf.calibrate(identity, twice, epsilon=2.0, delta=1e-6)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     log = pathlib.Path(folder) / "log.csv"
      ...     _ = log.write_text("client,round\\nann,0\\nbob,1\\nann,3\\nbob,7\\n")
      ...     audit = audit_log(log, plan)
      >>> audit.observed.min_separation, audit.contradictions, audit.epsilon <= plan.epsilon
      (3, ('two rounds of one client are 3 apart where at least 4 were planned',), True)
    """
    path = checked_path("path", path, hint="name a file of clients and rounds")
    check_plan(plan)
    if not isinstance(form, LogForm):
        raise TypeError(f"form={reprlib.repr(form)} must be a fedmf.LogForm")
    if folder is not None:
        hint = "name a folder with room, or give None"
        folder = checked_path("folder", folder, hint=hint)
        if not folder.is_dir():
            raise ValueError(f"folder={str(folder)!r} is no folder: {hint}")
    memory = checks.integer("memory", memory, low=1, high=_MAX_MEMORY, hint="use bytes")
    num_rounds = plan.participation.rounds
    if rounds_run is not None:
        hint = "pass the number of rounds that were run"
        num_rounds = checks.integer("rounds_run", rounds_run, low=1, high=num_rounds, hint=hint)
    with sorted_log(path, rounds=num_rounds, memory=memory, folder=folder, form=form) as log:
        unrecorded = range(log.rounds, num_rounds)
        client_tally = Tally(plan, unrecorded)
        participation_stats = ParticipationStats.of_clients(
            client_tally.counted(log.clients()), cohort_sizes=log.cohort_sizes()
        )
        hint = (
            "audit the log of the whole run, or pass "
            f"rounds_run={unrecorded.start} if it ended there"
        )
        log_audit = _make_audit(
            participation_stats,
            client_tally,
            log.client,
            first_round=log.first_round,
            unrecorded=unrecorded_sentence(client_tally, hint),
        )
    all_contradictions = [*log_audit.contradictions]
    if log.description.lookalikes is not None:
        all_contradictions.append(_lookalikes_sentence(log.description.lookalikes))
    description = dataclasses.replace(log.description, rounds_run=rounds_run)
    return dataclasses.replace(
        log_audit, log=description, contradictions=all_contradictions, system="log"
    )


def _lookalikes_sentence(lookalikes: tuple[str, str]) -> str:
    """Returns a sentence which says that two client ids that look alike count as one client."""
    first_client, second_client = map(ascii, lookalikes)
    return (
        f"clients {first_client} and {second_client} differ only in characters that leave no "
        "mark, in how letters are composed or in the script of letters that look alike: they "
        "count as one"
    )


def _make_audit(
    stats: ParticipationStats,
    tally: Tally,
    client_of: Callable[[int], int | str],
    *,
    first_round: int = 0,
    unrecorded: str | None,
) -> Audit:
    """Returns the audit of the clients whose rounds a `Tally` has counted.

    Args:
      stats: of the observed participation.
      tally: after it has counted all clients.
      client_of: maps a row of the record to the client's id.
      first_round: number of the run's first round in the record.
      unrecorded: sentence on the rounds that are not in the record.
    """
    plan = tally.plan
    compliant_sensitivity = tally.compliant_sensitivity()
    noncompliant_sensitivity = tally.noncompliant_sensitivity()
    max_spent = None if plan.participation.budget is None else tally.max_spent
    known_sensitivities = [
        value for value in (compliant_sensitivity, noncompliant_sensitivity) if value is not None
    ]
    if not known_sensitivities:
        return Audit(planned=plan, observed=stats, achieved=None, most_spent=max_spent)
    worst_sensitivity = max(known_sensitivities, key=lambda sensitivity: sensitivity.value)
    complies = noncompliant_sensitivity is None
    noncompliant_clients = None
    # The record is not that of the run that a simulation is about, or not that of all trials of a
    # private selection.
    if plan.simulation is not None or plan.selection is not None:
        worst_sensitivity = plan.sensitivity
        if not complies:
            worst_sensitivity = sensitivity(
                plan.mechanism, EveryRound(rounds=plan.participation.rounds)
            )
    elif noncompliant_sensitivity is not None:
        noncompliant_clients = _noncompliant_clients(
            tally, compliant_sensitivity, client_of, first_round
        )
    participation_violations = []
    if tally.num_noncompliant:
        participation_violations = plan.participation.violations(stats, tally.max_spent)
    sampling_contradictions = []
    if plan.sampling is not None and stats.participations:
        sampling_contradictions = plan.sampling.contradictions(stats, plan.mechanism.rounds)
    return Audit(
        planned=plan,
        observed=stats,
        achieved=Achieved(planned=plan, sensitivity=worst_sensitivity, complies=complies),
        contradictions=(*participation_violations, *sampling_contradictions),
        noncompliant_clients=noncompliant_clients,
        most_spent=max_spent,
        shares_spent=tally.clients_by_spending,
        unrecorded=unrecorded,
    )


def _noncompliant_clients(
    tally: Tally,
    compliant: Sensitivity | None,
    client_of: Callable[[int], int | str],
    first_round: int,
) -> NoncompliantClients:
    """Returns the clients that broke the plan, and the guarantee of the compliant ones."""
    plan = tally.plan
    listed_clients = []
    for client, client_sensitivity in tally.costly_clients():
        listed_clients.append(
            NoncompliantClient(
                client=client_of(client.row),
                rounds=tuple((client.rounds + first_round).tolist()),
                achieved=Achieved(planned=plan, sensitivity=client_sensitivity),
            )
        )
    compliant_guarantee = None
    if compliant is not None:
        compliant_guarantee = Achieved(planned=plan, sensitivity=compliant, complies=True)
    return NoncompliantClients(
        clients=tally.num_noncompliant, first=tuple(listed_clients), others=compliant_guarantee
    )
