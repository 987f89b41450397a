"""The image sets behind the 19 tasks of VTAB-1k, read from the files that their authors publish."""
