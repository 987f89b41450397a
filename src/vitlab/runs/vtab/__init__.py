"""VTAB-1k: check and pack its image sets, and measure a model on its 19 tasks."""
