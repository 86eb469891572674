"""The reference: every public name is in it, and signatures link to public names wherever their classes are defined."""

import importlib
import re
from typing import Any, Union

from docutils import nodes
from sphinx.domains.python import PyObject
from sphinx.ext import napoleon
from sphinx.ext.autodoc.mock import _MockObject, mock
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

PACKAGES = ("fedmf", "fedmf.federated")
# Types of these are shown and not linked: their references are on other sites.
_ELSEWHERE = (
    "collections", "dp_accounting", "np", "numpy", "os", "pathlib", "tensorflow", "tensorflow_federated", "tensorflow_privacy", "tf", "tff",
    "tfp", "types", "typing",
)  # fmt: skip


def _public_names(app: Any) -> dict[str, str]:
    """The full name of everything that is public, by where it is defined: fedmf.mechanisms.base.Mechanism is fedmf.Mechanism."""
    names = {}
    with mock(app.config.autodoc_mock_imports):
        for package in map(importlib.import_module, PACKAGES):
            for name in package.__all__:
                thing = getattr(package, name)
                names[f"{thing.__module__}.{thing.__qualname__}"] = f"{package.__name__}.{name}"
    return names


def _resolve(app: Any, env: Any, node: Any, text: nodes.Node) -> nodes.Node | None:
    """A link to the public name; the plain text of code in single backticks, and of types that are documented elsewhere."""
    if node.get("refdomain") != "py":
        return None
    target, names = node.get("reftarget", ""), _public_names(app)
    short = {name.rpartition(".")[2]: name for name in names.values()}
    found = env.domains.python_domain.objects.get(names.get(target) or short.get(target))
    if found is not None:
        return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, text, target)
    if node.get("reftype") == "obj" or target.split(".")[0] in _ELSEWHERE:
        return text
    return None


def _before_napoleon(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Norms such as ||A N|| are no substitutions of reStructuredText."""
    lines[:] = [line if line.lstrip().startswith(">>>") else line.replace("|", r"\|") for line in lines]


def _napoleon(docstring: Any, config: Any, app: Any, what: str, *more: Any) -> GoogleDocstring:
    """A property is documented as a method is: its "words: more words" names no type, and it has sections."""
    return GoogleDocstring(docstring, config, app, "method" if what == "property" else what, *more)


def _after_napoleon(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Fields that are described together are two names; reStructuredText would read a type and a name."""
    for number, line in enumerate(lines):
        if match := re.match(r":(ivar|param) ([\w, ]+, \w+):", line):
            lines[number] = line.replace(match[2], match[2].replace(" ", ""), 1)


def _check(app: Any, env: Any) -> None:
    for name in _public_names(app).values():
        if name not in env.domains.python_domain.objects:
            logging.getLogger(__name__).warning("%s is public and is on no page of docs/reference", name)


def setup(app: Any) -> dict[str, bool]:
    """Connects to the events."""
    # Annotations such as `tf.keras.losses.Loss | None` are computed when a class is made, TensorFlow or not.
    _MockObject.__or__ = _MockObject.__ror__ = lambda self, other: Union[self, other]  # noqa: UP007
    app.connect("missing-reference", _resolve)
    napoleon.GoogleDocstring = _napoleon
    for field in PyObject.doc_field_types:
        field.label = "Attributes" if field.name == "variable" else field.label
    # Napoleon has 500.
    app.connect("autodoc-process-docstring", _before_napoleon, priority=100)
    app.connect("autodoc-process-docstring", _after_napoleon, priority=900)
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
