"""Other libraries' names and layouts for the same tensors."""
