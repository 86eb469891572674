"""The command `fedmf audit aggregator`, which tests a user's function that aggregates updates."""

import functools
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from fedmf.cli.audit import audit
from fedmf.cli.errors import arguments_checked, in_option_names
from fedmf.cli.options import json_option, options_of, show

if TYPE_CHECKING:
    from fedmf.audits.aggregator_claim import AggregatorAudit, AggregatorClaim


@audit.command()
@click.argument("function", metavar="MODULE:FUNCTION")
@options_of("AggregatorClaim")
@json_option
def aggregator(function: str, config_options: dict[str, Any], as_json: bool) -> None:
    """Is my DP right? Tests any function of updates, as a black box.

    It bounds from above the noise multiplier that the function guarantees.

    FUNCTION takes the updates of a round, a list of lists of numpy arrays, and gives their noisy
    aggregate, a list of arrays. If it has a parameter `examples`, it is told how many examples each
    client has. One without parameters is called at the start of each run, and gives such a
    function. The module is imported anew for each run. Exit status 1 if a test fails.

    \b
    Example:
      fedmf audit aggregator mine:aggregate --clients 100 --clip-norm 1 --noise-multiplier 1.1
      fedmf audit aggregator mine:start --clients 50 --rounds 200 --epsilon 8 --delta 1e-5
    """
    from fedmf.audits.aggregator import audit_aggregator
    from fedmf.audits.aggregator_claim import AggregatorClaim

    with arguments_checked():
        chosen_settings = {
            name: value for name, value in config_options.items() if value is not None
        }
        claim = AggregatorClaim(**chosen_settings)
        aggregator_audit = audit_aggregator(_importer(function), claim)
    if as_json:
        show(aggregator_audit.values(), as_json)
    else:
        click.echo(_text(aggregator_audit, claim))
    if not aggregator_audit.passed:
        sys.exit(1)


def _importer(target: str) -> Callable[[], Callable[..., Any]]:
    """Returns a function that imports a module anew and returns the module's aggregation
    function.
    """
    module, _, name = target.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module_spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        module_spec = None
    if module_spec is None or module_spec.loader is None or not name:
        raise ValueError(f"there is no {target!r} here: name a function as package.module:function")
    execute_module = module_spec.loader.exec_module

    def import_function() -> Callable[..., Any]:
        new_module = importlib.util.module_from_spec(module_spec)
        sys.modules[module] = new_module
        execute_module(new_module)
        function: Any = functools.reduce(getattr, name.split("."), new_module)
        if not inspect.signature(function).parameters:
            return function()
        return function

    return import_function


def _text(result: "AggregatorAudit", claim: "AggregatorClaim") -> str:
    """Returns the outcomes of an aggregator's tests as lines for a terminal."""
    outcome_marks = {True: "ok", False: click.style("FAILED", fg="red"), None: "-"}
    output_lines = []
    for test in result.tests:
        verdict = in_option_names(test.verdict)
        outcome_line = f"{outcome_marks[test.passed]:<6}  {test.name}: {verdict}"
        if test.sees is not None:
            outcome_line += f" Sees a factor of {test.sees:.3g}."
        output_lines.append(outcome_line)
    tested_scope = "a round"
    run_epsilon_text = f", {result.epsilon_run:.4g} in {claim.rounds:,} rounds"
    if claim.correlated:
        tested_scope = (
            f"a run of {result.rounds_seen:,} rounds in which one client takes part "
            f"{result.participations_seen:,} times"
        )
        run_epsilon_text = ""
    failed_names = ", ".join(result.failed) or "none"
    return "\n".join(
        [
            *output_lines,
            "",
            f"noise multiplier  claimed {result.noise_multiplier:.4g}, at most "
            f"{result.noise_multiplier_most:.4g} (confidence {result.confidence:g})",
            f"epsilon           at least {result.epsilon_round:.4g} "
            f"{tested_scope}{run_epsilon_text} (delta {claim.delta:g})",
            f"tests failed      {failed_names}; an honest function fails any with chance "
            f"{result.false_positive_rate:g} at most ({result.calls:,} calls)",
        ]
    )
