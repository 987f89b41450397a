"""`require`: the one-line check of what a user or a file gives. Standard library only."""


def require(holds: bool, message: str) -> None:
    """Raise a ValueError with `message` unless the claim holds."""
    if not holds:
        raise ValueError(message)
