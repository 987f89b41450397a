"""Training runs, from a request to a finished run folder."""
