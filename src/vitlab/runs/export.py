"""Write a model for another runtime or for browsers, and check it against the original: `vitlab.export`."""

import importlib.metadata
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast, get_args

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from vitlab import __version__
from vitlab.artefacts.artefact import PACKAGES, Artefact, check_packages, open_parts
from vitlab.artefacts.card import CARD, FILES, README, REPORT, VERSION, Card
from vitlab.artefacts.network import check_outputs
from vitlab.artefacts.writing import write_artefact
from vitlab.data.images.pictures import Named, Pictures, named_pictures, read_picture
from vitlab.data.sources.catalogue import open_data
from vitlab.data.transforms.evaluation import evaluation_pixels, normalised
from vitlab.data.transforms.resizing import to_tensor
from vitlab.engines.agreement import LARGEST_DIFFERENCE
from vitlab.errors import FAILED, VitlabError
from vitlab.files.store import json_writer, refuse_existing, refuse_unwritable, write_folder
from vitlab.files.strict_json import to_json
from vitlab.models.build import Model
from vitlab.models.classifier import evaluating
from vitlab.models.vit import ViT
from vitlab.page.web import WebPage
from vitlab.paper.models import name_of
from vitlab.report.tables import Cell, Results, Tabular
from vitlab.require import check_arguments, require
from vitlab.runs.export_web import export_web
from vitlab.runs.measure.inputs import ModelLike, ModelOptions, as_list, class_names, open_copy
from vitlab.runs.measure.prediction import named
from vitlab.runs.progress import announced, default_console
from vitlab.spec import AttentionLike, ConventionName, ExportOutput, ExportTarget, ExportTo, Image

INPUT = "uint8 (B, H, W, 3): decoded RGB pictures of any height and width, one size per batch"
AGREEMENT = 0.9  # default share of pictures with the same top-1 that an int8 artefact must reach
DRAWN = "shapes?classes=20&images=20&size=640&seed=7"  # pictures to check with if none are given
CUTS = (
    (640, 640),
    (480, 640),
    (640, 427),
    (224, 224),
    (90, 120),
    (200, 33),
    (300, 301),
    (64, 600),
    (600, 200),
    (31, 17),
)


class Disagrees(VitlabError, ValueError):  # noqa: N818 - says what is wrong
    """The exported model does not give the answers of the original; nothing was written."""

    exit_code = FAILED


@dataclass(frozen=True)
class Comparison:
    """One picture by the original and by the artefact: the top class of both, and the differences of the outputs.

    A difference is the largest error of a number, relative to the largest number of the output. A model without logits
    has no top class (-1).
    """

    picture: str
    size: tuple[int, int]  # height and width of the file
    original: int
    exported: int
    differences: dict[str, float]


@dataclass(frozen=True)
class Exported(Tabular):
    """An artefact that was written to the folder `path`, with its card and how far it agrees with the original."""

    path: Path
    card: Card
    comparisons: tuple[Comparison, ...]
    bound: float  # largest difference, or least share of pictures with the same top-1 for int8

    @property
    def same(self) -> int:
        """The number of pictures with the same top-1."""
        return sum(one.original == one.exported for one in self.comparisons)

    @property
    def differences(self) -> dict[str, float]:
        """The largest difference of each output."""
        return {name: max(one.differences[name] for one in self.comparisons) for name in self.card.outputs}

    @property
    def is_good(self) -> bool:
        """Whether the artefact agrees with the original within the bound."""
        if self.card.int8:
            return self.same >= self.bound * len(self.comparisons)
        return self.same == len(self.comparisons) and max(self.differences.values()) <= self.bound

    @property
    def verdict(self) -> str:
        """The agreement in words."""
        number = len(self.comparisons)
        same = f"the same top-1 for {self.same} of {number} pictures ({self.same / number:.1%})"
        if self.card.int8:
            return f"{same}, where {self.bound:.1%} are required; logits within {self.differences['logits']:.2g}"
        worst = max(self.differences.values())
        same = f"{same}, " if "logits" in self.card.outputs else ""
        return f"{same}outputs within {worst:.2g} of their largest number, where {self.bound:g} is allowed"

    @property
    def table(self) -> Results:
        """A row for each output."""
        rows: list[tuple[Cell, ...]] = [
            (name, value, None if self.card.int8 else self.bound) for name, value in self.differences.items()
        ]
        return Results(("output", "largest relative difference", "allowed"), tuple(rows))

    def to_json(self) -> dict[str, object]:
        """The report as JSON values."""
        return {
            "is_good": self.is_good,
            "verdict": self.verdict,
            "bound": self.bound,
            "pictures": len(self.comparisons),
            "same_top1": self.same,
            "differences": self.differences,
            "comparisons": [asdict(one) for one in self.comparisons],
        }


def export(
    model: ModelLike | Sequence[ModelLike],
    out: str | Path,
    to: ExportTo = "onnx",
    *,
    outputs: Sequence[ExportOutput] = ("logits",),
    image: Image | None = None,
    int8: bool = False,
    check: Pictures = (),
    agreement: float = AGREEMENT,
    sizes: Sequence[Image] = (),
    samples: str | Path | None = None,
    runtime: str | Path | None = None,
    conventions: ConventionName | None = None,
    merge: int | None = None,
    attention: AttentionLike | None = None,
    heads: int | None = None,
    allow_partial: bool = False,
    allow_nonfinite: bool = False,
    console: Console | None = None,
    quiet: bool = False,
) -> Exported | WebPage:
    """Write a model as a folder that another runtime runs, from decoded pictures to logits, or as a page.

    The graph takes pictures (B, H, W, 3) of uint8, of any height and width, and resizes, crops and normalises them as
    vitlab does; class names and task are inside. `to` is "onnx", "openvino", or "torch" for a program of torch.export.
    `outputs` are what it returns: logits, features, attention (B, L, h, n, n), tokens (B, n, D) after the final norm.
    `image` is the resolution that the model runs at; positions are resized. `int8` rounds the dense layers of an ONNX
    graph to 8 bits.

    The artefact is compared with the original on the pictures `check`, or on drawn ones of several sizes. If a number
    differs by more than 1e-4 of the largest, or a top-1 class differs, Disagrees is raised and nothing is written. An
    int8 artefact must have the same top-1 for the share `agreement` of the pictures. `vitlab.predict` and
    `vitlab.evaluate` take the folder as a model.

    "web" writes a page for static hosts that shows one model, or several, from inside, in the visitor's browser. It
    offers each model at `image` and at the `sizes`; `samples` is a folder of pictures to begin with, besides drawn
    ones. `runtime` is a folder with onnxruntime-web, which npm fetches otherwise. See `ModelOptions` for the other
    options.
    """
    check_arguments(export, locals())
    models = as_list(model)
    chosen = tuple(outputs)
    if to == "web":
        is_plain = not (chosen != ("logits",) or int8 or _is_given(check) or agreement != AGREEMENT or merge)
        require(is_plain, "outputs, int8, check, agreement and merge have no effect on a page; leave them out")
        return export_web(
            models,
            out,
            sizes=sizes,
            samples=samples,
            runtime=runtime,
            conventions=conventions,
            image=image,
            attention=attention,
            heads=heads,
            allow_partial=allow_partial,
            allow_nonfinite=allow_nonfinite,
            console=console,
            quiet=quiet,
        )
    require(len(models) == 1, f"{len(models)} models were given; one is exported to {to}, and several to web")
    is_plain = not (sizes or samples or runtime)
    require(is_plain, f"sizes, samples and runtime have no effect on an export to {to}; leave them out, or give web")
    screen = default_console(console, quiet=quiet)
    folder = Path(out)
    _check_request(folder, to, chosen, agreement, is_int8=int8)
    options = ModelOptions(conventions, image, "own", "cpu", heads, allow_partial, allow_nonfinite, merge, attention)
    own = open_copy(models[0], options, screen)
    check_outputs(own, chosen)
    pictures = list(named_pictures(named(check, screen))) if _is_given(check) else list(drawn_pictures())
    require(bool(pictures), "check has no pictures; give some, or leave check out for drawn ones")
    card = _card(own, to, chosen, is_int8=int8)
    with TemporaryDirectory(prefix="vitlab-") as scratch, announced(screen, f"exporting {card.name} to {to} ..."):
        write_artefact(own, card, Path(scratch))
        artefact = open_parts(Path(scratch) / FILES[to], card, "", [file.name for file in Path(scratch).iterdir()])
        rows = tuple(compare(own, artefact, pictures))
        found = Exported(folder, card, rows, agreement if int8 else LARGEST_DIFFERENCE)
        if not found.is_good:
            raise Disagrees(f"the {to} artefact disagrees with the model: {found.verdict}; nothing was written")
        del artefact  # its runtime may hold the files
        files = {file.name: partial(shutil.copyfile, file) for file in sorted(Path(scratch).iterdir())}
        texts = {
            CARD: json_writer(to_json(card)),
            REPORT: json_writer(found.to_json()),
            README: partial(_write_readme, card),
        }
        write_folder(folder, files | texts)
    return found


def _check_request(
    folder: Path, to: ExportTarget, outputs: tuple[str, ...], agreement: float, *, is_int8: bool
) -> None:
    """Raise for what cannot be exported whatever the model is, before it is loaded."""
    known = get_args(ExportOutput)
    unknown = [name for name in outputs if name not in known]
    require(not unknown, f"outputs has {', '.join(map(str, unknown))!r:.80}; choose some of {', '.join(known)}")
    refuse_existing(folder)
    refuse_unwritable(folder)
    check_packages(to)
    require(not is_int8 or to == "onnx", f"int8 is for onnx, not for {to}; give to='onnx', or leave int8 out")
    require(not is_int8 or outputs == ("logits",), "an int8 artefact has only logits; leave outputs out")
    require(0 < agreement <= 1, f"agreement {agreement} is a share of the pictures, above 0 and at most 1")


def _is_given(check: Pictures) -> bool:
    return not (isinstance(check, list | tuple) and not check)


def _card(model: Model, to: ExportTarget, outputs: tuple[ExportOutput, ...], *, is_int8: bool) -> Card:
    names, origin = class_names(model)
    packages = ("torch", "pillow", *PACKAGES[to][0])
    versions = {"vitlab": __version__} | {package: importlib.metadata.version(package) for package in packages}
    return Card(
        format="vitlab-artefact",
        version=VERSION,
        target=to,
        name=name_of(model.spec),
        model=model.spec,
        outputs=outputs,
        task=model.task,
        class_names=names,
        class_names_from=origin,
        input=INPUT,
        preprocessing=f"{model.spec.conventions.preprocessing}, size {'x'.join(map(str, model.spec.image))}",
        int8=is_int8,
        provenance=dict(model.provenance),
        versions=versions,
    )


# -- The comparison with the original ------------------------------------------------------------------------


def compare(model: Model, artefact: Artefact, pictures: Sequence[Named]) -> Iterator[Comparison]:
    """Yield how far an artefact agrees with the plain model behind the gate, both starting from decoded pixels."""
    how = model.spec.conventions.preprocessing
    for name, picture in pictures:
        image = read_picture(picture, name).image
        inputs = normalised(evaluation_pixels(image, model.spec.image, how), how)[None]
        theirs = _original(model, inputs, artefact.card.outputs)
        ours = artefact(to_tensor(image).permute(1, 2, 0)[None])
        original, exported = (int(one["logits"].argmax()) if "logits" in one else -1 for one in (theirs, ours))
        differences = {output: _difference(ours[output], expected) for output, expected in theirs.items()}
        yield Comparison(name, (image.height, image.width), original, exported, differences)


def _original(model: Model, inputs: Tensor, outputs: Sequence[ExportOutput]) -> dict[str, Tensor]:
    """The outputs of the plain model for preprocessed images."""
    found = {}
    with torch.inference_mode(), evaluating(model):
        for name in outputs:
            if name in ("logits", "features"):
                found[name] = model(inputs) if name == "logits" else model.features(inputs)
            elif name == "attention":
                found[name] = torch.stack(list(model.layer_attention(inputs)), dim=1)
            else:
                *_, found[name] = cast(ViT, model).layer_features(inputs)
    return found


def _difference(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape or not all(bool(one.isfinite().all()) for one in (ours, theirs)):
        return float("inf")
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))


def drawn_pictures() -> Iterator[Named]:
    """Yield shapes on noise in several sizes: large, small, wide, tall."""
    source = open_data(DRAWN)
    for number in range(len(source)):
        height, width = CUTS[number % len(CUTS)]
        pixels = cast(np.ndarray, source.item(number).data)
        yield Named(f"drawn {number + 1}", np.ascontiguousarray(pixels[:height, :width]))


# -- What the folder says to a person ------------------------------------------------------------------------

USES = {
    "onnx": """import json, numpy, onnxruntime
from PIL import Image
session = onnxruntime.InferenceSession("model.onnx")
pixels = numpy.asarray(Image.open("cat.jpg").convert("RGB"))[None]      # (1, H, W, 3) of uint8
logits = session.run(["logits"], {"pictures": pixels})[0]
names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
print(names[logits[0].argmax()])""",
    "openvino": """import json, numpy, openvino
from PIL import Image
model = openvino.compile_model("model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
pixels = numpy.asarray(Image.open("cat.jpg").convert("RGB"))[None]      # (1, H, W, 3) of uint8
logits = model({"pictures": pixels})["logits"]
print(json.load(open("artefact.json"))["class_names"][logits[0].argmax()])""",
    "torch": """import json, numpy, torch
from PIL import Image
model = torch.export.load("model.pt2").module()
pixels = torch.tensor(numpy.asarray(Image.open("cat.jpg").convert("RGB"))[None])      # (1, H, W, 3) of uint8
(logits,) = model(pixels)
print(json.load(open("artefact.json"))["class_names"][logits[0].argmax()])""",
}


def _write_readme(card: Card, path: Path) -> None:
    """Write a README that says what the artefact is and how it is used."""
    use = USES[card.target]
    if card.outputs != ("logits",):
        use = use.replace("(logits,) =", f"{', '.join(card.outputs)}{',' * (len(card.outputs) == 1)} =")
    made = ", ".join(f"`{one}`" for one in card.outputs)
    lines = [
        f"# {card.name}{', int8' if card.int8 else ''}",
        "",
        f"`{FILES[card.target]}` takes `pictures`: {card.input}. It returns {made}.",
        f"Its preprocessing is inside: {card.preprocessing}. `{CARD}` names the classes, `{REPORT}` says how far it",
        "agrees with the model that it was exported from, and `vitlab predict FOLDER IMAGE` runs it.",
        "",
        *(["```python", use, "```"] if "logits" in card.outputs else []),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
