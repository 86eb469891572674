"""Cases and sides of the comparison, and the sitting in which they take turns."""

import contextlib
import dataclasses
import json
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
Answer = dict[str, Any]
# The value of cases in which each side has found nothing but takes time: units of work a second.
RATE = "clients/s"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Side:
    """One library's way to do the work of a case.

    Attributes:
      label: the library, and what of it, as the table has it.
      function: "module:function" of `benchmarks.compare`, which a worker calls.
      arguments: of the function, and what they are at toy size.
      small: those of `arguments` that differ at toy size.
      environment: "fedmf", "compare", "newer", "flower" or "torch".
      distribution: of which the version is printed.
    """

    label: str
    function: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    small: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: str = "compare"
    distribution: str = "fedmf"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Work that fedmf and others do in turns.

    Attributes:
      work: in words.
      value: what is found, such as epsilon; "" for nothing.
      sides: fedmf's first.
      cost: "s" for seconds, "CPU ms" for thousandths of a CPU second.
      passes: counted turns of each.
      unsaid: turns before them, which are not counted.
      fresh: a new process for each turn, so that nothing is kept from one to the next.
      lower: whether a lower value is the better one; None where neither is.
      digits: of the value.
    """

    work: str
    value: str
    sides: tuple[Side, ...]
    cost: str = "s"
    passes: int = 1
    unsaid: int = 0
    fresh: bool = True
    lower: bool | None = True
    digits: int = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What one side found: its answers of the counted turns, or why there are none."""

    side: Side
    version: str = ""
    answers: tuple[Answer, ...] = ()
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sitting:
    """How sides are run.

    Attributes:
      root: folder with the environments `.venv-compare` and `.venv-torch`.
      newer: a Python 3.13 that runs the abi3 wheels of `.venv-compare`; "" runs them there.
      seconds: the longest that one answer may take.
      small: toy sizes.
    """

    root: pathlib.Path = ROOT
    newer: str = ""
    seconds: float = 120.0
    small: bool = False

    def command(self, side: Side) -> tuple[list[str], dict[str, str]]:
        """The worker's command line, and the environment variables that it adds.

        Raises:
          FileNotFoundError: the side's environment is not there.
        """
        folder = ".venv-torch" if side.environment in ("flower", "torch") else ".venv-compare"
        python, added = str(self.root / folder / "bin" / "python"), {}
        if side.environment == "fedmf":
            python = sys.executable
        elif not pathlib.Path(python).exists():
            raise FileNotFoundError(f"{folder} is not there: make {folder}/.installed")
        elif side.environment == "newer" and self.newer:
            python = self.newer
            packages = next((self.root / folder / "lib").glob("python*/site-packages"))
            added = {"PYTHONPATH": f"{ROOT}{os.pathsep}{packages}", "PYTHONDONTWRITEBYTECODE": "1"}
        module, function = side.function.split(":")
        arguments = dict(side.arguments) | (dict(side.small) if self.small else {})
        worker = ["-m", "benchmarks.compare.worker", module, function, side.distribution]
        return [python, *worker, json.dumps(arguments)], added

    @contextlib.contextmanager
    def child(self, side: Side) -> Iterator["Child"]:
        """A worker, which ends with all that it has started."""
        command, added = self.command(side)
        pipe: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(
            command,
            **pipe,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=os.environ | added,
            start_new_session=True,
        )
        try:
            yield Child(process, self.seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


class Child:
    """A worker that answers.

    Args:
      process: with pipes.
      seconds: the longest that one answer may take.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", seconds: float) -> None:
        self._process, self._seconds, self._rest = process, seconds, b""

    def ask(self, told: Mapping[str, Any]) -> Answer:
        """Its answer to one line."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            self._process.stdin.flush()
        return self.read()

    def read(self) -> Answer:
        """Its next line; or an error that says in one line what is wrong."""
        out, end = self._process.stdout, time.monotonic() + self._seconds
        assert out is not None
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, end - time.monotonic())):
                    return {"error": f"no answer within {self._seconds:.0f} s"}
                read = os.read(out.fileno(), 65536)
                if not read:
                    return {"error": f"ended with status {self._process.wait()}"}
                self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)


def run(case: Case, sitting: Sitting, tell: Callable[[str], None]) -> list[Result]:
    """Lets the sides of a case take turns, in the opposite order the next time.

    In the first turn fedmf's side goes first: what it found is told to the others, whose work may
    be to reach the same error.
    """
    found: list[list[Answer]] = [[] for _ in case.sides]
    versions, reasons = [""] * len(case.sides), [""] * len(case.sides)
    told: Answer = {}
    passes = 1 if sitting.small else case.passes
    with contextlib.ExitStack() as kept:
        children: dict[int, Child] = {}
        for turn in range(case.unsaid + passes):
            order = range(len(case.sides))
            for i in order if turn % 2 == 0 else order[::-1]:
                if reasons[i]:
                    continue
                tell(f"{case.work}: {case.sides[i].label}, turn {turn + 1}")
                with contextlib.ExitStack() as here:
                    stack = here if case.fresh else kept
                    try:
                        child = children.get(i) or stack.enter_context(sitting.child(case.sides[i]))
                    except FileNotFoundError as error:
                        reasons[i] = str(error)
                        continue
                    answer: Answer = {}
                    if i not in children:
                        answer = child.read()
                        versions[i] = answer.get("version", "")
                    if not case.fresh:
                        children[i] = child
                    if "error" not in answer:
                        answer = child.ask(told)
                if "error" in answer:
                    reasons[i] = answer["error"]
                    continue
                if i == 0:
                    told = answer
                if turn >= case.unsaid:
                    found[i].append(answer)
    return [
        Result(side=side, version=version, answers=tuple(answers), reason=reason)
        for side, version, answers, reason in zip(case.sides, versions, found, reasons, strict=True)
    ]
