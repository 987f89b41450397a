"""The command `vitlab export`: a model for another runtime."""

from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.terminal import console
from vitlab.errors import printable
from vitlab.spec import ExportOutput, ExportTarget


def export(
    model: flags.Model,
    out: Path,
    to: ExportTarget = "onnx",
    outputs: Annotated[tuple[ExportOutput, ...], Flag("{logits,features,attention,tokens} ...")] = ("logits",),
    image: Annotated[
        str, Flag("SIDE|HEIGHTxWIDTH", "Resolution to run at (default: the model's); positions are resized.")
    ] = "",
    int8: bool = False,
    check: Annotated[tuple[str, ...], Flag("IMAGE ...")] = (),
    agreement: float = 0.9,
    conventions: flags.Conventions = None,
    merge: flags.Merge = None,
    heads: flags.Heads = None,
    allow_partial: flags.AllowPartial = False,
    allow_nonfinite: flags.AllowNonfinite = False,
) -> None:
    """Write a model for another runtime, with its preprocessing and class names, and check it against the original.

    Args:
        out: Folder to write; must not exist yet.
        to: onnx for ONNX Runtime and others, openvino, or torch for a program of torch.export.
        outputs: What the artefact returns.
        int8: Round the dense layers to 8 bits: faster, a little less accurate (onnx only).
        check: Pictures on which the artefact must agree with the model (default: drawn ones of several sizes).
        agreement: Least share of these pictures with the same top-1, for --int8.
    """
    given = flags.arguments(locals(), console(is_error=True))
    from vitlab.runs.export import export as run

    found = run(**given)
    output = console()
    output.print(found.table.terminal())
    output.print(Text(found.verdict), soft_wrap=True)
    output.print(Text(f"{printable(str(found.path))}: {found.card.name}, {found.card.preprocessing}"), soft_wrap=True)


EXPORTING: dict[str, Any] = {"export": export}
