"""Experiments whose printed output is committed in evidence/: `python -m bench.experiments.NAME` from the root."""
