"""Load weights by name or path: vitlab's own folders, and the files of other libraries."""

import os
import shlex
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from vitlab.errors import WeightsWarning
from vitlab.files.store import sha256
from vitlab.files.user_files import as_path
from vitlab.models.build import Model, build_from_spec, empty_model
from vitlab.paper.names import is_model
from vitlab.require import check_arguments, require
from vitlab.run_dir import MODEL, RUN
from vitlab.spec import (
    AttentionLike,
    ConventionName,
    Conventions,
    Image,
    UnsavedPositions,
    image_size,
    named_conventions,
)
from vitlab.weights.files import folder
from vitlab.weights.files.containers import Container, WeightsError, open_container, usable
from vitlab.weights.foreign import Found, read_foreign, read_tensors
from vitlab.weights.formats.layouts import SAME, Entry
from vitlab.weights.formats.sizes import Hints
from vitlab.weights.released.catalogue import cached, releases, suggestion


def load_model(
    path: str | Path,
    *,
    image: Image | None = None,
    classes: int | None = None,
    conventions: ConventionName | Conventions | None = None,
    heads: int | None = None,
    positions: UnsavedPositions | None = None,
    allow_partial: bool = False,
    allow_nonfinite: bool = False,
    merge: int | None = None,
    attention: AttentionLike | None = None,
) -> Model:
    """Load weights of Google, timm, Hugging Face, torchvision, DeiT or vitlab as a model ready for inference.

    `path` is a file, a folder, or the name of released weights that `vitlab download` has fetched.
    The format is recognised from the content, and its own conventions apply unless `conventions` overrides them.
    Positions are resized to `image`; another number of `classes` gets a new zero head. Tensors that are missing,
    unexpected or mis-shaped are an error that lists them all; with `allow_partial` missing tensors get the paper's
    initial values and the others are skipped. A part that vitlab does not build, such as a MAP head, is always an
    error. `heads` and `positions` are for files that do not state them: `positions` for Google's files without a
    position table. `merge` is the number of tokens to merge in every layer (default: that of a vitlab folder, else 0),
    `attention` a pattern such as "window:7" (default: that of a vitlab folder, else "full"), see
    `vitlab.spec.patterns`. Anything else that a file leaves open and that changes its predictions, such as the
    normalisation in a bare file, is assumed and reported as a WeightsWarning. Pickles are refused: see
    `vitlab convert`.
    """
    check_arguments(load_model, locals())
    path = located(path)
    container = open_container(path)
    is_own = folder.CARD in container.configs
    size = None if image is None else image_size(image)
    hints = Hints(size, heads, positions, None if conventions is None else named_conventions(conventions))
    read = _read_own if is_own else read_foreign
    found = read(path, container, hints, allow_partial=allow_partial)
    model = found.model
    tensors = usable(found.tensors, keep_half=is_own)
    bad = next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None)
    if bad and not allow_nonfinite:
        raise WeightsError(f"{path.name}: {bad!r} contains NaN or infinity; allow_nonfinite loads it anyway")
    if missing := set(model.state_dict()) - set(tensors):  # which get the paper's initial values
        fresh = build_from_spec(model.spec).state_dict()
        tensors = tensors | {name: fresh[name] for name in missing}
    model.load_state_dict({name: tensor.contiguous() for name, tensor in tensors.items()}, assign=True)
    model.class_names, model.task, model.provenance = found.class_names, found.task, found.provenance
    if image is not None:
        model.resize(image)
    if classes is not None and classes != model.spec.classes:
        model.reset_head(classes)
    if merge == 0:
        model.set_merge(0)
    if attention is not None:
        model.set_attention(attention)
    if merge:
        model.set_merge(int(merge))
    for assumption in found.assumptions:
        warnings.warn(assumption, WeightsWarning, stacklevel=2)
    return model.eval()


def _read_own(path: Path, container: Container, hints: Hints, *, allow_partial: bool) -> Found:
    """Read vitlab's own folder. Its empty tensors, such as the head of a model without classes, may be missing."""
    card = folder.verified_card(path, container)
    hints.check(path.name, "vitlab", card.model)
    model = empty_model(replace(card.model, conventions=hints.conventions or card.model.conventions))
    own = {name: tensor.shape for name, tensor in model.state_dict().items()}
    table = [Entry(name, (name,), SAME) for name, shape in own.items() if 0 not in shape or name in container.shapes]
    tensors = read_tensors(container, card.model, own, table, allow_partial=allow_partial)
    return Found(model, tensors, card.class_names, card.task, dict(card.provenance or {}))


@dataclass(frozen=True)
class StartWeights:
    """Weights that a run starts from: the model, the absolute path it came from, and the hash of its files."""

    model: Model
    path: Path
    sha256: str


def load_start(given: str | Path, *, conventions: ConventionName | Conventions | None = None) -> StartWeights:
    """Load the weights of a name or path, and return them with their path and SHA-256 for run.json.

    Every file is hashed once: hashes that were computed to verify the weights are used again. Fine-tuning adapts the
    model (`resize`, `reset_head`) and passes it to `vitlab.models.build.copied_model`, which draws no random weights.
    """
    path = located(given)
    model = load_model(path, conventions=conventions)
    known = {path: model.provenance["sha256"]} if path.is_file() else folder.verified_hashes(path)
    return StartWeights(model, path.resolve(), weights_sha256(path, known))


def weights_sha256(path: Path, known: dict[Path, str] | None = None) -> str:
    """The hash by which a run knows its weights, of a file or of a folder's files, joined by `+`; `known` is reused."""
    files = [path] if path.is_file() else sorted(f for f in path.iterdir() if f.suffix in (".safetensors", ".npz"))
    require(bool(files), f"{path} contains no weights (.safetensors or .npz)")
    return "+".join((known or {}).get(file) or sha256(file) for file in files)


def located(given: str | Path) -> Path:
    """Return where weights are: a path that exists, the model of a run folder, or a release that was downloaded."""
    path = as_path(given, "path")
    if os.path.isfile(path / RUN):  # noqa: PTH113 - Path raises where a folder above may not be entered
        if not (path / MODEL).exists():
            resume = f"vitlab resume {shlex.quote(str(path))}"
            raise WeightsError(f"{path} is a run without a trained model; finish it first: {resume}")
        return path / MODEL
    if not _is_missing(path):
        return path
    release = releases().get(str(given))
    if release is None:
        near = suggestion(str(given))
        if is_model(str(given)):
            near = f"it names a model, which vitlab pretrain {given} trains; {near}"
        raise WeightsError(f"{given}: no such file or folder, and no released weights have this name; {near}")
    if not cached(release).is_file():
        size = f"{release.bytes / 1e6:,.0f} MB"
        raise WeightsError(f"{given} is not downloaded yet; fetch the {size}: vitlab download {given}")
    return cached(release)


def _is_missing(path: Path) -> bool:
    """Whether nothing exists at a path. A path that may not be looked at counts as existing: reading it says why."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        pass
    return False
