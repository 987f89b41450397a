"""The commands that show a model pictures: predict, inspect."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from rich.text import Text

from vitlab.commands import flags
from vitlab.commands.command_line import Flag
from vitlab.commands.terminal import complain, console, print_json
from vitlab.errors import printable

if TYPE_CHECKING:
    from vitlab.runs.measure.prediction import Answer

_PICTURES = "Image files, folders, patterns in quotes such as 'photos/*.jpg', or - for standard input."
Pictures = Annotated[tuple[str, ...], Flag("IMAGE ...", _PICTURES, is_positional=True)]
BAR = 20  # characters of the bar of a probability of 1


@dataclass(frozen=True)
class Loading:
    """How the weights are loaded."""

    conventions: flags.Conventions = None
    image: flags.RunningSize = ""
    merge: flags.Merge = None
    attention: flags.Attention = None
    heads: flags.Heads = None
    allow_partial: flags.AllowPartial = False
    allow_nonfinite: flags.AllowNonfinite = False
    device: flags.Device = "auto"


AS_STORED = Loading()


def predict(
    model: flags.Model,
    images: Pictures,
    top: int = 5,
    json: flags.Json = False,
    max_pixels: flags.MaxPixels = None,
    engine: flags.Engine = "torch",
    loading: Loading = AS_STORED,
) -> int:
    """Classify pictures with a model of any supported format.

    Args:
        top: Number of classes to show for each picture.
    """
    given = flags.arguments(locals(), console(is_error=True))
    given.pop("json")
    from vitlab.runs.measure.prediction import predict as run

    answers = run(**given)
    if json:
        print_json(answers.to_json())
    else:
        for answer in answers:
            _print_answer(answer)
        if answers.task == "multi-label":
            complain(f"probabilities: {answers.meaning}", style="dim")
        about = {"engine": answers.engine, "preprocessing": answers.preprocessing, "class names": answers.names_from}
        for name, value in about.items():
            complain(f"{name}: {value}", style="dim")
    if answers.failed:
        complain(f"{answers.failed} of {len(answers)} pictures could not be read")
    return 1 if answers.failed else 0


def inspect(
    model: flags.Model,
    images: Pictures = (),
    out: Path = Path("inspect-out"),
    maps: int = 4,
    at: Annotated[tuple[int, int] | None, Flag("ROW COLUMN")] = None,
    layer: flags.Whole = None,
    max_pixels: flags.MaxPixels = None,
    loading: Loading = AS_STORED,
) -> int:
    """Show what a model attends to: rollout, head maps, attention distance, filters and positions, as an HTML report.

    Of a Swin: where one pixel looks within its windows, in every layer.

    Args:
        images: Image files, folders, patterns in quotes, or - for standard input; default: draw only the weights.
        out: New folder for the report and the figures.
        maps: Number of pictures with a map of every head in every layer, or of the windows of a Swin.
        at: Of a Swin, the pixel whose windows are drawn, on the picture as the model sees it (default: the middle).
        layer: Of a Swin, the layer of which every head is drawn, counted from 1 (default: all, the mean of each).
    """
    given = flags.arguments(locals(), console(is_error=True))
    from vitlab.runs.measure.inspection import inspect as run

    done = run(**given)
    for line in done.bad:
        complain(printable(line), style="red")
    if done.bad:
        complain(f"{len(done.bad)} of {len(done.bad) + done.images} pictures could not be read")
    console().print(Text(f"figures  {', '.join(done.figures)}: each as SVG and PNG in {printable(str(out))}"))
    console().print(Text(f"numbers  {printable(str(out / 'inspection.json'))}"))
    console().print(Text("Open this in a browser:"))
    console().print(Text(f"  {printable(str(out / 'report.html'))}", style="bold"), soft_wrap=True)
    return 1 if done.bad else 0


def _print_answer(answer: "Answer") -> None:
    """A heading with the file's name, then its guesses with bars, or the reason why there are none."""
    output = console()
    notes = f"  ({', '.join(answer.notes)})" if answer.notes else ""
    output.print(Text(printable(answer.image) + notes, style="bold"))
    if answer.reason:
        output.print(Text(f"  {printable(answer.detail)}", style="red"))
        return
    full, thin = ("█", "▏") if "utf" in output.encoding.lower() else ("#", "|")
    table = Table(box=None, show_header=False, padding=(0, 1))
    for guess in answer.guesses:
        table.add_row(
            f"{100 * guess.probability:6.2f} %",
            Text(printable(guess.name)),
            Text(full * round(BAR * guess.probability) or thin, style="cyan"),
        )
    output.print(table)


LOOKING: dict[str, Any] = {"predict": predict, "inspect": inspect}
