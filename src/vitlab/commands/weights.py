"""The commands `vitlab models`, `convert` and `download`: models, and weights in all formats."""

from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.terminal import complain, console, print_json, print_rows
from vitlab.counting import count_models
from vitlab.errors import printable, spelled
from vitlab.spec import HeadKind, SaveFormat, UnsavedPositions


def models(
    image: flags.Size = "224",
    classes: int = 1000,
    head: Annotated[HeadKind | None, Flag("{mlp,linear}")] = None,
    json: flags.Json = False,
) -> None:
    """List every model with tokens, parameters, GMACs and its place in the paper.

    Args:
        image: Input size in pixels.
        classes: Number of classes.
        head: mlp is the head of pre-training, linear that of fine-tuning. Default: that of the model family.
    """
    rows, left_out = count_models(image=flags.size_of(image) or 224, classes=classes, head=head)
    if json:
        print_json(rows)
    else:
        print_rows(
            {name: value for name, value in row.items() if name != "macs"}
            | {"paper": row["paper"] or "later work", "heads": row["heads"] or None}
            | {"GMACs": f"{int(row['macs']) / 1e9:,.2f}"}
            for row in rows
        )
        heads = f"{head} head" if head else "the pre-training head of each family"
        console().print(f"\nat {image} pixels, {classes} classes, {heads}; other patch sizes and ResNets build too")
        console().print("for a ResNet, layers counts its bottleneck units and width is that of its features")
        console().print("for a Swin, width is that of its features and heads are those of its first stage")
    for line in left_out:
        complain(f"left out {line}")


def convert(
    source: Annotated[Path, Flag("IN", is_positional=True)],
    target: Annotated[Path, Flag("OUT", is_positional=True)],
    to: SaveFormat = "vitlab",
    image: flags.Size = "",
    classes: flags.Whole = None,
    conventions: flags.Conventions = None,
    heads: flags.Heads = None,
    positions: Annotated[UnsavedPositions | None, Flag("{sincos2d,none}")] = None,
    entry: flags.Text = "",
    allow_partial: flags.AllowPartial = False,
    allow_nonfinite: flags.AllowNonfinite = False,
    merge: flags.Merge = None,
    attention: flags.Attention = None,
) -> None:
    """Convert weights of any supported format, also .pt and .pth, to another.

    Args:
        source: Weights of Google, timm, Hugging Face, torchvision, DeiT or vitlab: a file, a folder or a released name.
        target: Where to write; must not exist yet. A name that ends in .safetensors gives one bare file.
        to: Format to write.
        image: Resize the positions to this resolution.
        classes: Replace the head by a zero head for this many classes, if the file has another number.
        positions: Positions of a Google file without a position table: big_vision's sincos2d, or none.
        entry: Dictionary inside a .pt file to take, such as model_ema.
    """
    given = flags.arguments(locals())
    from vitlab.weights.convert import convert as run

    converted = run(**given)
    spec, output = converted.model.spec, console()
    size = f"{spec.image[0]}x{spec.image[1]}"
    output.print(Text(f"{converted.name}, {size}, {spec.classes} classes, {spec.head} head"))
    output.print(Text(f"from {converted.model.provenance.get('format', 'vitlab')} to {to}: {printable(str(target))}"))
    for note in converted.notes:
        output.print(Text(spelled(f"note: {note}")))


def download(
    name: Annotated[str, Flag("[NAME]", is_positional=True)] = "",
    cache: flags.MaybePath = None,
    offline: bool = False,
) -> None:
    """Download released weights into the cache and print their path; without a name, list what is available.

    Args:
        name: Released weights, such as augreg-Ti_16-i1k-224 or BiT-M-R50x1.
        cache: Folder to download to. Default: VITLAB_CACHE, or the user's cache.
        offline: Only look into the cache, as with VITLAB_OFFLINE=1.
    """
    from vitlab.runs.download import download as fetch
    from vitlab.weights.released.catalogue import list_releases

    if name:
        found = fetch(name, cache=cache, offline=offline)
        console().print(Text(str(found.path)), soft_wrap=True)  # standard output is the path alone
        for note in found.notes:
            complain(note, style="dim")
    else:
        print_rows(
            {"name": one.name, "model": one.model, "source": one.source, "licence": one.licence}
            | {"about": f"{one.bytes / 1e6:,.0f} MB"}
            for one in list_releases()
        )


WEIGHTS: dict[str, Any] = {"models": models, "convert": convert, "download": download}
