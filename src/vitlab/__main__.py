"""`python -m vitlab`, which is also how torchrun starts it: torchrun --nproc-per-node 2 -m vitlab pretrain ..."""

import sys

from vitlab.cli import main

if __name__ == "__main__":
    sys.exit(main())
