"""The recipes say what tables 3, 4 and 7 and BiT-HyperRule say; numbers are written here again, from the paper."""

import math

import pytest
import torch

from vitlab.counting import count
from vitlab.models.build import build_model
from vitlab.paper.names import list_models
from vitlab.paper.pretraining import MASKING
from vitlab.paper.recipes.finetuning import (
    BIT_SIZES,
    development_share,
    finetuning_names,
    finetuning_recipe,
    finetuning_row_for,
    quick_recipe,
)
from vitlab.paper.recipes.length import Length
from vitlab.paper.recipes.pretraining import (
    MASKED,
    pretraining_data,
    pretraining_head,
    pretraining_model,
    pretraining_names,
    pretraining_recipe,
    pretraining_row_for,
)
from vitlab.spec.changes import with_fields
from vitlab.spec.pixels import Augmentation
from vitlab.spec.recipe import SGD, AdamW, Masking

# name: steps, peak, decay, weight decay, dropout, clip, smoothing
PRETRAINING = {
    "ViT-B/16@jft300m": (517_822, 8e-4, "linear", 0.1, 0.0, None, 0.0),
    "ViT-L/16@jft300m-7ep": (517_822, 4e-4, "linear", 0.1, 0.0, None, 0.0),
    "ViT-L/16@jft300m-14ep": (1_035_644, 4e-4, "linear", 0.1, 0.0, None, 0.0),
    "ViT-H/14@jft300m": (1_035_644, 3e-4, "linear", 0.1, 0.0, None, 0.0),
    "R50+ViT-L/32@jft300m": (517_822, 2e-4, "linear", 0.1, 0.0, None, 0.0),
    "ViT-B/32@imagenet21k": (309_698, 1e-3, "linear", 0.03, 0.1, None, 1e-4),
    "ViT-L/16@imagenet21k-30ep": (103_232, 1e-3, "linear", 0.03, 0.1, None, 1e-4),
    "ViT-B/16@imagenet": (93_835, 3e-3, "cosine", 0.3, 0.1, 1.0, 1e-4),
}


@pytest.mark.parametrize(("name", "row"), PRETRAINING.items())
def test_a_row_of_table_3(name, row):
    recipe = pretraining_recipe(name)
    schedule, optimizer = recipe.schedule, recipe.optimizer
    assert isinstance(optimizer, AdamW)
    found = (schedule.total, schedule.peak, schedule.decay, optimizer.weight_decay, recipe.dropout, optimizer.clip)
    assert (*found, recipe.label_smoothing) == row
    assert (recipe.batch, schedule.warmup, recipe.image, recipe.loss) == (4096, 10_000, (224, 224), "sigmoid")
    assert optimizer.decay == "all"
    assert "Table 3" in recipe.source


def test_every_model_and_epoch_count_of_table_3_is_there():
    printed = [name for name in pretraining_names() if "Table 3" in pretraining_recipe(name).source]
    assert len(printed) == 26  # 13 rows: 2+1+2+1+2+1+2+2+1+2+2+4+4


def test_sgd_for_resnets_is_that_of_bit():
    recipe = pretraining_recipe("R50x1@jft300m-sgd")
    assert recipe.schedule.peak == pytest.approx(0.48)
    assert recipe.schedule.warmup == 5_000
    assert recipe.schedule.boundaries == tuple(517_822 * epoch // 40 for epoch in (10, 23, 30, 37))
    assert recipe.optimizer == SGD(momentum=0.9, weight_decay=1e-4, clip=None)


def test_every_resnet_of_table_3_has_adam_and_sgd():
    names = pretraining_names()
    by_sgd = [name for name in names if name.endswith("-sgd")]
    assert {pretraining_model(name) for name in by_sgd} == {*("R50x1", "R50x2", "R101x1", "R152x1", "R152x2", "R200x3")}
    for name in by_sgd:
        adam, sgd = pretraining_recipe(name.removesuffix("-sgd")), pretraining_recipe(name)
        assert isinstance(adam.optimizer, AdamW)
        assert isinstance(sgd.optimizer, SGD)
        assert (adam.schedule.total, adam.batch, adam.loss) == (sgd.schedule.total, sgd.batch, sgd.loss)
        is_printed = name in ("R50x1@jft300m-sgd", "R152x2@jft300m-sgd")
        assert ("the table itself prints" in sgd.source) != is_printed


# level: RandAugment's layers and magnitude, MixUp's alpha
AUGREG = {
    "none": (0, 0, 0.0),
    "light1": (2, 0, 0.0),
    "light2": (2, 10, 0.2),
    "medium1": (2, 15, 0.2),
    "medium2": (2, 15, 0.5),
    "strong1": (2, 20, 0.5),
    "strong2": (2, 20, 0.8),
}


@pytest.mark.parametrize("level", AUGREG)
def test_augreg_has_seven_levels(level):
    recipe = pretraining_recipe(f"ViT-B/16@imagenet-augreg-{level}")
    how = recipe.augmentation.randaugment
    assert (how.layers, how.magnitude, recipe.mixup) == AUGREG[level]
    assert (how.flavour, how.probability, how.deviation, recipe.partners) == ("tf", 1.0, 0.0, "rolled")
    assert (recipe.batch, recipe.schedule.total, recipe.schedule.warmup) == (4096, 93_835, 10_000)
    assert (recipe.schedule.peak, recipe.schedule.decay, recipe.loss) == (1e-3, "cosine", "softmax")
    assert recipe.optimizer == AdamW(weight_decay=0.1, decay="kernels", clip=1.0)
    assert pretraining_head(recipe.name) == "linear"


def test_augreg_chooses_a_level_for_each_model():
    chosen = {
        "imagenet21k": {"Ti/16": "none", "S/32": "none", "S/16": "light1", "B/16": "light2", "L/16": "medium2"},
        "imagenet": {"Ti/16": "light1", "S/32": "medium1", "S/16": "medium2", "B/32": "medium2", "L/16": "medium2"},
    }
    for data, models in chosen.items():
        for model, level in models.items():
            recipe = pretraining_recipe(f"ViT-{model}@{data}-augreg")
            assert recipe.source.endswith(f"augmentation {level}")
            assert recipe.loss == {"imagenet": "softmax", "imagenet21k": "sigmoid"}[data]
    with pytest.raises(ValueError, match=r"a level may follow, such as -strong1: none, light1"):
        pretraining_recipe("ViT-B/16@imagenet-augreg-strong9")


@pytest.mark.parametrize("model", ["DeiT-Ti/16", "DeiT-S/16", "DeiT-B/16", "DeiT-B/16-distilled"])
def test_deit_is_trained_as_its_paper_says(model):
    recipe = pretraining_recipe(f"{model}@imagenet")
    schedule, how = recipe.schedule, recipe.augmentation
    assert (recipe.batch, schedule.peak, schedule.decay, recipe.label_smoothing) == (1024, 1e-3, "cosine", 0.1)
    assert (schedule.total, schedule.warmup) == (300 * 1_281_167 // 1024, 5 * 1_281_167 // 1024)
    assert schedule.learning_rate(schedule.total) == pytest.approx(1e-5)
    assert (recipe.mixup, recipe.cutmix, recipe.partners) == (0.8, 1.0, "reversed")
    assert (recipe.dropout, recipe.stochastic_depth, recipe.optimizer.weight_decay) == (0.0, 0.1, 0.05)
    assert recipe.optimizer.decay == "kernels"
    assert (how.crop, how.smallest_area, how.interpolation, how.repeats) == ("uniform-area", 0.08, "bicubic", 3)
    assert how.erasing.probability == 0.25
    assert pretraining_row_for(model, 900) == (recipe.name, "a DeiT is trained as in its own paper")
    assert pretraining_recipe(recipe.name, Length(batch=256)).schedule.peak == pytest.approx(2.5e-4)


def test_deits_pictures_are_those_of_timms_words():
    """What timm makes of DeiT's options: no colour jitter beside RandAugment, noise for erased pixels, the mean."""
    peers = pytest.importorskip("peers", reason="the peer libraries are not installed", exc_type=ImportError)
    from timm.data import create_transform

    made = create_transform(
        224,
        is_training=True,
        color_jitter=0.3,
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="bicubic",
        re_prob=0.25,
        re_mode="pixel",
    )
    by_name = {type(step).__name__: step for step in made.transforms}
    assert "ColorJitter" not in by_name
    how = pretraining_recipe("DeiT-S/16@imagenet").augmentation
    assert how.colour_jitter == 0
    operation = by_name["RandAugment"].ops[0]
    ours = how.randaugment
    assert (operation.magnitude, operation.magnitude_std, operation.prob) == (9, ours.deviation, ours.probability)
    assert (operation.kwargs["fillcolor"], by_name["RandAugment"].num_layers) == (ours.fill, ours.layers)
    assert operation.kwargs["resample"] == peers.torchvision.transforms.functional.Image.Resampling.BICUBIC
    assert by_name["RandomResizedCropAndInterpolation"].scale == (how.smallest_area, 1.0)
    erasing = by_name["RandomErasing"]
    assert (erasing.probability, erasing.per_pixel) == (how.erasing.probability, True)


FINETUNING = {  # steps, warm-up, held out
    "imagenet": (20_000, 500, 0.01),
    "cifar100": (10_000, 500, 0.02),
    "cifar10": (10_000, 500, 0.02),
    "pets": (500, 100, 0.1),
    "flowers": (500, 100, 0.1),
    "vtab": (2_500, 200, 0.2),
}


@pytest.mark.parametrize(("name", "row"), FINETUNING.items())
def test_a_row_of_table_4(name, row):
    recipe = finetuning_recipe(name)
    assert (recipe.schedule.total, recipe.schedule.warmup, development_share(name)) == row
    assert (recipe.batch, recipe.image, recipe.schedule.decay, recipe.loss) == (512, (384, 384), "cosine", "softmax")
    assert recipe.optimizer == SGD(momentum=0.9, weight_decay=0.0, clip=1.0)
    assert recipe.schedule.learning_rate(recipe.schedule.total) == pytest.approx(0, abs=1e-12)


BIT_CROP = Augmentation(crop="square-crop", enlarged=448 / 384)  # resize to a square of 448, crop 384, flip


@pytest.mark.parametrize("name", [*FINETUNING, "imagenet-512"])
def test_vtab_has_the_preprocessing_of_bit_and_the_others_the_inception_crop(name):
    """Appendix B.1.1 and the released code, of which an author says that the paper's runs used it."""
    recipe = finetuning_recipe(name)
    assert recipe.augmentation == (BIT_CROP if name == "vtab" else Augmentation(crop="inception", flip=True))
    assert with_fields(recipe, [("augmentation.crop", "square-crop")]).augmentation == BIT_CROP


@pytest.mark.parametrize(
    ("pictures", "model", "resized", "crop"),
    [
        ((32, 32), "R50x1", 160, 128),
        ((500, 375), "R50x1", 448, 384),
        ((500, 375), "R152x4", 512, 480),
        ((28, 28), "R152x4", 160, 128),
    ],
)
@pytest.mark.parametrize("name", BIT_SIZES)
def test_the_resolution_of_bit_hyper_rule_follows_the_pictures_and_the_model(name, pictures, model, resized, crop):
    recipe = finetuning_recipe(name, pictures=pictures, model=model)
    assert recipe.image == (crop, crop)
    assert (recipe.augmentation.crop, round(recipe.augmentation.enlarged * crop)) == ("square-crop", resized)


@pytest.mark.parametrize("side", [512, 518])
def test_table_2_has_larger_pictures_and_averaging(side):
    recipe = finetuning_recipe(f"imagenet-{side}")
    assert (recipe.image, recipe.average, recipe.schedule.total) == ((side, side), 0.9999, 20_000)


@pytest.mark.parametrize(
    ("name", "warmup", "boundaries", "total", "mixup"),
    [
        ("bit-small", 100, (200, 300, 400), 500, 0.0),
        ("bit-medium", 500, (3000, 6000, 9000), 10_000, 0.1),
        ("bit-large", 500, (6000, 12_000, 18_000), 20_000, 0.1),
    ],
)
def test_bit_hyper_rule(name, warmup, boundaries, total, mixup):
    recipe = finetuning_recipe(name)
    schedule = recipe.schedule
    assert (schedule.warmup, schedule.boundaries, schedule.total, recipe.mixup) == (warmup, boundaries, total, mixup)
    assert (schedule.peak, recipe.batch, recipe.image) == (0.003, 512, (384, 384))
    assert recipe.augmentation.crop == "square-crop"
    assert recipe.augmentation.enlarged == 448 / 384


@pytest.mark.parametrize("name", [n for n in pretraining_names() if pretraining_model(n) in list_models()])
def test_the_model_of_a_recipe_builds_without_memory(name):
    recipe = pretraining_recipe(name)
    with torch.device("meta"):
        model = build_model(pretraining_model(name), image=recipe.image, classes=10, dropout=recipe.dropout)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_steps_follow_your_images_epochs_and_batch():
    recipe = pretraining_recipe("ViT-B/16@imagenet", Length(images=1_000_000, epochs=50, batch=1000))
    assert (recipe.schedule.total, recipe.batch) == (50_000, 1000)


def test_the_warm_up_follows_the_steps_unless_it_is_set():
    short = pretraining_recipe("ViT-B/16@imagenet", Length(images=1_000))
    assert (short.schedule.total, short.schedule.warmup) == (73, 7)  # 10,000 of 93,835
    longer = pretraining_recipe("ViT-B/16@imagenet", Length(epochs=600)).schedule
    assert (longer.total, longer.warmup) == (187_670, 10_000)  # table 3 has the same for 7 and for 14 epochs
    assert pretraining_recipe("ViT-B/16@imagenet", Length(images=1_000, warmup=3)).schedule.warmup == 3
    for name in ("R50x1@jft300m-sgd", MASKED, "ViT-S/16@imagenet-augreg", "DeiT-S/16@imagenet"):
        own, tenth = pretraining_recipe(name), pretraining_recipe(name, Length(total=1000))
        assert tenth.schedule.warmup == own.schedule.warmup * 1000 // own.schedule.total
    assert finetuning_recipe("cifar10", Length(total=200)).schedule.warmup == 10


@pytest.mark.parametrize("name", ["cifar10", "imagenet-512", "bit-medium", "R50x1@jft300m-sgd", "DeiT-S/16@imagenet"])
def test_the_peak_of_sgd_and_of_deit_is_proportional_to_the_batch(name):
    make = finetuning_recipe if name in finetuning_names() else pretraining_recipe
    own = make(name)
    eighth = make(name, Length(batch=own.batch // 8))
    assert eighth.batch == own.batch // 8
    assert eighth.schedule.peak == pytest.approx(own.schedule.peak / 8)


@pytest.mark.parametrize("name", ["ViT-B/16@imagenet21k", "ViT-L/16@imagenet", MASKED, "ViT-S/16@imagenet-augreg"])
def test_the_peak_of_adam_follows_the_square_root_of_the_batch(name):
    own, smaller = pretraining_recipe(name), pretraining_recipe(name, Length(batch=64))
    assert smaller.schedule.peak == pytest.approx(own.schedule.peak / 8)
    tiny = pretraining_recipe(name, Length(batch=1)).schedule  # its end is not above its peak
    assert 0 <= tiny.end <= tiny.peak


def test_epochs_become_steps_of_a_fine_tuning_and_everything_else_follows():
    recipe = finetuning_recipe("bit-medium", Length(images=1000, epochs=8, batch=80))
    assert (recipe.schedule.total, recipe.schedule.warmup) == (100, 5)
    assert recipe.schedule.boundaries == (30, 60, 90)
    with pytest.raises(ValueError, match=r"epochs= \(8\) and schedule.total= \(9\) both set the length"):
        Length(epochs=8, total=9)
    with pytest.raises(ValueError, match=r"1 epoch of 46 images: 0 steps of 512, .*give batch=11"):
        finetuning_recipe("pets", Length(images=46, epochs=1))


def test_masked_patches_are_those_of_the_appendix():
    recipe = pretraining_recipe("ViT-B/16@jft300m-masked")
    schedule = recipe.schedule
    found = (schedule.total, schedule.warmup, schedule.peak, schedule.decay, recipe.batch, recipe.image, recipe.dropout)
    assert found == (1_000_000, 10_000, 2e-4, "cosine", 4096, (224, 224), 0.0)
    assert recipe.optimizer == AdamW(weight_decay=0.1)
    assert recipe.masking == MASKING == Masking("mean-colour", 0.5, 0.8, 0.1, 0.1)
    assert recipe.augmentation == Augmentation()  # crop and flip as in supervised training
    yours = pretraining_recipe(recipe.name, Length(images=1_000_000, batch=1000))
    assert yours.schedule.total == 14_000  # as often as theirs
    assert pretraining_recipe(recipe.name, Length(images=1_000_000, batch=1000, epochs=50)).schedule.total == 50_000
    assert pretraining_recipe(recipe.name, Length(total=99, warmup=7)).schedule.total == 99


@pytest.mark.parametrize("name", ["ViT-B/16@cifar10", "ViT-L/16@jft300m", "ViT-B/16@jft300m-sgd", "nonsense"])
def test_a_run_the_paper_does_not_have_lists_those_it_has(name):
    with pytest.raises(ValueError, match=r"no recipe of pre-training is named .*; known are .*@"):
        pretraining_recipe(name)


def test_a_finetuning_that_does_not_exist_lists_those_that_do():
    with pytest.raises(ValueError, match=r"known are imagenet, cifar100, .*bit-large, quick"):
        finetuning_recipe("cars")


@pytest.mark.parametrize(
    ("images", "name"),
    [(1, "pets"), (19_999, "pets"), (20_000, "cifar10"), (499_999, "cifar10"), (500_000, "imagenet")],
)
def test_a_row_is_chosen_by_size_as_bit_splits(images, name):
    chosen, why = finetuning_row_for(images)
    assert chosen == name
    assert f"{images:,}" in why


@pytest.mark.parametrize(
    ("model", "images", "name", "reason"),
    [
        ("ViT-B/32", 1_000_000, "ViT-B/32@imagenet", "of its data, ImageNet is nearest in size to your 1,000,000"),
        ("ViT-B/32", 12_000_000, "ViT-B/32@imagenet21k", "ImageNet-21k is nearest in size to your 12,000,000"),
        ("ViT-H/14", 300_000_000, "ViT-H/14@jft300m", "JFT-300M is nearest"),
        ("ViT-Ti/16", 900, "ViT-B/16@imagenet", "does not have ViT-Ti/16 on ImageNet, nearest in size to your 900"),
        ("vit_large_patch16_224", 900, "ViT-L/16@imagenet", "ImageNet is nearest"),
        ("deit_base_patch16_224", 900, "DeiT-B/16@imagenet", "as in its own paper"),
        ("R50+ViT-B/16", 300_000_000, "R50+ViT-B/16@jft300m", "JFT-300M is nearest"),
        ("R50+ViT-B/16", 900, "ViT-B/16@imagenet", "does not have R50+ViT-B/16 on ImageNet"),
        ("R50x1", 900, "R50x1@jft300m", "the paper pre-trains ResNets on JFT-300M only"),
        ("R152x2", 900, "R152x2@jft300m", "the paper pre-trains ResNets on JFT-300M only"),
        ("R200x3", 900, "R200x3@jft300m-14ep", "the paper pre-trains ResNets on JFT-300M only"),
        ("R14x0.25", 900, "R50x1@jft300m", "no R14x0.25, and of its ResNets R50x1 is nearest in size"),
        ("R101x3", 900, "R152x2@jft300m", "no R101x3, and of its ResNets R152x2 is nearest in size"),
        ("R152x4", 10**9, "R152x2@jft300m", "no R152x4, and of its ResNets R152x2 is nearest in size"),
        ("AxialResNet-50", 900, "R50x1@jft300m", "no AxialResNet-50"),
        ("Swin-T", 900, "DeiT-S/16@imagenet", "a Swin is trained much as a DeiT is; DeiT-S/16 is nearest in size"),
        ("Swin-L", 10**6, "DeiT-B/16@imagenet", "DeiT-B/16 is nearest in size"),
    ],
)
def test_pretraining_takes_the_row_of_the_nearest_model_and_data_and_says_why(model, images, name, reason):
    chosen, why = pretraining_row_for(model, images)
    assert chosen == name
    assert reason in why
    pretraining_data(name)


@pytest.mark.parametrize("model", ["R14x1", "R26x2", "R50x3", "R101x1.5", "R101x3", "R200x1", "R152x8"])
def test_the_nearest_resnet_is_that_of_the_nearest_number_of_parameters(model):
    def distance(other):
        return abs(math.log(count(other, classes=0).parameters / count(model, classes=0).parameters))

    printed = ("R50x1", "R50x2", "R101x1", "R152x1", "R152x2")
    assert pretraining_row_for(model, 900)[0] == f"{min(printed, key=distance)}@jft300m"


@pytest.mark.parametrize(
    ("images", "batch", "steps"),
    [(1, 1, 30), (7, 7, 30), (46, 8, 57), (160, 16, 100), (640, 64, 100), (5000, 64, 781), (30_000, 64, 4687)],
)
def test_the_quick_recipe_has_ten_epochs_of_any_number_of_images(images, batch, steps):
    recipe = quick_recipe(images, (224, 224))
    assert (recipe.batch, recipe.schedule.total) == (batch, steps)
    assert recipe.schedule.total == max(10 * images // batch, 30)
    assert recipe.settle_window == max(images // batch, 5)  # an epoch


def test_the_quick_recipe_follows_what_is_set():
    held_out = quick_recipe(46, (224, 224), Length(images=41))
    assert (held_out.batch, held_out.schedule.total, held_out.settle_window) == (8, 51, 5)
    asked = quick_recipe(46, (224, 224), Length(images=41, epochs=4))
    assert (asked.schedule.total, asked.schedule.warmup, asked.settle_window) == (20, 2, 0)  # as long as was asked for
    assert asked.schedule.peak == pytest.approx(0.01 / 8**0.5)
    assert quick_recipe(46, (224, 224), Length(batch=4)).schedule.peak == pytest.approx(asked.schedule.peak / 2)
    for images in (46, 2000):  # the rate of a batch does not depend on the data
        peaks = [quick_recipe(images, (224, 224), Length(batch=batch)).schedule.peak for batch in (4, 8, 46, 64, 128)]
        assert peaks == pytest.approx([asked.schedule.peak * times for times in (1 / 2, 1, 1, 1, 2)])
        assert quick_recipe(images, (224, 224), Length(batch=512)).schedule.peak == 0.01  # of table 4


def test_every_recipe_says_where_it_comes_from():
    for recipe in (*map(pretraining_recipe, pretraining_names()), *map(finetuning_recipe, finetuning_names())):
        cited = ("Table", "table", "BiT-HyperRule", "section 4.6", "AugReg", "DeiT")
        assert any(word in recipe.source for word in cited), recipe.name
    assert set(BIT_SIZES) < set(finetuning_names())
