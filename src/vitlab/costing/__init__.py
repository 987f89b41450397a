"""What a model costs on this machine: images per second, memory, and the largest batch, measured in child processes."""
