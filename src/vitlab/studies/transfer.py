"""Studies of transfer: table 2, figure 2, table 6 with figure 5, and table 7."""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Final

from vitlab.paper.results import BIT_L, H14_JFT, L16_I21K, L16_JFT, TABLE_2, TABLE_6, TABLE_7, TABLE_9
from vitlab.paper.vtab import TASKS
from vitlab.studies.claims import Claim, Comparison, Term, above
from vitlab.studies.scale import JFT, Scale
from vitlab.studies.study import COMPUTE, TOP_1, Accuracy, Cell, Figure, Real, Study, Training

FIVE: Final = ("ImageNet", "CIFAR-10", "CIFAR-100", "Oxford-IIIT Pets", "Oxford Flowers-102")  # Average-5 of figure 5
MEAN_OF_FIVE: Final = f"mean of {len(FIVE)} tasks"
REAL: Final = "ImageNet ReaL"
VTAB: Final = {f"VTAB, {task.name}": str(task.group) for task in TASKS}  # the group of each task
SEVEN: Final = {"epochs": "7"}  # what all models of table 6 have
VTAB_HERE: Final = {  # what stands for VTAB's tasks on two cores
    **dict.fromkeys(("CIFAR-10", "Fashion-MNIST"), "natural"),
    "digits": "specialized",
    **dict.fromkeys(("shapes", "dSprites, location"), "structured"),
}


def real_labels(lab: Scale, levels: dict[str, str], training: Training, published: float | None) -> Iterator[Cell]:
    """At the paper's scale, the cell of ImageNet's ReaL labels, of the run that was fine-tuned on ImageNet."""
    if lab.is_paper:
        yield Cell({**levels, "task": REAL}, Real(training.test, "{real}"), training, published)


# -- Table 2 and figure 2 --------------------------------------------------------------------------


def table_2(lab: Scale) -> Iterator[Cell]:
    """Four models, each fine-tuned on every task; BiT-L and the ViTs as printed. VTAB is the mean of its 19 cells."""
    # Differs from the paper: studies `table2` and `figure2` pre-train R152x4 (BiT-L) with SGD for 14 epochs, not for
    # BiT's 40.
    for model, data in (H14_JFT, L16_JFT, L16_I21K, BIT_L):
        stand_in = model if lab.is_paper else {"R152x4": "R50x2", "ViT-H/14": ""}.get(model, model)
        if not stand_in or not lab.has(stand_in):
            continue
        is_bit = lab.is_paper and model == "R152x4"  # BiT-L was pre-trained with SGD
        start = lab.pretrained(stand_in, data, 14 if data == JFT else 90, sgd=is_bit)
        for task in (*lab.transfer, *(VTAB if lab.is_paper else ())):
            training = lab.tuned(start, task, model, best=True)
            levels = {"model": model, "data": data}
            yield Cell({**levels, "task": task}, Accuracy(), training, _table_2(model, data, task, lab))
            if task == "ImageNet":
                yield from real_labels(lab, levels, training, _table_2(model, data, REAL, lab))


def _table_2(model: str, data: str, task: str, lab: Scale) -> float | None:
    if task.startswith("VTAB, "):
        rows = dict(TABLE_9.rows)
        return TABLE_9[(model, data), task.removeprefix("VTAB, ")] if (model, data) in rows else None
    names = (task,) if lab.is_paper else FIVE
    found = [score.mean for name in names if (score := TABLE_2[name, (model, data)]) is not None]
    return fmean(found)


def figure_2(lab: Scale) -> Iterator[Cell]:
    """VTAB by groups, for the models of table 9 and BiT-L."""
    for model, data in (H14_JFT, L16_JFT, L16_I21K, BIT_L):
        stand_in = model if lab.is_paper else {"R152x4": "R50x2", "ViT-H/14": "", "ViT-L/16": "ViT-B/16"}[model]
        if not stand_in or not lab.has(stand_in):
            continue
        is_bit = lab.is_paper and model == "R152x4"
        start = lab.pretrained(stand_in, data, 14 if data == JFT else 90, sgd=is_bit)
        for task, group in (VTAB_HERE if lab.is_thin else VTAB).items():
            if task in lab.tasks:
                levels = {"model": model, "data": data, "group": group, "task": task}
                published = _table_2(model, data, task, lab) if task.startswith("VTAB") else None
                yield Cell(levels, Accuracy(), lab.tuned(start, task, stand_in), published)


TABLE2: Final = Study(
    "table2",
    "Table 2: comparison with the state of the art",
    "How good is the largest ViT beside a BiT ResNet, after pre-training on the largest set and on a smaller one?",
    table_2,
    Figure("model", ("data",)),
    (
        Claim(
            "ViT-L/16 at most 1 point behind BiT on average (JFT-300M)",
            "ViT-L/16 pre-trained on JFT-300M matches or exceeds BiT-L on every task.",
            "section 4.2, table 2",
            (above(TOP_1, {"model": "ViT-L/16", "data": JFT}, {"model": "R152x4"}, by=-1.0),),
        ),
        Claim(
            "ViT-L/16 better after JFT-300M than after ImageNet-21k, on average",
            "The same ViT-L/16 transfers better after pre-training on the larger set.",
            "table 2",
            (above(TOP_1, {"model": "ViT-L/16", "data": JFT}, {"model": "ViT-L/16", "data": "ImageNet-21k"}),),
        ),
    ),
    printed=MEAN_OF_FIVE,
)
FIGURE2: Final = Study(
    "figure2",
    "Figure 2: VTAB by groups of tasks (values of ViTs: table 9)",
    "On which groups of tasks is ViT better than BiT?",
    figure_2,
    Figure("group", ("model", "data")),
    (
        Claim(
            "ViT-L/16 above BiT on natural and on structured tasks (JFT-300M)",
            "ViT outperforms BiT-R152x4 on the natural and structured tasks; on the specialized ones they are similar.",
            "section 4.2, figure 2",
            tuple(
                above(TOP_1, {"model": "ViT-L/16", "data": JFT, "group": group}, {"model": "R152x4", "group": group},
                      about=group)
                for group in ("natural", "structured")
            ),
        ),
    ),
)  # fmt: skip

# -- Table 6, figure 5, table 7 ---------------------------------------------------------------------


def kind_of(model: str) -> str:
    """The family of a model's name."""
    return "hybrid" if "+" in model else "ResNet" if model.startswith("R") else "ViT"


def table_6(lab: Scale) -> Iterator[Cell]:
    """Every model and length of table 6, fine-tuned on every task."""
    few = ("ViT-B/32", "ViT-B/16", "ViT-L/16", "R50x1", "R50x2", "R50+ViT-B/32", "R50+ViT-B/16", "R50+ViT-L/16")
    for (model, epochs), _ in TABLE_6.rows:
        if not lab.has(model, epochs) or (lab.is_thin and model not in few):
            continue
        start = lab.pretrained(model, JFT, epochs)
        for task in lab.transfer:
            names = (task,) if lab.is_paper else FIVE
            levels = {"family": kind_of(model), "model": model, "epochs": f"{epochs}"}
            training = lab.tuned(start, task, model)
            published = fmean(TABLE_6[(model, epochs), name] for name in names)
            yield Cell({**levels, "task": task}, Accuracy(), training, published)
            if task == "ImageNet":
                yield from real_labels(lab, levels, training, TABLE_6[(model, epochs), REAL])


def printed_exaflops(levels: Mapping[str, str]) -> float:
    """The exaFLOPs of pre-training that table 6 prints for a model and its epochs."""
    return TABLE_6[(levels["model"], int(levels["epochs"])), COMPUTE]


def table_7(lab: Scale) -> Iterator[Cell]:
    """Two ResNets pre-trained with Adam and with SGD, fine-tuned on every task."""
    for model, optimizer in TABLE_7.columns:
        stand_in = {"R152x2": "R50x2"}.get(model, model) if lab.is_thin else model
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
    Figure(COMPUTE, ("family",), compute=printed_exaflops),
    (
        Claim(
            "ViT-B/16 above R50x2, at similar compute",
            "ViTs reach the accuracy of ResNets with two to four times less compute.",
            "section 4.4, figure 5",
            (above(TOP_1, {"model": "ViT-B/16", **SEVEN}, {"model": "R50x2", **SEVEN}),),
        ),
        Claim(
            "R50+ViT-B/32 above ViT-B/32",
            "Hybrids slightly outperform ViTs at small computational budgets.",
            "section 4.4, figure 5",
            (above(TOP_1, {"model": "R50+ViT-B/32", **SEVEN}, {"model": "ViT-B/32", **SEVEN}),),
        ),
        Claim(
            "R50+ViT leads ViT by less at L/16 than at B/32",
            "The difference between hybrids and ViTs vanishes for larger models.",
            "section 4.4, figure 5",
            (
                Comparison(
                    (
                        Term(1.0, (("model", "ViT-L/16"), *SEVEN.items())),
                        Term(-1.0, (("model", "ViT-B/32"), *SEVEN.items())),
                        Term(-1.0, (("model", "R50+ViT-L/16"), *SEVEN.items())),
                        Term(1.0, (("model", "R50+ViT-B/32"), *SEVEN.items())),
                    ),
                    TOP_1, "above", 0.0,
                ),
            ),
        ),
        Claim(
            "ViT-L/16 above ViT-B/32, and R50x2 above R50x1",
            "Within a family accuracy grows with compute, without saturating.",
            "section 4.4, figure 5",
            (
                above(TOP_1, {"model": "ViT-L/16", **SEVEN}, {"model": "ViT-B/32", **SEVEN}, about="ViTs"),
                above(TOP_1, {"model": "R50x2", **SEVEN}, {"model": "R50x1", **SEVEN}, about="ResNets"),
            ),
        ),
    ),
    printed=MEAN_OF_FIVE,
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
            "Adam above SGD, on average over two ResNets",
            "On average over the tasks, ResNets pre-trained with Adam transfer better than with SGD.",
            "appendix D.1, table 7",
            (above(TOP_1, {"optimizer": "Adam"}, {"optimizer": "SGD"}),),
        ),
    ),
    printed=MEAN_OF_FIVE,
)
