"""How Sphinx builds the documentation: ``sphinx-build -W docs docs/_build/html``."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

from docstrings import to_restructured_text
from generated import insert_generated

from sb3_nopg import __version__

project = "sb3-nopg"
author = "the authors of sb3-nopg"
copyright = "the authors of sb3-nopg, MIT licence"
version = release = __version__

# The last one brings MathJax along: the pages are read beside rigs that have no network.
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",
]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = "sb3-nopg"
html_static_path = ["static"]
html_css_files = ["wrap.css"]
# An option that begins with two dashes must not become a typographer's dash.
smartquotes = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100


def _process_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = to_restructured_text(lines)


def _source_read(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = insert_generated(source[0])


def setup(app: Sphinx) -> None:
    """
    :param app: Sphinx
    """
    app.connect("autodoc-process-docstring", _process_docstring)
    app.connect("source-read", _source_read)
