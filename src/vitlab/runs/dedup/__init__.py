"""`vitlab data dedup`: find the near-duplicates of test images in training data."""
