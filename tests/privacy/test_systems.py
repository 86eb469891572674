"""Statements of each kind of system, with every sampling scheme and option: they contain all that
fedmf knows about the kind, and nothing else.
"""

import dataclasses
import re

import pytest

import fedmf
from fedmf.audits.guarantee import audit_ledger
from fedmf.privacy.describe import statement_values
from fedmf.privacy.private_metrics import PrivateMetrics
from fedmf.privacy.quantile_clipping import QuantileClipping
from fedmf.privacy.references import REFERENCES, references_of
from fedmf.privacy.rounding import up
from fedmf.privacy.sampling import SCHEMES
from fedmf.privacy.statement import markdown
from fedmf.privacy.systems import SYSTEMS, Subject
from tests.privacy.plans import ledger_of, plan, two_bands

ROUNDS = 12
APART = fedmf.Participation(rounds=ROUNDS, schema="min_sep", min_sep=4)
AES = "AES-256 in counter mode"
PHILOX = "Philox4x32-10"
CONTROLLER = "participation controller draws the cohorts"
# Words that a statement of each kind needs.
NEEDED = {
    "plan": ["the system that runs it has to", "whoever publishes this statement has to name"],
    "run": [CONTROLLER, AES, "every update is clipped before it is summed", "result.json"],
    "run_tff": [CONTROLLER, AES, "`dp_aggregator` clips every update", "`--query`", "result.json"],
    "server": ["refuses the clients", "`add_sum`", AES, "`fedmf audit log`"],
    "flower": ["refuses the clients", "partition id", "Neither identifies a person", AES],
    "planned_process": ["refuses the clients", PHILOX, AES, "`fedmf audit log`"],
    "pipeline": ["`dp_aggregator` enforces a part", PHILOX, AES, "`HostNoise`", "check_process"],
    "controller": [
        "samples the cohorts, and breaks the plan only",
        "to enforce all other assumptions",
    ],
    "ledger": ["has read the ledger alone", "had to enforce all of this"],
    "log": ["has read the log alone", "had to enforce all of this"],
}
# Commands in the statements of folders and logs.
COMMANDS = {
    "run": ["fedmf audit run x"],
    "run_tff": ["fedmf audit run x"],
    "server": ["fedmf audit log x"],
    "flower": ["fedmf audit log x"],
}
IN_TFF = "planned_process", "pipeline"
# Words about code of fedmf, with the kinds of system that run it.
OURS = {
    CONTROLLER: {"run", "run_tff"},
    "controller": {"run", "run_tff", "controller"},
    "AES-256": {"run", "run_tff", "server", "flower", *IN_TFF},
    "Philox": {*IN_TFF},
    "dp_aggregator": {"run_tff", *IN_TFF},
    "fedmf.Server": {"server", "flower"},
    "fedmf audit mechanism": {"plan", "run", "run_tff", "server", "flower", *IN_TFF},
    "that this code makes": {"run", "run_tff", "server", "flower"},
    "clips every": {"run_tff", "server", "flower", *IN_TFF},
    "is clipped before": {"run"},
    "Gaussians are drawn": {"run", "run_tff", "server", "flower", *IN_TFF},
    "result.json": {"run", "run_tff"},
    "training loop": {"run"},
    "partition id": {"flower"},
    "has read the log": {"log"},
}


def sampled(name):
    """Returns a plan with this sampling scheme."""
    settings = {"partitions": None, "min_sep": None}
    scheme = SCHEMES[name].configured(population=240, cohort_size=20, **settings)
    return plan(None, two_bands(ROUNDS), sampling=scheme, noise_multiplier=0.8)


PLANS = {
    "banded": lambda: plan(APART, two_bands(ROUNDS)),
    "without noise": lambda: plan(APART, noise_multiplier=0),
    "simulated": lambda: plan(APART).simulating(simulated=2, claimed=20),
    "adaptive": lambda: plan(
        APART,
        quantile_clipping=QuantileClipping(quantile=0.5, share=0.1),
        private_metrics=PrivateMetrics(share=0.1, largest_loss=3.0),
    ),
    **{name: lambda name=name: sampled(name) for name in SCHEMES},
}
PLAN_BY_NAME = {}


@pytest.fixture
def named_plan(request, quick):
    """Returns a function from a name to its plan, whose epsilon is computed once."""
    return PLAN_BY_NAME.setdefault(request.param, PLANS[request.param]())


def flat(text):
    """Returns a text in one line."""
    return " ".join(text.replace("\n> ", " ").split())


@pytest.mark.parametrize("named_plan", PLANS, indirect=True)
def test_a_statement_describes_its_kind_of_system_and_nothing_else(named_plan):
    ledger = ledger_of([[t % 4, 4 + t % 4] for t in range(ROUNDS)], None)
    audit = audit_ledger(ledger, named_plan)
    is_private = named_plan.noise_multiplier > 0
    for name, system in SYSTEMS.items():
        values = statement_values(named_plan)
        if name != "plan":
            task = "emnist" if system.names_data else None
            subject = Subject(system=name, task=task, finished="2026-11-28")
            audit_of_system = dataclasses.replace(audit, system=name)
            values = audit_of_system.statement_values(subject=subject, commands=COMMANDS.get(name))
        assert values["system"] == name
        text = flat(markdown(values))
        for words in NEEDED[name]:
            about_noise = words in f"{system.generator} {system.verification}"
            assert words in text or (about_noise and not is_private), (name, words)
        for words, kinds in OURS.items():
            assert name in kinds or words not in text, (name, words)
        assert is_private or "Gaussians are drawn" not in text
        affects_nobody_else = "weakens its own guarantee and nobody else's." in text
        assert affects_nobody_else == (is_private and named_plan.sampling is None)


def summary_of(text):
    """Returns the summary of a statement in one line."""
    _, _, following_text = text.partition("\n## Summary\n")
    return flat(following_text.partition("\n## Terms\n")[0])


@pytest.mark.parametrize("named_plan", PLANS, indirect=True)
def test_the_summary_stands_on_top_and_claims_what_the_details_claim(named_plan):
    text = markdown(statement_values(named_plan))
    head, _, following_text = text.partition("\n## Summary\n")
    assert "- **About.** A plan." in head
    assert "1. **DP setting.**" in following_text
    summary = summary_of(text)
    if not named_plan.noise_multiplier:
        assert "- **Guarantee.** None. No noise is added" in summary
        assert "- **Who is protected.** Nobody." in summary
        return
    for words in ("Who is protected", "What may be released", "What it rests on"):
        assert f"- **{words}.**" in summary
    stated = f"(epsilon = {up(named_plan.epsilon)}, delta = {named_plan.delta})"
    assert f"that follows the plan satisfies {stated}-differential privacy" in summary
    assert stated in flat(following_text.partition("**Formal statement.**")[2])
    assert ("to stay secret" in summary) == (named_plan.sampling is not None)
    assert ("does not have this guarantee" in summary) == (named_plan.simulation is not None)


def test_the_summary_of_a_broken_plan_states_the_achieved_guarantee():
    stated_plan = plan(APART, two_bands(ROUNDS))
    audit = audit_ledger(ledger_of([[0], [0], [1]], 1), stated_plan)
    assert audit.contradictions
    summary = summary_of(audit.statement())
    assert f"the planned (epsilon = {up(stated_plan.epsilon)}, delta" in summary
    assert "cannot be claimed" in summary
    assert f"the same noise gives (epsilon = {up(audit.epsilon)}, delta" in summary
    assert f"exp({up(audit.epsilon)}) = " in summary


@pytest.mark.parametrize("named_plan", PLANS, indirect=True)
def test_every_symbol_of_the_details_is_defined(named_plan):
    text = flat(markdown(statement_values(named_plan)))
    _, _, terms_text = text.partition("## Terms")
    terms, _, details = terms_text.partition("## Details")
    details = re.sub(r"## How to check it.*", "", details)
    # Citations such as "Corollary F.1" and "Prop. E.1" hold letters that are no symbols.
    details = re.sub(r"(?:Corollary|Appendix|App\.|Prop\.) [A-Z]", "", details)
    symbols = set(re.findall(r"(?<![\w.-])[A-Z](?![\w.'-])", details)) - {"A", "B"}
    symbols |= {word for word in ("epsilon =", "delta =", "rho", "min_sep") if word in details}
    for symbol in symbols:
        assert symbol.removesuffix(" =") in terms, symbol


def test_the_tables_have_every_kind_of_system():
    assert NEEDED.keys() == SYSTEMS.keys()
    assert set().union(*OURS.values()) <= SYSTEMS.keys()


@pytest.mark.parametrize("named_plan", PLANS, indirect=True)
def test_every_publication_that_is_cited_is_in_the_references(named_plan):
    text, _, references = markdown(statement_values(named_plan)).partition("\n## References\n")
    author = r"[A-Z][a-z]+(?:-[A-Z][a-z]+)?"
    cited = rf"(?:banded|multi-epoch) paper|{author}(?: et al\.| and [A-Z]\w+) 20"
    names = set(re.findall(cited, flat(text)))
    assert names
    for name in names:
        assert name.removesuffix(" 20").lower() in flat(references).lower(), name
    # Only cited publications are listed.
    assert flat(references).count("arXiv:") + references.count("doi:") == len(references_of(text))


def test_every_reference_has_a_number():
    assert all(re.search(r"arXiv:\d{4}\.\d{5}|doi:10\.", text) for _, text in REFERENCES)


def test_audits_know_what_they_are_of(tmp_path):
    named_plan = plan(APART)
    assert audit_ledger(ledger_of([[0]], 1), named_plan).system == "ledger"
    controller = fedmf.ParticipationController(APART, population=9, cohort_size=2, seed=1)
    controller.cohort(0)
    assert controller.audit(named_plan).system == "controller"
    log_path = tmp_path / "log.csv"
    log_path.write_text("round,client\n0,ann\n")
    assert "has read the log alone" in flat(fedmf.audit_log(log_path, named_plan).statement())
    server = fedmf.Server(named_plan, shapes=[(1,)], clients_per_round=2, noise_seed=1)
    assert "`fedmf.Server` enforces this" in flat(server.statement())
    text = flat(controller.audit(named_plan).statement(system="pipeline"))
    assert "`dp_aggregator` enforces a part of this" in text


@pytest.mark.parametrize("system", ["run", "run_tff", "plan", "server", "flower", "log"])
def test_a_ledger_is_not_stated_as_a_system_that_nobody_has_seen(system):
    audit = audit_ledger(ledger_of([[0]], 1), plan(APART))
    with pytest.raises(ValueError, match=f"system='{system}' is"):
        audit.statement(system=system)


@pytest.mark.parametrize("named_plan", ["without noise"], indirect=True)
def test_without_noise_there_are_no_words_of_noise(named_plan):
    audit = audit_ledger(ledger_of([[t % 4] for t in range(ROUNDS)], None), named_plan)
    for name, system in SYSTEMS.items():
        task = "emnist" if system.names_data else None
        system_audit = dataclasses.replace(audit, system=name)
        text = markdown(system_audit.statement_values(subject=Subject(system=name, task=task)))
        text = text.replace("The noise multiplier of this plan is 0.", "")
        for words in ("Gaussian", "seed", "noise multiplier", "standard deviation", "entries of Z"):
            assert words not in text, (name, words)


def test_canaries_count_as_clients_of_a_run():
    subject = Subject(system="run", task="emnist")
    with_canaries = flat(markdown(statement_values(plan(APART), subject=subject, canaries=3)))
    text_without = flat(markdown(statement_values(plan(APART), subject=subject)))
    assert "task's client ids. Each canary counts as one client too." in with_canaries
    assert "anary" not in text_without


@pytest.mark.parametrize("finished", [None, "2026-11-28"])
def test_only_a_finished_run_has_a_result(finished):
    subject = Subject(system="run", task="emnist", begun="2026-11-27", finished=finished)
    values = statement_values(plan(APART), subject=subject, commands=["fedmf audit run x"])
    assert ("result.json" in markdown(values)) == (finished is not None)


def test_an_audit_of_a_simulation_without_rounds_says_nothing_of_clients():
    simulation = plan(APART).simulating(simulated=2, claimed=20)
    for cohorts, words in (
        ([], "No round is in the record of participation of the simulation yet"),
        ([[]], "Nobody took part in the simulation; the participation of the claimed run"),
    ):
        text = flat(audit_ledger(ledger_of(cohorts, 2), simulation).statement())
        assert words in text
        assert "the output depends on no client" not in text
