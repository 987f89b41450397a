"""vitlab predict, inspect: a model of any format, and pictures."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.table import Table
from rich.text import Text

from vitlab.commands.terminal import (
    MaybeConventions,
    MaybeWhole,
    Size,
    complain,
    console,
    print_json,
    printable,
    shown_as,
    size_of,
)

if TYPE_CHECKING:
    from vitlab.data.images.pictures import Named
    from vitlab.deploy.predict import Answer
    from vitlab.models.build import Model as Loaded

Model = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
Pictures = Annotated[tuple[str, ...], tyro.conf.Positional, shown_as("IMAGE ...")]


@dataclass(frozen=True)
class Loading:
    """How the weights are read.

    Args:
        conventions: Whose GELU, epsilon and preprocessing to use; the file's own if left out.
        image: Resolution to run at; the model's own if left out.
        heads: Attention heads, for files that do not say.
        allow_partial: Load what fits although tensors are missing, unexpected or mis-shaped.
        allow_nonfinite: Load weights that hold NaN or infinity.
        device: Such as cpu or cuda:1; auto is a GPU where there is one.
    """

    conventions: MaybeConventions = None
    image: Size = ""
    heads: MaybeWhole = None
    allow_partial: bool = False
    allow_nonfinite: bool = False
    device: str = "auto"

    def load(self, path: Path) -> "Loaded":
        """The model of a file or a folder, on its device."""
        from vitlab.runs.progress import announced
        from vitlab.weights.load import load_model
        from vitlab.world.device import pick_device

        device = pick_device(self.device)  # before the weights take their time
        with announced(console(is_error=True), f"loading {printable(str(path))} ...", is_brief=True):
            loaded = load_model(
                path,
                conventions=self.conventions,
                image=size_of(self.image),
                heads=self.heads,
                allow_partial=self.allow_partial,
                allow_nonfinite=self.allow_nonfinite,
            )
        return loaded.to(device)


How = Annotated[Loading, tyro.conf.arg(name="")]
AS_STORED = Loading()


def predict(
    model: Model,
    images: Pictures,
    top: int = 5,
    json: bool = False,
    max_pixels: MaybeWhole = None,
    loading: How = AS_STORED,
) -> int:
    """Say what is in pictures, with a model of any supported format.

    Args:
        model: A run folder, a vitlab folder, or weights of Google, timm, Hugging Face, torchvision or DeiT.
        images: Image files, folders, patterns in quotes such as 'photos/*.jpg', or - for standard input.
        top: How many classes to show for each picture.
        json: Print JSON instead of tables.
        max_pixels: Pixels that an image may have; each format has its own limit if left out.
        loading: How the weights are read.
    """
    from vitlab.deploy.predict import answers as answers_of
    from vitlab.deploy.predict import class_names, meaning

    if not images:
        raise ValueError("no picture was given; name at least one image file or folder")
    pictures = _named(images)
    loaded = loading.load(model)
    answers = answers_of(loaded, pictures, top, max_pixels=max_pixels)
    names_from = class_names(loaded)[1]
    preprocessing = str(loaded.spec.conventions.preprocessing)
    failed = 0
    if json:
        listed = [asdict(answer) for answer in answers]
        failed = sum(bool(answer["reason"]) for answer in listed)
        what = {"model": str(model), "task": loaded.task, "probabilities": meaning(loaded)}
        print_json({**what, "preprocessing": preprocessing, "class_names": names_from, "answers": listed})
    else:
        for answer in answers:
            failed += bool(answer.reason)
            _print_answer(answer)
        if loaded.task == "multi-label":
            complain(f"probabilities: {meaning(loaded)}", style="dim")
        complain(f"preprocessing: {preprocessing}\nclass names: {names_from}", style="dim")
    if failed:
        complain(f"{failed} of {len(pictures)} pictures could not be read")
    return 1 if failed else 0


def _named(images: tuple[str, ...]) -> "list[Named]":
    """Every picture that the words of a command line name; what lies beside them and is no image is told."""
    from vitlab.data.images.files import image_files
    from vitlab.data.images.pictures import Named
    from vitlab.data.loading.accounting import Excluded

    found, excluded = [], Excluded()
    if images.count("-") > 1:
        raise ValueError("standard input holds one image; give - once")
    for word in images:
        if word == "-":
            found.append(Named("-", _standard_input()))
        else:
            found += [Named(str(path), path) for path in image_files((word,), excluded)]
    if excluded:
        complain(printable(excluded.described()), style="dim")
    return found


def _standard_input() -> bytes:
    from vitlab.data.images.refusals import LARGEST_FILE

    if sys.stdin is None or sys.stdin.isatty():
        raise ValueError("- is an image on standard input, which is a terminal; pipe one: cat cat.jpg | vitlab ...")
    return sys.stdin.buffer.read(LARGEST_FILE + 1)


def inspect(
    model: Model,
    images: Pictures = (),
    out: Path = Path("inspect-out"),
    maps: int = 4,
    max_pixels: MaybeWhole = None,
    loading: How = AS_STORED,
) -> int:
    """See what a model looks at: rollout, head maps, attention distance, filters and positions, in one HTML report.

    Args:
        model: A run folder, a vitlab folder, or weights of Google, timm, Hugging Face, torchvision or DeiT.
        images: Image files, folders, patterns in quotes, or - for standard input; default: draw the weights alone.
        out: Folder for the report and the figures; it must not exist yet.
        maps: How many pictures get a map of every head in every layer.
        max_pixels: Pixels that an image may have; each format has its own limit if left out.
        loading: How the weights are read.
    """
    from vitlab.drawing.canvas import require_matplotlib
    from vitlab.store import refuse_existing, refuse_unwritable

    require_matplotlib()  # before torch and the weights take their time
    refuse_existing(out)
    refuse_unwritable(out)
    from vitlab.runs.measure.inspection import REPORT
    from vitlab.runs.measure.inspection import inspect as run

    pictures = _named(images)
    loaded = loading.load(model)
    done = run(loaded, pictures, out, maps=maps, console=console(), name=str(model), max_pixels=max_pixels)
    for line in done.bad:
        complain(printable(line), style="red")
    if done.bad:
        end = "" if done.files else "; nothing was written"
        complain(f"{len(done.bad)} of {len(pictures)} pictures could not be read{end}")
    if not done.files:
        return 1
    output = console()
    figures = ", ".join(name.removesuffix(".svg") for name in done.files if name.endswith(".svg"))
    output.print(Text(f"figures  {figures}: each as SVG and PNG in {printable(str(out))}"))
    output.print(Text(f"numbers  {printable(str(out / 'inspection.json'))}"))
    output.print(Text("Open this in a browser:"))
    output.print(Text(f"  {printable(str(out / REPORT))}", style="bold"), soft_wrap=True)
    return 1 if done.bad else 0


def _print_answer(answer: "Answer") -> None:
    """A heading with the file's name, then its guesses with bars, or the reason why there are none."""
    output = console()
    notes = f"  ({', '.join(answer.notes)})" if answer.notes else ""
    output.print(Text(printable(answer.image) + notes, style="bold"))
    if answer.reason:
        output.print(Text(f"  {answer.reason}: {printable(answer.detail)}", style="red"))
        return
    full, thin = ("█", "▏") if "utf" in output.encoding.lower() else ("#", "|")
    table = Table(box=None, show_header=False, padding=(0, 1))
    for guess in answer.guesses:
        bar = Text(full * round(20 * guess.probability) or thin, style="cyan")
        table.add_row(f"{100 * guess.probability:6.2f} %", Text(printable(guess.name)), bar)
    output.print(table)


LOOKING: dict[str, Any] = {"predict": predict, "inspect": inspect}
