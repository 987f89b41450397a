"""The commands that are longer than a screen, by the part of the work they belong to; `cli.py` has the table."""
