"""Studies of pre-training: its data (table 5, figures 3, 4), without labels, and a higher resolution after it."""

from collections.abc import Iterator
from statistics import fmean
from typing import Final

from vitlab.paper.pretraining import DATA, FIGURE_4_SUBSETS
from vitlab.paper.results import SELF_SUPERVISION, TABLE_5
from vitlab.studies.claims import Claim, Comparison, above, alike, gains_more
from vitlab.studies.scale import JFT, Scale
from vitlab.studies.study import FEW_SHOT, TOP_1, Accuracy, Cell, Figure, Study, Training
from vitlab.studies.transfer import FIVE, MEAN_OF_FIVE, REAL, real_labels

PAIR: Final = ("ViT-B/32", "R50x1")  # section 4.3: ViT-B/32 is slightly faster
PAIR_HERE: Final = ("ViT-B/16", "R50x2")
FIGURE_4: Final = ("ViT-L/16", "ViT-L/32", "ViT-B/32", "ViT-b/32", "R50x1", "R152x2")

# -- Table 5 and figures 3 and 4 --------------------------------------------------------------------


def table_5(lab: Scale) -> Iterator[Cell]:
    """Every model pre-trained on three sets of growing size, and fine-tuned on every task."""
    models = ("ViT-B/16", "ViT-L/16") if lab.is_thin else TABLE_5.columns
    for data in DATA:
        for model in filter(lab.has, models):
            if TABLE_5[(data, "ImageNet"), model] is None:
                continue  # ViT-H/14 was not trained on ImageNet alone
            start = lab.pretrained(model, data, _epochs_5(model, data))
            for task in lab.transfer:
                levels, training = {"data": data, "model": model}, lab.tuned(start, task, model)
                yield Cell({**levels, "task": task}, Accuracy(), training, _table_5(data, model, task, lab))
                if task == "ImageNet":
                    yield from real_labels(lab, levels, training, TABLE_5[(data, REAL), model])


def _epochs_5(model: str, data: str) -> int | None:
    """The longest run: table 5 prints the same numbers as table 6 for 14 epochs, and table 2's ImageNet-21k runs."""
    return {(JFT, "ViT-L/16"): 14, ("ImageNet-21k", "ViT-L/16"): 90, ("ImageNet-21k", "ViT-L/32"): 90}.get(
        (data, model)
    )


def _table_5(data: str, model: str, task: str, lab: Scale) -> float | None:
    names = (task,) if lab.is_paper else FIVE
    found = [value for name in names if (value := TABLE_5[(data, name), model]) is not None]  # pyrefly: ignore
    return fmean(found) if found else None


def figure_4(lab: Scale) -> Iterator[Cell]:
    """Nested subsets of the largest set, the same steps and hyper-parameters, early stopping; few-shot accuracy."""
    for model in filter(lab.has, PAIR_HERE if lab.is_thin else FIGURE_4):
        for images, share in _subsets(lab).items():
            training = lab.pretrained(model, JFT, 7, subset=share, early_stop=True)
            yield Cell({"model": model, "images": f"{images}"}, lab.few_shot(), training)


def _subsets(lab: Scale) -> dict[int, float]:
    """The numbers of images of figure 4 at a scale, and their shares of the largest set."""
    whole = DATA[JFT].images
    parts = (4, 2, 1) if lab.name == "test" else (25, 5, 1)
    sizes = [whole // part for part in parts] if lab.is_thin else [*FIGURE_4_SUBSETS, whole]
    return {round(lab.upstream[JFT].images * size / whole): size / whole for size in sizes}


def claims_4(lab: Scale) -> tuple[Claim, ...]:
    """What figure 4 shows of a ViT and a ResNet of comparable cost, for the subsets of a scale."""
    vit, resnet = PAIR_HERE if lab.is_thin else PAIR
    fewest, *others = _subsets(lab)

    def leads(images: int, about: str = "") -> Comparison:
        at = {"images": f"{images}"}
        return above(FEW_SHOT, {"model": resnet, **at}, {"model": vit, **at}, about=about)

    return (
        Claim(
            f"{resnet} above {vit}, pre-trained on {fewest:,} images",
            "ViTs overfit more than ResNets of comparable cost on smaller subsets.",
            "section 4.3, figure 4",
            (leads(fewest),),
            beside=tuple(leads(images, f"on {images:,} images") for images in others),
            everywhere=f"{resnet} leads at every size here; in the paper ViTs overtake ResNets as the data grows.",
        ),
        Claim(
            f"{vit} gains more than {resnet} from {fewest:,} to {others[-1]:,} images",
            "With more pre-training images ViTs catch up with ResNets and overtake them.",
            "section 4.3, figure 4",
            (
                gains_more(
                    FEW_SHOT, {"model": vit}, {"model": resnet}, {"images": f"{others[-1]}"}, {"images": f"{fewest}"}
                ),
            ),
        ),
    )


TABLE5: Final = Study(
    "table5",
    "Table 5: top-1 by pre-training data (values of figure 3)",
    "How much does the size of the pre-training set matter, for smaller and larger ViTs?",
    table_5,
    Figure("data", ("model",), order=("ImageNet", "ImageNet-21k", JFT)),
    (
        Claim(
            "ViT-B/16 better after JFT-300M than after ImageNet",
            "Accuracy after fine-tuning grows with the size of the pre-training set.",
            "section 4.3, figure 3, table 5",
            (above(TOP_1, {"data": JFT, "model": "ViT-B/16"}, {"data": "ImageNet", "model": "ViT-B/16"}),),
        ),
        Claim(
            "ViT-L/16 gains more than ViT-B/16 from ImageNet to JFT-300M",
            "On the smallest set larger ViTs are no better than smaller ones; they show their benefit on the largest.",
            "section 4.3, figure 3",
            (gains_more(TOP_1, {"model": "ViT-L/16"}, {"model": "ViT-B/16"}, {"data": JFT}, {"data": "ImageNet"}),),
            beside=tuple(
                above(TOP_1, {"model": "ViT-L/16", "data": data}, {"model": "ViT-B/16", "data": data},
                      about=f"ViT-L/16 above ViT-B/16 after {data}")
                for data in ("ImageNet", JFT)
            ),
        ),
    ),
    printed=MEAN_OF_FIVE,
    aliases=("figure3",),
)  # fmt: skip
FIGURE4: Final = Study(
    "figure4",
    "Figure 4: few-shot accuracy against the number of pre-training images",
    "How do ViTs and ResNets compare when the pre-training set is small?",
    figure_4,
    Figure("images", ("model",)),
    claims_4,
    says="ResNets perform better with smaller pre-training sets, but plateau sooner than ViTs.",
)

# -- Self-supervision and resolution ----------------------------------------------------------------


def self_supervision(lab: Scale) -> Iterator[Cell]:
    """Masked patches with each target and two corruptions, beside training from scratch and with labels."""
    starts: dict[tuple[str, str], Training | None] = {("from scratch", "-"): None}
    for target in ("mean-colour", "colours-4x4", "pixels"):
        starts["masked patches", target] = lab.masked(target=target)
    starts["masked patches", "mean-colour, 15 % corrupted"] = lab.masked(corrupted=0.15)
    starts["labels", JFT] = lab.pretrained("ViT-B/16", JFT, 7)
    if lab.is_paper:
        starts["labels", "ImageNet-21k"] = lab.pretrained("ViT-B/16", "ImageNet-21k")
    printed = {
        ("from scratch", "-"): "from scratch",
        ("masked patches", "mean-colour"): "masked patches of JFT-300M",
        ("labels", JFT): "supervised JFT-300M",
        ("labels", "ImageNet-21k"): "supervised ImageNet-21k",
    }
    tasks = ("ImageNet",) if lab.is_paper else dict.fromkeys(("CIFAR-10", lab.transfer[0]))
    for task in filter(lab.tasks.__contains__, tasks):
        for (learned, what), start in starts.items():
            training = lab.scratch("ViT-B/16", task) if start is None else lab.tuned(start, task, "ViT-B/16")
            name = printed.get((learned, what))
            published = None if name is None else SELF_SUPERVISION[name, "ImageNet"]
            yield Cell({"learned": learned, "what": what, "task": task}, Accuracy(), training, published)


def resolution(lab: Scale) -> Iterator[Cell]:
    """The same weights fine-tuned at the resolution of pre-training and at a higher one."""
    start = lab.pretrained("ViT-B/16", "ImageNet-21k" if lab.is_paper else JFT)
    higher = lab.image * 3 // 2 if lab.tuned_image == lab.image else lab.tuned_image
    for task in lab.transfer:
        for side in (lab.image, higher):
            training = lab.tuned(start, task, "ViT-B/16", image=side)
            printed = TABLE_5[("ImageNet-21k", task), "ViT-B/16"] if lab.is_paper and side == higher else None
            name = "higher" if side == higher else "same"
            yield Cell({"resolution": name, "pixels": f"{side}", "task": task}, Accuracy(), training, printed)


SELFSUP: Final = Study(
    "selfsup",
    "Section 4.6 and appendix B.1.2: masked patch prediction",
    "How much of the benefit of pre-training is there without labels, and does the target matter?",
    self_supervision,
    Figure(("learned", "what"), ("task",)),
    (
        Claim(
            "masked patches (mean colour) above training from scratch",
            "Masked patch prediction improves over training from scratch by 2 points.",
            "section 4.6",
            (above(TOP_1, {"learned": "masked patches", "what": "mean-colour"}, {"learned": "from scratch"}),),
        ),
        Claim(
            "labels above masked patches (mean colour)",
            "Pre-training without labels stays 4 points behind pre-training with labels.",
            "section 4.6",
            (above(TOP_1, {"learned": "labels", "what": JFT}, {"learned": "masked patches", "what": "mean-colour"}),),
        ),
        Claim(
            "labels above training from scratch",
            "Pre-trained models need few labels; from scratch the same model is far worse.",
            "sections 1 and 4.3",
            (above(TOP_1, {"learned": "labels", "what": JFT}, {"learned": "from scratch"}),),
        ),
        Claim(
            "all targets within 2 points of the mean colour",
            "The mean colour, a 4 x 4 patch of colours and all pixels work about as well, pixels slightly worse.",
            "appendix B.1.2",
            (
                alike(TOP_1, {"what": "mean-colour"}, {"what": "colours-4x4"}, within=2.0, about="4 x 4 colours"),
                alike(TOP_1, {"what": "mean-colour"}, {"what": "pixels"}, within=2.0, about="pixels"),
            ),
        ),
    ),
    printed="ImageNet",
)
RESOLUTION: Final = Study(
    "resolution",
    "Section 3.2: fine-tuning at a higher resolution than pre-training",
    "Does a longer sequence of the same patches help in fine-tuning?",
    resolution,
    Figure("resolution", ("task",), order=("same", "higher")),
    (
        Claim(
            "fine-tuning at a higher resolution above the same one",
            "It is often beneficial to fine-tune at a higher resolution than pre-training.",
            "section 3.2",
            (above(TOP_1, {"resolution": "higher"}, {"resolution": "same"}),),
        ),
    ),
    says="It is often beneficial to fine-tune at a higher resolution.",
)
