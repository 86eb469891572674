"""The Markdown of a privacy statement, from its values and nothing else (`fedmf.privacy.statement`).

Bounds on what is lost (epsilon, rho, a sensitivity) are rounded up, and what is added (a noise multiplier, a standard deviation) is
rounded down: no shown number claims more than was proven.
"""

import decimal
import re
import textwrap
from typing import Any

_WIDTH = 110
_POISSON, _FIXED_SIZE, _SHUFFLE = "CyclicPoisson", "CyclicFixedSize", "CyclicShuffle"
_HOW_MANY = {_POISSON: ", and so does how many are in any round"}  # known, the sample is one of fixed size


def markdown(values: dict[str, Any]) -> str:
    """The statement as Markdown; see `fedmf.privacy.statement.plan_values` for the values.

    >>> _up(1.00001), _down(0.7), _up(None)
    ('1.001', '0.7', 'infinity (no guarantee)')
    """
    points = [
        "1. **DP setting.** Central differential privacy: the service provider is trusted to run the mechanism as described, and to keep "
        "single updates and the seed of the noise secret.",
        "2. **Instantiating the definition.**",
        f"   1. **Data accesses covered.** {_covered(values)}",
        f"   2. **Final mechanism output.** {_output(values)}",
        "   3. **Unit of privacy.** One client (device) with its whole local data set, however large: data sets of one client may differ "
        "arbitrarily. It is user-level where a user has one device, stronger where several users share one, and weaker for a user of "
        "several devices that take part, for whom the group privacy below holds.",
        f"   4. **Adjacency.** {_adjacency(values)}",
        "3. **Accounting.**",
        f"   1. **Type.** {_accounting(values)}",
        f"   2. **Assumptions.** {_assumptions(values)}",
        f"   3. **Formal statement.** {_formal(values)}",
        "   4. **Transparency and verifiability.** The commands and versions below make this statement again. `fedmf audit mechanism` "
        "runs the aggregator and tests that the noise it releases is the noise that is accounted here.",
    ]
    sections = [*_heads(values), "\n".join(_wrapped(point) for point in points)]
    if values["guarantee"]["noise_multiplier"] > 0 and values["group_privacy"]:
        sections.append(_group_privacy(values))
    if values["subject"] != "plan":
        sections.append(_observed(values))
    not_covered = "\n".join(_wrapped(f"- {point}") for point in values["not_covered"])
    sections += [f"## Not covered\n\n{not_covered}", _verification(values)]
    return "# Privacy statement\n\n" + "\n\n".join(sections) + "\n"


def _wrapped(point: str) -> str:
    """`point` in lines of the indentation of its text; never with a number at a line's start that Markdown reads as a list's."""
    marker = re.match(r"[ >]*(?:\d+\. |- )?", point)
    assert marker is not None
    quoted = point.startswith(">")
    kept = re.sub(r" (?=\d+[.)](?: |$)|[-+*#>] )", "\0", point[marker.end() :])
    lines = textwrap.wrap(
        kept,
        _WIDTH,
        initial_indent=marker[0],
        subsequent_indent="> " if quoted else " " * marker.end(),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")


def _rounded(value: float, digits: int, rounding: str) -> str:
    # From the shortest text of the number: its exact value would turn 0.7 into 0.699999.
    shown = decimal.Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    return f"{float(shown):.{digits}g}"


def _up(value: float | None, digits: int = 4) -> str:
    return "infinity (no guarantee)" if value is None else _rounded(value, digits, decimal.ROUND_CEILING)


def _down(value: float) -> str:
    return _rounded(value, 6, decimal.ROUND_FLOOR)


def _dp(guarantee: dict[str, Any], epsilon: float | None) -> str:
    return f"(epsilon = {_up(epsilon)}, delta = {guarantee['delta']})-differential privacy"


def _heads(values: dict[str, Any]) -> list[str]:
    """What a reader must not miss."""
    heads = []
    simulation = values["simulation"]
    if values["guarantee"]["noise_multiplier"] == 0:
        heads.append("> **No privacy.** The noise multiplier of this plan is 0.")
        if simulation:
            heads.append(
                f"> **Simulation.** {simulation['simulated_cohort']} clients a round stand for {simulation['claimed_cohort']}."
            )
    elif simulation:
        simulated, claimed = simulation["simulated_cohort"], simulation["claimed_cohort"]
        needed, population = simulation["population_needed"], simulation["population"]
        more = population is not None and population < needed
        heads.append(
            f"> **Simulation.** {simulated} clients a round stand for {claimed}; the noise is scaled by {simulated}/{claimed}. The "
            f"guarantee below is that of a run with {claimed} clients a round. The model trained here carries less noise and does "
            f"**not** have this guarantee.{f' That run needs {needed} clients, and the data here are of {population}.' * more}"
        )
    if values.get("contradictions"):
        holds = "Nothing can be claimed" if simulation else "What holds is the achieved guarantee, not the planned one"
        heads.append(f"> **Not as planned.** The participation that was observed contradicts the plan. {holds}.")
    if missing := values.get("unrecorded"):
        heads.append(f"> **Not all is recorded.** {missing[0].upper()}{missing[1:]}.")
    return [_wrapped(head) for head in heads]


def _covered(values: dict[str, Any]) -> str:
    given = values["pretraining"]
    if not given:
        pretraining = "No pre-training is stated: the initial model is assumed not to depend on data of the clients."
    else:
        pretraining = f"Pre-training: {given.rstrip('.')}."
        if not given.lower().startswith("none"):
            pretraining += " The data used for it is not covered."
    return (
        "All accesses to the data of all well-behaved clients in one training run. A client that disobeys its participation limit weakens "
        f"its own guarantee and nobody else's. {pretraining} What is not covered stands below."
    )


def _output(values: dict[str, Any]) -> str:
    return (
        f"The whole sequence of privatised aggregates, one for each of the {values['output']['rounds']} rounds; every intermediate model, "
        "those sent to clients included, and the final model are post-processing of it and covered."
    )


def _adjacency(values: dict[str, Any]) -> str:
    text = (
        "Zero-out: in a neighbouring data set one client's update is the zero vector in every round in which it takes part, and nothing "
        "else changes. It is add-or-remove with an absent client's update taken as zero, so that both data sets have as many records; the "
        "divisor of the mean is a fixed number of clients in both."
    )
    scheme = (values["sampling"] or {}).get("scheme")
    if scheme == _POISSON:
        text += (
            " The accountant of the sampled queries speaks of adding or removing a client. That is the same here: clients are drawn "
            "independently, with a probability and a part of the population that depend on no other client, and the divisor is fixed, so "
            "that zeroing a client out and removing it give the same two distributions of the output."
        )
    elif scheme == _FIXED_SIZE:
        text += (
            " The accountant of the sampled queries speaks of replacing one client by another, of which zeroing out is a case: the other "
            "one contributes zero. Two clients differ by at most twice the clip norm, so that it is given half the noise multiplier."
        )
    elif scheme == _SHUFFLE:
        text += (
            " The bound for shuffled clients speaks of replacing one client by another, of which zeroing out is a case: the other one "
            "contributes zero. Two clients differ by at most twice the clip norm, so that it is given half the noise multiplier."
        )
    return text


def _accounting(values: dict[str, Any]) -> str:
    guarantee, sampling = values["guarantee"], values["sampling"]
    sigma = _down(guarantee["noise_multiplier"])
    whole = (
        f"one Gaussian mechanism with noise multiplier {sigma} on C x, adaptively chosen updates included (Denisov "
        "et al. 2022, Theorem 2.1)"
    )
    zcdp = "rho-zCDP (Bun and Steinke 2016, Proposition 1.6)"
    if sampling is None:
        text = (
            f"Privacy loss distributions (the library dp-accounting, rounded to the safe side) for (epsilon, delta), and {zcdp} beside it. "
            f"The run is {whole}; no amplification by sampling or shuffling is claimed."
        )
    else:
        times = sampling.get("compositions", sampling.get("epochs"))
        queries = (
            f"of the run as {times} adaptive queries on one of {sampling['groups']} parts of the population (Choquette-Choo et al. 2023, "
            f"Theorem 4), each a Gaussian mechanism with noise multiplier {_down(sampling['per_query_noise_multiplier'])}"
        )
        how = {
            _POISSON: f"Privacy loss distributions (the library dp-accounting) for (epsilon, delta), {queries} on a Poisson sample with "
            f"probability {sampling.get('probability', 0):.12g} (Corollary F.1)",
            _FIXED_SIZE: f"Renyi differential privacy (the library dp-accounting) for (epsilon, delta), {queries} on a sample of fixed "
            "size without replacement (Wang, Balle and Kasiviswanathan 2019, Theorem 27)",
            _SHUFFLE: "The closed form of Feldman, McMillan and Talwar 2021 (Theorem 3.8) for (epsilon, delta), for a client's place among "
            f"{sampling.get('positions')} rounds of an epoch (Choquette-Choo et al. 2023, Corollary F.2), {times} epochs composed by "
            "privacy loss distributions, each query a Gaussian mechanism with noise multiplier "
            f"{_down(sampling['per_query_noise_multiplier'])}",
        }[sampling["scheme"]]
        text = (
            f"{how}. The smaller of it and of what holds without amplification is stated. Without amplification the run is {whole}, "
            f"accounted by privacy loss distributions and {zcdp}; rho claims no amplification."
        )
    if "rdp_epsilon" in guarantee:
        text += (
            f" Renyi accounting, asked for as well, gives epsilon = {_up(guarantee['rdp_epsilon'])} at the same delta."
        )
    return text


def _participation(values: dict[str, Any]) -> str:
    p = values["participation"]
    if p["schema"] == "single":
        return f"Every client takes part in at most one of the {p['rounds']} rounds."
    if p["schema"] == "every_round":
        return f"A client may take part in every one of the {p['rounds']} rounds."
    most = f"Every client takes part in at most {p['max_participations']} of the {p['rounds']} rounds"
    if p["schema"] == "fixed_epoch":
        return (
            f"{most}, and any two consecutive participations of a client are exactly {p['min_sep']} rounds apart, or a multiple of it "
            "where the client misses some."
        )
    return f"{most}, and any two consecutive participations of a client are at least {p['min_sep']} rounds apart."


def _assumptions(values: dict[str, Any]) -> str:
    guarantee, sampling, mechanism = values["guarantee"], values["sampling"], values["mechanism"]
    kind = "exact" if guarantee["sensitivity_exact"] else "a proven upper bound"
    keeper = {
        "plan": "The participation controller enforces it.",
        "run": "The participation controller enforced it.",
        "log": "The system that wrote the log had to enforce it.",
    }[values["subject"]]
    text = f"{_participation(values)} {keeper}"
    if sampling:
        text += f" {_drawn(sampling)} Who is drawn stays secret{_HOW_MANY.get(sampling['scheme'], '')}: amplification rests on it."
    return (
        f"{text} Each update has L2 norm at most {values['clip_norm']:.12g} after clipping. The sensitivity of the encoder (family "
        f"{mechanism['family']}, {mechanism['bands']} band{'s' * (mechanism['bands'] != 1)}) under this participation, for unit clip norm, "
        f"is {_up(guarantee['sensitivity'], 6)}, {kind} ({guarantee['sensitivity_method']}). The entries of Z are independent Gaussians "
        f"with standard deviation {_down(values['stddev'])}; the seed of the noise is kept secret and is used for one run only."
    )


def _drawn(sampling: dict[str, Any]) -> str:
    parts = (
        f"The population of {sampling['population']} clients is split into {sampling['groups']} parts, whatever their data, and round t "
        f"draws from part t mod {sampling['groups']} only"
    )
    if sampling["scheme"] == _POISSON:
        return f"{parts}: each client with probability {sampling['probability']:.12g}, independently of all others and of other rounds."
    if sampling["scheme"] == _FIXED_SIZE:
        return f"{parts}: a uniform subset of {sampling['cohort_size']} clients, independently of other rounds."
    order = "a new random order every epoch" if sampling["reshuffle"] else "one random order for all epochs"
    return f"{parts}: batches of {sampling['cohort_size']} clients in {order} of {sampling['epoch']} rounds."


def _formal(values: dict[str, Any]) -> str:
    guarantee, sampling = values["guarantee"], values["sampling"]
    if guarantee["noise_multiplier"] == 0:
        return "No noise is added: the run has no differential privacy guarantee."
    rho = f"rho = {_up(guarantee['rho'])} zCDP"
    if sampling is None:
        text = f"The run satisfies {_dp(guarantee, guarantee['epsilon'])} and {rho}."
    else:
        text = (
            f"The run satisfies {_dp(guarantee, guarantee['epsilon'])} if clients are drawn as stated and who was drawn stays "
            f"secret{_HOW_MANY.get(sampling['scheme'], '')}. "
            "However they are drawn within the participation above, it satisfies "
            f"{_dp(guarantee, guarantee['unamplified_epsilon'])} and {rho}."
        )
    if values["simulation"]:
        claimed = f"For the claimed cohort of {values['simulation']['claimed_cohort']} clients a round: "
        text = f"{claimed}{text[0].lower()}{text[1:]}"
    return text if values["subject"] == "plan" else f"Planned: {text[0].lower()}{text[1:]} {_achieved(values)}"


def _achieved(values: dict[str, Any]) -> str:
    achieved, contradictions = values["achieved"], values["contradictions"]
    known = values["noncompliant"]
    others = f" {_disobedient(known)}" if known else ""
    if values["simulation"] and values["observed"]["participations"]:
        if contradictions:
            return f"The participation simulated contradicts it: {'; '.join(contradictions)}. Nothing can be claimed.{others}"
        return f"The participation simulated keeps to it; that of the claimed run, which the guarantee is about, was not observed.{others}"
    if achieved is None:
        return (
            f"No well-behaved client took part.{others}"
            if others
            else "Nobody took part: the output depends on no client."
        )
    numbers = f"{_dp(achieved, achieved['epsilon'])} and rho = {_up(achieved['rho'])} zCDP"
    missing = " and, as said above, for the rounds that are not in the record" if values.get("unrecorded") else ""
    observed = f"for the participation that was observed{missing}, the same noise gives {numbers}"
    if contradictions:
        return (
            f"The observed participation contradicts the plan: {'; '.join(contradictions)}. The planned guarantee cannot be claimed. "
            f"Achieved: {observed}; no amplification is claimed.{others}"
        )
    text = (
        f"The observed participation keeps to the plan, so that this holds. Achieved: {observed}, which takes the participation as given "
        "and so rests on it not depending on the data of clients."
    )
    if values["sampling"]:
        text += (
            f" That is without amplification. That clients were drawn at random no record can show; if they were, as stated, the run "
            f"satisfies {_dp(achieved, achieved['epsilon_if_sampled_as_planned'])}."
        )
    return text + others


def _disobedient(known: dict[str, Any]) -> str:
    everyone, least = known["achieved_by_all"], known["min_separation"]
    apart = "nobody took part twice" if least is None else f"two rounds of one client are {least} or more apart"
    gives = (
        f", for which the same noise gives {_dp(everyone, everyone['epsilon'])} and rho = {_up(everyone['rho'])} zCDP"
        * bool(everyone)
    )
    return (
        f"All this is about the well-behaved clients. Another {known['clients']} that took part are known to have disobeyed, at their own "
        f"cost only: over all clients together, {apart} and one took part up to {known['max_participations']} times{gives}."
    )


def _group_privacy(values: dict[str, Any]) -> str:
    rows = "\n".join(
        f"| {row['devices']} | {_up(row['epsilon'])} | {row['delta']} | {_up(row['rho'])} |"
        for row in values["group_privacy"]
    )
    sampled = (
        ", or epsilon by group privacy of the amplified guarantee (Vadhan 2017, Lemma 2.2) where that is less"
        if values["sampling"] and not values.get("contradictions")
        else ""
    )
    of = " of the achieved guarantee" if values.get("contradictions") else ""
    intro = _wrapped(
        f"What holds{of} for a user of several devices, each of them a client that keeps to its own limits: the sum of g clients is g "
        f"times as sensitive, which leaves the noise multiplier divided by g{sampled}."
    )
    return f"## Users with several devices\n\n{intro}\n\n| devices | epsilon | delta | rho |\n|---|---|---|---|\n{rows}"


def _observed(values: dict[str, Any]) -> str:
    seen, p = values["observed"], values["participation"]
    planned, achieved = values["guarantee"], values["achieved"]
    apart = "multiples of" if p["schema"] == "fixed_epoch" else "at least"
    least = seen["min_separation"]
    rows = [
        ("rounds", p["rounds"], seen["rounds"]),
        ("participations of one client", f"at most {p['max_participations']}", f"at most {seen['max_participations']}"),
        (
            "rounds between two participations of one client",
            f"{apart} {p['min_sep']}",
            "nobody took part twice" if least is None else f"at least {least}",
        ),
        ("participations", "", f"{seen['participations']}"),
        (
            "clients that took part",
            "" if seen["population"] is None else f"of {seen['population']}",
            f"{seen['clients']}",
        ),
        (
            "clients in a round",
            "" if seen["cohort_size"] is None else f"{seen['cohort_size']}",
            f"{seen['smallest_cohort']} to {seen['largest_cohort']}",
        ),
        ("rounds without a client", "", f"{seen['empty_rounds']}"),
    ]
    if seen["short_rounds"] is not None:
        rows.append((f"rounds with fewer than {seen['cohort_size']} clients", "", f"{seen['short_rounds']}"))
    if achieved is not None and planned["noise_multiplier"] > 0:
        unamplified = ", without amplification" if values["sampling"] else ""
        rows += [
            ("sensitivity", _up(planned["sensitivity"], 6), _up(achieved["sensitivity"], 6)),
            ("noise multiplier", _down(planned["noise_multiplier"]), _down(achieved["noise_multiplier"])),
            (
                f"epsilon at delta = {planned['delta']}{unamplified}",
                _up(planned["unamplified_epsilon"]),
                _up(achieved["epsilon"]),
            ),
            ("rho", _up(planned["rho"]), _up(achieved["rho"])),
        ]
        if values["sampling"]:
            amplified = achieved["epsilon_if_sampled_as_planned"]
            rows.append(
                (
                    "epsilon, if sampled as planned",
                    _up(planned["epsilon"]),
                    "contradicted" if values["contradictions"] else _up(amplified),
                )
            )
    table = "\n".join(f"| {name} | {plan} | {found} |" for name, plan, found in rows)
    text = f"## What was observed\n\n| | planned | observed |\n|---|---|---|\n{table}"
    if values["simulation"]:
        text += "\n\n" + _wrapped(
            "This is the participation of the simulation. That of the claimed run, which the guarantee is about, was not observed."
        )
    log = seen["log"]
    if log is not None:
        twice = log["duplicates_counted_once"]
        once = f", {twice} of them repeated and counted once" if twice else ""
        text += f"\n\nLog: {log['name']}, {log['bytes']} bytes, {log['rows']} rows{once}, SHA-256 `{log['sha256']}`."
    return text


def _verification(values: dict[str, Any]) -> str:
    commands = "\n".join(f"    {command}" for command in values["commands"])
    versions = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
    return (
        f"## How to check it\n\n{commands}\n\nMechanism: SHA-256 `{values['mechanism']['sha256']}` of its family and matrices "
        f"(`fedmf.privacy.statement.mechanism_digest`).\n\nVersions: {versions}."
    )
