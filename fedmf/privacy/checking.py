"""Sentences for the privacy statement about the commands that it prints, and about what each of
these commands checks.
"""

from collections.abc import Mapping
from typing import Any

from fedmf.privacy.systems import system_of

_RUN_UNDER_WAY = "audits the record of participation that the run has written so far"
_RUN_FINISHED = (
    "compares the files that the run left with the SHA-256 digests in its result.json, and audits "
    "its record of participation again"
)
_RUN_BEGUN = (
    "Once the run has committed its first round, `fedmf audit run` with its folder audits the "
    "record of participation."
)
_CHECK_BY_COMMAND = {
    "fedmf audit run": _RUN_UNDER_WAY,
    "fedmf audit log": "audits the record of participation again",
    "fedmf audit canaries": "computes lower bounds on epsilon from the canaries, with private "
    "files that a copy for publication lacks",
    "fedmf calibrate": "computes the planned guarantee again from the file of the mechanism",
}
_AUDITS_OF_RECORDS = ("fedmf audit run", "fedmf audit log")


def command_checks(values: Mapping[str, Any]) -> list[str]:
    """Returns sentences about what the commands of a privacy statement check, and what they do not
    check.

    Args:
      values: the values of the statement, as `describe.statement_values` returns them.
    """
    subject = values.get("subject") or {}
    checks = dict(_CHECK_BY_COMMAND)
    # The runs of a private selection have no date.
    if subject.get("finished") or subject.get("model_sha256"):
        checks["fedmf audit run"] = _RUN_FINISHED
    commands = values["commands"]
    sentences = []
    for name, check in checks.items():
        if _prints(commands, name):
            sentences.append(f"`{name}`, as printed below, {check}.")
    if subject.get("model_sha256"):
        sentences.append(
            "The SHA-256 digest of model.npz (`sha256sum model.npz`) must be the one at the top."
        )
    if (values.get("observed") or {}).get("log"):
        sentences.append('The SHA-256 digest of the log must be the one under "What was observed".')
    audits_record = any(_prints(commands, name) for name in _AUDITS_OF_RECORDS)
    if audits_record and values.get("contradictions"):
        sentences.append("The audit ends with exit status 1, because the plan was broken.")
    if "observed" in values and not audits_record:
        sentences.append(
            f"No command below checks the observed participation. {_reason(values)}".strip()
        )
    elif "observed" not in values and system_of(values["system"]).names_data:
        sentences.append(_RUN_BEGUN)
    return sentences


def _prints(commands: list[str], name: str) -> bool:
    """Returns whether one of the commands begins with a name such as `fedmf audit run`."""
    return any(command.startswith(f"{name} ") for command in commands)


def _reason(values: Mapping[str, Any]) -> str:
    """Returns a sentence on why none of the commands checks the record of participation."""
    if not values["observed"]["participations"]:
        return "The record of participation is empty."
    return system_of(values["system"]).record
