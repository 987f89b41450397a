"""Index files: which samples a data set has, with the size, the hash and the labels of each."""
