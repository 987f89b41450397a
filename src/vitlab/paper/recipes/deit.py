"""DeiT's training on ImageNet: not the ViT paper's, but that of "Training data-efficient image transformers &
distillation through attention" (Touvron et al., 2021), table 9 and the released code's defaults.

A distilled model needs a teacher beside this recipe; theirs was a RegNetY-16GF.
"""

from typing import Final

from vitlab.paper.pretraining import DATA
from vitlab.paper.recipes.length import OWN, Length
from vitlab.pixels import IMAGENET_MEAN, IMAGENET_STD, Augmentation, Erasing, RandAugment
from vitlab.recipe import AdamW, Recipe, Schedule
from vitlab.spec import image_size

MODELS: Final = tuple(f"DeiT-{size}/16{mark}" for mark in ("", "-distilled") for size in ("Ti", "S", "B"))
BATCH: Final = 1024  # images
RATE_PER_512: Final = 5e-4  # learning rate at batch 512; proportional to the batch
LEAST_RATE: Final = 1e-5  # where the cosine ends; of the released code
EPOCHS: Final = 300
WARMUP_EPOCHS: Final = 5
WEIGHT_DECAY: Final = 0.05
TOP_1: Final = {  # % on ImageNet at 224 pixels, their table 5
    **dict(zip(MODELS[:3], (72.2, 79.9, 81.8), strict=True)),
    **dict(zip(MODELS[3:], (74.5, 81.2, 83.4), strict=True)),
}

AUGMENTATION: Final = Augmentation(
    crop="uniform-area",
    smallest_area=0.08,
    interpolation="bicubic",
    antialias=True,
    # timm's words: rand-m9-mstd0.5-inc1; the colour is the mean of ImageNet.
    randaugment=RandAugment(2, 9.0, "timm", 0.5, 0.5, (124, 116, 104)),
    # Their command says a colour jitter of 0.3 too, which timm leaves out where RandAugment is on.
    colour_jitter=0.0,
    erasing=Erasing(0.25, IMAGENET_MEAN, IMAGENET_STD),
    repeats=3,
)


def names() -> list[str]:
    """DeiT-S/16@imagenet and its like."""
    return [f"{model}@imagenet" for model in MODELS]


def recipe(name: str, length: Length = OWN) -> Recipe:
    """The recipe of one of `names`, for the number of images of ImageNet or yours.

    An epoch is as many pictures as there are images, as theirs is; with repeats they are of a third of the images.
    """
    batch, images = length.batch_or(BATCH), DATA["ImageNet"].training_images
    rate = RATE_PER_512 * batch / 512
    total = length.steps(images=images, epochs=EPOCHS, batch=BATCH)
    return Recipe(
        name=name,
        source=f"DeiT (not the ViT paper), table 9: {name.partition('@')[0]} on ImageNet, {EPOCHS} epochs",
        batch=batch,
        image=image_size(224),
        # Differs from DeiT: warm-up begins at 0 instead of 1e-6.
        schedule=Schedule(
            peak=rate,
            total=total,
            warmup=length.warmup_of(WARMUP_EPOCHS * images // BATCH, total=total, own_total=EPOCHS * images // BATCH),
            decay="cosine",
            end=min(LEAST_RATE, rate),
        ),
        optimizer=AdamW(weight_decay=WEIGHT_DECAY, decay="kernels"),
        loss="softmax",
        label_smoothing=0.1,
        stochastic_depth=0.1,
        augmentation=AUGMENTATION,
        mixup=0.8,
        cutmix=1.0,
        # They keep an average of the weights (0.99996) beside and report the weights themselves: --average has it.
        average=None,
    )
