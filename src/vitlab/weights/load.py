"""Load weights by name or path: vitlab's own folders, and the files of other libraries."""

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from torch import Tensor

from vitlab.errors import WeightsWarning
from vitlab.models.build import Model, build_from_spec, empty_model
from vitlab.paper.names import is_model
from vitlab.require import require
from vitlab.run_dir import MODEL, RUN
from vitlab.spec import ConventionName, Conventions, Image, ModelSpec, UnsavedPositions, image_size, named_conventions
from vitlab.store import sha256
from vitlab.weights.files import folder
from vitlab.weights.files.containers import WeightsError, as_path, first_nonfinite, open_container, usable
from vitlab.weights.foreign import read_foreign
from vitlab.weights.formats.hints import Hints, heads_of
from vitlab.weights.released.cache import cached
from vitlab.weights.released.catalogue import releases, suggestion


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
) -> Model:
    """Load weights of Google, timm, Hugging Face, torchvision, DeiT or vitlab as a model ready for inference.

    `path` is a file, a folder, or the name of released weights that `vitlab download` has fetched.
    The format is recognised from the content, and its own conventions apply unless `conventions` overrides them.
    Positions are resized to `image`; another number of `classes` gets a new zero head. Tensors that are missing,
    unexpected or mis-shaped are an error that lists them all; with `allow_partial` missing tensors get the paper's
    initial values and the others are skipped. A part that vitlab does not build, such as a MAP head, is always an
    error. `heads` and `positions` are for files that do not state them: `positions` for Google's files without a
    position table. Anything else that a file leaves open and that changes its predictions, such as the normalisation
    in a bare file, is assumed and reported as a WeightsWarning. Pickles are refused: see `vitlab convert`.
    """
    path = located(path)
    if positions is not None and positions not in get_args(UnsavedPositions):
        raise ValueError(f"positions {positions!r:.80} is unknown; give {' or '.join(get_args(UnsavedPositions))}")
    container, assumptions = open_container(path), []
    if folder.is_own(container):
        card = folder.verified_card(path, container)
        if positions is not None:
            raise WeightsError(f"{path.name} is of format vitlab, which states its positions; leave positions out")
        if heads is not None and heads != heads_of(card.model):
            raise WeightsError(f"{path.name} has {heads_of(card.model)} attention heads, not {heads}; leave heads out")
        spec, tensors = card.model, folder.read_tensors(container, _shapes(card.model), allow_partial=allow_partial)
        names, task, provenance = card.class_names, card.task, dict(card.provenance or {})
    else:
        hints = Hints(None if image is None else image_size(image), heads, positions)
        found = read_foreign(
            path, container, hints, has_conventions=conventions is not None, allow_partial=allow_partial
        )
        spec, tensors, assumptions = found.spec, found.tensors, found.assumptions
        names, task, provenance = _fitting_names(found.class_names, spec.classes), found.task, found.provenance
    if conventions is not None:
        spec = replace(spec, conventions=named_conventions(conventions))
    tensors = usable(tensors, keep_half=folder.is_own(container))
    bad = None if allow_nonfinite else first_nonfinite(tensors)
    if bad:
        raise WeightsError(f"{path.name}: {bad!r} contains NaN or infinity; allow_nonfinite loads it anyway")
    model = _assemble(spec, tensors)
    model.class_names, model.task, model.provenance = names, task, provenance
    if image is not None:
        model.resize(image)
    if classes is not None and classes != model.spec.classes:
        model.reset_head(classes)
    for assumption in assumptions:
        warnings.warn(assumption, WeightsWarning, stacklevel=2)
    return model.eval()


@dataclass(frozen=True)
class Loaded:
    """Weights that a run starts from: the model, the absolute path it came from, and the hash of its files."""

    model: Model
    path: Path
    sha256: str


def load_start(given: str | Path, *, conventions: ConventionName | Conventions | None = None) -> Loaded:
    """Load the weights of a name or path, and return them with their path and SHA-256 for run.json.

    Every file is hashed once: hashes that were computed to verify the weights are used again. Fine-tuning adapts the
    model (`resize`, `reset_head`) and passes it to `vitlab.models.build.copied_model`, which draws no random weights.
    """
    path = located(given)
    model = load_model(path, conventions=conventions)
    known = {path: model.provenance["sha256"]} if path.is_file() else folder.verified_hashes(path)
    return Loaded(model, path.resolve(), weights_sha256(path, known))


def weights_sha256(path: Path, known: dict[Path, str] | None = None) -> str:
    """Return the hash by which a run recognises its weights: of the file, or of the folder's tensor files.

    Hashes in `known` are taken as they are. Several files give several hashes, joined by `+`.
    """
    files = [path] if path.is_file() else sorted(f for f in path.iterdir() if f.suffix in (".safetensors", ".npz"))
    require(bool(files), f"{path} contains no weights (.safetensors or .npz)")
    return "+".join((known or {}).get(file) or sha256(file) for file in files)


def located(given: str | Path) -> Path:
    """Return where weights are: a path that exists, the model of a run folder, or a release that was downloaded."""
    path = as_path(given)
    if os.path.isfile(path / RUN):  # noqa: PTH113 - Path raises where a folder above may not be entered
        if not (path / MODEL).exists():
            raise WeightsError(f"{path} is a run without a trained model; finish it first: vitlab resume {path}")
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
        raise WeightsError(
            f"{given} names released weights that are not downloaded yet; fetch the "
            f"{release.bytes / 1e6:,.0f} MB: vitlab download {given}"
        )
    return cached(release)


def _is_missing(path: Path) -> bool:
    """Whether nothing exists at a path. A path that may not be looked at counts as existing: reading it says why."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def _shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in empty_model(spec).state_dict().items()}


def _assemble(spec: ModelSpec, tensors: dict[str, Tensor]) -> Model:
    """Build a module that owns the tensors; missing ones get the paper's initial values."""
    model = empty_model(spec)
    if missing := set(model.state_dict()) - set(tensors):
        fresh = build_from_spec(spec).state_dict()
        tensors = tensors | {name: fresh[name] for name in missing}
    model.load_state_dict({name: tensor.contiguous() for name, tensor in tensors.items()}, assign=True)
    return model


def _fitting_names(names: object, classes: int) -> tuple[str, ...] | None:
    """Class names that fit the number of classes; a list of another length or type is ignored."""
    if not isinstance(names, list | tuple) or len(names) != classes:
        return None
    listed = cast(list[Any], names)
    return tuple(listed) if all(isinstance(name, str) and len(name) <= 1000 for name in listed) else None
