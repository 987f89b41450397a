"""BiT's ResNets in Google's .npz files: the released ones, and big_vision's `bit_paper`."""

import re
from dataclasses import replace

import torch

from vitlab.spec import CONVENTIONS, ResNetSpec
from vitlab.weights.files.containers import Container
from vitlab.weights.formats.google import UNIT, without_prefix
from vitlab.weights.formats.layouts import CONVOLUTION, FLAX, POINT_KERNEL, SAME, SPREAD, Entry, Parts, entries, under
from vitlab.weights.formats.sizes import Hints, count_units, find_map_image

ROOT = "root_block/standardized_conv2d"
BIG_VISION_ROOT = "root_block/conv_root"
# big_vision pads the first max-pooling with -infinity, the released code with zeros.
BIG_VISION = replace(CONVENTIONS["paper"], bit=replace(CONVENTIONS["paper"].bit, pool_padding="infinite"))
NAMES = {
    "root": ROOT,
    "norm": "group_norm",
    "head.logits": "head/conv2d",
    "head.logits.bias": "head/conv2d/bias",
    **under(
        "stages.{}.{}.",
        "block{}/unit{:02d}/",
        {
            **{f"conv{number}": f"{letter}/standardized_conv2d" for number, letter in enumerate("abc", start=1)},
            **{f"norm{number}": f"{letter}/group_norm" for number, letter in enumerate("abc", start=1)},
            "shortcut": "a/proj/standardized_conv2d",
        },
    ),
}
PARTS: Parts = {
    ("weight", 1): ("/gamma", SAME),
    ("bias", 1): ("/beta", SAME),
    ("weight", 2): ("/kernel", POINT_KERNEL),
    ("weight", 4): ("/kernel", CONVOLUTION),
}
BIG_VISION_NAMES = {
    "root": BIG_VISION_ROOT,
    "norm": "norm-pre-head",
    "head.logits": "head",
    "head.logits.bias": "head/bias",
    **under("stages.{}.{}.", "block{}/unit{:02d}/", UNIT),
}


def matches(container: Container) -> bool:
    """Whether the tensors have the names of Google's BiT files."""
    return any("root_block/" in name for name in container.shapes)


def normalised(container: Container) -> Container:
    """Strip prefixes, and the numbers that some files append to standardized_conv2d."""
    stripped = without_prefix(container, ("params/", "opt/target/", "resnet/"))
    return stripped.renamed(lambda name: re.sub(r"standardized_conv2d_\d{1,6}(?=/)", "standardized_conv2d", name))


def describe(container: Container, hints: Hints) -> ResNetSpec:
    """Derive the spec from the shapes."""
    newer = f"{BIG_VISION_ROOT}/kernel" in container.shapes
    head = "head/kernel" if newer else "head/conv2d/kernel"
    return ResNetSpec(
        stages=count_units(container, r"block(\d)/unit(\d{1,6})/", first=1),
        root=container.shape(f"{BIG_VISION_ROOT if newer else ROOT}/kernel", 4)[3],
        image=find_map_image(container, None, hints),
        classes=container.shape(head, 2 if newer else 4)[-1] if head in container.shapes else 0,
        conventions=BIG_VISION if newer else CONVENTIONS["paper"],
    )


def table(spec: ResNetSpec, own: dict[str, torch.Size], container: Container | None) -> list[Entry]:
    """Map every tensor of the model; without a container, as the code with this model's pooling writes them."""
    if container is not None:  # `normalised` has stripped the prefix and turned the norms into vectors
        newer = f"{BIG_VISION_ROOT}/kernel" in container.shapes
        return entries(own, BIG_VISION_NAMES, FLAX, first=1) if newer else entries(own, NAMES, PARTS, first=1)
    if spec.conventions.bit == BIG_VISION.bit:
        spread = {("weight", 1): ("/scale", SPREAD), ("bias", 1): ("/bias", SPREAD)}
        return entries(own, BIG_VISION_NAMES, {**FLAX, **spread}, first=1)
    return entries(own, under("", "resnet/", NAMES), PARTS, first=1)


def refusals(spec: ResNetSpec, *, bare: bool) -> list[str]:
    """Return reasons why neither of Google's programs would compute the same from a file."""
    paper = CONVENTIONS["paper"].bit
    if spec.conventions.bit in (paper, BIG_VISION.bit):
        return []
    return [f"Google's code runs BiT with {paper}, this model {spec.conventions.bit}; conventions='paper' changes it"]
