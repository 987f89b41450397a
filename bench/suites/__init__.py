"""What is measured: every module here has a docstring, `ROUNDS` and `cases(is_quick)`, which yields `Case` objects.

Cases are made one at a time, and so are their contestants, so that one case's models are gone before the next one's.
"""

import importlib
from types import ModuleType

# In the order in which `bench run` runs them and `bench list` names them.
SUITES = (
    *("startup", "data", "inference", "levers", "merging", "patterns", "swin", "busy"),
    *("endtoend", "export", "training", "memory", "fewshot", "waiting", "page", "serve"),
)


def open_suite(name: str) -> ModuleType:
    """Import a suite."""
    return importlib.import_module(f"bench.suites.{name}")
