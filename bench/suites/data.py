"""Images per second of decoding and augmenting on one thread, as a multiple of torchvision's transforms on Pillow.

The files are photographs where VITLAB_REFERENCE names them, else drawn pictures of 500x375 pixels as JPEG of quality
90; they are read into memory first. Training: the same random crops (uniform area, 0.08 to 1) and flips for everybody,
to 224 by bilinear interpolation, normalised, in one batch. Evaluation: shorter side to 248 by bicubic interpolation,
centre crop 224, normalised. The difference is the mean one of all values to the baseline's, relative to the largest
value: 0.004 is half a level of 255. Pillow and vitlab's antialiased resizing smooth; OpenCV, albumentations on it and
the resizing of the paper's authors do not. Large photographs are the same ones enlarged fourfold, as JPEG of quality
90. Training from files is compared with training from the same batches in memory. Built-in sources are compared with
decoding a JPEG of that size.
"""

import io
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bench import libraries
from bench.peers import prepare
from bench.runner import Call, Case, Contestant
from bench.suites.training import TINY, vitlab_update
from vitlab.data.images.gate import Decoding, open_image
from vitlab.data.loading.batches import Batch, order_of, training_batches
from vitlab.data.source import Source
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.digits import DigitsSource
from vitlab.data.sources.drawn.fractals import FractalSource
from vitlab.data.sources.drawn.shapes import ShapeSource
from vitlab.data.transforms.augmentation import draws, training_pixels, uniform_area_box
from vitlab.data.transforms.evaluation import evaluation_pixels, normalised
from vitlab.spec import CONVENTIONS
from vitlab.spec.pixels import Augmentation, Preprocessing

ROUNDS = 15
FILES, DRAWN = 32, 50
LARGER = 4  # times the width and the height
STEPS, BATCH = 3, 16  # of a measured training
SIDE = 224
MEAN = STD = (0.5, 0.5, 0.5)
HOW = CONVENTIONS["timm"].preprocessing
CROP = Augmentation(crop="uniform-area", smallest_area=0.08, antialias=True)
AUTHORS = Augmentation(crop="uniform-area", smallest_area=0.08)
Prepare = Callable[[bytes], Tensor]


def cases(is_quick: bool) -> Iterator[Case]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    files = photographs(4 if is_quick else FILES)
    large = [enlarged(file) for file in files[: max(2, len(files) // 4)]]
    for title, given in (("", files), (", large photographs", large)):
        yield Case(f"decode, augment, normalise{title}", training(given), images=len(given), difference="mean")
        yield Case(f"decode, resize, crop, normalise{title}", evaluation(given), images=len(given), difference="mean")
    for size in (32,) if is_quick else (32, 64, 224):
        sources = {"shapes": ShapeSource(size=size), "fractals": FractalSource(classes=DRAWN, size=size)}
        if size == 64:
            sources["fractals, every class new"] = FractalSource(classes=10**6, size=size, seed=1)
        yield Case(f"built-in sources at {size} pixels", drawing(sources), images=DRAWN)
    yield Case("built-in digits", drawing({"digits": DigitsSource()}), images=DRAWN)
    torch.set_num_threads(threads)
    yield Case("train ViT-Ti/16, batch 16", feeding(photographs(FILES)), images=STEPS * BATCH, most_rounds=5)


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


def enlarged(file: bytes) -> bytes:
    image = Image.open(io.BytesIO(file)).convert("RGB")
    larger = image.resize((LARGER * image.width, LARGER * image.height), Image.Resampling.BICUBIC)
    return jpeg(np.asarray(larger))


def crop_of(file: bytes, number: int) -> tuple[int, int, int, int, bool]:
    """Return (left, upper, right, lower, is flipped), as `training_pixels` draws them for a file."""
    rng = draws(0, number, "bench")
    box = uniform_area_box(*Image.open(io.BytesIO(file)).size, CROP.smallest_area, rng)
    return *box, bool(rng.random() < 0.5)


def training(files: list[bytes]) -> list[Contestant]:
    crops = {file: crop_of(file, number) for number, file in enumerate(files)}

    def torchvision_v1() -> Call:
        prepare()
        from torchvision.transforms import functional as t

        def one(file: bytes) -> Tensor:
            left, upper, right, lower, is_flipped = crops[file]
            image = Image.open(io.BytesIO(file)).convert("RGB")
            image = t.resized_crop(image, upper, left, lower - upper, right - left, [SIDE, SIDE])
            return t.normalize(t.to_tensor(t.hflip(image) if is_flipped else image), MEAN, STD)

        return over(files, one)

    def torchvision_v2() -> Call:
        prepare()
        from torchvision.transforms.v2 import functional as t

        def one(file: bytes) -> Tensor:
            left, upper, right, lower, is_flipped = crops[file]
            image = t.to_image(Image.open(io.BytesIO(file)).convert("RGB"))
            image = t.resized_crop(image, upper, left, lower - upper, right - left, [SIDE, SIDE], antialias=True)
            image = t.horizontal_flip(image) if is_flipped else image
            return t.normalize(t.to_dtype(image, torch.float32, scale=True), list(MEAN), list(STD)).as_subclass(Tensor)

        return over(files, one)

    def opencv() -> Call:
        import cv2

        def one(file: bytes) -> Tensor:
            left, upper, right, lower, is_flipped = crops[file]
            image = cv2.resize(by_opencv(file)[upper:lower, left:right], (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
            pixels = torch.from_numpy(cv2.flip(image, 1) if is_flipped else image).permute(2, 0, 1)
            return normalised(pixels.contiguous(), HOW)

        return over(files, one)

    def albumentations() -> Call:
        import albumentations as a
        from albumentations.pytorch import ToTensorV2

        def steps(left: int, upper: int, right: int, lower: int, is_flipped: bool) -> Callable:
            flip = [a.HorizontalFlip(p=1.0)] if is_flipped else []
            crop = [a.Crop(left, upper, right, lower, p=1.0), a.Resize(SIDE, SIDE)]
            return a.Compose([*crop, *flip, a.Normalize(MEAN, STD), ToTensorV2()])

        made = {file: steps(*crop) for file, crop in crops.items()}
        return over(files, lambda file: made[file](image=by_opencv(file))["image"])

    return [
        Contestant("torchvision + Pillow", torchvision_v1),
        Contestant("torchvision v2 + Pillow", torchvision_v2),
        Contestant("OpenCV, not antialiased", opencv),
        Contestant("albumentations, not antialiased", albumentations),
        Contestant("vitlab, exact", lambda: batched(files, augmented(CROP, "exact"))),
        Contestant("vitlab, fast", lambda: batched(files, augmented(CROP, "fast"))),
        Contestant("vitlab, exact, the authors' resizing", lambda: batched(files, augmented(AUTHORS, "exact"))),
    ]


def augmented(how: Augmentation, decoding: Decoding) -> Callable[[bytes, int], Tensor]:
    def one(file: bytes, number: int) -> Tensor:
        return training_pixels(open_image(file, decoding=decoding), (SIDE, SIDE), how, draws(0, number, "bench"))

    return one


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

    def opencv() -> Call:
        import cv2

        def one(file: bytes) -> Tensor:
            image = by_opencv(file)
            height, width = image.shape[:2]
            scale = 248 / min(height, width)
            size = (max(248, int(scale * width + 1e-6)), max(248, int(scale * height + 1e-6)))
            image = cv2.resize(image, size, interpolation=cv2.INTER_CUBIC)
            left, upper = round((size[0] - SIDE) / 2), round((size[1] - SIDE) / 2)
            crop = torch.from_numpy(image[upper : upper + SIDE, left : left + SIDE]).permute(2, 0, 1)
            return normalised(crop.contiguous(), HOW)

        return over(files, one)

    def albumentations() -> Call:
        import albumentations as a
        import cv2
        from albumentations.pytorch import ToTensorV2

        resize = a.SmallestMaxSize(248, interpolation=cv2.INTER_CUBIC)
        steps = a.Compose([resize, a.CenterCrop(SIDE, SIDE), a.Normalize(MEAN, STD), ToTensorV2()])
        return over(files, lambda file: steps(image=by_opencv(file))["image"])

    def ours(decoding: Decoding) -> Call:
        return batched(files, lambda file, _: evaluation_pixels(open_image(file, decoding=decoding), (SIDE, SIDE), HOW))

    return [
        Contestant("torchvision + Pillow", torchvision_v1),
        Contestant("torchvision v2 + Pillow", torchvision_v2),
        Contestant("OpenCV, not antialiased", opencv),
        Contestant("albumentations, not antialiased", albumentations),
        Contestant("vitlab, exact", lambda: ours("exact")),
        Contestant("vitlab, fast", lambda: ours("fast")),
    ]


def v2_steps(steps: list) -> Callable[[Image.Image], Tensor]:
    """Return the second generation's order: to a tensor first, then all steps on bytes, floats last."""
    from torchvision.transforms import v2 as t

    return t.Compose([t.ToImage(), *steps, t.ToDtype(torch.float32, scale=True), t.Normalize(MEAN, STD)])


def by_opencv(file: bytes) -> np.ndarray:
    import cv2

    cv2.setNumThreads(1)
    return cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR_RGB)


def by_pillow(transform: Callable[[Image.Image], Tensor]) -> Callable[[bytes], Tensor]:
    return lambda file: transform(Image.open(io.BytesIO(file)).convert("RGB"))


def over(files: list[bytes], prepare_one: Prepare) -> Call:
    """Return a call that prepares all files and returns their inputs in one row."""
    return lambda: torch.stack([torch.as_tensor(prepare_one(file)) for file in files]).flatten()


def batched(files: list[bytes], prepare_one: Callable[[bytes, int], Tensor], how: Preprocessing = HOW) -> Call:
    """Return a call that prepares all files as vitlab does: bytes in a batch, which is normalised as a whole."""

    def call() -> Tensor:
        batch = torch.stack([prepare_one(file, number) for number, file in enumerate(files)])
        return normalised(batch, how).flatten()

    return call


def feeding(files: list[bytes]) -> list[Contestant]:
    """Train from a folder of the files, with workers or without, and from batches that were read before."""
    folder = Path(tempfile.mkdtemp(prefix="vitlab-bench-"))
    for number, file in enumerate(files):
        place = folder / f"class{number % 2}"
        place.mkdir(exist_ok=True)
        (place / f"{number}.jpg").write_bytes(file)

    def batches(workers: int, decoding: str = "exact") -> Iterator[Batch]:
        source = open_source(f"folder:{folder}?decode={decoding}")
        order = order_of(source)
        return training_batches(
            source, order, batch=BATCH, size=(SIDE, SIDE), augmentation=Augmentation(), workers=workers
        )

    def stepping(given: Iterator[Batch]) -> Call:
        update = vitlab_update(libraries.random_model(TINY), BATCH, HOW)

        def steps() -> None:
            for _ in range(STEPS):
                update(next(given))

        return steps

    def repeated() -> Iterator[Batch]:
        first = next(batches(0))
        while True:
            yield first

    return [
        Contestant("batches in memory", lambda: stepping(repeated()), is_compared=False),
        Contestant("JPEG files, no worker", lambda: stepping(batches(0)), is_compared=False),
        Contestant("JPEG files, 1 worker", lambda: stepping(batches(1)), is_compared=False),
        Contestant("JPEG files, 2 workers", lambda: stepping(batches(2)), is_compared=False),
        Contestant("JPEG files, fast, 1 worker", lambda: stepping(batches(1, "fast")), is_compared=False),
    ]


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
