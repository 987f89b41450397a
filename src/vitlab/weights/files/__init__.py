"""Files of named tensors, read without running any code from them."""
