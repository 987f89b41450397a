"""`require`: a one-line check of input from a user or a file. Standard library only."""


def require(holds: bool, message: str) -> None:
    """Raise a ValueError with `message` unless `holds` is true."""
    if not holds:
        raise ValueError(message)
