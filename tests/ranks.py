"""Several ranks as processes of their own on this machine, over gloo, and what they leave behind."""

import bisect
import contextlib
import io
import json
import multiprocessing
import os
import random
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import save_file

from crashes import code_of, on_step, start
from vitlab.cli import main
from vitlab.data.loading.batches import share
from vitlab.models.build import build_from_spec
from vitlab.run_dir import CHECKPOINTS, RunDir, RunSpec
from vitlab.runs.training.state import initial_state, sharded_state
from vitlab.runs.training.trainer import train_run
from vitlab.spec import ViTSpec
from vitlab.spec.recipe import AdamW, Execution, Recipe, Schedule
from vitlab.train.checkpoints.checkpoints import Checkpoints
from vitlab.train.state import TrainState
from vitlab.train.update import Examples, Update, recompute_activations
from vitlab.world.group import World, join
from vitlab.world.parallel import is_cut, spread_weights, whole, wrapped

TIMEOUT = 120.0  # seconds; a busy machine is no frozen rank


def free_port() -> int:
    """A port that nothing listens on, from below those that kernels give to who asks for any, so it stays free."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def start_ranks(
    ranks: int, act: Callable[..., object], *arguments: object, said: Path | None = None
) -> list[BaseProcess]:
    """Start `act(*arguments)` in as many processes as ranks, as a launcher would; complaints go to `said`."""
    port = free_port()
    return [start(_as_rank, rank, ranks, port, said, act, arguments) for rank in range(ranks)]


def codes_of(children: list[BaseProcess]) -> list[int]:
    """The exit codes of ranks that all end by themselves."""
    try:
        return [code_of(child) for child in children]
    finally:
        for child in children:
            child.kill()


def run_ranks(ranks: int, act: Callable[..., object], *arguments: object, said: Path | None = None) -> list[int]:
    """Start ranks, wait for them, return their exit codes."""
    return codes_of(start_ranks(ranks, act, *arguments, said=said))


def _as_rank(rank: int, ranks: int, port: int, said: Path | None, act: Callable[..., object], arguments: tuple) -> None:
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)  # of workers, as in a program of its own
    for name in [name for name in os.environ if name.startswith(("TORCHELASTIC", "LOCAL_"))]:
        del os.environ[name]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    if said is not None:
        with said.open("a") as file:
            os.dup2(file.fileno(), 2)
    code: object = 70
    try:
        code = act(*arguments) or 0
    except SystemExit as leaving:
        code = leaving.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 70)


SPEC = ViTSpec(patch=4, layers=2, width=18, mlp=32, heads=2, image=(8, 8), classes=5)
RECIPE = Recipe(
    name="steps",
    source="tests",
    batch=22,
    image=(8, 8),
    schedule=Schedule(peak=0.01, total=100, warmup=0, decay="constant"),
    optimizer=AdamW(clip=1.0),
)


def take_steps(
    out: Path, recipe: Recipe, execution: Execution, steps: int, poison: int = -1, dropout: float = 0.0
) -> None:
    """What each rank does: some updates with its shares of the same batches; the first writes what came of it.

    The examples are drawn from the number of the step; number `poison` of the second step is not a number.
    """
    spec = RunSpec(
        format="vitlab-run",
        version=1,
        kind="pretrain",
        model=replace(SPEC, dropout=dropout),
        recipe=recipe,
        data="",
        execution=execution,
    )
    with join("cpu", TIMEOUT) as world:
        state = _any_state(spec, world)
        if execution.recompute:
            recompute_activations(state.module)
        parallel = wrapped(state.module, world, is_exact=execution.exact_elastic)
        update = Update(recipe, execution, seed=3, prepare=lambda x: x, world=world, parallel=parallel)
        reports, shares = [], []
        for step in range(steps):
            rng = np.random.default_rng(step)
            inputs = torch.from_numpy(rng.normal(size=(recipe.batch, 3, 8, 8))).float()
            targets = torch.nn.functional.one_hot(torch.from_numpy(rng.integers(0, 5, recipe.batch)), 5).float()
            if step == 1 and poison >= 0:
                inputs[poison] = float("nan")
            own = share(range(recipe.batch), world.rank, world.ranks, recipe.shards)
            ends = [recipe.batch * (number + 1) // recipe.shards for number in range(recipe.shards)]
            sizes = dict(Counter(bisect.bisect_right(ends, position) for position in own))
            chosen = slice(own.start, own.stop)
            report = update(state, parallel.forward, Examples(inputs[chosen], targets[chosen], sizes))
            reports.append(asdict(report))
            shares.append(list(own))
            state.progress.step += 1
        found = {f"weights/{n}": whole(t) for n, t in state.module.named_parameters()}
        found |= {f"gradients/{n}": whole(t.grad) for n, t in state.module.named_parameters() if t.grad is not None}
        if state.average is not None:
            found |= {f"average/{n}": whole(t) for n, t in state.average.named_parameters()}
        told = world.gather({"reports": reports, "shares": shares, "cut": is_cut(state.module)})
        if world.leads:
            save_file({name: tensor.detach().contiguous() for name, tensor in found.items()}, out)
            out.with_suffix(".json").write_text(json.dumps(told))


def _any_state(spec: RunSpec, world: World) -> TrainState:
    """Random weights everywhere, a zero head would prove nothing; the same on all ranks, cut where that is asked."""
    module = build_from_spec(spec.model, seed=2)
    for head in (module.head.logits.weight, module.head.logits.bias):
        torch.nn.init.normal_(head, std=0.1, generator=torch.Generator().manual_seed(0))
    if spec.execution.parallel == "fsdp" and world.ranks > 1:
        state = sharded_state(spec, torch.device("cpu"), world, is_empty=True)
        for part in (state.module, state.average):
            if part is not None:
                spread_weights(part, module if world.leads else None, world)
        return state
    state = initial_state(spec, torch.device("cpu"))
    for part in (state.module, state.average):
        if part is not None:
            part.load_state_dict(module.state_dict())
    return state


def on_rank_and_step(world: World, rank: int, step: int, act: Callable[..., None], *arguments: object) -> None:
    """Do something in one rank when it has done a step."""
    if world.rank == rank:
        on_step(step, act, *arguments)


def signal_self(number: int) -> None:
    os.kill(os.getpid(), number)


def fail(message: str) -> None:
    raise ValueError(message)


def resume_command(path: Path, *flags: str) -> int:
    """What each rank does: `vitlab resume`."""
    return main(["resume", str(path), "--timeout", str(TIMEOUT), *flags])


def heard_command(path: Path, heard: Path) -> int:
    """What each rank does: `vitlab resume`, whose words, not its complaints, go to `heard`."""
    with heard.open("a") as file, contextlib.redirect_stdout(file):
        return resume_command(path)


def disturbed_command(path: Path, timeout: float, disturb: Callable[..., None], *arguments: object) -> int:
    """What each rank does: `vitlab resume`, after `disturb` has made the world worse for one of them."""
    disturb(World(rank=int(os.environ["RANK"]), ranks=int(os.environ["WORLD_SIZE"])), *arguments)
    return main(["resume", str(path), "--timeout", str(timeout)])


def read_state(path: Path, out: Path) -> None:
    """What each rank does: restore the run's newest checkpoint; the first writes all tensors, whole."""
    with join("cpu", TIMEOUT) as world:
        spec = RunDir(path).spec()
        is_cut = spec.execution.parallel == "fsdp" and world.ranks > 1
        device = torch.device("cpu")
        state = sharded_state(spec, device, world, is_empty=True) if is_cut else initial_state(spec, device)
        checkpoints = Checkpoints(path / CHECKPOINTS, keep=1, environment={}, world=world)
        restored = checkpoints.restore(state)
        found = {f"{g}/{n}": whole(t).clone() for g, tensors in state.groups().items() for n, t in tensors.items()}
        if world.leads:
            save_file(found, out, metadata={"step": str(restored.step)})


def carry_on_together(
    path: Path, timeout: float = TIMEOUT, prepare: Callable[..., None] | None = None, *arguments: object
) -> int:
    """What each rank does: the run from where it is, after `prepare` has made the world worse for one of them."""
    with join("cpu", timeout) as world:
        if prepare is not None:
            prepare(world, *arguments)
        return train_run(RunDir(path, writes=world.leads), Console(file=io.StringIO()), world=world)
