"""Convert a .pt or .pth file to safetensors in a child process: `python -m vitlab.weights.files.unpickle IN OUT ENTRY`.

A pickle can run code. Torch's restricted unpickler reads it here, in a separate process that cannot use the network or
start programs, with limits on memory, time and output size. There is no fallback.
"""

import re
import resource
import sys
from pathlib import Path
from typing import NoReturn

from vitlab.process.confinement import GIB, forbid

ENTRIES = ("model", "state_dict")  # under which training code stores the weights: DeiT, timm
WRAPPERS = ("module.", "_orig_mod.")  # DistributedDataParallel, torch.compile


def main() -> None:
    """Read IN and write its named tensors to OUT; the last line of standard error is the reason for a failure."""
    source, target, entry = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    import torch
    from safetensors.torch import save_file

    size = source.stat().st_size
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 10):
        _fail(f"torch {torch.__version__} has known holes in its restricted unpickler; install 2.10 or newer")
    _confine(size)
    try:
        value = torch.load(source, map_location="cpu", weights_only=True, mmap=False)
    except MemoryError:
        _fail("it needs more memory than a file of this size should")
    except Exception as error:  # a hostile file may provoke anything
        refused = re.search(r"GLOBAL ([\w.]{1,100})", str(error))
        what = f"Python objects of {refused[1]}" if refused else "more than plain tensors, or is damaged"
        _fail(f"it contains {what} ({type(error).__name__}); save only its state_dict and try again")
    found, tensors = _tensors(value, entry)
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    try:
        save_file(tensors, target, metadata={"format": "pt", "entry": found})
    except Exception as error:
        _fail(f"its tensors cannot be written: {type(error).__name__}")


def _confine(size: int) -> None:
    """Forbid network access and child processes, and limit memory, time and output, from here on."""
    pages = Path("/proc/self/statm")
    used = int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 8 * GIB
    for limit, value in (
        (resource.RLIMIT_AS, used + 4 * size + GIB),
        (resource.RLIMIT_CPU, 120 + size // 2**24),
        (resource.RLIMIT_FSIZE, 2 * size + 2**24),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
    forbid()


def _tensors(value: object, entry: str) -> tuple[str, dict]:
    """Return the chosen entry and its named tensors: the given entry, or the usual one."""
    import torch

    def named(candidate: object) -> dict[str, torch.Tensor]:
        items = candidate.items() if isinstance(candidate, dict) else ()
        return {k: v for k, v in items if isinstance(k, str) and isinstance(v, torch.Tensor)}

    if not isinstance(value, dict):
        _fail(f"it contains a {type(value).__name__}, not named tensors")
    if entry and entry not in value:
        _fail(f"it has no entry {entry!r}; its entries are {sorted(map(str, value))[:20]}")
    chosen = entry or next((name for name in ENTRIES if named(value.get(name))), "")
    tensors = named(value[chosen] if chosen else value)
    if not tensors:
        _fail(f"no named tensors found; its entries are {sorted(map(str, value))[:20]}; choose one with entry=")
    for wrapper in WRAPPERS:
        if all(name.startswith(wrapper) for name in tensors):
            tensors = {name.removeprefix(wrapper): tensor for name, tensor in tensors.items()}
    return chosen, tensors


def _fail(reason: str) -> NoReturn:
    sys.stderr.write(reason.replace("\n", " ") + "\n")
    sys.exit(3)


if __name__ == "__main__":
    main()
