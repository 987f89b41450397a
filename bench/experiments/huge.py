"""One sharded training step of a huge model: FSDP2 on two ranks with recomputed activations, and its checkpoint.

A run of one step, as `vitlab pretrain` would carry it out: fresh weights drawn by the first rank and dealt out a
tensor at a time, a checkpoint before and after the step that each rank writes a part of, the model put together
at the end. Then one process alone verifies the checkpoint, loads it, and compares the weights with that folder. Peak
memory is each process's largest resident size, which counts files that it has mapped; about 15 GB of disk are needed.
glibc is told to give large blocks back (MALLOC_MMAP_THRESHOLD_): it would keep as much again as the blocks of a layer.
    python -m bench.experiments.huge ViT-H/14 > evidence/huge.txt
    python -m bench.experiments.huge ViT-Ti/16        # to see that it works
"""

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS, BATCH = 2, 2


def spec_of(name):
    from vitlab.paper.models import model_spec
    from vitlab.run_dir import RunSpec
    from vitlab.spec.recipe import AdamW, Execution, Recipe, Schedule

    recipe = Recipe(
        name="one step",
        source="bench/experiments/huge.py",
        batch=BATCH,
        image=(224, 224),
        schedule=Schedule(peak=1e-3, total=1, warmup=0, decay="constant"),
        optimizer=AdamW(clip=1.0),
        loss="sigmoid",
    )
    return RunSpec(
        format="vitlab-run",
        version=1,
        kind="pretrain",
        model=model_spec(name, image=(224, 224), classes=1000),
        recipe=recipe,
        data="fractals?classes=1000&images=1",
        execution=Execution(parallel="fsdp", recompute=True, save_every=100, timeout=600.0),
    )


def say(text):
    print(text, flush=True)


def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**30


def train(path):
    """What each rank does."""
    from rich.console import Console

    from vitlab.run_dir import RunDir
    from vitlab.runs.training.trainer import train_run
    from vitlab.world.group import join

    began = time.perf_counter()
    with join("cpu", 600.0) as world:
        code = train_run(RunDir(path, writes=world.leads), Console(quiet=True), world=world)
        told = world.gather([peak(), time.perf_counter() - began])
        if world.leads:
            (step,) = RunDir(path).events("step")
            say(
                f"the step: loss {step['loss']:.4f}, gradient norm {step['gradient_norm']:.4f}, {step['images']} images"
            )
            for rank, (memory, seconds) in enumerate(told):
                say(f"rank {rank}: peak {memory:.2f} GiB, {seconds:.0f} s for the whole run")
        return code


def load(path):
    """What one process alone does with the checkpoint of all."""
    import torch
    from safetensors import safe_open

    from vitlab.run_dir import CHECKPOINTS, RunDir
    from vitlab.runs.training.state import initial_state
    from vitlab.train.checkpoints.checkpoints import Checkpoints
    from vitlab.train.checkpoints.files import verify_checkpoint

    folder = path / CHECKPOINTS / "step-00000001"
    parts = sorted(folder.glob("*.safetensors"))
    say(f"the checkpoint: {len(parts)} parts, {sum(part.stat().st_size for part in parts) / 2**30:.2f} GiB")
    began = time.perf_counter()
    verify_checkpoint(folder)
    say(f"verified by one process: every SHA-256 holds, {time.perf_counter() - began:.0f} s")
    state = initial_state(RunDir(path).spec(), torch.device("cpu"))
    restored = Checkpoints(path / CHECKPOINTS, keep=2, environment={}).restore(state)
    assert restored is not None
    assert restored.step == 1
    with safe_open(path / "model" / "weights.safetensors", "pt") as model:
        same = sum(torch.equal(tensor, model.get_tensor(name)) for name, tensor in state.module.state_dict().items())
        names = len(model.keys())
    moments = sum(len(kept) for kept in state.optimizer.state.values())
    say(f"loaded on one rank: {same} of {names} tensors are bit for bit those of the model folder, {moments} of Adam")
    say(f"one process: peak {peak():.2f} GiB")
    return 0 if same == names else 1


def child(what, path, rank, port):
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    environment |= {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
    environment |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS if what == "train" else 1)}
    return subprocess.Popen([sys.executable, __file__, what, str(path)], env=environment)


def main(name):
    from vitlab.counting import count_spec
    from vitlab.files.strict_json import to_json
    from vitlab.run_dir import RunDir
    from vitlab.runs.training.data import open_run_data

    spec = spec_of(name)
    say(f"{name}: {count_spec(spec.model).parameters / 1e6:.0f} M parameters, {RANKS} ranks, {BATCH} images, fp32")
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        path = Path(folder) / "run"
        RunDir.create(path, spec, to_json(open_run_data(spec).card))
        for what, number in (("train", RANKS), ("load", 1)):
            codes = [process.wait() for process in [child(what, path, rank, port) for rank in range(number)]]
            assert codes == [0] * number, codes


if __name__ == "__main__":
    if sys.argv[1] in ("train", "load"):
        sys.exit({"train": train, "load": load}[sys.argv[1]](Path(sys.argv[2])))
    main(sys.argv[1])
