"""Where released weights are kept, and which file a user means by a name."""

import os
from pathlib import Path

from vitlab.paper.models import model_spec
from vitlab.run_dir import MODEL, RUN
from vitlab.weights.files.containers import WeightsError, as_path
from vitlab.weights.released.catalogue import Release, releases


def cache_folder() -> Path:
    """VITLAB_CACHE, or `vitlab/weights` in the user's cache."""
    if own := os.environ.get("VITLAB_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vitlab" / "weights"


def cached(release: Release) -> Path:
    """Where a release is, or would be."""
    return cache_folder() / release.file


def located(given: str | Path) -> Path:
    """The weights that are meant: a path that exists, the model of a run folder, or a release that was downloaded.

    The error for anything else says what to do.
    """
    path, release = as_path(given), releases().get(str(given))
    if os.path.isfile(path / RUN):  # noqa: PTH113 - Path raises where a folder above may not be entered
        return _trained(path)
    if not _is_missing(path):
        return path
    if release is None:
        advice = "give a file, a folder, or a name that vitlab download lists"
        if _is_model(str(given)):
            advice = f"it names a model, not weights; {advice}, or make some: vitlab pretrain {given}"
        raise WeightsError(f"cannot read {given}: there is nothing; {advice}")
    if not cached(release).is_file():
        raise WeightsError(
            f"{given} is no file but the name of released weights that are not here yet; fetch the "
            f"{release.bytes / 1e6:,.0f} MB: vitlab download {given}"
        )
    return cached(release)


def _trained(run: Path) -> Path:
    """The model of a run folder."""
    if not (run / MODEL).exists():
        raise WeightsError(f"{run} is a run without a trained model; finish it first: vitlab resume {run}")
    return run / MODEL


def _is_missing(path: Path) -> bool:
    """Whether nothing is there; what cannot be looked at may be there, and who reads it says why not."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def _is_model(name: str) -> bool:
    try:
        return bool(model_spec(name))
    except ValueError:
        return False
