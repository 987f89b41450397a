"""The command line: one table of commands, each a short function that loads what it needs when it is called."""

import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.table import Table
from rich.text import Text

from vitlab import __version__
from vitlab.commands.evaluation import EVALUATION
from vitlab.commands.sweeping import SWEEPING
from vitlab.commands.terminal import complain, console, one_line, print_json, printable
from vitlab.commands.training import TRAINING_COMMANDS, with_field_flags
from vitlab.counting import count_spec
from vitlab.paper.models import MODELS, list_models, model_spec
from vitlab.spec import ConventionName, HeadKind, ResNetSpec, SaveFormat, ViTSpec, parse_size

if TYPE_CHECKING:
    from vitlab.deploy.predict import Answer

Size = Annotated[str, tyro.conf.arg(metavar="SIDE|HEIGHTxWIDTH")]
Model = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
Pictures = Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE ...")]


def models(image: Size = "224", classes: int = 1000, head: HeadKind | None = None, json: bool = False) -> None:
    """List every model with tokens, parameters, GMACs and where it stands in the paper.

    Args:
        image: Size of the input in pixels.
        classes: Number of classes of the head.
        head: mlp is the head of pre-training, linear that of fine-tuning; each family's own if left out.
        json: Print JSON instead of a table.
    """
    size = _size(image)
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


def predict(
    model: Model,
    images: Pictures,
    top: int = 5,
    json: bool = False,
    conventions: ConventionName | None = None,
    image: Size = "",
    heads: int | None = None,
    allow_partial: bool = False,
    allow_nonfinite: bool = False,
) -> int:
    """Say what is in pictures, with a model of any supported format.

    Args:
        model: A vitlab folder, or weights of Google, timm, Hugging Face, torchvision or DeiT.
        images: Pictures: JPEG, PNG, WebP, GIF or BMP.
        top: How many classes to show for each picture.
        json: Print JSON instead of tables.
        conventions: Whose GELU, epsilon and preprocessing to use; the file's own if left out.
        image: Resolution to run at; the model's own if left out.
        heads: Attention heads, for files that do not say.
        allow_partial: Load what fits although tensors are missing, unexpected or mis-shaped.
        allow_nonfinite: Load weights that hold NaN or infinity.
    """
    from vitlab.deploy.predict import class_names
    from vitlab.deploy.predict import predict as answers_of
    from vitlab.weights.load import load_model

    if not images:
        raise ValueError("no picture was given; name at least one image file")
    loaded = load_model(
        model,
        conventions=conventions,
        image=_size(image),
        heads=heads,
        allow_partial=allow_partial,
        allow_nonfinite=allow_nonfinite,
    )
    answers = answers_of(loaded, images, top)
    names_from = class_names(loaded)[1]
    preprocessing = str(loaded.spec.conventions.preprocessing)
    failed = 0
    if json:
        listed = [asdict(answer) for answer in answers]
        failed = sum(bool(answer["reason"]) for answer in listed)
        print_json({"model": str(model), "preprocessing": preprocessing, "class_names": names_from, "answers": listed})
    else:
        for answer in answers:
            failed += bool(answer.reason)
            _print_answer(answer)
        complain(f"preprocessing: {preprocessing}\nclass names: {names_from}", style="dim")
    if failed:
        complain(f"{failed} of {len(images)} pictures could not be read")
    return 1 if failed else 0


def inspect(
    model: Model,
    images: Pictures = (),
    out: Path = Path("inspect-out"),
    maps: int = 4,
    conventions: ConventionName | None = None,
    image: Size = "",
    heads: int | None = None,
    allow_partial: bool = False,
    allow_nonfinite: bool = False,
) -> int:
    """See what a model looks at: rollout, head maps, attention distance, filters and positions, in one HTML report.

    Args:
        model: A vitlab folder, or weights of Google, timm, Hugging Face, torchvision or DeiT.
        images: Pictures to look at; without any, the weights alone are drawn.
        out: Folder for the report and the figures; it must not exist yet.
        maps: How many pictures get a map of every head in every layer.
        conventions: Whose GELU, epsilon and preprocessing to use; the file's own if left out.
        image: Resolution to run at; the model's own if left out.
        heads: Attention heads, for files that do not say.
        allow_partial: Load what fits although tensors are missing, unexpected or mis-shaped.
        allow_nonfinite: Load weights that hold NaN or infinity.
    """
    from vitlab.drawing.canvas import require_matplotlib
    from vitlab.store import refuse_existing

    require_matplotlib()  # before torch and the weights take their time
    refuse_existing(out)
    from vitlab.runs.inspection import REPORT
    from vitlab.runs.inspection import inspect as run
    from vitlab.weights.load import load_model

    loaded = load_model(
        model,
        conventions=conventions,
        image=_size(image),
        heads=heads,
        allow_partial=allow_partial,
        allow_nonfinite=allow_nonfinite,
    )
    done = run(loaded, images, out, maps=maps, console=console())
    for line in done.bad:
        complain(printable(line), style="red")
    if done.bad:
        complain(f"{len(done.bad)} of {len(images)} pictures could not be read")
    output = console()
    figures = ", ".join(name.removesuffix(".svg") for name in done.files if name.endswith(".svg"))
    output.print(Text(f"figures  {figures}: each as SVG and PNG in {printable(str(out))}"))
    output.print(Text(f"numbers  {printable(str(out / 'inspection.json'))}"))
    output.print(Text("Open this in a browser:"))
    output.print(Text(f"  {printable(str(out / REPORT))}", style="bold"), soft_wrap=True)
    return 1 if done.bad else 0


def convert(
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IN")],
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    to: SaveFormat = "vitlab",
    image: Size = "",
    classes: int | None = None,
    conventions: ConventionName | None = None,
    heads: int | None = None,
    entry: str = "",
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
        entry: The dictionary inside a .pt file to take, such as model_ema.
        allow_partial: Load what fits although tensors are missing, unexpected or mis-shaped.
        allow_nonfinite: Load weights that hold NaN or infinity.
    """
    from vitlab.paper.models import name_of
    from vitlab.weights.convert import convert as run

    model, notes = run(
        source,
        target,
        to,
        image=_size(image),
        classes=classes,
        conventions=conventions,
        heads=heads,
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
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = "",
    cache: Path | None = None,
    offline: bool = False,
) -> None:
    """Fetch released weights into the cache and print where they are; without a name, list what there is.

    Args:
        name: Released weights, such as augreg-Ti_16-i1k-224 or BiT-M-R50x1.
        cache: Folder to keep them in; VITLAB_CACHE or the user's cache if left out.
        offline: Only look into the cache, as VITLAB_OFFLINE=1 does.
    """
    from vitlab.weights.catalogue import find_release, releases
    from vitlab.weights.download import download as fetch

    if name:
        path = fetch(name, cache=cache, offline=offline)
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


def demo(out: Path = Path("demo-out")) -> None:
    """Train a small Vision Transformer on handwritten digits, save it, and let it read a few.

    Args:
        out: Folder for the model and the digit pictures; a number is added when it exists.
    """
    from vitlab.runs.demo import run_demo

    program = sys.argv[0] if Path(sys.argv[0]).name == "vitlab" else "vitlab"
    run_demo(out, console(), program)


def data() -> None:
    """Look at data sets: `data check` says what is in one, `data index` prepares tar shards, `data kinds` lists all."""


def data_check(
    spec: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SPEC")],
    against: str = "",
    out: Path = Path("data-check"),
    image: Size = "224",
    workers: int = 2,
) -> int:
    """Look at every sample: counts, classes, sizes, bad files, and a contact sheet before and after augmentation.

    Args:
        spec: The data, such as folder:photos, cifar10:DIR?split=test or fractals?classes=10&images=200.
        against: Other data, such as the training set: samples that are in both are listed.
        out: Folder for the contact sheet and the report; older ones are replaced.
        image: Size of the pictures after augmentation.
        workers: Processes that decode.
    """
    from vitlab.runs.check_data import check_data

    bad = check_data(spec, against, out, _size(image) or (224, 224), workers, console())
    return 1 if bad else 0


def data_index(folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]) -> None:
    """Index a folder of tar shards (webdataset convention), so that any sample can be read by its number.

    Args:
        folder: The folder with the .tar files; the index is written into it.
    """
    from vitlab.data.shards import ShardSource, index_shards

    excluded = index_shards(folder)
    output = console()
    output.print(Text(f"indexed {len(ShardSource(folder)):,} samples; use them as shards:{printable(str(folder))}"))
    for rule, number in sorted(excluded.items()):
        output.print(Text(f"excluded {number:,} {rule}"))


def data_kinds() -> None:
    """List every kind of data that can be named, with its options."""
    from vitlab.data.catalogue import described

    for line in described():
        console().print(Text(line))


def doctor() -> None:
    """Show versions, device, threads and which extras are installed."""
    from vitlab.doctor import findings

    table = Table(box=None, show_header=False)
    for what, how in findings():
        table.add_row(Text(what, style="bold"), Text(how))
    console().print(table)


COMMANDS: dict[str, Any] = {
    "demo": demo,
    "models": models,
    "predict": predict,
    "inspect": inspect,
    "convert": convert,
    "download": download,
    **TRAINING_COMMANDS,
    **SWEEPING,
    "data": data,
    **EVALUATION,
    "doctor": doctor,
}
TOGETHER = {"pretrain", "finetune", "resume", "evaluate", "features", "fewshot"}  # on many ranks, under torchrun
DATA_COMMANDS: dict[str, Any] = {"check": data_check, "index": data_index, "kinds": data_kinds}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; user errors are one line on standard error and exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        console().print(f"vitlab {__version__}", highlight=False)
        return 0
    is_first = os.environ.get("RANK", "0") == "0"  # of several ranks one complains about a misspelt flag
    commands, program = COMMANDS, "vitlab"
    about = "The Vision Transformer paper as a working laboratory. --version prints the version."
    if arguments[:1] == ["data"]:
        commands, program, about, arguments = DATA_COMMANDS, "vitlab data", data.__doc__ or "", arguments[1:]
    try:
        _check_ranks(arguments)
        words = with_field_flags(arguments)
        result = tyro.extras.subcommand_cli_from_dict(
            commands, prog=program, description=about, args=words, console_outputs=is_first
        )
        return result or 0
    except NotForRanks as error:
        if is_first:
            complain(f"vitlab: {error}")
        return 2
    except (ValueError, OSError) as error:
        complain(f"vitlab: {one_line(error)}")
        return 2
    except (ArithmeticError, MemoryError) as error:  # a training that diverged, or does not fit
        complain(f"vitlab: {one_line(error)}")
        return 3
    except ModuleNotFoundError as error:
        complain(f"vitlab: {error}; vitlab doctor lists what is missing")
        return 2
    except RuntimeError as error:
        if type(error).__name__ not in ("WorkerDied", "JobsFailed", "LostRank"):  # not imported: torch comes with them
            raise
        complain(f"vitlab: {one_line(error)}")
        return 3
    except KeyboardInterrupt:
        return 130


class NotForRanks(ValueError):  # noqa: N818 - says what is wrong
    """A launcher has started several processes of a command that knows only one."""


def _check_ranks(arguments: list[str]) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1 and arguments and arguments[0] in {*COMMANDS, *DATA_COMMANDS} - TOGETHER:
        known = ", ".join(sorted(TOGETHER))
        raise NotForRanks(f"{arguments[0]} runs in one process, not on {ranks} ranks; those that do are {known}")


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


def _size(text: str) -> tuple[int, int] | None:
    """What --image was given, or nothing."""
    return parse_size(text) if text else None


if __name__ == "__main__":
    sys.exit(main())
