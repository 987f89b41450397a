"""The run browser: a folder of runs as JSON values and pictures, for a page that follows them."""
