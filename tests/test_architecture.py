"""The layout, held against the imports that the files really make, at any level: also inside functions and for typing only."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[1]

# Floors from the ground up: a part imports itself and lower floors. What stands on one floor does not know the other parts of it.
FLOORS = [
    {"checks", "files", "terminal"},
    {"workloads", "schedule", "participation", "noise"},
    {"mechanisms"},
    {"privacy"},
    {"audits"},
    {"cohorts"},
    {"runs"},
    {"reports", "federated"},
    {"tasks"},
    {"experiments"},
    {"cli"},
]
FLOOR = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}
# `fedmf` itself is the public names of all that is above the line; those below it may use it as a person would.
ABOVE_THE_LINE = {part for part, floor in FLOOR.items() if floor < FLOOR["federated"]} | {"reports", "__init__"}
TENSORFLOW = {"tensorflow", "tensorflow_federated", "tensorflow_privacy", "keras", "jax"}
# What `fedmf --help` may cost (DESIGN section 8): the command line imports these inside functions.
HEAVY = {"numpy", "scipy", "dp_accounting", "matplotlib", *TENSORFLOW}
MAX_LINES = 400
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}


def sources():
    """Dotted name -> (path, syntax tree) of every module that is shipped."""
    found = {}
    for top in ("fedmf", "tasks", "experiments"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if top == "fedmf" else ("fedmf", *parts)).removesuffix(".__init__")
            found[name] = (path, ast.parse(path.read_text()))
    assert len(found) > 100
    return found


def is_type_checking(node):
    return isinstance(node, ast.If) and getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING"


def imports_of(name, tree, is_package=False):
    """(dotted target, line, whether inside a function or for typing only) of every import, `from a import b` as a.b."""
    package = name if is_package else name.rpartition(".")[0]
    found = []

    def visit(node, inside):
        inside = (
            inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or is_type_checking(node)
        )
        if isinstance(node, ast.Import):
            found.extend((alias.name, node.lineno, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found.extend((f"{base}.{alias.name}", node.lineno, inside) for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            computed = not (node.args and isinstance(node.args[0], ast.Constant))
            found.append(("<computed>" if computed else node.args[0].value, node.lineno, inside))
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(tree, False)
    return found


def part_of(dotted):
    """The part of fedmf that a dotted name belongs to; "__init__" for fedmf's own names; None for other people's modules."""
    first, *rest = dotted.split(".")
    if first in ("tasks", "experiments"):
        return "<shadowed by a package of the user's>"
    if first != "fedmf":
        return None
    return rest[0] if rest and rest[0] in FLOOR else "__init__"


def upward(name, imports):
    """Imports that the floors forbid."""
    part, broken = part_of(name), []
    for target, line, _ in imports:
        wanted = part_of(target)
        if target == "<computed>":
            broken.append(f"{name}:{line} imports a module whose name is computed")
        elif wanted in (None, part):
            continue
        elif part == "__init__":
            if wanted not in ABOVE_THE_LINE:
                broken.append(f"{name}:{line} imports {target}")
        elif wanted == "__init__":
            if FLOOR[part] < FLOOR["federated"] or part == "reports":
                broken.append(f"{name}:{line} imports {target}")
        elif wanted not in FLOOR or FLOOR[wanted] >= FLOOR[part]:
            broken.append(f"{name}:{line} imports {target}")
    return broken


def circles(graph):
    """Modules from which a walk along imports comes back."""

    def reach(start):
        seen, todo = set(), [start]
        while todo:
            fresh = graph[todo.pop()] - seen
            seen |= fresh
            todo += fresh
        return seen

    return {name for name in graph if name in reach(name)}


def test_every_part_has_a_floor():
    parts = {name.split(".")[1] for name in sources() if "." in name}
    assert parts <= set(FLOOR), "a new part: give it a floor"


def test_imports_point_down():
    assert [
        b
        for name, (path, tree) in sources().items()
        for b in upward(name, imports_of(name, tree, path.stem == "__init__"))
    ] == []


def test_no_circle_between_modules():
    modules = sources()
    graph = {}
    for name, (path, tree) in modules.items():
        targets = set()
        for target, _, _ in imports_of(name, tree, path.stem == "__init__"):
            module = target if target in modules else target.rpartition(".")[0]
            # A package's public face imports what is inside, and those inside do not look at the face.
            if module in modules and module not in (name, "fedmf"):
                targets.add(module)
        graph[name] = targets
    assert circles(graph) == set()


def test_nothing_above_the_line_imports_tensorflow():
    broken = [
        f"{name}:{line} imports {target}"
        for name, (path, tree) in sources().items()
        for target, line, _ in imports_of(name, tree, path.stem == "__init__")
        if part_of(name) in ABOVE_THE_LINE and target.split(".")[0] in TENSORFLOW
    ]
    assert broken == []


def test_tff_and_tf_privacy_are_imported_in_one_module():
    importers = {
        name
        for name, (path, tree) in sources().items()
        for target, _, _ in imports_of(name, tree, path.stem == "__init__")
        if target.split(".")[0] in ("tensorflow_federated", "tensorflow_privacy")
    }
    assert importers == {"fedmf.federated.tff"}


def test_the_command_line_imports_nothing_heavy_when_it_starts():
    broken = [
        f"{name}:{line} imports {target}"
        for name, (path, tree) in sources().items()
        for target, line, inside in imports_of(name, tree, path.stem == "__init__")
        if part_of(name) == "cli"
        and not inside
        and (target.split(".")[0] in HEAVY or part_of(target) not in (None, "cli", "terminal"))
    ]
    assert broken == []


def test_one_subject_a_file():
    long = {name: n for name, (path, _) in sources().items() if (n := len(path.read_text().splitlines())) > MAX_LINES}
    assert long == {}, "these hold two subjects: split them"
    assert {path.stem for path, _ in sources().values()} & NAMES_THAT_SAY_NOTHING == set()


class TestTheTestItself:
    """Negative controls: each rule sees the mistake it is there for."""

    def broken(self, text, name="fedmf.workloads"):
        return upward(name, imports_of(name, ast.parse(text)))

    def test_upward(self):
        for text in [
            "import fedmf.privacy.plan",
            "import fedmf",
            "from fedmf import privacy",
            "from fedmf.privacy.plan import Plan",
            "from .privacy import plan",
            "def f():\n    from fedmf.privacy.plan import Plan",
            "if TYPE_CHECKING:\n    from fedmf.privacy.plan import Plan",
            "class A:\n    def f(self):\n        import tasks.stackoverflow",
            "try:\n    import fedmf.experiments.demo\nexcept ImportError:\n    pass",
            "import importlib\nimportlib.import_module('fedmf.federated')",
            "import importlib\nimportlib.import_module('fed' + 'mf')",
        ]:
            assert len(self.broken(text)) == 1, text

    def test_downward(self):
        for text in ["from fedmf import checks", "import numpy as np", "from fedmf.files import write"]:
            assert self.broken(text) == [], text

    def test_circles(self):
        assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == {"a", "b", "c"}
