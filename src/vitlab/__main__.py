"""`vitlab` and `python -m vitlab`, which is also how torchrun starts it: torchrun --nproc-per-node 2 -m vitlab ..."""

import sys


def start() -> int:
    """Run the command line; it is imported here, so that an interrupt has an answer while that takes its time."""
    try:
        from vitlab.cli import main
    except KeyboardInterrupt:
        sys.stderr.write("vitlab: stopped; nothing was begun\n")
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(start())
