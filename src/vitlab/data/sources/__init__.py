"""Data sets by format, each a `Source`."""
