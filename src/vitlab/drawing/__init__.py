"""How figures and pages are made: the same bytes for the same numbers, and no name of a stranger that can run."""
