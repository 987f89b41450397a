"""Images per second of decoding and augmenting on one thread, as a multiple of torchvision's transforms on Pillow.

The files are photographs where VITLAB_REFERENCE names them, else drawn pictures of 500x375 pixels as JPEG of quality
90; they are read into memory first. Training: random crop to 224, flip, normalise. Evaluation: shorter side to 248 by
bicubic interpolation, centre crop 224, normalise. Built-in sources are compared with decoding a JPEG of that size.
"""

import io
from collections.abc import Callable, Iterator

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bench import libraries
from bench.peers import prepare
from bench.runner import Call, Case, Contestant
from vitlab.data.images.gate import read_image
from vitlab.data.source import Source
from vitlab.data.sources.digits import DigitsSource
from vitlab.data.sources.drawn.fractals import FractalSource
from vitlab.data.sources.drawn.shapes import ShapeSource
from vitlab.data.transforms.augmentation import draws, training_pixels
from vitlab.data.transforms.evaluation import evaluation_pixels, normalised
from vitlab.recipe import Augmentation
from vitlab.spec import CONVENTIONS

ROUNDS = 15
FILES, DRAWN = 32, 50
SIDE = 224
MEAN = STD = (0.5, 0.5, 0.5)
HOW = CONVENTIONS["timm"].preprocessing


def cases(is_quick: bool) -> Iterator[Case]:
    torch.set_num_threads(1)
    files = photographs(4 if is_quick else FILES)
    yield Case("decode, augment, normalise", training(files), images=len(files))
    yield Case("decode, resize, crop, normalise", evaluation(files), images=len(files))
    for size in (32,) if is_quick else (32, 64, 224):
        sources = {"shapes": ShapeSource(size=size), "fractals": FractalSource(classes=DRAWN, size=size)}
        if size == 64:
            sources["fractals, every class new"] = FractalSource(classes=10**6, size=size, seed=1)
        yield Case(f"built-in sources at {size} pixels", drawing(sources), images=DRAWN)
    yield Case("built-in digits", drawing({"digits": DigitsSource()}), images=DRAWN)


def photographs(number: int) -> list[bytes]:
    """Return the bytes of JPEG files."""
    if libraries.reference():
        return [path.read_bytes() for path in sorted(libraries.photographs().glob("*.JPEG"))[:number]]
    source = ShapeSource(size=500)
    return [jpeg(source.item(i).data[:375]) for i in range(number)]


def jpeg(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "JPEG", quality=90)
    return file.getvalue()


def training(files: list[bytes]) -> list[Contestant]:
    def torchvision_v1() -> Call:
        prepare()
        from torchvision import transforms as t

        steps = [t.RandomResizedCrop(SIDE), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(MEAN, STD)]
        return over(files, by_pillow(t.Compose(steps)))

    def torchvision_v2() -> Call:
        prepare()
        from torchvision.transforms import v2 as t

        return over(files, by_pillow(v2_steps([t.RandomResizedCrop(SIDE), t.RandomHorizontalFlip()])))

    how = Augmentation()

    def ours(file: bytes) -> Tensor:
        pixels = training_pixels(read_image(file).image, (SIDE, SIDE), how, draws(0, 0, "bench"))
        return normalised(pixels, HOW)

    return [
        Contestant("torchvision + Pillow", torchvision_v1, is_compared=False),
        Contestant("torchvision v2 + Pillow", torchvision_v2, is_compared=False),
        Contestant("vitlab", lambda: over(files, ours), is_compared=False),
    ]


def evaluation(files: list[bytes]) -> list[Contestant]:
    def torchvision_v1() -> Call:
        prepare()
        from torchvision import transforms as t

        resize = t.Resize(248, t.InterpolationMode.BICUBIC)
        return over(files, by_pillow(t.Compose([resize, t.CenterCrop(SIDE), t.ToTensor(), t.Normalize(MEAN, STD)])))

    def torchvision_v2() -> Call:
        prepare()
        from torchvision.transforms import v2 as t

        return over(files, by_pillow(v2_steps([t.Resize(248, t.InterpolationMode.BICUBIC), t.CenterCrop(SIDE)])))

    def ours(file: bytes) -> Tensor:
        return normalised(evaluation_pixels(read_image(file).image, (SIDE, SIDE), HOW), HOW)

    return [
        Contestant("torchvision + Pillow", torchvision_v1),
        Contestant("torchvision v2 + Pillow", torchvision_v2),
        Contestant("vitlab", lambda: over(files, ours)),
    ]


def v2_steps(steps: list) -> Callable[[Image.Image], Tensor]:
    """Return the second generation's order: to a tensor first, then all steps on bytes, floats last."""
    from torchvision.transforms import v2 as t

    return t.Compose([t.ToImage(), *steps, t.ToDtype(torch.float32, scale=True), t.Normalize(MEAN, STD)])


def by_pillow(transform: Callable[[Image.Image], Tensor]) -> Callable[[bytes], Tensor]:
    return lambda file: transform(Image.open(io.BytesIO(file)).convert("RGB"))


def over(files: list[bytes], prepare_one: Callable[[bytes], Tensor]) -> Call:
    """Return a call that prepares all files and returns their inputs in one row."""
    return lambda: torch.stack([torch.as_tensor(prepare_one(file)) for file in files]).flatten()


def drawing(sources: dict[str, Source]) -> list[Contestant]:
    first = next(iter(sources.values()))
    files = [jpeg(np.asarray(first.item(i).data)) for i in range(DRAWN)]

    def decoded() -> None:
        for file in files:
            np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))

    def drawn(source: Source) -> Call:
        """Every call draws the next samples; fractal classes are searched for when they are first needed."""
        numbers = iter(range(10**9))
        return lambda: [source.item(next(numbers) % len(source)) for _ in range(DRAWN)]

    made = [Contestant("Pillow, a JPEG of the same picture", lambda: decoded, is_compared=False)]
    return made + [Contestant(name, lambda s=source: drawn(s), is_compared=False) for name, source in sources.items()]
