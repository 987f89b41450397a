"""The fields of a recipe as flags: the name to type, the value, and a short description."""

import dataclasses

from vitlab.paper.models import model_spec
from vitlab.paper.recipes.finetuning import QUICK, QUICK_EPOCHS, QUICK_LEAST
from vitlab.paper.recipes.named import QUICK_IMAGES, QUICK_SIZE
from vitlab.paper.recipes.pretraining import pretraining_model
from vitlab.spec.recipe import Recipe

# Dotted names as in the recipe, in its order; the fields of AdamW and SGD are listed together.
MEANINGS = {
    "batch": "images per step, over all ranks and micro-batches",
    "image": "pixels per side, or HEIGHTxWIDTH",
    "schedule.peak": "largest learning rate",
    "schedule.total": "total steps",
    "schedule.warmup": "steps of linear warm-up from 0",
    "schedule.decay": "after the warm-up: linear, cosine, staircase or constant",
    "schedule.end": "last learning rate, for linear and cosine",
    "schedule.boundaries": "steps after which a staircase divides by 10, separated by commas",
    "optimizer": "adamw or sgd, with its default settings",
    "optimizer.weight_decay": "weight decay, multiplied by the learning rate",
    "optimizer.betas": "decay rates of AdamW's moving averages",
    "optimizer.epsilon": "term added to AdamW's denominator",
    "optimizer.momentum": "momentum of SGD",
    "optimizer.momentum_precision": "precision of SGD's momentum: fp32, or bf16 as in the released code",
    "optimizer.decay": "parameters with weight decay: all, or kernels only",
    "optimizer.clip": "largest gradient norm, or none",
    "loss": "softmax for one label per image, sigmoid for any number",
    "label_smoothing": "share of the target spread over all classes",
    "dropout": "probability to set an activation to 0",
    "stochastic_depth": "probability to skip the last block; smaller for earlier blocks",
    "augmentation.crop": "inception, uniform-area, square-crop (BiT's), shorter-crop or none",
    "augmentation.smallest_area": "smallest share of the image that inception and uniform-area crop",
    "augmentation.enlarged": "size before cropping, relative to the crop (square-crop, shorter-crop)",
    "augmentation.flip": "mirror half of the images",
    "augmentation.interpolation": "bilinear, bicubic or area",
    "augmentation.antialias": "antialias when an image is made smaller",
    "augmentation.randaugment.layers": "RandAugment operations per image; 0 for none",
    "augmentation.randaugment.magnitude": "strength of the operations; required if layers is not 0",
    "augmentation.randaugment.flavour": "tf as in AugReg, timm as in DeiT",
    "augmentation.randaugment.probability": "probability of each operation",
    "augmentation.randaugment.deviation": "standard deviation of the strength",
    "augmentation.randaugment.fill": "fill colour outside the image: red,green,blue",
    "augmentation.colour_jitter": "largest change of brightness, contrast and saturation",
    "augmentation.erasing.probability": "probability to cover a box with noise",
    "augmentation.erasing.mean": "mean of the noise per channel, 0 to 1",
    "augmentation.erasing.std": "standard deviation of the noise per channel",
    "augmentation.repeats": "repetitions of each image, each augmented anew",
    "mixup": "alpha of MixUp; 0 for none",
    "cutmix": "alpha of CutMix; 0 for none",
    "partners": "order of the mixing partners: reversed or rolled",
    "shards": "fixed parts of a batch within which images are mixed",
    "average": "decay of a moving average of the weights, or none",
    "layer_decay": "learning-rate factor per layer, counted from the head",
    "frozen": "frozen parts, separated by commas; backbone is all but the head",
    "class_weights": "balanced gives rare classes more weight, or none",
    "distillation.kind": "with --teacher: hard uses its top class, soft its softmax",
    "distillation.weight": "share of the teacher in the loss; none for DeiT's value",
    "distillation.temperature": "temperature of soft distillation",
    "validate_every": "steps between validations; 0 validates once at the end",
    "patience": "validations without improvement before the run stops; 0 never stops",
    "settle_window": "steps per mean of the training loss; stops after three that do not fall; 0 never",
    "masking.target": "prediction target: mean-colour, colours-4x4 or pixels",
    "masking.corrupted": "share of the patches to corrupt and predict",
    "masking.masked": "of those, the share replaced by a learned vector",
    "masking.swapped": "of those, the share replaced by another patch",
    "masking.kept": "of those, the share left unchanged",
}
OF_THE_DATA = {"kind", "image", "classes", "head", "conventions"}  # of a model: not flags


def command_of(recipe: Recipe) -> str:
    """Return an example of the command that runs a recipe."""
    if "@" in recipe.name:
        return f"vitlab pretrain {recipe.name} --data SPEC --batch 256"
    return f"vitlab finetune MODEL --data SPEC --recipe {recipe.name} --batch 64"


def remarks_on(recipe: Recipe) -> list[str]:
    """Return what a user should know about a recipe besides its fields."""
    if recipe.name == QUICK:
        return [
            f"The values are for {QUICK_IMAGES:,} images and a model of {QUICK_SIZE[0]} pixels. Batch and steps follow "
            f"your data ({QUICK_EPOCHS} epochs, at least {QUICK_LEAST} steps), the resolution follows the model. The "
            "run stops early when the training loss has settled, unless --epochs or --schedule.total sets its length. "
            "This is the default recipe without an accelerator."
        ]
    if "@" not in recipe.name:
        return []
    spec = model_spec(pretraining_model(recipe.name))
    fields = [field.name for field in dataclasses.fields(spec) if field.name not in OF_THE_DATA]
    return [f"Fields of the model are flags too, such as --model.layers 4: {', '.join(fields)}".replace("_", "-")]


def fields_of(recipe: Recipe) -> dict[str, str]:
    """Return every field that can be set, by dotted name, with its value as a user types it."""
    found = dict(_fields(recipe, ""))
    found["optimizer"] = found.pop("optimizer.kind")
    return {field: found[field] for field in MEANINGS if field in found}


def _fields(value: object, path: str) -> list[tuple[str, str]]:
    if dataclasses.is_dataclass(value):
        inner = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return [pair for name, part in inner.items() for pair in _fields(part, f"{path}.{name}".lstrip("."))]
    return [(path, _typed(value, path))]


def _typed(value: object, field: str) -> str:
    """Return a value as `--field` takes it."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        is_square = field == "image" and len(set(value)) == 1
        return str(value[0]) if is_square else ("x" if field == "image" else ",").join(map(str, value))
    return str(value)
