"""The service: HTTP in front, one process with the models behind, and nothing untrusted decoded in between."""
