"""vitlab models, convert, download: what there is, and weights from one format to another."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table
from rich.text import Text

from vitlab.commands.terminal import (
    MaybeConventions,
    MaybePath,
    MaybeWhole,
    Size,
    Words,
    complain,
    console,
    print_json,
    printable,
    shown_as,
    size_of,
)
from vitlab.counting import count_spec
from vitlab.paper.models import MODELS, list_models, model_spec, name_of
from vitlab.spec import HeadKind, ResNetSpec, SaveFormat, UnsavedPositions, ViTSpec


def models(
    image: Size = "224",
    classes: int = 1000,
    head: Annotated[HeadKind | None, shown_as("{mlp,linear}")] = None,
    json: bool = False,
) -> None:
    """List every model with tokens, parameters, GMACs and where it stands in the paper.

    Args:
        image: Size of the input in pixels.
        classes: Number of classes of the head.
        head: mlp is the head of pre-training, linear that of fine-tuning; each family's own if left out.
        json: Print JSON instead of a table.
    """
    size = size_of(image)
    table = Table("model", "paper", box=None, header_style="bold")
    for column in ("layers", "width", "heads", "tokens", "parameters", "GMACs"):
        table.add_column(column, justify="right", no_wrap=True)
    rows, unfit = [], []
    for name in list_models():
        try:
            spec = model_spec(name, image=size, classes=classes, head=head)
        except ValueError as error:
            unfit.append(f"left out {name}: {error}")
            continue
        cost = count_spec(spec)
        layers = spec.layers if isinstance(spec, ViTSpec) else sum(spec.stages)
        sizes = {"layers": layers, "width": spec.width, "heads": 0 if isinstance(spec, ResNetSpec) else spec.heads}
        rows.append({"model": name, "paper": MODELS[name], **sizes, **asdict(cost)})
        numbers = (f"{cost.tokens:,}", f"{cost.parameters:,}", f"{cost.macs / 1e9:,.2f}")
        table.add_row(name, MODELS[name] or "later work", *(str(size or "-") for size in sizes.values()), *numbers)
    if not rows:
        raise ValueError(f"no model takes images of {image} pixels with {classes} classes; {unfit[0]}")
    if json:
        print_json(rows)
    else:
        console().print(table)
        heads = f"{head} head" if head else "each family's head of pre-training"
        console().print(f"\nat {image} pixels, {classes} classes, {heads}; other patch sizes and ResNets build too")
        console().print("a ResNet's layers are its bottleneck units, its width is that of its features")
    for line in unfit:
        complain(line)


def convert(
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IN")],
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    to: SaveFormat = "vitlab",
    image: Size = "",
    classes: MaybeWhole = None,
    conventions: MaybeConventions = None,
    heads: MaybeWhole = None,
    positions: Annotated[UnsavedPositions | None, shown_as("{sincos2d,none}")] = None,
    entry: Words = "",
    allow_partial: bool = False,
    allow_nonfinite: bool = False,
) -> None:
    """Turn weights of any supported format, also .pt and .pth, into another.

    Args:
        source: Weights of Google, timm, Hugging Face, torchvision, DeiT or vitlab; a file or a folder.
        target: Where to write; it must not exist yet. A name ending in .safetensors makes one bare file.
        to: The format to write.
        image: Resize the positions to this resolution.
        classes: Put a fresh zero head for this many classes, if the file has another number.
        conventions: Whose GELU, epsilon and preprocessing to use; the source's own if left out.
        heads: Attention heads, for files that do not say.
        positions: Positions of a Google file without a position table: big_vision's sincos2d, or none.
        entry: The dictionary inside a .pt file to take, such as model_ema.
        allow_partial: Load what fits although tensors are missing, unexpected or mis-shaped.
        allow_nonfinite: Load weights that hold NaN or infinity.
    """
    from vitlab.weights.convert import convert as run

    model, notes = run(
        source,
        target,
        to,
        image=size_of(image),
        classes=classes,
        conventions=conventions,
        heads=heads,
        positions=positions,
        entry=entry,
        allow_partial=allow_partial,
        allow_nonfinite=allow_nonfinite,
    )
    spec = model.spec
    output = console()
    output.print(Text(f"{name_of(spec)}, {spec.image[0]}x{spec.image[1]}, {spec.classes} classes, {spec.head} head"))
    output.print(Text(f"from {model.provenance.get('format', 'vitlab')} to {to}: {printable(str(target))}"))
    for note in notes:
        output.print(Text(f"note: {note}"))


def download(
    name: Annotated[str, tyro.conf.Positional, shown_as("[NAME]")] = "",
    cache: MaybePath = None,
    offline: bool = False,
) -> None:
    """Fetch released weights into the cache and print where they are; without a name, list what there is.

    Args:
        name: Released weights, such as augreg-Ti_16-i1k-224 or BiT-M-R50x1.
        cache: Folder to keep them in; VITLAB_CACHE or the user's cache if left out.
        offline: Only look into the cache, as VITLAB_OFFLINE=1 does.
    """
    from vitlab.runs.progress import Arrival
    from vitlab.weights.released.catalogue import find_release, releases
    from vitlab.weights.released.download import download as fetch

    if name:
        with Arrival(console(is_error=True), name) as arrival:  # standard output is the path alone
            path = fetch(name, cache=cache, offline=offline, progress=arrival.show)
        console().print(Text(str(path)), soft_wrap=True)
        complain(f"preprocessing: {find_release(name).conventions.preprocessing}", style="dim")
        if path.suffix == ".pth":
            complain(f"a pickle, which does not load as it is: vitlab convert {shlex.quote(str(path))} OUT")
        return
    table = Table("name", "model", "source", "licence", "about", box=None, header_style="bold")
    for release in releases().values():
        size = f"{release.bytes / 1e6:,.0f} MB"
        table.add_row(*map(Text, (release.name, release.model, release.source, release.licence, size)))
    console().print(table)


WEIGHTS: dict[str, Any] = {"models": models, "convert": convert, "download": download}
