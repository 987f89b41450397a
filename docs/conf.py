"""The documentation site, built by `make docs`: the pages of this folder, and references generated from the code."""

import functools
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain

from vitlab import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = "vitlab"
release = __version__
extensions = ["myst_parser", "sphinx.ext.apidoc", "sphinx.ext.autodoc"]
apidoc_modules = [
    {"path": "../src/vitlab", "destination": "api/modules", "separate_modules": False, "module_first": True}
]
autodoc_use_type_comments = False
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
default_role = "code"  # one backtick is code in our docstrings
exclude_patterns = ["_build", "api/modules/modules.rst"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"vitlab {__version__}"
html_copy_source = False
html_show_copyright = False


def plain_text(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Escape a docstring, which is prose with `code` and not reStructuredText; keep tables and indented parts as is."""
    written: list[str] = []
    is_list = is_literal = False
    for line in lines:
        if line.strip():
            is_list = line.startswith("- ") or (is_list and line.startswith(" "))
        if line.startswith("|") or (line.startswith(" ") and not is_list):
            written += [] if is_literal else ["", "::", ""]
            is_literal = True
            written.append(f"   {line}")
        elif not line.strip():
            written.append("")
        else:
            written += [""] if is_literal else []
            is_literal = False
            code = re.split(r"(`[^`]*`)", line)
            written.append("".join(part if part[:1] == "`" else re.sub(r"([*|_\\])", r"\\\1", part) for part in code))
    lines[:] = written


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    from reference import write_references

    write_references()
    PythonDomain.find_obj = functools.cache(PythonDomain.find_obj)  # searches all names for every annotation
    app.connect("autodoc-process-docstring", plain_text)
