"""Ranks, device and random seeds of a run. The only part that may import torch.distributed."""
