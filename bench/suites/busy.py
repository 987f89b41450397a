"""Images per second of a forward pass beside two busy loops, as a multiple of timm's eager model there.

The contestants are those of the suite `inference`, in one process whose threads wait as OMP_WAIT_POLICY says.
"""

from collections.abc import Iterator

from bench.runner import Case
from bench.suites.inference import inference_case

ROUNDS = 5
LOOPS = 2


def cases(is_quick: bool) -> Iterator[Case]:
    for name in ("ViT-Ti/16",) if is_quick else ("ViT-Ti/16", "ViT-B/16"):
        yield inference_case(name, 8, beside=LOOPS)
