"""The layers of the package, compared with all imports, also those within functions and for
typing.
"""

import ast
import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]

# Layers from the lowest up: a part imports itself and lower layers. Parts of one layer do not
# import each other.
FLOORS = [
    {"memory"},
    {
        "checks",
        "files",
        "identifiers",
        "matplotlib_import",
        "nest",
        "numpy_errors",
        "strict_json",
        "terminal",
    },
    {"fields", "tables", "disk_cache", "intervals"},
    {"workloads", "schedule", "participation", "noise"},
    {"mechanisms"},
    {"privacy"},
    {"audits"},
    {"cohorts"},
    {"server"},
    {"runs", "flower"},
    {"training"},
    {"reports", "federated", "pytorch"},
    {"partition", "trackers"},
    {"tasks"},
    {"sweeps"},
    {"experiments"},
    {"cli"},
    {"__main__"},
]
FLOOR = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}
# `fedmf` itself has the public names of all parts above the line; parts below the line may use it
# as users do.
ABOVE_THE_LINE = {part for part, floor in FLOOR.items() if floor < FLOOR["federated"]} | {
    "reports",
    "partition",
    "__init__",
}
FRAMEWORKS = {
    "tensorflow",
    "tensorflow_federated",
    "tensorflow_privacy",
    "keras",
    "jax",
    "torch",
}
# Parts that simulate in any framework, and do not import the one of fedmf.federated.
WITHOUT_A_FRAMEWORK = {"training", "runs", "sweeps"}
SCHEMA_NAMES = {"single", "fixed_epoch", "min_sep", "every_round", "budget"}
MAX_LINES = 520
MAX_UNNAMED = 10  # Most functions with **options, whose allowed names a reader cannot see.
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}


def imports_of(text):
    """Returns (dotted target, line) of every import, with `from a import b` as a.b."""
    found_imports = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found_imports += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "<relative>" if node.level else node.module
            found_imports += [(f"{base}.{alias.name}", node.lineno) for alias in node.names]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in ("import_module", "__import__"):
                is_constant = node.args and isinstance(node.args[0], ast.Constant)
                found_imports.append(
                    (node.args[0].value if is_constant else "<computed>", node.lineno)
                )
    return found_imports


def sources():
    """Returns dotted name -> text of every module that is shipped."""
    source_by_name = {}
    for top in ("fedmf", "tasks", "experiments"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name_parts = path.relative_to(ROOT).with_suffix("").parts
            if top != "fedmf":
                name_parts = ("fedmf", *name_parts)
            name = ".".join(name_parts).removesuffix(".__init__")
            source_by_name[name] = path.read_text()
    assert len(source_by_name) > 100
    return source_by_name


SOURCES = sources()


@functools.cache
def imports():
    """Returns module -> its imports; computed on demand, since every process collects this file."""
    return {name: imports_of(text) for name, text in SOURCES.items()}


def part_of(dotted):
    """Returns the part of fedmf that a dotted name belongs to.

    The result is "__init__" for fedmf's own names, and None for other packages.
    """
    top_name, *inner_names = dotted.split(".")
    if top_name in ("tasks", "experiments"):
        return "<shadowed by a package of the user's>"
    if top_name != "fedmf":
        return None
    return inner_names[0] if inner_names and inner_names[0] in FLOOR else "__init__"


def upward_imports(name, imports):
    """Returns the imports that the layers forbid."""
    own_part = part_of(name)
    forbidden_imports = []
    for target, line in imports:
        target_part = part_of(target)
        if target.startswith("<"):
            is_allowed = False
        elif target_part in (None, own_part):
            is_allowed = True
        elif own_part == "__init__":
            is_allowed = target_part in ABOVE_THE_LINE
        elif target_part == "__init__":
            is_allowed = own_part not in ABOVE_THE_LINE
        else:
            is_allowed = target_part in FLOOR and FLOOR[target_part] < FLOOR[own_part]
        if not is_allowed:
            forbidden_imports.append(f"{name}:{line} imports {target}")
    return forbidden_imports


def modules_in_cycles(graph):
    """Returns the modules that import themselves through other modules."""

    def reach(start):
        reached_modules = set()
        pending_modules = [start]
        while pending_modules:
            new_modules = graph[pending_modules.pop()] - reached_modules
            reached_modules |= new_modules
            pending_modules += new_modules
        return reached_modules

    return {name for name in graph if name in reach(name)}


def unwanted_imports(unwanted):
    """Returns the imports for which `unwanted(part, target)` holds, with their places."""
    return [
        f"{name}:{line} imports {target}"
        for name, module_imports in imports().items()
        for target, line in module_imports
        if unwanted(part_of(name), target)
    ]


def test_every_part_has_a_layer():
    part_names = {name.split(".")[1] for name in SOURCES if "." in name}
    assert part_names <= set(FLOOR), "a new part: give it a floor"


def test_imports_point_down():
    assert [
        forbidden_import
        for name, module_imports in imports().items()
        for forbidden_import in upward_imports(name, module_imports)
    ] == []


def test_modules_do_not_import_each_other_in_cycles():
    graph = {}
    for name, module_imports in imports().items():
        targets = {
            target if target in SOURCES else target.rpartition(".")[0]
            for target, _ in module_imports
        }
        # A package's __init__ imports its modules, and they do not import the package.
        graph[name] = targets & set(SOURCES) - {name, "fedmf"}
    assert modules_in_cycles(graph) == set()


def test_nothing_above_the_line_imports_a_framework():
    assert (
        unwanted_imports(
            lambda part, target: part in ABOVE_THE_LINE and target.split(".")[0] in FRAMEWORKS
        )
        == []
    )


def test_the_simulation_runs_and_sweeps_need_no_framework():
    def unwanted(part, target):
        names = target.split(".")
        return part in WITHOUT_A_FRAMEWORK and (
            names[0] in FRAMEWORKS or names[:2] in (["fedmf", "federated"], ["fedmf", "pytorch"])
        )

    assert unwanted_imports(unwanted) == []


def test_tff_and_tf_privacy_are_imported_in_one_module():
    tff = unwanted_imports(
        lambda part, target: target.startswith(("tensorflow_federated", "tensorflow_privacy"))
    )
    assert {import_place.split(":")[0] for import_place in tff} == {"fedmf.federated.tff"}


def test_files_are_short_and_have_names_of_their_subjects():
    num_lines_by_name = {name: len(text.splitlines()) for name, text in SOURCES.items()}
    long_files = {name: n for name, n in num_lines_by_name.items() if n > MAX_LINES}
    assert long_files == {}, "these hold two subjects: split them"
    assert {name.rpartition(".")[2] for name in SOURCES} & NAMES_THAT_SAY_NOTHING == set()


def schema_names_compared(text):
    """Returns the lines that compare with a schema's name: by ==, as an entry of a list, or as a
    case.
    """
    lines = []
    if not any(name in text for name in SCHEMA_NAMES):
        return lines
    for node in ast.walk(ast.parse(text)):
        operands = []
        if isinstance(node, ast.Compare):
            for operator, operand in zip(node.ops, node.comparators, strict=True):
                if isinstance(operator, ast.Eq | ast.NotEq):
                    operands += [node.left, operand]
                elif isinstance(operand, ast.Tuple | ast.List | ast.Set):
                    operands += operand.elts
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        constants = [operand.value for operand in operands if isinstance(operand, ast.Constant)]
        lines += [node.lineno] if SCHEMA_NAMES.intersection(constants) else []
    return lines


def test_decisions_of_a_schema_are_in_its_class():
    lines_by_name = {
        name: schema_names_compared(text)
        for name, text in SOURCES.items()
        if part_of(name) != "participation"
    }
    comparisons = {name: lines for name, lines in lines_by_name.items() if lines}
    assert comparisons == {}, "ask the schema: give its class a method that says what is decided"
    template = (ROOT / "fedmf/privacy/statement.md.jinja").read_text()
    assert "schema" not in template


def test_few_functions_have_unnamed_options():
    unnamed = [
        name
        for name, text in SOURCES.items()
        # Names of an unpacked TypedDict and of a ParamSpec are known to readers.
        for _ in re.findall(r"\*\*\w+: (?!Unpack\[)\w++(?! \w|\.kwargs)", text)
        if not name.startswith("fedmf.experiments")
    ]
    assert len(unnamed) <= MAX_UNNAMED, unnamed


class TestTheTestItself:
    """Negative controls: each rule detects the mistake that it is for."""

    def broken(self, text, name="fedmf.workloads"):
        return upward_imports(name, imports_of(text))

    def test_upward_imports_are_detected(self):
        for text in [
            "import fedmf",
            "from fedmf import privacy",
            "from .privacy import plan",
            "class A:\n    def f(self):\n        import tasks.stackoverflow",
            "import importlib\nimportlib.import_module('fedmf.federated')",
            "import importlib\nimportlib.import_module('fed' + 'mf')",
        ]:
            assert len(self.broken(text)) == 1, text

    def test_comparisons_with_schema_names_are_detected(self):
        for text in [
            'p.schema == "budget"',
            '"single" != schema',
            'options["schema"] in ("min_sep", "fixed_epoch")',
            'match p.schema:\n    case "every_round":\n        pass',
        ]:
            assert schema_names_compared(text), text
        assert schema_names_compared('"budget" in schema.settings') == []

    def test_cycles_are_detected(self):
        assert modules_in_cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == {
            "a",
            "b",
            "c",
        }
