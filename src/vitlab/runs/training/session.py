"""What every part of training a run needs."""

from dataclasses import dataclass

from rich.console import Console

from vitlab.run_dir import RunDir, RunSpec
from vitlab.world.group import World


@dataclass(frozen=True)
class Session:
    """One process's work on a run: the folder, what to train, where to print, and the other ranks."""

    run: RunDir
    spec: RunSpec
    console: Console
    world: World
