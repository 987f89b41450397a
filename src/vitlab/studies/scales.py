"""The scales: the paper's own, and smaller ones with stand-ins for its models and data."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from vitlab.paper.models import AXIAL
from vitlab.paper.pretraining import DATA
from vitlab.paper.vtab import TASKS
from vitlab.spec import AxialResNetSpec, Backbone, ModelSpec, ResNetSpec, ViTSpec
from vitlab.studies.scale import Scale, ScaleName, Shrinking, Task, Upstream

# -- The paper -------------------------------------------------------------------------------------

_IMAGENET = "imagenet:{imagenet}"
_VTAB = {
    f"VTAB, {task.name}": Task(
        f"vtab:{{vtab}}?task={task.key}&split=train800val200", f"vtab:{{vtab}}?task={task.key}&split=test",
        task.classes, "vtab", task.flip_allowed,
    )
    for task in TASKS
}  # fmt: skip
PAPER: Final = Scale(
    name="paper",
    image=224,
    tuned_image=384,
    upstream={
        "JFT-300M": Upstream("{jft300m}", DATA["JFT-300M"].images, DATA["JFT-300M"].classes),
        "ImageNet-21k": Upstream("{imagenet21k}", DATA["ImageNet-21k"].images, DATA["ImageNet-21k"].classes),
        "ImageNet": Upstream(f"{_IMAGENET}?split=train", DATA["ImageNet"].images, DATA["ImageNet"].classes),
    },
    tasks={
        "ImageNet": Task(f"{_IMAGENET}?split=train", f"{_IMAGENET}?split=val", 1000, "imagenet"),
        "CIFAR-10": Task("cifar10:{cifar10}?split=train", "cifar10:{cifar10}?split=test", 10, "cifar10"),
        "CIFAR-100": Task("cifar100:{cifar100}?split=train", "cifar100:{cifar100}?split=test", 100, "cifar100"),
        "Oxford-IIIT Pets": Task("pets:{pets}?split=train", "pets:{pets}?split=test", 37, "pets"),
        "Oxford Flowers-102": Task("flowers:{flowers}?split=train", "flowers:{flowers}?split=test", 102, "flowers"),
        **_VTAB,
    },
    transfer=("ImageNet", "CIFAR-10", "CIFAR-100", "Oxford-IIIT Pets", "Oxford Flowers-102"),
    shots=(f"{_IMAGENET}?split=train", f"{_IMAGENET}?split=val", 5, 0),
    places={
        "jft300m": "JFT-300M, or another large labelled set, as a data spec such as shards:DIR",
        "imagenet21k": "ImageNet-21k as a data spec, such as folder:DIR",
        "imagenet": "the folder of ImageNet",
        "real": "the file real.json of the ReaL labels",
        "cifar10": "the folder of CIFAR-10",
        "cifar100": "the folder of CIFAR-100",
        "pets": "the folder of Oxford-IIIT Pets",
        "flowers": "the folder of Oxford Flowers-102",
        "vtab": "the folder of the downloads of VTAB-1k",
    },
)

# -- Small families --------------------------------------------------------------------------------

Sizes = Mapping[str, tuple[int, int, int, int]]  # of a ViT: layers, width, MLP, heads
Nets = Mapping[str, tuple[tuple[int, ...], int]]  # of a ResNet: units per stage, channels of the root


def family(
    image: int, patches: Mapping[int, int], sizes: Sizes, nets: Nets, root: int, axial: tuple[int, int]
) -> dict[str, ModelSpec]:
    """Stand-ins for the paper's models: `patches` maps its patch sizes, `root` are the channels of hybrids' ResNets.

    `axial` are the channels of the root and the heads of the AxialResNet.
    """
    square, found = (image, image), {}
    for size, (layers, width, mlp, heads) in sizes.items():
        for patch in (14,) if size == "H" else (32, 16):
            made = ViTSpec(patches[patch], layers, width, mlp, heads, square, head="linear")
            found[f"ViT-{size}/{patch}"] = made
            if size == "B":
                found[f"Axial-ViT-{size}/{patch}"] = replace(made, **AXIAL)
            if size in ("B", "L"):
                stages = (1, 1) if patch == 16 else (1, 1, 1)
                cells = max(patches[patch] // Backbone(stages, root).stride, 1)
                found[f"R50+ViT-{size}/{patch}"] = replace(made, backbone=Backbone(stages, root), patch=cells)
    for name, (stages, channels) in nets.items():
        found[name] = ResNetSpec(stages, channels, square)
    found["AxialResNet-50"] = AxialResNetSpec(nets["R50x1"][0], axial[0], axial[1], square)
    return found


TINY: Final = Scale(
    name="tiny",
    is_thin=True,
    image=32,
    tuned_image=32,
    upstream={
        "JFT-300M": Upstream("cifar10:{cifar10}?split=train", 50_000, 10),
        "ImageNet-21k": Upstream("cifar10:{cifar10}?split=train&subset=12500", 12_500, 10),
        "ImageNet": Upstream("cifar10:{cifar10}?split=train&subset=2500", 2_500, 10),
    },
    tasks={
        "CIFAR-10": Task(
            "cifar10:{cifar10}?split=train&subset=1000", "cifar10:{cifar10}?split=test&subset=5000", 10, "cifar10"
        ),
        "Fashion-MNIST": Task(
            "idx:{fashion-mnist}?split=train&subset=1000", "idx:{fashion-mnist}?split=test&subset=5000", 10, "cifar10"
        ),
        "digits": Task("{digits}?subset=1000", "{test-digits}", 10, "pets", flips=False),
        "shapes": Task("{shapes}?subset=1000", "{test-shapes}", 10, "pets"),
        "dSprites, location": Task("{location}", "{test-location}", 16, "vtab", flips=False),
    },
    transfer=("Fashion-MNIST", "digits"),
    shots=("cifar10:{cifar10}?split=train", "cifar10:{cifar10}?split=test&subset=5000", 25, 5),
    models=family(
        32,
        {32: 16, 16: 8, 14: 8},
        {"B": (4, 64, 256, 4), "L": (6, 96, 384, 6), "H": (8, 144, 576, 8)},
        {
            "R50x1": ((1, 1, 1, 1), 8),
            "R101x1": ((1, 1, 4, 1), 12),
            "R152x1": ((1, 2, 5, 1), 14),
            "R50x2": ((2, 2, 2, 2), 16),
            "R152x2": ((2, 3, 6, 2), 24),
        },
        root=12,
        axial=(16, 2),
    ),
    shrinking=Shrinking(50_000, 64, adam=2.0, sgd=4.0, steps=150, tuning_batch=64, tuning_rate=3e-3),
    places={
        "cifar10": "the folder of CIFAR-10, binary or python form",
        "fashion-mnist": "the folder of Fashion-MNIST's idx files",
        "dsprites": "the folder with dSprites' npz file, as vitlab vtab reads it",
    },
    drawn={
        "digits": "digits?split=train",
        "test-digits": "digits?split=test",
        "shapes": "shapes?classes=10&images=2000&size=32&seed=1",
        "test-shapes": "shapes?classes=10&images=2000&size=32&seed=2",
        "location": "vtab:{dsprites}?task=dsprites_location&split=train800val200",
        "test-location": "vtab:{dsprites}?task=dsprites_location&split=test&subset=5000",
    },
)

SMALL: Final = Scale(
    name="small",
    image=64,
    tuned_image=96,
    upstream={
        "JFT-300M": Upstream(f"{_IMAGENET}?split=train", 1_281_167, 1000),
        "ImageNet-21k": Upstream(f"{_IMAGENET}?split=train&subset=320000", 320_000, 1000),
        "ImageNet": Upstream(f"{_IMAGENET}?split=train&subset=64000", 64_000, 1000),
    },
    tasks={name: PAPER.tasks[name] for name in PAPER.transfer[1:]} | _VTAB,
    transfer=PAPER.transfer[1:],
    shots=(f"{_IMAGENET}?split=train", f"{_IMAGENET}?split=val", 5, 3),
    models=family(
        64,
        {32: 16, 16: 8, 14: 8},
        {"b": (12, 96, 384, 3), "B": (12, 192, 768, 3), "L": (12, 384, 1536, 6), "H": (16, 544, 2176, 8)},
        {
            "R50x1": ((3, 4, 6, 3), 24),
            "R101x1": ((3, 4, 23, 3), 24),
            "R152x1": ((3, 8, 36, 3), 24),
            "R50x2": ((3, 4, 6, 3), 48),
            "R152x2": ((3, 8, 36, 3), 48),
        },
        root=32,
        axial=(32, 4),
    ),
    shrinking=Shrinking(9_000_000, 512, adam=1.5, sgd=2.0, steps=2_000, tuning_batch=128, tuning_rate=5e-4),
    places={name: PAPER.places[name] for name in ("imagenet", "cifar10", "cifar100", "pets", "flowers", "vtab")},
)

# The scale of the tests: seconds per study, nothing to download, and numbers that mean nothing.
TEST: Final = Scale(
    name="test",
    is_thin=True,
    image=32,
    tuned_image=32,
    upstream={
        "JFT-300M": Upstream("{drawn}", 48, 4),
        "ImageNet-21k": Upstream("{drawn}?subset=24", 24, 4),
        "ImageNet": Upstream("{drawn}?subset=12", 12, 4),
    },
    tasks={"digits": Task("{digits}?subset=30", "{test-digits}?subset=20", 10, "pets", flips=False)},
    transfer=("digits",),
    shots=("{drawn}", "{drawn}?subset=24", 2, 2),
    models=family(
        32,
        {32: 16, 16: 8, 14: 8},
        {"b": (2, 8, 16, 2), "B": (2, 16, 32, 2), "L": (3, 16, 32, 2)},
        {"R50x1": ((1,), 8), "R50x2": ((1, 1), 8), "R152x2": ((1, 1), 16)},
        root=8,
        axial=(8, 2),
    ),
    shrinking=Shrinking(24, 8, adam=1.0, sgd=1.0, steps=3, tuning_batch=8, tuning_rate=1e-3),
    drawn={
        "drawn": "shapes?classes=4&images=48&size=32",
        "digits": "digits?split=train",
        "test-digits": "digits?split=test",
    },
)
SCALES: Final[dict[ScaleName, Scale]] = {scale.name: scale for scale in (PAPER, SMALL, TINY, TEST)}
OFFERED: Final = ("paper", "small", "tiny")


def find_scale(name: str) -> Scale:
    """The scale of a name; a ValueError for unknown ones."""
    found = {scale.name: scale for scale in SCALES.values()}.get(name)  # pyrefly: ignore - any text may be asked for
    if found is None:
        raise ValueError(f"no scale is named {name!r:.40}; known are {', '.join(OFFERED)}")
    return found
