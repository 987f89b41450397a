"""Released weights by name: catalogue, download, cache."""
