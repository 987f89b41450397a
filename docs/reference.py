"""Write the pages of the site that come from the code: commands, recipes, models, kinds of data, API.

`make docs` calls `write_references`; the pages go to docs/generated, which is not committed.
"""

import contextlib
import inspect
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import vitlab
from vitlab.cli import COMMANDS, DATA_COMMANDS, main
from vitlab.paper.models import model_spec
from vitlab.spec import ViTSpec

GENERATED = Path(__file__).parent / "generated"
WIDTH = 100  # columns of help


def write_references(folder: Path = GENERATED) -> None:
    """Write every generated page into `folder`."""
    folder.mkdir(exist_ok=True)
    pages = {
        "commands.md": commands(),
        "recipes.md": recipes(),
        "models.md": models(),
        "data-kinds.md": data_kinds(),
        "api.rst": api(),
    }
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text("utf-8") != text:  # Sphinx reads again what changed
            path.write_text(text, "utf-8")


def commands() -> str:
    """One section per command: what `--help` prints."""
    names = [[name] for name in COMMANDS if name != "data"] + [["data", name] for name in DATA_COMMANDS]
    parts = [
        "# Commands",
        "Look up any command, its arguments and its flags. Each section is what `vitlab COMMAND --help` prints. Fields "
        "of a recipe and of a fresh model are flags too: [the recipes](recipes.md) list them.",
    ]
    for words in sorted(names):
        parts += [f"## vitlab {' '.join(words)}", f"```text\n{printed([*words, '--help'])}\n```"]
    return "\n\n".join(parts) + "\n"


def api() -> str:
    """The public names in reStructuredText, then every module."""
    parts = [
        "API\n===",
        "Call vitlab from Python. The names on this page are stable; the modules below them are listed by part.",
    ]
    for name in vitlab.__all__:
        kind = "autoclass" if inspect.isclass(getattr(vitlab, name)) else "autofunction"
        parts.append(f".. {kind}:: vitlab.{name}\n   :no-index:")
    parts.append(".. toctree::\n   :maxdepth: 2\n\n   ../api/modules/vitlab")
    return "\n\n".join(parts) + "\n"


def recipes() -> str:
    """Tables of all recipes, and the fields of three."""
    listed = json.loads(printed(["recipes", "--json"]))
    parts = [
        "# Recipes",
        "Pick a recipe by name, or see what one sets. `vitlab recipes` prints these tables, `vitlab recipes NAME` the "
        "fields of any of them.",
        "## Pre-training: `vitlab pretrain NAME --data SPEC`",
        _rows(listed["pretrain"]),
        "## Fine-tuning: `vitlab finetune MODEL --data SPEC --recipe NAME`",
        _rows(listed["finetune"]),
    ]
    for name in ("quick", "cifar10", "ViT-B/16@imagenet21k"):
        found = json.loads(printed(["recipes", name, "--json"]))
        parts += [f"## Fields of `{name}`", f"{found['source']}.", _rows(found["fields"], code=("flag", "value"))]
    return "\n\n".join(parts) + "\n"


def models() -> str:
    """The table of every model."""
    return "\n\n".join(
        (
            "# Models",
            "Pick a model by name. `vitlab models` prints this table for any resolution and number of classes. "
            "Parameters are for 1,000 classes with the linear head of fine-tuning / the MLP head of pre-training (the "
            "default where there is one). The layers of a ResNet are its bottleneck units, its width is that of its "
            "features.",
            table(("model", "layers", "width", "heads", "parameters (linear / MLP)", "GMACs at 224"), model_rows()),
            "Other patch sizes build too (`ViT-S/8`), and so do small ResNets (`R26x0.25`). Other spellings are "
            "understood: `vit_base_patch16_224`, `ViT-B_16`, `BiT-M-R50x1`.",
        )
    )


def data_kinds() -> str:
    """Every kind of data spec with its options."""
    rows = [(f"`{form}`", what) for form, what in vitlab.data_kinds().rows]
    intro = "Name any data set with one string. `vitlab data kinds` prints this list."
    return f"# Kinds of data\n\n{intro}\n\n{table(('spec', 'data'), rows)}\n"


def model_rows() -> Iterator[tuple[str, ...]]:
    """Name, layers, width, heads, parameters and GMACs of every model."""
    for name in vitlab.list_models():
        spec = model_spec(name)
        layers = spec.layers if isinstance(spec, ViTSpec) else sum(spec.stages)
        linear = vitlab.count(name, head="linear")
        parameters = f"{linear.parameters:,}"
        if isinstance(spec, ViTSpec) and not spec.distilled and "DeiT" not in name:
            parameters += f" / {vitlab.count(name, head='mlp').parameters:,}"
        heads = getattr(spec, "heads", "-")
        yield name, str(layers), str(spec.width), str(heads), parameters, f"{linear.macs / 1e9:,.2f}"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _rows(rows: Sequence[Mapping[str, object]], code: Sequence[str] = ("recipe",)) -> str:
    def cell(name: str, value: object) -> str:
        if value is None or value == "":
            return "-"
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else str(value)
        return f"`{text}`" if name in code else text

    return table([name.replace("_", " ") for name in rows[0]], [[cell(*pair) for pair in row.items()] for row in rows])


def printed(words: Sequence[str]) -> str:
    """What a command prints, without colours."""
    said, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main(list(words))
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said.getvalue())
    return "\n".join(line.rstrip() for line in plain.splitlines()).strip()
