"""The map of DESIGN, section 4, held against the imports that the files really make."""

import ast
import dataclasses
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# Part -> the parts it may import. "tasks" and "experiments" are packages of their own, "fedmf" is the package's __init__ with all
# that is above the line; everything else is a module or package in fedmf. A part may always import itself.
FOUNDATION = {"_checks", "elliptope", "progress_bar", "workloads", "participation", "schedule", "ledger"}
MATHEMATICS = FOUNDATION | {"sensitivity", "mechanisms"}
ABOVE_THE_LINE = (
    MATHEMATICS
    | {
        "error",
        "optimize",
        "accountants",
        "amplification",
        "sampling",
        "accounting",
        "statement",
        "statement_text",
        "config",
        "bands",
        "learning_rate",
        "audit",
        "participation_pattern",
        "participation_log",
        "participation_log_files",
        "keyed_random",
        "behaviour",
        "availability",
        "cohort_draws",
        "controller",
        "participation_forecast",
        "checkpoint",
        "runs",
        "run_audit",
        "worker_addresses",
        "ctrl_c",
    }
    | {
        "noise_audit",
        "noise_controls",
        "distinguishing",
    }
)
MAY_IMPORT = {
    "_checks": set(),
    "workloads": {"_checks"},
    "participation": {"_checks"},
    "schedule": {"_checks"},
    "ledger": {"_checks"},
    "elliptope": set(),
    "progress_bar": set(),
    "sensitivity": FOUNDATION,
    "mechanisms": FOUNDATION | {"sensitivity"},
    "error": MATHEMATICS,
    "optimize": MATHEMATICS,
    "statement_text": set(),
    "statement": MATHEMATICS | {"statement_text", "sampling"},
    "participation_pattern": FOUNDATION,
    "participation_log_files": set(),
    "participation_log": FOUNDATION | {"participation_pattern", "participation_log_files"},
    "accountants": {"_checks"},
    "sampling": {"_checks", "participation"},
    "amplification": {"_checks", "accountants", "sampling"},
    "accounting": MATHEMATICS | {"statement", "accountants", "sampling", "amplification"},
    "bands": MATHEMATICS | {"accountants", "amplification", "error", "optimize", "sampling"},
    "learning_rate": MATHEMATICS | {"error"},
    "audit": MATHEMATICS | {"accounting", "sampling", "statement", "participation_pattern", "participation_log"},
    "keyed_random": set(),
    "worker_addresses": set(),
    "ctrl_c": set(),
    "behaviour": {"_checks", "keyed_random"},
    "availability": {"_checks", "keyed_random", "behaviour"},
    "cohort_draws": set(),
    "controller": MATHEMATICS | {"accounting", "audit", "availability", "behaviour", "cohort_draws", "sampling"},
    "participation_forecast": FOUNDATION | {"availability", "behaviour", "controller", "sampling"},
    "noise_audit": {"_checks"},
    "noise_controls": set(),
    "distinguishing": MATHEMATICS | {"accountants", "accounting", "noise_audit"},
    "config": MATHEMATICS | {"accountants", "accounting", "availability", "behaviour", "optimize", "sampling"},
    "checkpoint": FOUNDATION,
    "runs": MATHEMATICS | {"checkpoint", "config"},
    "run_audit": MATHEMATICS | {"accounting", "audit", "runs", "statement"},
    "reports": {"runs"},
    "fedmf": ABOVE_THE_LINE | {"reports"},
    "federated": ABOVE_THE_LINE | {"fedmf"},
    "tasks": ABOVE_THE_LINE | {"fedmf", "federated"},
    "experiments": ABOVE_THE_LINE | {"fedmf", "reports", "federated", "tasks"},
    "cli": ABOVE_THE_LINE | {"fedmf", "reports", "federated", "tasks"},
}
# TensorFlow's half; tasks and experiments import it inside functions or in modules of their own.
BELOW_THE_LINE = {"federated", "tasks", "experiments", "cli"}
TENSORFLOW = {"tensorflow", "tensorflow_federated", "tensorflow_privacy", "keras", "jax", "tff", "tfp"}
# What `fedmf --help` may cost, DESIGN section 8: the command line's modules import these inside functions.
HEAVY = {"numpy", "scipy", "dp_accounting", "matplotlib", *TENSORFLOW}
# The only places where the library reaches up to the drivers.
DRIVERS = {
    ("fedmf/cli/run.py", "importlib:experiments.demo"),
    ("fedmf/cli/sweep.py", "importlib:experiments.sweep"),
    ("fedmf/cli/sweep.py", "importlib:experiments.sweep_grid"),
}
MOST_LINES = 400
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported module: file and line, its dotted name, and whether it is imported when the file is."""

    file: str
    line: int
    target: str
    on_import: bool


def sources():
    files = [path for package in ("fedmf", "tasks", "experiments") for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(files) > 40
    return files


def part_of(dotted):
    """The part of MAY_IMPORT that a dotted name belongs to; None for other people's modules."""
    first, *rest = dotted.split(".")
    if first in ("tasks", "experiments"):
        return first
    if first != "fedmf":
        return None
    if rest and ((ROOT / "fedmf" / rest[0]).is_dir() or (ROOT / "fedmf" / f"{rest[0]}.py").exists()):
        return rest[0]
    return "fedmf"


def is_type_checking(node):
    test = node.test if isinstance(node, ast.If) else None
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def imports_of(text, file, dotted):
    """All imports, at any level, except those under `if TYPE_CHECKING`; with importlib.import_module("a literal")."""
    package = dotted if file.endswith("__init__.py") else dotted.rpartition(".")[0]
    found = []

    def visit(node, on_import):
        if is_type_checking(node):
            for child in node.orelse:
                visit(child, on_import)
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            on_import = False
        targets = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            targets = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            name = node.args[0] if node.args else None
            assert isinstance(name, ast.Constant), f"{file}:{node.lineno} imports a module whose name is computed"
            targets = [f"importlib:{name.value}"]
        found.extend(Import(file, node.lineno, target, on_import) for target in targets)
        for child in ast.iter_child_nodes(node):
            visit(child, on_import)

    visit(ast.parse(text), True)
    return found


def all_imports():
    for path in sources():
        relative = path.relative_to(ROOT)
        dotted = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        yield from ((part_of(dotted), i) for i in imports_of(path.read_text(), str(relative), dotted))


def backward(imports):
    """Imports that the map forbids."""
    broken = []
    for part, found in imports:
        target = part_of(found.target.removeprefix("importlib:"))
        if target is not None and target != part and target not in MAY_IMPORT[part]:
            broken.append(f"{found.file}:{found.line} {part} imports {found.target}")
    return broken


def test_every_part_is_on_the_map():
    parts = {part_of(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in sources()} - {"__init__"}
    assert parts | {"fedmf"} == set(MAY_IMPORT), "a new module: give it a place in DESIGN section 4 and in MAY_IMPORT"


def test_the_map_has_no_cycle():
    seen = set()
    while waiting := set(MAY_IMPORT) - seen:
        ready = {part for part in waiting if MAY_IMPORT[part] <= seen}
        assert ready, f"the map sends {sorted(waiting)} in a circle"
        seen |= ready


def test_imports_point_one_way():
    # Two have tests of their own below: the drivers behind commands, and what reports import.
    found = [(p, i) for p, i in all_imports() if (i.file, i.target) not in DRIVERS and p != "reports"]
    assert backward(found) == []


def test_reports_read_runs_only():
    targets = {part_of(i.target) for part, i in all_imports() if part == "reports"} - {None}
    assert targets == {"reports", "runs"}


def test_nothing_imports_experiments_but_the_commands_that_drive_them():
    reaching = [i for part, i in all_imports() if "experiments" in i.target and part != "experiments"]
    assert {(i.file, i.target) for i in reaching} == DRIVERS
    assert not any(i.on_import for i in reaching)


def test_nothing_above_the_line_imports_tensorflow_at_any_level():
    broken = [
        f"{i.file}:{i.line} imports {i.target}"
        for part, i in all_imports()
        if part not in BELOW_THE_LINE and i.target.removeprefix("importlib:").split(".")[0] in TENSORFLOW
    ]
    assert broken == []


def test_the_command_line_imports_nothing_heavy_when_it_starts():
    broken = [
        f"{i.file}:{i.line} imports {i.target}"
        for part, i in all_imports()
        if part == "cli" and i.on_import and (i.target.split(".")[0] in HEAVY or part_of(i.target) not in (None, "cli"))
    ]
    assert broken == []


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_one_subject_a_file(path):
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES, f"{lines} lines hold two subjects: split the file"
    assert not {path.stem, path.parent.name} & NAMES_THAT_SAY_NOTHING


class TestTheTestItself:
    """Negative controls: each rule sees the mistake it is there for."""

    def parsed(self, text, dotted="fedmf.workloads"):
        return [(part_of(dotted), i) for i in imports_of(text, dotted.replace(".", "/") + ".py", dotted)]

    @pytest.mark.parametrize(
        "text",
        [
            "import fedmf.accounting",
            "import fedmf",
            "from fedmf import accounting",
            "from fedmf.accounting import Plan",
            "from . import accounting",
            "from .accounting import Plan",
            "def f():\n    from fedmf.accounting import Plan",
            "class A:\n    def f(self):\n        import tasks.stackoverflow",
            "if True:\n    import experiments",
            "try:\n    import experiments.demo\nexcept ImportError:\n    pass",
            "import importlib\nimportlib.import_module('fedmf.federated')",
            "if TYPE_CHECKING:\n    pass\nelse:\n    import fedmf.accounting",
        ],
    )
    def test_backward(self, text):
        assert len(backward(self.parsed(text))) == 1

    @pytest.mark.parametrize(
        "text",
        [
            "from fedmf import _checks",
            "import numpy as np",
            "if TYPE_CHECKING:\n    from fedmf.accounting import Plan",
            "import typing\nif typing.TYPE_CHECKING:\n    import fedmf.accounting",
        ],
    )
    def test_forward(self, text):
        assert backward(self.parsed(text)) == []

    def test_levels(self):
        found = self.parsed("import a\nclass B:\n    import b\ndef f():\n    import c\nx = lambda: __import__('d')")
        assert [(i.target, i.on_import) for _, i in found] == [
            ("a", True), ("b", True), ("c", False), ("importlib:d", False)
        ]  # fmt: skip

    def test_a_computed_name_is_not_let_through(self):
        with pytest.raises(AssertionError, match="computed"):
            self.parsed("importlib.import_module('experi' + 'ments')")
