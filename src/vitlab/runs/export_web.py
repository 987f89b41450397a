"""Export models as a page for static hosts: `vitlab export MODEL --to web`."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from torch import nn

from vitlab.engines.making import packages_of
from vitlab.errors import printable
from vitlab.files.store import refuse_existing, refuse_unwritable
from vitlab.models.build import Model
from vitlab.page.web import NamedModel, WebPage, write_web
from vitlab.paper.models import name_of
from vitlab.require import check_arguments, require
from vitlab.runs.measure.inputs import ImageSize, ModelLike, ModelOptions, as_list, open_copy
from vitlab.runs.progress import announced, default_console
from vitlab.spec import AttentionLike, ConventionName

SUFFIXES = {".npz", ".safetensors"}  # of weights; not part of a model's name


def export_web(
    models: ModelLike | Sequence[ModelLike],
    out: str | Path,
    *,
    sizes: Sequence[ImageSize] = (),
    samples: str | Path | None = None,
    runtime: str | Path | None = None,
    conventions: ConventionName | None = None,
    image: ImageSize | None = None,
    attention: AttentionLike | None = None,
    heads: int | None = None,
    allow_partial: bool = False,
    allow_nonfinite: bool = False,
    console: Console | None = None,
    quiet: bool = False,
) -> WebPage:
    """Write a page that shows one or several models from inside to a new folder, ready for any static host.

    A model is a name of released weights, a path or a module. The page offers each at its own image size and at the
    `sizes` given, with positions interpolated. `samples` is a folder of pictures that the page offers besides its own.
    `runtime` is a folder with the files of onnxruntime-web; without it, they are fetched by npm, which is the only
    access to a network. See `ModelOptions` for how weights are loaded. `quiet` prints no progress.
    """
    check_arguments(export_web, locals())
    screen, folder = default_console(console, quiet=quiet), Path(out)
    refuse_existing(folder)
    refuse_unwritable(folder)
    packages, extra = packages_of("onnxruntime")
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    require(not missing, f"an export to the web needs {', '.join(missing)}: pip install 'vitlab[{extra}]'")
    options = ModelOptions(conventions, image, "own", "cpu", heads, allow_partial, allow_nonfinite, attention=attention)
    named = []
    for given in as_list(models):
        model = open_copy(given, options, screen)
        named.append(NamedModel(public_name(given, model), model))
    with announced(screen, f"writing {printable(str(folder))}; a minute or more per model and size ..."):
        return write_web(
            named,
            folder,
            sizes=sizes,
            samples_from=None if samples is None else Path(samples),
            runtime=None if runtime is None else Path(runtime),
        )


def public_name(given: ModelLike, model: Model) -> str:
    """What visitors see: a released name as it is, a file or folder without where it is, a module's architecture."""
    if isinstance(given, nn.Module):
        return name_of(model.spec)
    path = Path(given)
    if not path.exists():
        return str(given)
    return path.resolve().stem if path.suffix in SUFFIXES else path.resolve().name
