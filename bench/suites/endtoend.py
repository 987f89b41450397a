"""Images per second from a folder of JPEG files to answers, as a multiple of timm's inference script.

The folder holds 200 ImageNet photographs. The model is ViT-Ti/16 with the released AugReg weights, loaded before the
clock starts, in every library with the same preprocessing. `timm` takes the steps of its inference.py, which is not in
its package, with the defaults of its flags: a dataset and a loader of two workers, batches of 256, softmax and the
top class. Hugging Face's pipeline has its defaults, which are batches of one. A second row of either has batches of 16.
Another case compares the command `vitlab evaluate`, which loads the model every time, with that of an earlier commit,
each in a process that has started and warmed up before and waits for its turn. The last cases are the seconds until an
engine is open, each in a new process that has loaded the model: `first time` begins with an empty cache, so `auto`
converts the model and measures all engines, and `remembered` begins with what an earlier choice left.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

import vitlab
from bench import libraries, machine
from bench.peers import prepare
from bench.runner import Call, Case, Contestant

ROUNDS = 9
ENGINES = ("plain", "torch", "onnxruntime", "openvino", "auto", "onnxruntime-int8")
BEFORE = "f12ff2c"  # the last commit whose `evaluate` has no engines
OPENED = ("ViT-Ti/16", "ViT-B/16")
MOST_OPENINGS = 3  # rounds: a first choice takes long
LABELS = "csv:{folder}/labels.csv?column=file&label=class_index"


def cases(is_quick: bool) -> Iterator[Case]:
    if libraries.reference() is not None:
        yield from on_photographs(is_quick)
    with tempfile.TemporaryDirectory() as scratch:
        for name in OPENED[:1] if is_quick else OPENED:
            yield opening(name, Path(scratch))


def on_photographs(is_quick: bool) -> Iterator[Case]:
    folder = libraries.photographs()
    with tempfile.TemporaryDirectory() as scratch:
        photos = Path(scratch) / "photos"
        photos.mkdir()
        for path in sorted(folder.glob("*.JPEG"))[: 16 if is_quick else None]:
            (photos / path.name).symlink_to(path.resolve())
        number = len(list(photos.iterdir()))
        yield Case(f"{number} photographs, ViT-Ti/16", contestants(photos), images=number)
        if not is_quick:
            yield Case(
                f"vitlab evaluate against commit {BEFORE}, 200 photographs, ViT-Ti/16",
                evaluations(folder, Path(scratch) / "before"),
                images=200,
                is_reported=True,
            )


def contestants(photos: Path) -> list[Contestant]:
    model = libraries.real_model()
    return [
        Contestant("timm", lambda: timm_script(model, photos, batch=256)),
        Contestant("timm, batch 16", lambda: timm_script(model, photos, batch=16)),
        Contestant("Hugging Face pipeline", lambda: pipeline(model, photos, batch=1)),
        Contestant("Hugging Face pipeline, batch 16", lambda: pipeline(model, photos, batch=16)),
        Contestant("vitlab.predict", lambda: predict(model, photos)),
        *(
            Contestant(f"vitlab.predict, engine {name}", lambda name=name: predict(model, photos, engine=name))
            for name in ENGINES
        ),
    ]


def timm_script(model: torch.nn.Module, photos: Path, batch: int) -> Call:
    """The steps of timm's inference.py."""
    prepare()
    import timm
    from timm.data import create_dataset, create_loader, resolve_data_config

    with tempfile.TemporaryDirectory() as folder:
        vitlab.save_model(model, Path(folder) / "timm", "timm")
        theirs = timm.create_model(f"local-dir:{folder}/timm", pretrained=True).eval()
    config = resolve_data_config({}, model=theirs, use_test_size=True)

    @torch.inference_mode()
    def run() -> Tensor:
        dataset = create_dataset(name="", root=str(photos), split="validation")
        device = torch.device("cpu")
        loader = create_loader(dataset, batch_size=batch, use_prefetcher=True, num_workers=2, device=device, **config)
        answers = [theirs(images).softmax(-1).topk(1).indices for images, _ in loader]
        return torch.cat(answers)[:, 0]

    return run


def pipeline(model: torch.nn.Module, photos: Path, batch: int) -> Call:
    """Hugging Face's pipeline, given the names of the files."""
    prepare()
    from transformers import pipeline as make_pipeline

    with tempfile.TemporaryDirectory() as folder:
        vitlab.save_model(model, Path(folder) / "hf", "hf")
        classify = make_pipeline("image-classification", model=f"{folder}/hf", device="cpu")
    numbers = classify.model.config.label2id
    names = sorted(str(path) for path in photos.iterdir())

    def run() -> Tensor:
        answers = classify(names, batch_size=batch, top_k=1)
        return torch.tensor([numbers[found[0]["label"]] for found in answers])

    return run


def predict(model: torch.nn.Module, photos: Path, **options: object) -> Call:
    def run() -> Tensor:
        answers = vitlab.predict(model, photos, top=1, quiet=True, **options)
        return torch.tensor([answer.guesses[0].index for answer in answers])

    return run


# -- evaluate, now and at an earlier commit ----------------------------------------------------------

WAITING = """
import contextlib, io, sys, tempfile, time
from vitlab.cli import main
weights, data, *engine = sys.argv[1:]
words = ["evaluate", weights, "--data", data, "--conventions", "timm", "--by-number"]
def evaluate():
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        if main([*words, "--out", folder + "/out", *(("--engine", *engine) if engine else ())]):
            sys.exit("vitlab evaluate failed")
evaluate()  # warms up
for _ in sys.stdin:
    start = time.perf_counter()
    evaluate()
    print(time.perf_counter() - start, flush=True)
"""


def evaluations(folder: Path, before: Path) -> list[Contestant]:
    def earlier() -> Call:
        archive = subprocess.run(
            ["git", "-C", str(machine.ROOT), "archive", BEFORE, "src"], capture_output=True, check=True
        )
        before.mkdir()
        subprocess.run(["tar", "-x", "-C", str(before)], input=archive.stdout, check=True)
        return evaluation(folder, before / "src")

    now: list[tuple[str, Callable[[], Call]]] = [("vitlab, now", lambda: evaluation(folder, machine.ROOT / "src"))]
    now += [
        (f"vitlab, now, engine {name}", lambda name=name: evaluation(folder, machine.ROOT / "src", name))
        for name in ("torch", "auto")
    ]
    return [Contestant(name, make, is_compared=False) for name, make in (("before", earlier), *now)]


def evaluation(folder: Path, source: Path, *engine: str) -> Call:
    """Start a process with vitlab from `source`; each call makes it evaluate and returns the seconds that it took."""
    weights = folder.parent / "weights" / "ViT-Ti_16-augreg-in1k-224.npz"
    child = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(weights), LABELS.format(folder=folder), *engine],
        env=os.environ | {"PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def run() -> float:
        child.stdin.write("\n")
        child.stdin.flush()
        if line := child.stdout.readline():
            return float(line)
        raise RuntimeError(child.stderr.read().strip().splitlines()[-1])

    return run


# -- The seconds until an engine is open -------------------------------------------------------------

OPENING = """
import sys, time
import vitlab
model = vitlab.build_model(sys.argv[1], head="linear")
start = time.perf_counter()
vitlab.open_engine(model, sys.argv[2], batch=16)
print(time.perf_counter() - start)
"""


def opening(name: str, scratch: Path) -> Case:
    """Engines that are opened for batches of 16; a cache that is used again is in `scratch`."""
    remembered = scratch / name.replace("/", "-")

    def first() -> float:
        with tempfile.TemporaryDirectory() as cache:
            return seconds_to_open(name, "auto", Path(cache))

    def make_remembered() -> Call:
        seconds_to_open(name, "auto", remembered)
        return lambda: seconds_to_open(name, "auto", remembered)

    makers = {
        "engine torch": lambda: lambda: seconds_to_open(name, "torch", remembered),
        "engine auto, first time": lambda: first,
        "engine auto, remembered": make_remembered,
    }
    return Case(
        f"opening an engine, {name}",
        [Contestant(label, make, is_compared=False) for label, make in makers.items()],
        is_reported=True,
        most_rounds=MOST_OPENINGS,
    )


def seconds_to_open(name: str, engine: str, cache: Path) -> float:
    """Open an engine in a process of its own, with this folder as the cache of graphs and measurements."""
    done = subprocess.run(
        [sys.executable, "-c", OPENING, name, engine],
        env=os.environ | {"VITLAB_ENGINE_CACHE": str(cache), "PYTHONPATH": str(machine.ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return float(done.stdout)
