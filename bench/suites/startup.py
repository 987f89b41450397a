"""Seconds from typing a command to its end, by the clock and of processor time; `import torch` is the baseline.

Every measurement is a new process. vitlab's commands run in the environment's own executable.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.runner import Case, Contestant

ROUNDS = 9
MODEL = 'build_model("ViT-Ti/16")'
TIMM = "from bench.peers import prepare; prepare(); import timm"
IMPORTS = {
    "import torch": "import torch",
    "import vitlab": "import vitlab",
    f"import vitlab; vitlab.{MODEL}": f"import vitlab; vitlab.{MODEL}",
    "import timm": TIMM,
    'import timm; timm.create_model("vit_tiny_patch16_224")': f'{TIMM}; timm.create_model("vit_tiny_patch16_224")',
    "from transformers import ViTForImageClassification": (
        "from bench.peers import prepare; prepare(); from transformers import ViTForImageClassification"
    ),
}
COMMANDS = (("vitlab", "--help"), ("vitlab", "models"), ("vitlab", "--version"))


def cases(is_quick: bool) -> Iterator[Case]:
    made = [_contestant(name, [sys.executable, "-c", code]) for name, code in IMPORTS.items()]
    made += [_contestant(" ".join(words), [_executable(words[0]), *words[1:]]) for words in COMMANDS]
    yield Case("new processes", made[:1] + made[-3:] if is_quick else made)


def _executable(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _contestant(name: str, command: Sequence[str]) -> Contestant:
    def run() -> None:
        subprocess.run(command, check=True, capture_output=True)

    return Contestant(name, lambda: run, is_compared=False)
