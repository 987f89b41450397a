"""One reader per image set: files -> the keys, labels and images of a TFDS split."""
