"""The machine a run sees: its ranks, device and randomness. The only part that may know torch.distributed."""
