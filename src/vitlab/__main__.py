"""Entry point of `vitlab`, `python -m vitlab` and `torchrun --nproc-per-node 2 -m vitlab`."""

import sys

from vitlab.process.busy import choose_before_torch
from vitlab.process.interrupts import leave_when_interrupted


def start() -> int:
    """Run the command line; it is imported here, so that Ctrl-C ends the process cleanly during the import."""
    leave_when_interrupted()
    choose_before_torch()
    from vitlab.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(start())
