"""Near-duplicates: training images that are also in a test set, edited or not."""
