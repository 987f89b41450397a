"""BiT's ResNets in Google's .npz files: the released ones, and big_vision's `bit_paper`."""

import re
from dataclasses import replace

from vitlab.spec import CONVENTIONS, Conventions, ResNetSpec
from vitlab.weights.files.containers import Container, WeightsError
from vitlab.weights.formats.google import count_units, without_prefix
from vitlab.weights.formats.hints import Hints, find_map_image
from vitlab.weights.formats.layouts import CONVOLUTION, KERNEL, POINT_KERNEL, SAME, SPREAD, Entry, Layout

ROOT = "root_block/standardized_conv2d/kernel"
BIG_VISION_ROOT = "root_block/conv_root/kernel"
# big_vision pads the first max-pooling with -infinity, the released code with zeros.
BIG_VISION = replace(CONVENTIONS["paper"], bit=replace(CONVENTIONS["paper"].bit, pool_padding="infinite"))


def matches(container: Container) -> bool:
    """Whether the tensors have the names of Google's BiT files."""
    return any("root_block/" in name for name in container.shapes)


def normalised(container: Container) -> Container:
    """Strip prefixes, and the numbers that some files append to standardized_conv2d."""
    stripped = without_prefix(container, ("params/", "opt/target/", "resnet/"))
    names: dict[str, str] = {}
    for name in stripped.shapes:
        canonical = re.sub(r"standardized_conv2d_\d{1,6}(?=/)", "standardized_conv2d", name)
        if canonical in names:
            raise WeightsError(f"{container.path.name} has both {names[canonical]!r} and {name!r}")
        names[canonical] = name
    shapes = {canonical: stripped.shapes[name] for canonical, name in names.items()}
    return replace(stripped, shapes=shapes, read=lambda canonical: stripped.read(names[canonical]))


def describe(container: Container, hints: Hints) -> ResNetSpec:
    """Derive the spec from the shapes."""
    newer = BIG_VISION_ROOT in container.shapes
    root = container.shape(BIG_VISION_ROOT if newer else ROOT, 4)[3]
    head = "head/kernel" if newer else "head/conv2d/kernel"
    return ResNetSpec(
        stages=count_units(container, r"block(\d)/unit(\d{1,6})/", first=1),
        root=root,
        image=find_map_image(container, None, hints),
        classes=container.shape(head, 2 if newer else 4)[-1] if head in container.shapes else 0,
        conventions=BIG_VISION if newer else CONVENTIONS["paper"],
    )


def table(spec: ResNetSpec, container: Container | None) -> list[Entry]:
    """Map every tensor of the model; without a container, in the layout of the code with this model's pooling."""
    if is_big_vision(spec.conventions) if container is None else BIG_VISION_ROOT in container.shapes:
        return _big_vision(spec, SPREAD if container is None else SAME)  # `normalised` turned the norms into vectors
    prefix = "resnet/" if container is None else ""
    entries = [Entry("root.weight", (prefix + ROOT,), CONVOLUTION)]
    for ours, theirs, has_shortcut in _units(spec, prefix):
        for number, letter in enumerate("abc", start=1):
            kernel = f"{theirs}/{letter}/standardized_conv2d/kernel"
            entries.append(Entry(f"{ours}.conv{number}.weight", (kernel,), CONVOLUTION))
            entries += _norm(f"{ours}.norm{number}", f"{theirs}/{letter}/group_norm")
        if has_shortcut:
            kernel = f"{theirs}/a/proj/standardized_conv2d/kernel"
            entries.append(Entry(f"{ours}.shortcut.weight", (kernel,), CONVOLUTION))
    entries += _norm("norm", f"{prefix}group_norm")
    if not spec.classes:
        return entries
    return [
        *entries,
        Entry("head.logits.weight", (f"{prefix}head/conv2d/kernel",), POINT_KERNEL),
        Entry("head.logits.bias", (f"{prefix}head/conv2d/bias",), SAME),
    ]


def _big_vision(spec: ResNetSpec, layout: Layout) -> list[Entry]:
    entries = [Entry("root.weight", (BIG_VISION_ROOT,), CONVOLUTION)]
    for ours, theirs, has_shortcut in _units(spec, ""):
        for number in (1, 2, 3):
            entries.append(Entry(f"{ours}.conv{number}.weight", (f"{theirs}/conv{number}/kernel",), CONVOLUTION))
            for part, name in (("weight", "scale"), ("bias", "bias")):
                entries.append(Entry(f"{ours}.norm{number}.{part}", (f"{theirs}/gn{number}/{name}",), layout))
        if has_shortcut:
            entries.append(Entry(f"{ours}.shortcut.weight", (f"{theirs}/conv_proj/kernel",), CONVOLUTION))
    for part, name in (("weight", "scale"), ("bias", "bias")):
        entries.append(Entry(f"norm.{part}", (f"norm-pre-head/{name}",), layout))
    if spec.classes:
        entries.append(Entry("head.logits.weight", ("head/kernel",), KERNEL))
        entries.append(Entry("head.logits.bias", ("head/bias",), SAME))
    return entries


def _units(spec: ResNetSpec, prefix: str) -> list[tuple[str, str, bool]]:
    """Return our name, their name, and whether the shortcut has a convolution, for every unit."""
    return [
        (f"stages.{stage}.{unit}", f"{prefix}block{stage + 1}/unit{unit + 1:02d}", unit == 0)
        for stage, units in enumerate(spec.stages)
        for unit in range(units)
    ]


def _norm(ours: str, theirs: str) -> list[Entry]:
    return [Entry(f"{ours}.weight", (f"{theirs}/gamma",), SAME), Entry(f"{ours}.bias", (f"{theirs}/beta",), SAME)]


def is_big_vision(conventions: Conventions) -> bool:
    """Whether a model follows big_vision's BiT instead of the released one."""
    return conventions.bit == BIG_VISION.bit


def refusals(spec: ResNetSpec) -> list[str]:
    """Return reasons why neither of Google's programs would compute the same from a file."""
    if spec.conventions.bit in (CONVENTIONS["paper"].bit, BIG_VISION.bit):
        return []
    return [
        f"Google's code runs BiT with {CONVENTIONS['paper'].bit}, this model {spec.conventions.bit}; "
        f"load it with conventions='paper' if that change is wanted"
    ]
