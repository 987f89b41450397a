"""DeiT's recipes for ImageNet, which are not the ViT paper's: "Training data-efficient image transformers &
distillation through attention" (Touvron et al., 2021), table 9 and the defaults of the released code.

A distilled model also needs a teacher; DeiT's was a RegNetY-16GF.
"""

from typing import Final

from vitlab.paper.pretraining import DATA, training_steps
from vitlab.paper.recipes.length import OWN, Length
from vitlab.spec import image_size
from vitlab.spec.pixels import IMAGENET_MEAN, IMAGENET_STD, Augmentation, Erasing, RandAugment
from vitlab.spec.recipe import AdamW, Recipe, Schedule

MODELS: Final = tuple(f"DeiT-{size}/16{mark}" for mark in ("", "-distilled") for size in ("Ti", "S", "B"))
BATCH: Final = 1024  # images
RATE_PER_512: Final = 5e-4  # learning rate at batch 512; proportional to the batch
LEAST_RATE: Final = 1e-5  # at the end of the cosine; from the released code
EPOCHS: Final = 300
WARMUP_EPOCHS: Final = 5
WEIGHT_DECAY: Final = 0.05

AUGMENTATION: Final = Augmentation(
    crop="uniform-area",
    smallest_area=0.08,
    interpolation="bicubic",
    antialias=True,
    # rand-m9-mstd0.5-inc1 in timm's notation; the fill colour is the mean of ImageNet.
    randaugment=RandAugment(2, 9.0, "timm", 0.5, 0.5, (124, 116, 104)),
    # The released command also sets a colour jitter of 0.3, which timm ignores together with RandAugment.
    colour_jitter=0.0,
    erasing=Erasing(0.25, IMAGENET_MEAN, IMAGENET_STD),
    repeats=3,
)


def names() -> list[str]:
    """List the names, such as DeiT-S/16@imagenet."""
    return [f"{model}@{DATA['ImageNet'].slug}" for model in MODELS]


def recipe(name: str, length: Length = OWN) -> Recipe:
    """Return the recipe of one of `names`, for the number of images in ImageNet or in your data.

    As in DeiT, an epoch has as many samples as there are images; with repeats it covers a third of the images.
    """
    batch = length.batch_or(BATCH)
    rate = RATE_PER_512 * batch / 512
    total = length.steps(images=DATA["ImageNet"].training_images, epochs=EPOCHS, batch=BATCH)
    own_total, own_warmup = (training_steps("ImageNet", epochs, BATCH) for epochs in (EPOCHS, WARMUP_EPOCHS))
    return Recipe(
        name=name,
        source=f"DeiT (not the ViT paper), table 9: {name.partition('@')[0]} on ImageNet, {EPOCHS} epochs",
        batch=batch,
        image=image_size(224),
        # Differs from DeiT: warm-up begins at 0 instead of 1e-6.
        schedule=Schedule(
            peak=rate,
            total=total,
            warmup=length.warmup_of(own_warmup, total=total, own_total=own_total),
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
        # DeiT also keeps an average of the weights (0.99996) but reports the weights themselves; see --average.
        average=None,
    )
