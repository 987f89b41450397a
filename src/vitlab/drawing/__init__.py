"""Figures and HTML pages: the same bytes for the same numbers, and untrusted names stay text."""
