"""Weights of every format that loads, damaged at random and loaded.

This runs in a process of its own, so that a crash of the interpreter is seen as one. Progress goes to standard error,
the account of all outcomes to a JSON file.
"""

import json
import os
import random
import re
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from vitlab import load_model, save_model
from vitlab.errors import WeightsWarning
from vitlab.files.store import MANIFEST, json_writer, sha256
from vitlab.models.build import Model, build_from_spec
from vitlab.spec import CONVENTIONS, Backbone, ModelSpec, ResNetSpec, SwinSpec, ViTSpec
from vitlab.weights.files import unpickle
from vitlab.weights.files.containers import WeightsError
from vitlab.weights.files.npz import write_npz
from vitlab.weights.formats import bit, google, swin, timm, timm_resnet, torchvision
from vitlab.weights.formats.preprocessing import metadata
from vitlab.weights.save import translated

PLAIN = ViTSpec(2, 1, 8, 8, 2, (4, 4), 3, head="linear")
HYBRID = replace(PLAIN, patch=1, image=(8, 8), backbone=Backbone((1,), 2))
RESNET = ResNetSpec((1, 1), 2, (16, 16), 3)
SWIN = SwinSpec((1, 1), 2, 1, window=2, image=(16, 16), classes=3)
FOLDERS: dict[str, ViTSpec] = {
    "vitlab": PLAIN,
    "timm folder": replace(PLAIN, conventions=CONVENTIONS["timm"]),
    "hf": replace(PLAIN, conventions=CONVENTIONS["hf"]),
}
# Smaller than other libraries could run, so that the tables are written without asking save_model.
FILES: dict[str, tuple[ModelSpec, Callable]] = {
    "google-npz": (PLAIN, google.table),
    "hybrid npz": (HYBRID, google.table),
    "BiT npz": (RESNET, bit.table),
    "BiT npz, numbered": (RESNET, bit.table),
    "BiT npz of big_vision": (replace(RESNET, conventions=bit.BIG_VISION), bit.table),
    "timm": (PLAIN, timm.table),
    "timm hybrid": (HYBRID, timm.table),
    "timm distilled": (replace(PLAIN, distilled=True), timm.table),
    "timm BiT": (RESNET, timm_resnet.table),
    "torchvision": (PLAIN, torchvision.table),
    "Swin of Microsoft": (SWIN, swin.table_microsoft),
    "Swin of timm": (SWIN, swin.table_timm),
    "Swin of Hugging Face": (SWIN, swin.table_hf),
}
PICKLES = ("torch .pth of DeiT", "torch .pth, old stream")
KINDS = (*FOLDERS, *FILES, *PICKLES)
RESEALED = 0.5  # of vitlab's folders, whose manifest is made to agree with the damage


@dataclass
class Account:
    """What became of the files of one kind; a crash ends the process and has no account."""

    kind: str
    files: int = 0
    equal: int = 0  # loaded as the same model
    other: int = 0  # loaded as another: the damage hit a number, which no checksum guards
    refused: int = 0
    reasons: int = 0
    slowest: float = 0.0  # seconds of CPU
    grown: int = 0  # MB of memory
    seconds: float = 0.0
    seen: set[str] = field(default_factory=set)


def write_good(kind: str, folder: Path) -> Path:
    """Sound weights of a kind, as small as can be."""
    if kind in FOLDERS:
        save_model(build_from_spec(FOLDERS[kind]), folder / "good", kind.split()[0])
        return folder / "good"
    spec, table = FILES.get(kind, FILES["timm"])
    tensors = build_from_spec(spec).state_dict()
    tensors = translated(tensors, table(spec, {name: t.shape for name, t in tensors.items()}, None), spec)
    if kind in PICKLES:
        path = folder / "good.pth"
        torch.save({"model": tensors}, path, _use_new_zipfile_serialization=kind == PICKLES[0])
    elif "npz" in kind:
        path = folder / "good.npz"
        if "numbered" in kind:
            tensors = {re.sub("(?<=_conv2d)", f"_{n}", name): t for n, (name, t) in enumerate(tensors.items())}
        write_npz(path, tensors)
    else:
        path = folder / "good.safetensors"
        save_file(tensors, path, metadata=metadata(spec))
    return path


def mutate(data: bytes, rng: random.Random, head: int) -> bytes:
    """Bytes with one to sixteen changes, most of them in the first `head`."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        where = rng.randrange(head if rng.random() < 0.8 else len(damaged)) if damaged else 0
        action = rng.randrange(9)
        if not damaged or action == 0:
            return bytes(damaged[:where])
        where = min(where, len(damaged) - 1)
        if action == 1:
            damaged[where] ^= 1 << rng.randrange(8)
        elif action == 2:
            damaged[where] = rng.randrange(256)
        elif action == 3:
            del damaged[where : where + rng.randrange(1, 64)]
        elif action == 4:
            damaged[where:where] = rng.randbytes(rng.randrange(1, 64))
        elif action == 5:
            other = rng.randrange(len(damaged))
            damaged[where : where + 32] = damaged[other : other + 32]
        elif action > 6:  # keeps the grammar of a header, so that the damage gets further in
            digits = [n for n in range(where, min(where + 200, len(damaged))) if 48 <= damaged[n] < 58]
            for n in digits[: rng.randrange(1, 3)]:
                damaged[n] = rng.choice(b"0123456789")
        else:
            number = rng.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
            damaged[where : where + 8] = number.to_bytes(8, "little")
    return bytes(damaged)


def head_of(name: str, data: bytes) -> int:
    """Bytes that describe the others."""
    return 8 + int.from_bytes(data[:8], "little") if name.endswith(".safetensors") else len(data)


def load_pickle(path: Path) -> Model:
    """What `convert` does with a pickle; its child process is a fork of this one, which has torch already."""
    safe, said = path.with_name("safe.safetensors"), path.with_name("stderr.txt")
    safe.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            warnings.simplefilter("default")
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            sys.argv = ["unpickle", str(path), str(safe), ""]
            unpickle.main()
            code = 0
        except SystemExit as stop:
            code = int(str(stop.code))
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 3), (status, said.read_text(errors="replace")[-2000:])
    if status:
        raise WeightsError(said.read_text().strip().splitlines()[-1])
    return load_model(safe, heads=2)


def is_same(model: Model, good: Model) -> bool:
    ours, theirs = model.state_dict(), good.state_dict()
    return model.spec == good.spec and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def reseal(folder: Path) -> None:
    """A manifest that agrees with what lies in a folder of vitlab."""
    files = sorted(path for path in folder.iterdir() if path.name != MANIFEST)
    sizes = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files}
    json_writer(sizes)(folder / MANIFEST)


def soak(kind: str, folder: Path, count: int, rng: random.Random) -> Account:
    """Damage one file at a time, load, and put the file back."""
    path = write_good(kind, folder)
    load = load_model
    if kind in PICKLES:
        load = load_pickle
        torch.load(path, weights_only=True)  # what it imports at first is not imported again in every fork
    good = load(path)
    files = {file: file.read_bytes() for file in (sorted(path.iterdir()) if path.is_dir() else [path])}
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_AS, (16 * 2**30, 16 * 2**30))
    account, began, told = Account(kind), time.perf_counter(), time.perf_counter()
    for _ in range(count):
        file = rng.choice(list(files))
        file.write_bytes(mutate(files[file], rng, head_of(file.name, files[file])))
        resealed = kind == "vitlab" and file.name != MANIFEST and rng.random() < RESEALED
        if resealed:
            reseal(path)
        start = time.process_time()
        try:
            same = is_same(load(path), good)
            account.equal += same
            account.other += not same
            # What has a checksum is the same or refused: each array of an archive, a folder that was not resealed.
            assert same or resealed or not ("npz" in kind or kind == "vitlab"), f"{file.name} loaded as another model"
        except WeightsError as error:
            if not re.fullmatch(".*\\S.*", str(error)):
                raise AssertionError(f"a refusal of no line, or of several: {error}") from error
            account.seen.add(str(error)[40:80])
            account.refused += 1
        account.slowest = max(account.slowest, time.process_time() - start)
        account.files += 1
        for name, data in files.items() if resealed else [(file, files[file])]:
            name.write_bytes(data)
        if time.perf_counter() - told > 10:
            told = time.perf_counter()
            sys.stderr.write(f"{kind}: {account.files:,} of {count:,}\n")
    assert is_same(load(path), good), "the sound weights changed while the others were damaged"
    account.grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) // 1024
    account.seconds = time.perf_counter() - began
    account.reasons = len(account.seen)
    return account


def write_account(kind: str, folder: Path, count: int, seed: int, out: Path) -> None:
    """Damage and load `count` files, and write their account; or write why that failed, and end with code 1."""
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", WeightsWarning)
    try:
        account = asdict(soak(kind, folder, count, random.Random(seed)))
    except BaseException:
        out.with_suffix(".failed").write_text(traceback.format_exc())
        os._exit(1)
    del account["seen"]
    out.write_text(json.dumps(account))
