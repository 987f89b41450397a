"""The documentation site, built by `make docs`: the pages of this folder, and references generated from the code."""

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

from vitlab import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = "vitlab"
release = __version__
extensions = ["myst_parser", "sphinx.ext.apidoc", "sphinx.ext.autodoc"]
apidoc_modules = [
    {"path": "../src/vitlab", "destination": "api/modules", "separate_modules": True, "module_first": True}
]
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
default_role = "code"  # one backtick is code in our docstrings
exclude_patterns = ["_build", "api/modules/modules.rst"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"vitlab {__version__}"
html_copy_source = False


def plain_text(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Escape a docstring, which is prose with `code` and not reStructuredText; keep its tables as they are."""
    written: list[str] = []
    for line in lines:
        if line.startswith("|"):
            written += ["", "::", ""] if not (written and written[-1].startswith("   |")) else []
            written.append(f"   {line}")
        else:
            written += [""] if written and written[-1].startswith("   |") else []
            code = re.split(r"(`[^`]*`)", line)
            written.append("".join(part if part[:1] == "`" else re.sub(r"([*|_\\])", r"\\\1", part) for part in code))
    lines[:] = written


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    from reference import write_references

    write_references()
    app.connect("autodoc-process-docstring", plain_text)
