"""What the commands that a statement prints check, in sentences."""

from collections.abc import Mapping
from typing import Any

from fedmf.privacy.systems import system_of

_RUN_UNDER_WAY = "audits the record of participation that the run has written so far"
_RUN_FINISHED = (
    "compares the files that the run left with the SHA-256 digests in its result.json, and audits "
    "its record of participation again"
)
_RUN_BEGUN = (
    "Once the run has its first checkpoint, `fedmf audit run` with its folder audits the record of "
    "participation."
)
_CHECKS = {
    "fedmf audit run": _RUN_UNDER_WAY,
    "fedmf audit log": "audits the record of participation again",
    "fedmf audit canaries": "computes lower bounds on epsilon from the canaries, with private "
    "files that a copy for publication lacks",
    "fedmf calibrate": "computes what is planned again from the file of the mechanism",
}
_AUDITS_OF_RECORDS = ("fedmf audit run", "fedmf audit log")


def command_checks(values: Mapping[str, Any]) -> list[str]:
    """Returns sentences on what the commands of a statement check, and on what they do not.

    Args:
      values: of the statement, as of `describe.statement_values`.
    """
    subject = values.get("subject") or {}
    checks = dict(_CHECKS)
    if subject.get("finished"):
        checks["fedmf audit run"] = _RUN_FINISHED
    commands = values["commands"]
    sentences = []
    for name, check in checks.items():
        if _prints(commands, name):
            sentences.append(f"`{name}`, as printed below, {check}.")
    audits_record = any(_prints(commands, name) for name in _AUDITS_OF_RECORDS)
    if audits_record and values.get("contradictions"):
        sentences.append("The audit ends with exit status 1, since the plan was not kept.")
    if "observed" in values and not audits_record:
        sentences.append(f"No command below checks what was observed. {_reason(values)}".strip())
    elif "observed" not in values and system_of(values["system"]).names_data:
        sentences.append(_RUN_BEGUN)
    return sentences


def _prints(commands: list[str], name: str) -> bool:
    return any(command.startswith(f"{name} ") for command in commands)


def _reason(values: Mapping[str, Any]) -> str:
    """Returns why no command reads the record of participation."""
    if not values["observed"]["participations"]:
        return "The record of participation is empty."
    return system_of(values["system"]).record
