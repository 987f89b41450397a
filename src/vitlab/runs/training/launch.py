"""A run on as many ranks as the launcher has started: the first makes or opens the folder, then all carry it out."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vitlab.changes import with_fields
from vitlab.data.fingerprint import DataCard
from vitlab.data.loading.workers import check_workers
from vitlab.recipe import SHARDS, Execution
from vitlab.require import require
from vitlab.run_dir import RUN, RunDir, RunSpec, check_new
from vitlab.runs.progress import announced, say
from vitlab.runs.training.data import Material, material_of, open_data
from vitlab.runs.training.request import create, free_folder
from vitlab.runs.training.trainer import AS_BEFORE, Places, carry_out
from vitlab.strict_json import from_json
from vitlab.world.group import TIMEOUT, World, join, may_restart, restarts

PATIENCE = 600.0  # seconds: between two exchanges of a measurement a slow disk may take its time


@contextlib.contextmanager
def together(device: str, console: Console, timeout: float = PATIENCE) -> Iterator[tuple[World, Console]]:
    """The ranks of a command that measures, and where this one prints: the first is heard of."""
    with join(device, timeout) as world:
        yield world, console if world.leads else Console(quiet=True)


def begin_together(
    out: Path | None,
    names: tuple[str, str],
    data: str,
    execution: Execution,
    make: Callable[[DataCard, Console], RunSpec],
    console: Console,
    *,
    is_wanted: bool,
) -> tuple[int, Path | None]:
    """Make a run by its data and train it; (exit code, its folder, on the first rank only, which speaks for all).

    When a launcher starts failed ranks again, the run that they had begun in `out` goes on.
    """
    with join(execution.device, execution.timeout) as world, contextlib.ExitStack() as stack:
        screen = console if world.leads else Console(quiet=True)
        life = world.agree(restarts())  # the launcher of a machine where nothing failed counts none
        opened: list[Material] = []  # on the first rank; the others open their own to carry the run out

        def begin() -> str:
            require(
                out is not None or not may_restart(),
                "ranks that are restarted must know their run: give --out, or torchrun --max-restarts 0",
            )
            check_workers(execution.workers)
            path = out or free_folder(Path("runs"), *names)
            goes_on = life and (path / RUN).is_file()
            if not goes_on:
                check_new(path)  # before the data takes its time
            with announced(screen, f"opening {data} ..."):
                found = open_data(data)
            spec = _with_shards(make(found.card, screen), world)
            if goes_on:
                say(screen, f"restart {life}: the run in {path} goes on")
                _check_same(RunDir(path).spec(), spec, path)
                opened.append(material_of(spec, found, from_json(DataCard, RunDir(path).card())))
            else:
                opened.append(material_of(spec, found))
                made = create(path, spec, opened[0], screen, is_wanted=is_wanted)
                stack.enter_context(made.withdrawn_unless_begun())
            return str(path)

        path = Path(world.first(begin))
        run = RunDir(path, writes=world.leads)
        code = carry_out(run, screen, material=opened[0] if opened else None, world=world)
        return code, path if world.leads else None


def resume_together(
    path: Path,
    console: Console,
    *,
    places: Places = AS_BEFORE,
    changes: tuple[tuple[str, str], ...] = (),
    allow_changed: bool = False,
) -> tuple[int, Path | None]:
    """Continue a run on as many ranks as there are now; `changes` are fields of its execution. See `begin_together`."""
    try:
        asked = with_fields(RunDir.open(path).spec().execution, changes)
        timeout, device = asked.timeout, asked.device
    except (OSError, ValueError):  # told below, by the first rank alone
        timeout, device = TIMEOUT, "auto"
    with join(device, timeout) as world:
        world.first(lambda: with_fields(RunDir.open(path).spec().execution, changes) and None)
        run = RunDir(path, writes=world.leads)
        screen = console if world.leads else Console(quiet=True)
        execution = with_fields(run.spec().execution, changes) if changes else None
        code = carry_out(run, screen, places=places, execution=execution, allow_changed=allow_changed, world=world)
        return code, path if world.leads else None


def _with_shards(spec: RunSpec, world: World) -> RunSpec:
    """With as many shards as any number of ranks will take, where sums or partners must not depend on that number."""
    recipe, is_exact = spec.recipe, spec.execution.exact_elastic
    if recipe.shards > 1 or not (is_exact or (recipe.mixes and world.ranks > 1)):
        return spec
    wanted = SHARDS if is_exact else max(SHARDS, world.ranks)  # exact ones are the same on any number of ranks
    return replace(spec, recipe=replace(recipe, shards=min(wanted, recipe.batch)))


def _check_same(found: RunSpec, asked: RunSpec, path: Path) -> None:
    same = replace(asked, recipe=replace(asked.recipe, shards=found.recipe.shards), execution=found.execution)
    require(same == found, f"{path} holds another run than the one asked for; choose another --out")
