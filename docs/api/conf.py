"""The API reference, built from docstrings by `make docs`."""

import re

from sphinx.application import Sphinx

from vitlab import __version__

project = "vitlab"
release = __version__
extensions = ["sphinx.ext.apidoc", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
apidoc_modules = [
    {"path": "../../src/vitlab", "destination": "modules", "separate_modules": True, "module_first": True}
]
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
default_role = "code"  # one backtick is code in our docstrings
exclude_patterns = ["modules/modules.rst"]
html_theme = "furo"
html_title = f"vitlab {__version__}"
html_copy_source = False


def plain_text(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Docstrings are prose with `code`, not reStructuredText: every sign means itself, a table stays as it is."""
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
    app.connect("autodoc-process-docstring", plain_text)
