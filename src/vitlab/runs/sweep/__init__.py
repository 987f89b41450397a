"""Sweeps: many fine-tuning runs, one choice, one result."""
