"""The command `vitlab export`: a model for another runtime, or a page for static hosts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.terminal import console
from vitlab.errors import printable
from vitlab.spec import ExportOutput, ExportTo

if TYPE_CHECKING:
    from vitlab.page.web import WebPage
    from vitlab.runs.export import Exported


def export(
    model: flags.Models,
    out: Path,
    to: ExportTo = "onnx",
    outputs: Annotated[tuple[ExportOutput, ...], Flag("{logits,features,attention,tokens} ...")] = ("logits",),
    image: Annotated[
        str, Flag("SIDE|HEIGHTxWIDTH", "Resolution to run at (default: the model's); positions are resized.")
    ] = "",
    int8: bool = False,
    check: Annotated[tuple[str, ...], Flag("IMAGE ...")] = (),
    agreement: float = 0.9,
    sizes: Annotated[tuple[str, ...], Flag("SIDE|HEIGHTxWIDTH ...")] = (),
    samples: flags.MaybePath = None,
    runtime: flags.MaybePath = None,
    conventions: flags.Conventions = None,
    merge: flags.Merge = None,
    attention: flags.Attention = None,
    heads: flags.Heads = None,
    allow_partial: flags.AllowPartial = False,
    allow_nonfinite: flags.AllowNonfinite = False,
) -> None:
    """Write a model for another runtime, with its preprocessing and class names, or as a page for static hosts.

    The export is compared with the model; if they disagree, nothing is written.

    Args:
        out: Folder to write; must not exist yet.
        to: onnx for ONNX Runtime and others, openvino, torch for a program of torch.export; web for a page on which
            the model, or several, run in the visitor's browser.
        outputs: What the artefact returns.
        int8: Round the dense layers to 8 bits: faster, a little less accurate (onnx only).
        check: Pictures on which the artefact must agree with the model (default: drawn ones of several sizes).
        agreement: Least share of these pictures with the same top-1, for --int8.
        sizes: Further resolutions that a page offers.
        samples: Folder of pictures that a page offers besides its own.
        runtime: Folder with onnxruntime-web, for a page (default: fetched by npm).
    """
    given = flags.arguments(locals(), console(is_error=True))
    from vitlab.runs.export import Exported
    from vitlab.runs.export import export as run

    found = run(**given)
    _print_artefact(found) if isinstance(found, Exported) else _print_page(found)


def _print_page(page: "WebPage") -> None:
    output, size = console(), f"{page.total / 1e6:.1f} MB in {len(page.sizes)} files"
    output.print(Text(f"{printable(str(page.folder))}: {size}; put it on any static host"), soft_wrap=True)
    output.print(Text("Look at it here:"))
    output.print(
        Text(f"  python -m http.server --bind 127.0.0.1 --directory {printable(str(page.folder))}", style="bold"),
        soft_wrap=True,
    )


def _print_artefact(found: "Exported") -> None:
    output = console()
    output.print(found.table.terminal())
    output.print(Text(found.verdict), soft_wrap=True)
    output.print(Text(f"{printable(str(found.path))}: {found.card.name}, {found.card.preprocessing}"), soft_wrap=True)


EXPORTING: dict[str, Any] = {"export": export}
