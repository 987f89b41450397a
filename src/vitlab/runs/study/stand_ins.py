"""What the runs of the findings were: how many, their cost, and what stood in for the paper's models and data."""

import textwrap
from collections.abc import Mapping, Sequence

from vitlab.paper.models import name_of
from vitlab.paper.results import BIT_L, CORE_DAYS, L16_JFT, TABLE_6
from vitlab.runs.study.presentation import RATE
from vitlab.studies.catalogue import STUDIES
from vitlab.studies.claims import Row
from vitlab.studies.scale import JFT, Scale
from vitlab.studies.study import COMPUTE, Cell, FewShot, cell_name

HOUR = 3600  # seconds
WIDTH = 118  # characters of a line
COUNTED = """These results rest on {models:,} trained models with different weights.{again}
The trainings took at most {hours:.1f} hours and {compute:.1g} exaFLOPs in all, where a pre-training from which several
models were fine-tuned is counted with each of them. The paper's ViT-B/16 alone took {paper:g} exaFLOPs.
"""
AGAIN = """ {again:,} of them repeat a training of another study with the same seed and end in other weights. The
studies were run on several machines, and the arithmetic of another kind of processor differs in the last bits; the
earlier rows do not name their processor."""
SCALE = """## The scale

At the scale `{scale}`, every model and every data set of the paper has a stand-in, which keeps the paper's name on
this page. The column *stand-in* of the tables says what was trained.

- **Models.** They are pre-trained with images of {pixels} pixels. Most have about the paper's proportions of compute.
  {renamed}
- **Length.** All see the paper's number of images times one constant: {seen:,} for 7 epochs of JFT-300M. What the paper
  trains for 14 epochs is trained for 7 here, except in `figure10` and for the masked patches of `selfsup`.
- **Pre-training data.** CIFAR-10 stands in for JFT-300M, and {upstream}. The three have the same classes. They
  differ in their number of images and, as in the paper, in the recipe: {recipes}.
- **Learning rates of pre-training** are {adam:g} times the paper's with Adam and {sgd:g} times with SGD, because
  the runs are short. Tables and figures name the paper's: {rates}.
- **Fine-tuning** uses 1,000 images of a task, the same for every seed. {own} also fine-tune on CIFAR-10,
  the pre-training set itself: their results on it are not transfer to new data.
- **Few-shot accuracy** ({shots}) is measured on CIFAR-10's own classes,
  with {many} of its training images of each: classes, and mostly images, that pre-training has seen with their labels.
  The paper pre-trains on JFT-300M and measures on ImageNet.
- **Learning rate of fine-tuning.** There is one, {rate:g}, for fresh and for trained weights. It was chosen over 0.001
  in a pilot before the first of these runs, with a seed that is not counted; its output was not kept.

`docs/howto/studies.md` has the details and how to run everything again.
"""


def compute_text(rows: Mapping[str, Sequence[Row]], scale: Scale) -> str:
    """How many trained models the rows rest on, by their weights, and how long they took."""
    trained = {row.weights: row for own in rows.values() for row in own if row.weights}
    if not trained:
        return ""
    again = len(trained) - len(_trainings(rows, scale))
    text = COUNTED.format(
        models=len(trained),
        again=AGAIN.format(again=again) if again > 0 else "",
        hours=sum(row.seconds for row in trained.values()) / HOUR,
        compute=sum(row.exaflops for row in trained.values()),
        paper=TABLE_6[("ViT-B/16", 7), COMPUTE],
    )
    return filled(text)


def _trainings(rows: Mapping[str, Sequence[Row]], scale: Scale) -> set[tuple[object, int]]:
    """The different trainings that the rows measure, with their seeds."""
    found: set[tuple[object, int]] = set()
    for name, study in STUDIES.items():
        cells = {cell.name: cell.training for cell in study.cells(scale)}
        found |= {(cells[cell_name(row.levels)], row.seed) for row in rows[name] if row.weights}
    return found


def scale_text(rows: Mapping[str, Sequence[Row]], scale: Scale) -> str:
    """What stands in for what; only for scales whose pre-training data is CIFAR-10."""
    small, whole = scale.shrinking, scale.upstream[JFT]
    if small is None or "cifar10" not in whole.data:
        return ""
    cells = {name: tuple(study.cells(scale)) for name, study in STUDIES.items()}
    tuned = [name for name, own in cells.items()
             if any(c.training and c.training.start and "{cifar10}" in c.training.data for c in own)]  # fmt: skip
    shots = [name for name, own in cells.items() if any(isinstance(cell.measurement, FewShot) for cell in own)]
    parts = [f"{one.images:,} of its images for {name}" for name, one in scale.upstream.items() if name != JFT]
    text = SCALE.format(
        scale=scale.name,
        pixels=scale.image,
        renamed=_renamed(rows, scale),
        seen=small.seen,
        upstream=" and ".join(parts),
        recipes=_recipes(cells["table5"]),
        adam=small.adam,
        sgd=small.sgd,
        rates=_rates(cells),
        own=listed(tuned),
        shots=listed(shots),
        many=scale.shots[2],
        rate=small.tuning_rate,
    )
    return filled(text)


def _recipes(cells: Sequence[Cell]) -> str:
    """How the smallest model of table 5 is pre-trained on each set: steps, learning rate and weight decay."""
    model = cells[0].levels["model"]
    found: dict[str, str] = {}
    for cell in cells:
        if cell.training is not None and cell.levels["model"] == model:
            how = cell.training.chain[0].recipe
            said = f"{how.schedule.total} steps at learning rate {how.schedule.peak:g} with weight decay"
            found[cell.levels["data"]] = f"{said} {how.optimizer.weight_decay:g} on {cell.levels['data']}"
    return f"{model} takes {'; '.join(found.values())}"


def _rates(cells: Mapping[str, Sequence[Cell]]) -> str:
    """The learning rates that were trained, beside those that the tables name."""
    said = []
    for name, own in cells.items():
        pairs = {
            cell.levels[RATE]: cell.training.recipe.schedule.peak
            for cell in own
            if RATE in cell.levels and cell.training
        }
        if pairs:
            listed = " and ".join(f"{paper} as {peak:g}" for paper, peak in pairs.items())
            said.append(f"in `{name}`, {listed}")
    return "; ".join(said)


def _renamed(rows: Mapping[str, Sequence[Row]], scale: Scale) -> str:
    """The stand-ins that a study takes from another model of the paper, which break its proportions."""
    known: dict[str, str] = {}
    for name, spec in scale.models.items():
        known.setdefault(name_of(spec), name)
    found: dict[tuple[str, str], list[str]] = {}
    for study, own in rows.items():
        for row in own:
            model = row.levels.get("model", "")
            if (
                model
                and row.model in known
                and (model not in scale.models or name_of(scale.models[model]) != row.model)
            ):
                found.setdefault((model, known[row.model]), []).append(study)
    if not found:
        return ""
    said = [f"in {listed(list(dict.fromkeys(own)))}, {name} is the stand-in of {other}"
            for (name, other), own in found.items()]  # fmt: skip
    return f"These do not have the paper's proportions: {'; '.join(said)}.{_ratio(rows)}"


def _ratio(rows: Mapping[str, Sequence[Row]]) -> str:
    """What table 2 compares: the compute of its models relative to each other, and how the ResNet is trained."""
    compute = {row.levels["model"]: row.exaflops for row in rows["table2"] if row.levels["data"] == JFT}
    if not {"ViT-L/16", "R152x4"} <= compute.keys() or not compute["R152x4"]:
        return ""
    times = compute["ViT-L/16"] / compute["R152x4"]
    days = [CORE_DAYS["TPUv3-core-days", which] for which in (L16_JFT, BIT_L)]
    return (
        f" So in `table2`, ViT-L/16 takes {times:.1f} times the compute of R152x4, where the paper reports "
        f"{days[0]:,} and {days[1]:,} TPUv3-core-days. R152x4 is pre-trained with Adam here, with SGD in the paper."
    )


# -- Text ---------------------------------------------------------------------------------------------


def filled(text: str) -> str:
    """The text with its paragraphs and list items in lines of at most WIDTH characters."""
    blocks: list[str] = []
    for line in text.splitlines():
        is_first = not blocks or not line or not blocks[-1] or line.startswith(("- ", "#"))
        blocks = [*blocks, line] if is_first else [*blocks[:-1], f"{blocks[-1]} {line.strip()}"]
    return "\n".join(map(_fill, blocks)) + "\n"


def _fill(block: str) -> str:
    indent = "  " if block.startswith("- ") else ""
    return textwrap.fill(block, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def listed(names: Sequence[str]) -> str:
    """Names in words: `a`, `b` and `c`."""
    return " and ".join(", ".join(f"`{name}`" for name in part) for part in (names[:-1], names[-1:]) if part)
