"""Checkpoints: their files, their tensors, and how they survive a crash."""
