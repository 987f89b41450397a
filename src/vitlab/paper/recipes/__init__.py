"""The papers' training recipes, ready to run."""
