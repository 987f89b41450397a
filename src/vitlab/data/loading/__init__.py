"""From a source to batches: sample order, workers, accounting."""
