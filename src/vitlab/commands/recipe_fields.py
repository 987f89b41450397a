"""The fields of a recipe as flags: what to type, what stands there, and what it means in a few words."""

import dataclasses

from vitlab.recipe import Recipe

# Dotted names as in the recipe, in its order; AdamW's and SGD's fields stand together.
MEANINGS = {
    "batch": "images of one step, over all ranks and micro-batches",
    "image": "pixels of a side, or HEIGHTxWIDTH",
    "schedule.peak": "the largest learning rate",
    "schedule.total": "steps in all",
    "schedule.warmup": "steps in which the rate grows from 0",
    "schedule.decay": "linear, cosine, staircase or constant, after the warm-up",
    "schedule.end": "the last learning rate, of linear and cosine",
    "schedule.boundaries": "steps after which a staircase divides by 10, with commas",
    "optimizer": "adamw or sgd, with the defaults of its kind",
    "optimizer.weight_decay": "share of the weights taken off, times the rate",
    "optimizer.betas": "how much of the old averages AdamW keeps",
    "optimizer.epsilon": "added to AdamW's divisor",
    "optimizer.momentum": "how much of the old direction SGD keeps",
    "optimizer.momentum_precision": "what SGD's momentum is kept in: fp32, or bf16 as the released code",
    "optimizer.decay": "which weights decay: all, or kernels only",
    "optimizer.clip": "largest norm of the gradient, or none",
    "loss": "softmax for one label an image, sigmoid for several",
    "label_smoothing": "share of the truth spread over all classes",
    "dropout": "share of the activations set to 0",
    "stochastic_depth": "chance to skip the last block; earlier ones less",
    "augmentation.crop": "inception, uniform-area, square-crop (BiT's), shorter-crop or none",
    "augmentation.smallest_area": "of the picture, that inception and uniform-area may cut out",
    "augmentation.enlarged": "how much larger than the crop square-crop and shorter-crop resize",
    "augmentation.flip": "mirror half of the pictures",
    "augmentation.interpolation": "bilinear, bicubic or area",
    "augmentation.antialias": "smooth what is made smaller",
    "augmentation.randaugment.layers": "operations on a picture; 0 for no RandAugment",
    "augmentation.randaugment.magnitude": "their strength; needed with layers",
    "augmentation.randaugment.flavour": "tf as AugReg, timm as DeiT",
    "augmentation.randaugment.probability": "chance of each operation",
    "augmentation.randaugment.deviation": "of the strength, drawn normally",
    "augmentation.randaugment.fill": "red, green, blue of what comes from outside",
    "augmentation.colour_jitter": "brightness, contrast, saturation by up to this share",
    "augmentation.erasing.probability": "chance of a box of noise",
    "augmentation.erasing.mean": "of the noise, as shares of white",
    "augmentation.erasing.std": "of the noise",
    "augmentation.repeats": "how often an image comes in a row, augmented anew",
    "mixup": "alpha of MixUp; 0 for none",
    "cutmix": "alpha of CutMix; 0 for none",
    "partners": "whom an image is mixed with: reversed or rolled",
    "shards": "fixed parts of a batch, inside which images are mixed",
    "average": "share of the old weights a running average keeps, or none",
    "layer_decay": "factor of the rate for each layer further from the head",
    "frozen": "parts that are not trained, with commas; backbone is all but the head",
    "class_weights": "balanced counts rare classes more, or none",
    "distillation.kind": "with --teacher: hard takes its best class, soft its softmax",
    "distillation.weight": "the teacher's share of the loss; none for DeiT's",
    "distillation.temperature": "of soft distillation",
    "validate_every": "steps between validations; 0 for one at the end",
    "patience": "validations without a better one before the run stops; 0 for never",
    "settle_window": "steps of a mean loss; stops after three that do not fall; 0 for never",
    "masking.target": "what is predicted: mean-colour, colours-4x4 or pixels",
    "masking.corrupted": "share of the patches to predict",
    "masking.masked": "of those, the share hidden by a learnt vector",
    "masking.swapped": "of those, the share replaced by another patch",
    "masking.kept": "of those, the share left as it is",
}
NOT_SET = {"name", "source"}  # a recipe says by itself what it is


def fields_of(recipe: Recipe) -> dict[str, str]:
    """Every field that can be set, dotted, and its value as it would be typed."""
    found = {field: text for field, text in _fields(recipe, "") if field not in NOT_SET}
    found["optimizer"] = found.pop("optimizer.kind")
    return {field: found[field] for field in MEANINGS if field in found}


def _fields(value: object, path: str) -> list[tuple[str, str]]:
    if dataclasses.is_dataclass(value):
        inner = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return [pair for name, part in inner.items() for pair in _fields(part, f"{path}.{name}".lstrip("."))]
    return [(path, _typed(value, path))]


def _typed(value: object, field: str) -> str:
    """A value as `--field` takes it."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        is_square = field == "image" and len(set(value)) == 1
        return str(value[0]) if is_square else ("x" if field == "image" else ",").join(map(str, value))
    return str(value)
