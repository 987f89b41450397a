"""The page as files for any static host: the model runs in the visitor's browser, and nothing is uploaded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, cast

from vitlab.files.store import Writer, json_writer, refuse_existing, refuse_unwritable, write_folder
from vitlab.files.user_files import open_regular
from vitlab.models.build import Model
from vitlab.page.graphs import WEIGHTS, write_graphs
from vitlab.page.model_card import Card, model_card, unique_slugs
from vitlab.page.policy import policy
from vitlab.page.runtime import runtime_files
from vitlab.page.samples import samples
from vitlab.require import require
from vitlab.spec import Image

LARGEST_FILE = 24_000_000  # bytes: some static hosts refuse files of more than 25 MB
LARGEST_WEIGHTS = 1_500_000_000  # bytes: a browser gives a page up to 4 GB, and weights are in memory twice
SERVED_ONLY = {"runs", "runs.html", "runs.css"}  # the run browser needs a server
CHARSET = '<meta charset="utf-8">'
PLACE = '// Written by the static export.\nexport const where = "browser";\n'
README = """This folder is a page that shows {names} from inside. The model runs in the visitor's browser.

Put the folder on any static host, at any address, or look at it here:

    python -m http.server --bind 127.0.0.1

Opening index.html as a file does not work: browsers load modules and workers over HTTP only.

The page requests nothing from another host, and the content security policy in index.html allows nothing else. If your
host lets you set headers, send the policy as a header too: only a header can forbid other pages to embed this one.
Hosts that read the file _headers do so already.

    Content-Security-Policy: {policy}

No file has more than {largest} MB. Compression by the host helps: the runtime shrinks to a quarter.
runtime/ is onnxruntime-web; see runtime/LICENSE.txt.
"""


class NamedModel(NamedTuple):
    """A model, and the name that the page shows."""

    name: str
    model: Model


@dataclass(frozen=True)
class WebPage:
    """A page that was written: its folder, the cards of its models, and the size of each file in bytes."""

    folder: Path
    cards: tuple[Card, ...]
    sizes: dict[str, int]

    @property
    def total(self) -> int:
        """The size of all files together, in bytes."""
        return sum(self.sizes.values())


def write_web(
    models: Sequence[NamedModel],
    out: Path,
    *,
    sizes: Sequence[Image] = (),
    samples_from: Path | None = None,
    runtime: Path | None = None,
) -> WebPage:
    """Write the page with its models to a new folder.

    `sizes` are image sizes that the page offers besides the own one of each model; a model that cannot take one raises
    ValueError. `samples_from` is a folder of pictures that the page offers besides those that vitlab draws. `runtime`
    is a folder with the files of onnxruntime-web; by default npm fetches them. Each model is compared with what
    the browser will run; see `write_graphs`.
    """
    refuse_existing(out)
    refuse_unwritable(out)
    require(bool(models), "no model was given; give one or more")
    for name, model in models:
        require(model.spec.classes > 0, f"{name} has no classes, only features; fine-tune it on labelled images")
        weights = 4 * sum(weight.numel() for weight in model.parameters())
        large = f"{name} has {weights / 1e9:.1f} GB of weights; a browser can load {LARGEST_WEIGHTS / 1e9:.1f} GB"
        require(weights <= LARGEST_WEIGHTS, f"{large}; choose a smaller model, or let a server run it: vitlab serve")
    ids = unique_slugs(name for name, _ in models)
    cards = [model_card(model, name, sizes, id=id) for id, (name, model) in zip(ids, models, strict=True)]
    written: dict[str, Writer] = {f"runtime/{name}": _bytes(data) for name, data in runtime_files(runtime).items()}
    pictures = samples(samples_from)
    written |= {f"api/samples/{name}.png": _bytes(png) for name, png in pictures}
    listed = [{"name": name, "url": f"api/samples/{name}.png"} for name, _ in pictures]
    written |= dict(_page_files()) | dict(_host_files([name for name, _ in models]))
    with TemporaryDirectory() as made:
        for card, (_, model) in zip(cards, models, strict=True):
            written |= _model_files(card, model, Path(made))
        values = {"api/models.json": {"models": cards}, "api/samples.json": listed}
        written |= {name: _nested(json_writer(value)) for name, value in values.items()}
        write_folder(out, written)
    return WebPage(out, tuple(cards), {name: (out / name).stat().st_size for name in sorted(written)})


def _page_files() -> Iterator[tuple[str, Writer]]:
    """Yield the page's own files, set up for a browser that runs the model."""
    meta = f'{CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{policy(is_header=False)}">'
    for name, file in _below(files("vitlab.page") / "static", ""):
        data = file.read_bytes()
        if name == "backends/place.js":
            data = PLACE.encode()
        elif name == "index.html" and b"http-equiv" not in data:
            require(CHARSET.encode() in data, f"index.html has no {CHARSET}, after which the policy is written")
            data = data.replace(CHARSET.encode(), meta.encode(), 1)
        yield name, _bytes(data)


def _below(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name in SERVED_ONLY:
            continue
        if entry.is_dir():
            yield from _below(entry, f"{prefix}{entry.name}/")
        elif entry.is_file():
            yield f"{prefix}{entry.name}", entry


def _host_files(names: Sequence[str]) -> Iterator[tuple[str, Writer]]:
    """Yield what is for the host and for whoever finds the folder."""
    headers = {
        "Content-Security-Policy": policy(),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    yield "_headers", _bytes("".join(["/*\n", *(f"  {name}: {value}\n" for name, value in headers.items())]).encode())
    yield ".nojekyll", _bytes(b"")  # or GitHub's host leaves out files that begin with an underscore
    said = README.format(names=" and ".join(names), policy=policy(), largest=LARGEST_FILE // 1_000_000)
    yield "README.txt", _bytes(said.encode())


def _model_files(card: Card, model: Model, made: Path) -> dict[str, Writer]:
    """Write the graphs of a model to a temporary folder, and describe them in its card; returns writers of copies."""
    own = made / str(card["id"])
    own.mkdir()
    home = f"models/{card['id']}"
    sizes = [(height, width) for height, width in cast(list[list[int]], card["sizes"])]
    graphs = write_graphs(model, sizes, own)
    found: dict[str, Writer] = {}
    described = {}
    for (height, width), name in graphs.items():
        url = f"{home}/{name}"
        found[url] = _bytes_of(own / name)
        described[f"{height}x{width}"] = {"url": url, "bytes": (own / name).stat().st_size}
    total, pieces = (own / WEIGHTS).stat().st_size, []
    for number, start in enumerate(range(0, total, LARGEST_FILE)):
        url, size = f"{home}/{WEIGHTS}.{number}", min(LARGEST_FILE, total - start)
        found[url] = _nested(partial(_copy_piece, own / WEIGHTS, start, size))
        pieces.append({"url": url, "bytes": size})
    card["graphs"], card["weights"] = described, {"name": WEIGHTS, "pieces": pieces}
    return found


def _bytes_of(path: Path) -> Writer:
    return _nested(partial(_copy_piece, path, 0, path.stat().st_size))


def _copy_piece(path: Path, start: int, size: int, target: Path) -> None:
    with open_regular(path) as file:
        file.seek(start)
        target.write_bytes(file.read(size))


def _bytes(data: bytes) -> Writer:
    return _nested(partial(Path.write_bytes, data=data))


def _nested(write: Writer) -> Writer:
    """A writer that creates the folder of its file first."""

    def written(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)

    return written
