"""Sphinx's configuration.

The site builds offline. Every warning and unknown reference is an error (`make docs`).
"""

import functools
import os
import pathlib
import sys
import tomllib

import nbclient
from jupyter_cache.executors import utils as cells

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ["PYTHONPATH"] = str(HERE.parent)  # of the kernels

metadata = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
project = "fedmf"
author = copyright = "fedmf contributors"
version = release = metadata["version"]
# It is empty until the project has a public repository.
repository = metadata.get("urls", {}).get("Repository", "")
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "extensions.mathml",
    "extensions.public_names",
    "extensions.papers",
    "extensions.places",
    "extensions.charts",
    "extensions.notebooks",
    "extensions.pictures",
    "extensions.search_texts",
]
exclude_patterns = ["extensions"]
nitpicky = True

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 4

# Pages are executed at every build: no number on them is older than the code. A cell that fails is
# an error.
nb_execution_mode = "force"
nb_execution_raise_on_error = (
    False  # but a warning with the traceback, which is an error here
)
nb_execution_show_tb = True
# A busy machine is no failure.
nb_execution_timeout = 1200
cells.executenb = functools.partial(nbclient.execute, startup_timeout=600)
nb_merge_streams = True
nb_render_markdown_format = "myst"

# The reference is made without TensorFlow: see CONTRIBUTING.md, "The site".
autodoc_mock_imports = [
    "flwr",
    "torch",
    "grpc",
    "ray",
    "tensorflow",
    "tensorflow_federated",
    "tensorflow_privacy",
    "tree",
]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
smartquotes = False  # of --options they would make dashes
default_role = "py:obj"

html_theme = "furo"
html_title = f"fedmf {release}"
html_theme_options = {}
if repository:
    repository_link = {
        "name": "Source code",
        "url": repository,
        "html": "Source code",
        "class": "",
    }
    html_theme_options["footer_icons"] = [repository_link]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(HERE / "static" / "scorer.js")
html_show_sourcelink = False
html_copy_source = False
# Sphinx fetches snippets of results by script, which browsers refuse for pages that are opened as
# files. Those of extensions/search_texts.py need no request.
html_show_search_summary = False
