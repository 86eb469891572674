"""Registry of executions. An execution is a class that computes the rounds of a run.

An execution is registered by the path of its class, because classes may need a framework. They are
imported when a run needs them.
"""

import dataclasses
import re
from typing import Any

from fedmf import checks, fields


def _check_name(argument: str, value: Any) -> str:
    """Checks that a value can be the name of an execution, and returns it."""
    if not isinstance(value, str) or not value.isidentifier():
        raise ValueError(f"{argument}={value!r} is no word: use one such as 'fast'")
    return value


def _check_path(argument: str, value: Any) -> str:
    """Checks that a value is a path "package.module:ClassName", and returns it."""
    if not isinstance(value, str) or not re.fullmatch(r"\w+(\.\w+)*:\w+", value):
        raise ValueError(
            f"{argument}={value!r} must be the path of the execution's class, such as "
            "'package.module:ClassName'"
        )
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionKind(fields.Checked):
    """The name and the class of an execution that configurations can choose.

    Attributes:
      name: name in configurations, such as "fast".
      path: path "package.module:ClassName" of a subclass of
        `fedmf.training.execution.base.Execution`.
      in_tff: whether TFF's learning process computes the rounds. It has its own optimizers, trains
        on no cluster, and returns no releases for canaries.

    Raises:
      TypeError, ValueError: an attribute is invalid.
    """

    name: str = fields.validated(_check_name)
    path: str = fields.validated(_check_path)
    in_tff: bool = fields.flag(False, "")


_KIND_BY_NAME: dict[str, ExecutionKind] = {}


def register_execution(kind: ExecutionKind) -> None:
    """Registers an execution under its name, so that configurations can choose it.

    Raises:
      TypeError: `kind` is no `ExecutionKind`.
      ValueError: the name is registered already.

    >>> register_execution(ExecutionKind(name="mine", path="my_package.rounds:MyExecution"))
    >>> execution_names()
    ('fast', 'tff', 'mine')
    >>> del _KIND_BY_NAME["mine"]
    """
    if not isinstance(kind, ExecutionKind):
        raise TypeError(f"{kind!r} must be a fedmf.runs.executions.ExecutionKind")
    if kind.name in _KIND_BY_NAME:
        raise ValueError(f"name={kind.name!r} is that of another execution: use another name")
    _KIND_BY_NAME[kind.name] = kind


def execution_names() -> tuple[str, ...]:
    """Returns the names of all registered executions, first those of fedmf."""
    return tuple(_KIND_BY_NAME)


def execution_kind(name: str) -> ExecutionKind:
    """Returns the registered execution with this name.

    Raises:
      ValueError: the name is not registered.
    """
    return _KIND_BY_NAME[checks.one_of("execution", name, execution_names())]


register_execution(
    ExecutionKind(name="fast", path="fedmf.training.execution.in_process:FastExecution")
)
register_execution(
    ExecutionKind(name="tff", path="fedmf.federated.tff.execution:TffExecution", in_tff=True)
)
