"""`python -m vitlab.costing`: the process that measures, which `children.py` starts."""

from vitlab.process.busy import choose_before_torch


def start() -> None:
    """Choose how torch's threads wait, then carry out the task of standard input."""
    choose_before_torch()
    from vitlab.costing.child import main

    main()


if __name__ == "__main__":
    start()
