"""The sources read as those of other libraries of the field do, by counts of names and docstrings.

The limits lie between jax_privacy, fedjax, pfl-research and lineax on one side and this library
before its language was revised on the other. Counts find the mechanical half only: whether a
sentence is clear is for a reader to judge.
"""

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("fedmf", "tasks", "experiments")
MOST_LINES = 50
VAGUE_NAMES = frozenset(
    "above after apart asked before below between both enough every few found given kept known "
    "least left made many more most one ones other others ours own part parts place places rest "
    "said shown some taken theirs there those wanted".split()
)
FIRST_VERB = re.compile(r"(?!(this|its|as|is|has|always)\b)[a-z]+s\b", re.IGNORECASE)
FIRST_CLAUSE = re.compile(r"(what|which|who|how|why|where|of|those|none)\b", re.IGNORECASE)


@dataclasses.dataclass
class Counts:
    """Numbers of what the sources hold."""

    statements: int = 0
    conditional_expressions: int = 0
    parallel_assignments: int = 0
    multiplied_texts: int = 0
    docstrings: int = 0
    clause_docstrings: int = 0
    functions: int = 0
    verb_docstrings: int = 0
    local_names: int = 0
    compound_names: int = 0
    vague_names: int = 0

    def add(self, source: str) -> None:
        """Adds the counts of one source file."""
        for node in ast.walk(ast.parse(source)):
            self._add_expressions(node)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                self._add_docstring(node)
            if isinstance(node, ast.FunctionDef):
                self._add_local_names(node)

    def _add_expressions(self, node: ast.AST) -> None:
        """Counts a node if it is a statement or one of the packed expressions."""
        self.statements += isinstance(node, ast.stmt)
        self.conditional_expressions += isinstance(node, ast.IfExp)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            self.parallel_assignments += isinstance(node.targets[0], ast.Tuple)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            is_text = isinstance(getattr(node.left, "value", None), str)
            is_text |= isinstance(node.left, ast.JoinedStr)
            self.multiplied_texts += is_text and not isinstance(node.right, ast.Constant)

    def _add_docstring(self, node: ast.Module | ast.ClassDef | ast.FunctionDef) -> None:
        """Counts how a docstring begins; a property's begins with a noun."""
        text = ast.get_docstring(node)
        if not text:
            return
        self.docstrings += 1
        self.clause_docstrings += bool(FIRST_CLAUSE.match(text))
        is_reference = text.startswith("See")
        if isinstance(node, ast.FunctionDef) and not is_property(node) and not is_reference:
            self.functions += 1
            self.verb_docstrings += bool(FIRST_VERB.match(text))

    def _add_local_names(self, function: ast.FunctionDef) -> None:
        """Counts the names that a function assigns."""
        names = {
            node.id.strip("_")
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        names.discard("")
        self.local_names += len(names)
        self.compound_names += sum("_" in name for name in names)
        self.vague_names += len(names & VAGUE_NAMES)


def is_property(function: ast.FunctionDef) -> bool:
    """Returns whether a function is read as an attribute."""
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def source_files() -> Iterator[Path]:
    """Yields the source files; symbolic links to folders lead to files that are read anyway."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in (path, *path.parents)):
                yield path


def lines_of_code(function: ast.FunctionDef, source_lines: list[str]) -> int:
    """Returns a function's number of lines without its docstring, comments and blank lines."""
    line_numbers = set(range(function.lineno, (function.end_lineno or function.lineno) + 1))
    if ast.get_docstring(function):
        docstring = function.body[0]
        line_numbers -= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    texts = [source_lines[number - 1].strip() for number in line_numbers]
    return sum(bool(text) and not text.startswith("#") for text in texts)


@pytest.fixture(scope="module")
def counts() -> Counts:
    total = Counts()
    for path in source_files():
        total.add(path.read_text())
    return total


def test_a_fifth_of_local_names_have_two_words(counts):
    assert counts.compound_names >= 0.20 * counts.local_names


def test_few_local_names_are_vague(counts):
    assert counts.vague_names <= 0.02 * counts.local_names


def test_docstrings_of_functions_begin_with_a_verb(counts):
    assert counts.verb_docstrings >= 0.60 * counts.functions


def test_docstrings_do_not_begin_with_a_clause(counts):
    assert counts.clause_docstrings <= 0.015 * counts.docstrings


def test_code_is_not_packed(counts):
    assert counts.conditional_expressions <= 0.015 * counts.statements
    assert counts.parallel_assignments <= 0.005 * counts.statements
    assert counts.multiplied_texts <= 3


def test_few_functions_are_longer_than_fifty_lines():
    long_functions = []
    for path in source_files():
        source = path.read_text()
        source_lines = source.splitlines()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and lines_of_code(node, source_lines) > MOST_LINES:
                long_functions.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert len(long_functions) <= 10, long_functions


def test_each_kind_of_packed_code_is_counted():
    counts = Counts()
    counts.add(
        'def f(x):\n    """What x is."""\n    found, mean_row = 1, 2\n'
        '    return "s" * (x > 1) if x else found + mean_row\n'
    )
    counts.add('def g():\n    """Returns nothing."""\n')
    assert counts == Counts(
        statements=6,
        conditional_expressions=1,
        parallel_assignments=1,
        multiplied_texts=1,
        docstrings=2,
        clause_docstrings=1,
        functions=2,
        verb_docstrings=1,
        local_names=2,
        compound_names=1,
        vague_names=1,
    )
