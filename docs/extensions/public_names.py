"""The reference: every public name is in it, and signatures link to public names wherever their
classes are defined.

UNPLACED on a page of docs/reference stands for public names that no page names.
"""

import importlib
import inspect
import pathlib
import re
import sys
from typing import Any, Union

from docutils import nodes
from sphinx.domains.python import PyObject
from sphinx.ext import napoleon
from sphinx.ext.autodoc.mock import _MockObject, mock
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.util.nodes import make_refnode

PACKAGES = ("fedmf", "fedmf.pytorch", "fedmf.federated", "fedmf.flower", "fedmf.partition")
# Types of these are shown and not linked: their references are on other sites.
_ELSEWHERE = (
    "collections", "dp_accounting", "flwr", "np", "numpy", "os", "pathlib", "tensorflow",
    "tensorflow_federated", "tensorflow_privacy", "tf", "tff",
    "tfp", "torch", "types", "typing",
)  # fmt: skip


def _public_things(app: Any) -> dict[str, Any]:
    """Everything that is public, by its full name."""
    with mock(app.config.autodoc_mock_imports):
        packages = [importlib.import_module(package) for package in PACKAGES]
        return {
            f"{package.__name__}.{name}": getattr(package, name)
            for package in packages
            for name in package.__all__
        }


def _exists(target: str) -> bool:
    """Whether fedmf has a thing of this name, private or public."""
    module, _, name = target.rpartition(".")
    return hasattr(sys.modules.get(module), name)


def _resolve(app: Any, env: Any, node: Any, text: nodes.Node) -> nodes.Node | None:
    """A link to the public name; plain text for code in single backticks, types inside fedmf, and
    what other sites document.
    """
    if node.get("refdomain") != "py":
        return None
    target = node.get("reftarget", "")
    # By where they are defined, since fedmf.mechanisms.base.Mechanism is fedmf.Mechanism, and by
    # the last word.
    things = _public_things(app)
    homes = {f"{thing.__module__}.{thing.__qualname__}": name for name, thing in things.items()}
    short = {name.rpartition(".")[2]: name for name in things}
    found = env.domains.python_domain.objects.get(homes.get(target) or short.get(target))
    if found is not None:
        return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, text, target)
    if node.get("reftype") == "obj" or target.split(".")[0] in _ELSEWHERE or _exists(target):
        return text
    return None


def _before_napoleon(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Norms such as ||A N|| are no substitutions of reStructuredText."""
    lines[:] = [
        line if line.lstrip().startswith(">>>") else line.replace("|", r"\|") for line in lines
    ]


def _napoleon(docstring: Any, config: Any, app: Any, what: str, *more: Any) -> GoogleDocstring:
    """A property is documented as a method is: its "words: more words" names no type,
    and it has sections.
    """
    return GoogleDocstring(docstring, config, app, "method" if what == "property" else what, *more)


def _after_napoleon(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Fields that are described together are two names; reStructuredText would read
    a type and a name.
    """
    for number, line in enumerate(lines):
        if match := re.match(r":(ivar|param) ([\w, ]+, \w+):", line):
            lines[number] = line.replace(match[2], match[2].replace(" ", ""), 1)


def _place(app: Any, page: str, source: list[str]) -> None:
    if "UNPLACED" not in source[0]:
        return
    text = "".join(path.read_text() for path in pathlib.Path(app.srcdir).glob("reference/*.md"))
    placed = set(re.findall(r"auto\w+:: ([\w.]+)", text))
    things = {
        name: thing
        for name, thing in _public_things(app).items()
        if not {name, name.rpartition(".")[2]} & placed
    }
    directives = [
        f".. autoclass:: {name}\n   :members:"
        if inspect.isclass(thing)
        else f".. autofunction:: {name}"
        for name, thing in things.items()
    ]
    source[0] = source[0].replace("UNPLACED", "\n\n".join(directives))


def setup(app: Any) -> dict[str, bool]:
    """Connects to the events."""
    # Annotations such as `tf.keras.losses.Loss | None` are computed when a class is made,
    # TensorFlow or not.
    _MockObject.__or__ = _MockObject.__ror__ = lambda self, other: Union[self, other]  # noqa: UP007
    app.connect("missing-reference", _resolve)
    napoleon.GoogleDocstring = _napoleon
    for field in PyObject.doc_field_types:
        field.label = "Attributes" if field.name == "variable" else field.label
    # Napoleon has 500.
    app.connect("autodoc-process-docstring", _before_napoleon, priority=100)
    app.connect("autodoc-process-docstring", _after_napoleon, priority=900)
    app.connect("source-read", _place)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
