"""Files inside archives, read where they are: nothing is unpacked to disk."""
