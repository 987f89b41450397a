"""Studies of the model itself: table 8 and figures 7 to 10, 12 and 13."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from vitlab.paper.results import TABLE_8
from vitlab.spec import ViTSpec
from vitlab.studies.claims import Claim, Comparison, Term, above, alike
from vitlab.studies.scale import JFT, Scale
from vitlab.studies.study import COMPUTE, DISTANCE_GAIN, FEW_SHOT, SPEED, Cell, Figure, Speed, Study

Sizes = dict[str, Any]  # fields of a ViT
FIGURE_12: Final = ("R50x1", "R50x2", "ViT-B/32", "ViT-L/32", "ViT-B/16", "ViT-L/16", "ViT-H/14", "R152x4")
FIGURE_12_SIZES: Final = (64, 128, 224, 384, 512)
FIGURE_13: Final = ("R50x1", "AxialResNet-50", "ViT-B/32", "Axial-ViT-B/32", "ViT-B/16", "Axial-ViT-B/16")


def table_8(lab: Scale) -> Iterator[Cell]:
    """Position embeddings: four kinds, learned ones in three places."""
    for positions, printed in TABLE_8.rows:
        for at, value in zip(TABLE_8.columns, printed, strict=True):
            if value is not None:
                start = lab.pretrained("ViT-B/16", JFT, 7, positions=positions, positions_at=at)
                yield Cell({"positions": positions, "at": at}, lab.few_shot(), start, 100 * value)


TABLE8: Final = Study(
    "table8",
    "Table 8: position embeddings, ImageNet 5-shot",
    "Do position embeddings matter, and does their kind?",
    table_8,
    Figure("positions", ("at",)),
    (
        Claim(
            "1-D positions above none",
            "A model without position embeddings is clearly worse than one with any kind.",
            "appendix D.4, table 8",
            (above(FEW_SHOT, {"positions": "1d", "at": "stem"}, {"positions": "none"}),),
        ),
        Claim(
            "other kinds and places within 2 points of 1-D at the stem",
            "1-D, 2-D and relative embeddings, and where they are added, make little or no difference.",
            "appendix D.4, table 8",
            tuple(
                alike(FEW_SHOT, {"positions": "1d", "at": "stem"}, {"positions": kind, "at": at}, 2.0, about)
                for kind, at, about in (
                    ("2d", "stem", "2-D"),
                    ("relative", "stem", "relative"),
                    ("1d", "every-layer", "1-D at every layer"),
                    ("1d", "shared", "1-D shared by all layers"),
                )
            ),
        ),
    ),
    printed="ImageNet 5-shot",
)


# -- Figures 7 and 10: what is inside ---------------------------------------------------------------


def figure_7(lab: Scale) -> Iterator[Cell]:
    """A ViT of table 6 after pre-training."""
    for model in ("ViT-L/32", "ViT-L/16") if lab.is_paper else ("ViT-B/16",):
        yield Cell({"model": model}, lab.inside(), lab.pretrained(model, JFT, 7))


def figure_10(lab: Scale) -> Iterator[Cell]:
    """Position embeddings after three ways of pre-training: epochs, learning rate, weight decay."""
    model, ratio = ("ViT-L/16", 1.0) if lab.is_paper else ("ViT-B/16", 2.0)  # of B's rate in table 3 to L's
    for epochs, peak, decay in ((7, 2e-4, 0.01), (7, 4e-4, 0.1), (14, 4e-4, 0.1)):
        changes = {"peak": ratio * peak, "weight_decay": decay}
        if lab.is_paper:
            start = lab.pretrained(model, JFT, epochs, recipe=changes)
        else:
            start = lab.pretrained(model, JFT, 7, recipe={**changes, "times": epochs / 7})
        levels = {"epochs": f"{epochs}", "learning rate": f"{peak:g}", "weight decay": f"{decay:g}"}
        yield Cell(levels, lab.inside(), start)


POSITIONS: Final = "positions"
FIGURE7: Final = Study(
    "figure7",
    "Figure 7: position embeddings and attention distance",
    "What has a ViT learned about space, and how far do its heads look?",
    figure_7,
    Figure("layer", ("model",), y="distance", label="attention distance (% of the image side)"),
    (
        Claim(
            "positions of near patches more similar than those of far ones",
            "Closer patches have more similar position embeddings, without 2-D structure being built in.",
            "section 4.5, figure 7, centre",
            (Comparison((Term(1.0, ()),), POSITIONS, "above", 0.0),),
        ),
        Claim(
            "attention distance larger in the last layer than in the first",
            "The average attention distance increases with the depth of the layer.",
            "section 4.5, figure 7, right",
            (Comparison((Term(1.0, ()),), DISTANCE_GAIN, "above", 0.0),),
        ),
    ),
    says="Closer patches have more similar position embeddings; attention distance increases with depth.",
)
FIGURE10: Final = Study(
    "figure10",
    "Figure 10: position embeddings under other hyper-parameters",
    "Does what the positions learn depend on the training?",
    figure_10,
    Figure("epochs", ("learning rate", "weight decay"), label="positions: similarity of near minus far patches"),
    (
        Claim(
            "near minus far similarity of positions larger after 14 epochs than after 7",
            "The pattern of the position embeddings depends on the hyper-parameters of training; it is clearer after "
            "longer training.",
            "appendix D.4, figure 10",
            (above(POSITIONS, {"epochs": "14"}, {"epochs": "7", "learning rate": "0.0004"}),),
        ),
    ),
    says="The similarity of position embeddings depends on epochs, learning rate and weight decay.",
)

# -- Figures 8 and 9: shape and head ----------------------------------------------------------------


def figure_8(lab: Scale) -> Iterator[Cell]:
    """A base model scaled along one dimension at a time. The paper names the base; its points are not printed."""
    # Differs from the paper: study `figure8` has ImageNet 5-shot, not also the mean of 5-shot accuracies on five sets.
    base, grown = _scaled(lab)
    for scaled, changes in {"none": [{}], **grown}.items():
        for change in changes:
            start = lab.pretrained("ViT-B/32" if lab.is_paper else "ViT-B/16", JFT, 7, **{**base, **change})
            yield Cell({"scaled": scaled, "to": _size(change)}, lab.few_shot(), start)


def _scaled(lab: Scale) -> tuple[Sizes, dict[str, list[Sizes]]]:
    """The base model of figure 8, and what is changed of it along each dimension, the smallest change first."""
    if lab.is_paper:
        base = {"layers": 8, "width": 1024, "mlp": 2048, "heads": 16, "patch": 32}
        return base, {
            "depth": [{"layers": layers} for layers in (16, 32, 64)],
            "width": [{"width": 1024 * times, "heads": 16 * times} for times in (2, 4)],
            "MLP width": [{"mlp": 2048 * times} for times in (2, 4, 8)],
            "patch size": [{"patch": patch} for patch in (16, 8)],
            "all": [{"layers": 8 * t, "width": 1024 * t, "heads": 16 * t, "mlp": 2048 * t} for t in (2,)],
        }
    usual = lab.models["ViT-B/16"]
    assert isinstance(usual, ViTSpec)
    wide, deep = usual.width, max(usual.layers // 2, 1)
    return {"layers": deep, "width": wide, "mlp": 2 * wide, "heads": usual.heads, "patch": usual.patch}, {
        "depth": [{"layers": 2 * deep}],
        "width": [{"width": wide * 3 // 2 // usual.heads * usual.heads, "mlp": 2 * wide}],
        "MLP width": [{"mlp": 5 * wide}],
        "patch size": [{"patch": usual.patch // 2}],
        "all": [{"layers": deep + 1, "width": wide * 5 // 4 // usual.heads * usual.heads, "mlp": wide * 5 // 2}],
    }


def _size(change: Sizes) -> str:
    """What a model of figure 8 is scaled to, as a level."""
    return " ".join(f"{name} {value}" for name, value in change.items() if name != "heads") or "base"


def claims_8(lab: Scale) -> tuple[Claim, ...]:
    """What figure 8 shows of the smallest change along each dimension, which all dimensions have."""
    _, grown = _scaled(lab)
    depth, width, patch = ({"scaled": name, "to": _size(grown[name][0])} for name in ("depth", "width", "patch size"))
    return (
        Claim(
            "scaling the depth above scaling the width",
            "Scaling the depth gives the largest improvements, scaling the width the smallest.",
            "appendix D.2, figure 8",
            (above(FEW_SHOT, depth, width),),
        ),
        Claim(
            "half the patch size above the base model",
            "A smaller patch, and so a longer sequence, improves robustly without more parameters.",
            "appendix D.2, figure 8",
            (above(FEW_SHOT, patch, {"scaled": "none", "to": "base"}),),
        ),
    )


def figure_9(lab: Scale) -> Iterator[Cell]:
    """A class token and the mean of all patches, at two learning rates."""
    # Differs from the paper: study `figure9` measures few-shot accuracy at the end of pre-training, not during it.
    for pool, rate in (("class", 8e-4), ("mean", 8e-4), ("mean", 3e-4)):
        head: dict[str, Any] = {"head": "linear"} if pool == "mean" else {}
        start = lab.pretrained("ViT-B/16", JFT, 7, recipe={"peak": rate}, pool=pool, **head)
        yield Cell({"pool": pool, "learning rate": f"{rate:g}"}, lab.few_shot(), start)


FIGURE8: Final = Study(
    "figure8",
    "Figure 8: scaling depth, width, MLP width and patch size",
    "Which dimension of the model is worth scaling?",
    figure_8,
    Figure(COMPUTE, ("scaled",)),
    claims_8,
    says="Depth helps most, width least; a smaller patch helps without parameters.",
)
FIGURE9: Final = Study(
    "figure9",
    "Figure 9: class token and global average pooling",
    "Is the class token needed?",
    figure_9,
    Figure("learning rate", ("pool",)),
    (
        Claim(
            "class token above average pooling, at the same learning rate",
            "With the learning rate of the class token, global average pooling is much worse.",
            "appendix D.3, figure 9",
            (above(FEW_SHOT, {"pool": "class"}, {"pool": "mean", "learning rate": "0.0008"}),),
        ),
        Claim(
            "average pooling at a lower learning rate within 2 points of the class token",
            "The difference is due to the learning rate only: at 3e-4 average pooling works as well.",
            "appendix D.3, figure 9",
            (alike(FEW_SHOT, {"pool": "class"}, {"pool": "mean", "learning rate": "0.0003"}, within=2.0),),
        ),
    ),
    says="Both work similarly well, but need different learning rates.",
)

# -- Figures 12 and 13: cost ------------------------------------------------------------------------


def figure_12(lab: Scale) -> Iterator[Cell]:
    """Images per second of inference, and the largest batch, against the image size."""
    sizes = FIGURE_12_SIZES if lab.is_paper else (lab.image, 2 * lab.image)
    models = [name for name in FIGURE_12 if lab.has(name)]
    seconds, memory = (30.0, "") if lab.is_paper else (6.0, "1GiB")
    if lab.name == "test":
        models, seconds = models[:1], 5.0
    for model in models:
        for side in sizes:
            made = lab.model(model, 1000)
            side = side // made.stride * made.stride  # H/14 takes 378 pixels for 384
            speed = Speed(replace(made, image=(side, side)), seconds, memory)
            yield Cell({"model": model, "pixels": f"{side}"}, speed)


def figure_13(lab: Scale) -> Iterator[Cell]:
    """Axial attention beside full attention and convolutions, and other patterns of attention beside them."""
    # Differs from the paper: study `figure13` has the compute of its models, not also their speed on a TPU.
    for model in filter(lab.has, FIGURE_13):
        yield Cell({"model": model, "attention": "own"}, lab.few_shot(), lab.pretrained(model, JFT, 7))
    grid = lab.image // lab.model("ViT-B/16", 1000).stride
    for pattern in (f"window:{grid // 2}", "strided:4", f"fixed:{grid}"):
        start = lab.pretrained("ViT-B/16", JFT, 7, attention=pattern)
        yield Cell({"model": "ViT-B/16", "attention": pattern}, lab.few_shot(), start)


FIGURE12: Final = Study(
    "figure12",
    "Figure 12: inference speed and the largest batch",
    "What do the models cost on this machine?",
    figure_12,
    Figure("pixels", ("model",)),
    (
        Claim(
            "ViT-B/16 faster than R50x2",
            "ViTs have speed comparable to similar ResNets.",
            "appendix D.5, figure 12",
            (above(SPEED, {"model": "ViT-B/16"}, {"model": "R50x2"}),),
        ),
    ),
    says="ViT models have speed comparable to similar ResNets; large ViTs are more memory-efficient.",
)
FIGURE13: Final = Study(
    "figure13",
    "Figure 13: axial attention",
    "What does attention along rows and columns buy, and what do other patterns?",
    figure_13,
    Figure(COMPUTE, ("model", "attention")),
    (
        Claim(
            "Axial-ViT-B/16 above ViT-B/16",
            "Axial-ViTs outperform ViTs of the same patch size, at a higher cost.",
            "appendix D.6, figure 13",
            (above(FEW_SHOT, {"model": "Axial-ViT-B/16"}, {"model": "ViT-B/16", "attention": "own"}),),
        ),
    ),
    says="Axial-ViT-B/32 and B/16 are better than their ViT counterparts, and cost more compute.",
)
ARCHITECTURE: Final = (TABLE8, FIGURE7, FIGURE8, FIGURE9, FIGURE10, FIGURE12, FIGURE13)
