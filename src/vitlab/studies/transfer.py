"""Studies of transfer: tables 2, 5 and 6 with figures 2 to 5, table 7, section 4.6, and higher resolution."""

from collections.abc import Iterator
from statistics import fmean
from typing import Final

from vitlab.paper.pretraining import DATA, FIGURE_4_SUBSETS
from vitlab.paper.results import (
    BIT_L,
    H14_JFT,
    L16_I21K,
    L16_JFT,
    SELF_SUPERVISION,
    TABLE_2,
    TABLE_5,
    TABLE_6,
    TABLE_7,
    TABLE_9,
)
from vitlab.paper.vtab import TASKS
from vitlab.studies.claims import Claim, Comparison, Term, above, alike, gains_more
from vitlab.studies.scales import JFT, Scale
from vitlab.studies.study import Accuracy, Cell, Figure, Real, Study, Training

FIVE: Final = ("ImageNet", "CIFAR-10", "CIFAR-100", "Oxford-IIIT Pets", "Oxford Flowers-102")  # Average-5 of figure 5
REAL: Final = "ImageNet ReaL"
TOP_1: Final = "top-1 %"
FEW_SHOT: Final = "few-shot %"
FIGURE_4: Final = ("ViT-L/16", "ViT-L/32", "ViT-B/32", "ViT-b/32", "R50x1", "R152x2")


def _real(lab: Scale, levels: dict[str, str], training: Training, published: float | None) -> Iterator[Cell]:
    """At the paper's scale, the cell of ImageNet's ReaL labels, of the run that was fine-tuned on ImageNet."""
    if lab.is_paper:
        yield Cell({**levels, "task": REAL}, Real(training.test, "{real}"), training, published)


# -- Table 2 and figure 2 --------------------------------------------------------------------------


def table_2(lab: Scale) -> Iterator[Cell]:
    """Four models, each fine-tuned on every task; BiT-L and the ViTs as printed."""
    for model, data in (H14_JFT, L16_JFT, L16_I21K, BIT_L):
        stand_in = model if lab.is_paper else {"R152x4": "R50x2", "ViT-H/14": ""}.get(model, model)
        if not stand_in or not lab.has(stand_in):
            continue
        is_bit = lab.is_paper and model == "R152x4"  # BiT-L was pre-trained with SGD
        start = lab.pretrained(stand_in, data, 14 if data == JFT else 90, sgd=is_bit)
        for task in (*lab.transfer, *(_vtab_tasks(lab) if lab.is_paper else ())):
            training = lab.tuned(start, task, model, best=True)
            levels = {"model": model, "data": data}
            yield Cell({**levels, "task": task}, Accuracy(), training, _table_2(model, data, task, lab))
            if task == "ImageNet":
                yield from _real(lab, levels, training, _table_2(model, data, REAL, lab))


def _table_2(model: str, data: str, task: str, lab: Scale) -> float | None:
    if task.startswith("VTAB, "):
        rows = dict(TABLE_9.rows)
        return TABLE_9[(model, data), task.removeprefix("VTAB, ")] if (model, data) in rows else None
    names = (task,) if lab.is_paper else FIVE
    found = [score.mean for name in names if (score := TABLE_2[name, (model, data)]) is not None]
    return fmean(found)


def figure_2(lab: Scale) -> Iterator[Cell]:
    """VTAB by groups, for the models of table 9 and BiT-L."""
    groups = {f"VTAB, {task.name}": str(task.group) for task in TASKS} if lab.is_paper or lab.name == "small" else {
        "CIFAR-10": "natural", "Fashion-MNIST": "natural", "digits": "specialized",
        "shapes": "structured", "dSprites, location": "structured",
    }  # fmt: skip
    for model, data in (H14_JFT, L16_JFT, L16_I21K, BIT_L):
        stand_in = model if lab.is_paper else {"R152x4": "R50x2", "ViT-H/14": "", "ViT-L/16": "ViT-B/16"}[model]
        if not stand_in or not lab.has(stand_in):
            continue
        is_bit = lab.is_paper and model == "R152x4"
        start = lab.pretrained(stand_in, data, 14 if data == JFT else 90, sgd=is_bit)
        for task, group in groups.items():
            if task in lab.tasks:
                levels = {"model": model, "data": data, "group": group, "task": task}
                published = _table_2(model, data, task, lab) if task.startswith("VTAB") else None
                yield Cell(levels, Accuracy(), lab.tuned(start, task, stand_in), published)


def _vtab_tasks(lab: Scale) -> tuple[str, ...]:
    return tuple(f"VTAB, {task.name}" for task in TASKS)


TABLE2: Final = Study(
    "table2",
    "Table 2: comparison with the state of the art",
    "How good is the largest ViT beside a BiT ResNet, after pre-training on the largest set and on a smaller one?",
    table_2,
    Figure("model", ("data",)),
    (
        Claim(
            "ViT at the level of BiT",
            "ViT-L/16 pre-trained on JFT-300M matches or exceeds BiT-L on every task.",
            "section 4.2, table 2",
            (above(TOP_1, {"model": "ViT-L/16", "data": JFT}, {"model": "R152x4"}, by=-1.0),),
        ),
        Claim(
            "JFT-300M above ImageNet-21k",
            "The same ViT-L/16 transfers better after pre-training on the larger set.",
            "table 2",
            (above(TOP_1, {"model": "ViT-L/16", "data": JFT}, {"model": "ViT-L/16", "data": "ImageNet-21k"}),),
        ),
    ),
)
FIGURE2: Final = Study(
    "figure2",
    "Figure 2: VTAB by groups of tasks (values of ViTs: table 9)",
    "On which groups of tasks is ViT better than BiT?",
    figure_2,
    Figure("group", ("model", "data")),
    (
        Claim(
            "ViT above BiT on natural and structured tasks",
            "ViT outperforms BiT-R152x4 on the natural and structured tasks; on the specialized ones they are similar.",
            "section 4.2, figure 2",
            tuple(
                above(TOP_1, {"model": "ViT-L/16", "data": JFT, "group": group}, {"model": "R152x4", "group": group})
                for group in ("natural", "structured")
            ),
        ),
    ),
)  # fmt: skip

# -- Table 5 and figures 3 and 4 --------------------------------------------------------------------


def table_5(lab: Scale) -> Iterator[Cell]:
    """Every model pre-trained on three sets of growing size, and fine-tuned on every task."""
    models = TABLE_5.columns if lab.name in ("paper", "small") else ("ViT-B/16", "ViT-L/16")
    for data in DATA:
        for model in filter(lab.has, models):
            if TABLE_5[(data, "ImageNet"), model] is None:
                continue  # ViT-H/14 was not trained on ImageNet alone
            start = lab.pretrained(model, data, _epochs_5(model, data))
            for task in lab.transfer:
                levels, training = {"data": data, "model": model}, lab.tuned(start, task, model)
                yield Cell({**levels, "task": task}, Accuracy(), training, _table_5(data, model, task, lab))
                if task == "ImageNet":
                    yield from _real(lab, levels, training, TABLE_5[(data, REAL), model])


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
    whole = DATA[JFT].images
    parts = (4, 2, 1) if lab.name == "test" else (25, 5, 1)
    sizes = [*FIGURE_4_SUBSETS, whole] if lab.name in ("paper", "small") else [whole // part for part in parts]
    for model in FIGURE_4 if lab.name in ("paper", "small") else ("ViT-B/16", "R50x2"):
        for size in sizes if lab.has(model) else ():
            images = round(lab.upstream[JFT].images * size / whole)
            training = lab.pretrained(model, JFT, 7, subset=size / whole, early_stop=True)
            yield Cell({"model": model, "images": f"{images}"}, lab.few_shot(), training)


TABLE5: Final = Study(
    "table5",
    "Table 5: top-1 by pre-training data (values of figure 3)",
    "How much does the size of the pre-training set matter, for smaller and larger ViTs?",
    table_5,
    Figure("data", ("model",)),
    (
        Claim(
            "more pre-training data, better transfer",
            "Accuracy after fine-tuning grows with the size of the pre-training set.",
            "section 4.3, figure 3, table 5",
            (above(TOP_1, {"data": JFT, "model": "ViT-B/16"}, {"data": "ImageNet", "model": "ViT-B/16"}),),
        ),
        Claim(
            "larger models gain more from more data",
            "On the smallest set larger ViTs are no better than smaller ones; they show their benefit on the largest.",
            "section 4.3, figure 3",
            (gains_more(TOP_1, {"model": "ViT-L/16"}, {"model": "ViT-B/16"}, {"data": JFT}, {"data": "ImageNet"}),),
        ),
    ),
    aliases=("figure3",),
)
FIGURE4: Final = Study(
    "figure4",
    "Figure 4: few-shot accuracy against the number of pre-training images",
    "How do ViTs and ResNets compare when the pre-training set is small?",
    figure_4,
    Figure("images", ("model",)),
    (
        Claim(
            "ViT trails ResNet on little data",
            "ViTs overfit more than ResNets of comparable cost on smaller subsets.",
            "section 4.3, figure 4",
            (above(FEW_SHOT, {"model": "R50x2", "images": "2000"}, {"model": "ViT-B/16", "images": "2000"}),),
        ),
        Claim(
            "ViT gains more from more data",
            "With more pre-training images ViTs catch up with ResNets and overtake them.",
            "section 4.3, figure 4",
            (gains_more(FEW_SHOT, {"model": "ViT-B/16"}, {"model": "R50x2"}, {"images": "50000"}, {"images": "2000"}),),
        ),
    ),
    says="ResNets perform better with smaller pre-training sets, but plateau sooner than ViTs.",
)  # fmt: skip

# -- Table 6, figure 5, table 7 ---------------------------------------------------------------------


def kind_of(model: str) -> str:
    """The family of a model's name."""
    return "hybrid" if "+" in model else "ResNet" if model.startswith("R") else "ViT"


def table_6(lab: Scale) -> Iterator[Cell]:
    """Every model and length of table 6, fine-tuned on every task."""
    few = ("ViT-B/32", "ViT-B/16", "ViT-L/16", "R50x1", "R50x2", "R50+ViT-B/32", "R50+ViT-B/16", "R50+ViT-L/16")
    for (model, epochs), _ in TABLE_6.rows:
        if not lab.has(model, epochs) or (lab.name in ("tiny", "test") and model not in few):
            continue
        start = lab.pretrained(model, JFT, epochs)
        for task in lab.transfer:
            names = (task,) if lab.is_paper else FIVE
            levels = {"family": kind_of(model), "model": model, "epochs": f"{epochs}"}
            training = lab.tuned(start, task, model)
            published = fmean(TABLE_6[(model, epochs), name] for name in names)
            yield Cell({**levels, "task": task}, Accuracy(), training, published)
            if task == "ImageNet":
                yield from _real(lab, levels, training, TABLE_6[(model, epochs), REAL])


def table_7(lab: Scale) -> Iterator[Cell]:
    """Two ResNets pre-trained with Adam and with SGD, fine-tuned on every task."""
    for model, optimizer in TABLE_7.columns:
        stand_in = model if lab.has(model) and lab.name in ("paper", "small") else {"R152x2": "R50x2"}.get(model, model)
        start = lab.pretrained(stand_in, JFT, 7, sgd=optimizer == "SGD")
        for task in lab.transfer:
            names = (task,) if lab.is_paper else FIVE
            published = fmean(TABLE_7[name, (model, optimizer)] for name in names)
            levels = {"model": model, "optimizer": str(optimizer), "task": task}
            yield Cell(levels, Accuracy(), lab.tuned(start, task, stand_in), published)


TABLE6: Final = Study(
    "table6",
    "Table 6: transfer by pre-training compute (values of figure 5)",
    "What does a given amount of compute buy, with ViTs, ResNets and hybrids?",
    table_6,
    Figure("exaFLOPs", ("family",)),
    (
        Claim(
            "ViT above ResNet at equal compute",
            "ViTs reach the accuracy of ResNets with two to four times less compute.",
            "section 4.4, figure 5",
            (above(TOP_1, {"model": "ViT-B/16"}, {"model": "R50x2"}),),
        ),
        Claim(
            "hybrid above ViT at a small budget",
            "Hybrids slightly outperform ViTs at small computational budgets.",
            "section 4.4, figure 5",
            (above(TOP_1, {"model": "R50+ViT-B/32"}, {"model": "ViT-B/32"}),),
        ),
        Claim(
            "the hybrid's lead shrinks with size",
            "The difference between hybrids and ViTs vanishes for larger models.",
            "section 4.4, figure 5",
            (
                Comparison(
                    (
                        Term(1.0, (("model", "ViT-L/16"),)),
                        Term(-1.0, (("model", "ViT-B/32"),)),
                        Term(-1.0, (("model", "R50+ViT-L/16"),)),
                        Term(1.0, (("model", "R50+ViT-B/32"),)),
                    ),
                    TOP_1, "above", 0.0,
                ),
            ),
        ),
        Claim(
            "larger models transfer better",
            "Within a family accuracy grows with compute, without saturating.",
            "section 4.4, figure 5",
            (
                above(TOP_1, {"model": "ViT-L/16"}, {"model": "ViT-B/32"}),
                above(TOP_1, {"model": "R50x2"}, {"model": "R50x1"}),
            ),
        ),
    ),
    aliases=("figure5",),
)  # fmt: skip
TABLE7: Final = Study(
    "table7",
    "Table 7: pre-training ResNets with SGD and with Adam",
    "Is Adam a fair choice for pre-training ResNets?",
    table_7,
    Figure("optimizer", ("model",)),
    (
        Claim(
            "Adam above SGD for ResNets",
            "On average over the tasks, ResNets pre-trained with Adam transfer better than with SGD.",
            "appendix D.1, table 7",
            (above(TOP_1, {"optimizer": "Adam"}, {"optimizer": "SGD"}),),
        ),
    ),
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
    Figure("learned", ("task",)),
    (
        Claim(
            "masked patches above training from scratch",
            "Masked patch prediction improves over training from scratch by 2 points.",
            "section 4.6",
            (above(TOP_1, {"learned": "masked patches", "what": "mean-colour"}, {"learned": "from scratch"}),),
        ),
        Claim(
            "labels above masked patches",
            "Pre-training without labels stays 4 points behind pre-training with labels.",
            "section 4.6",
            (above(TOP_1, {"learned": "labels"}, {"learned": "masked patches", "what": "mean-colour"}),),
        ),
        Claim(
            "pre-training above scratch with few labels",
            "Pre-trained models need few labels; from scratch the same model is far worse.",
            "sections 1 and 4.3",
            (above(TOP_1, {"learned": "labels"}, {"learned": "from scratch"}),),
        ),
        Claim(
            "all targets work",
            "The mean colour, a 4 x 4 patch of colours and all pixels work about as well, pixels slightly worse.",
            "appendix B.1.2",
            (
                alike(TOP_1, {"what": "mean-colour"}, {"what": "colours-4x4"}, within=2.0),
                alike(TOP_1, {"what": "mean-colour"}, {"what": "pixels"}, within=2.0),
            ),
        ),
    ),
)
RESOLUTION: Final = Study(
    "resolution",
    "Section 3.2: fine-tuning at a higher resolution than pre-training",
    "Does a longer sequence of the same patches help in fine-tuning?",
    resolution,
    Figure("resolution", ("task",)),
    (
        Claim(
            "higher resolution helps",
            "It is often beneficial to fine-tune at a higher resolution than pre-training.",
            "section 3.2",
            (above(TOP_1, {"resolution": "higher"}, {"resolution": "same"}),),
        ),
    ),
    says="It is often beneficial to fine-tune at a higher resolution.",
)
TRANSFER: Final = (TABLE2, FIGURE2, TABLE5, FIGURE4, TABLE6, TABLE7, SELFSUP, RESOLUTION)
