"""Released weights by name: their URL, licence and size, and the cache of those that were downloaded.

No SHA-256 hashes are published for these files. DeiT's file names contain the first eight digits. For the others the
size follows from the number of parameters, and the hash is recorded when a file is downloaded.
"""

import difflib
import os
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from vitlab.counting import count
from vitlab.errors import did_you_mean
from vitlab.files.store import sha256, write_json
from vitlab.files.strict_json import from_json, read_json, to_json
from vitlab.paper.names import canonical, meant
from vitlab.paper.pretraining import DATA
from vitlab.require import require
from vitlab.spec import CONVENTIONS, Conventions, HeadKind

FORMAT: Literal["vitlab-fetched"] = "vitlab-fetched"  # of the JSON beside a downloaded file
GOOGLE = "https://storage.googleapis.com"
HUB = "https://huggingface.co/{}/resolve/main/model.safetensors"
DEIT = "https://dl.fbaipublicfiles.com/deit"

ORIGINAL = ("ViT-B_16", "ViT-B_32", "ViT-L_16", "ViT-L_32", "ViT-H_14", "R50+ViT-B_16")  # ImageNet-21k
FINE_TUNED = ("ViT-B_16", "ViT-B_32", "ViT-L_16", "ViT-L_32", "R50+ViT-B_16")  # then ImageNet at 384 pixels
AUGREG = {  # recommended file per model: the best in the search on ImageNet-21k; learning rate of fine-tuning at 224
    "Ti_16": ("aug_none-wd_0.03-do_0.0-sd_0.0", "lr_0.03"),
    "S_16": ("aug_light1-wd_0.03-do_0.0-sd_0.0", "lr_0.03"),
    "S_32": ("aug_light1-wd_0.03-do_0.0-sd_0.0", "lr_0.03"),
    "B_8": ("aug_medium1-wd_0.1-do_0.0-sd_0.0", "lr_0.01"),
    "B_16": ("aug_medium1-wd_0.1-do_0.0-sd_0.0", "lr_0.01"),
    "B_32": ("aug_medium1-wd_0.03-do_0.0-sd_0.0", "lr_0.03"),
    "L_16": ("aug_medium1-wd_0.1-do_0.1-sd_0.1", "lr_0.01"),
    "R_Ti_16": ("aug_none-wd_0.03-do_0.0-sd_0.0", "lr_0.03"),
    "R26_S_32": ("aug_light0-wd_0.03-do_0.1-sd_0.1", "lr_0.03"),
    "R50_L_32": ("aug_medium1-wd_0.1-do_0.1-sd_0.1", "lr_0.01"),
}
BIT = ("R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4")
DEIT_FILES = {  # first digits of the SHA-256, which are part of the file name
    "deit_tiny_patch16_224": "a1311bcf",
    "deit_small_patch16_224": "cd65a155",
    "deit_base_patch16_224": "b5f2ef4d",
    "deit_tiny_distilled_patch16_224": "b40b3cf7",
    "deit_small_distilled_patch16_224": "649709d9",
    "deit_base_distilled_patch16_224": "df68dfff",
}
TIMM = (
    *(f"vit_{size}_patch16_224.augreg_in21k_ft_in1k" for size in ("tiny", "small", "base", "large")),
    "vit_small_r26_s32_224.augreg_in21k_ft_in1k",
    "vit_base_r50_s16_384.orig_in21k_ft_in1k",
    "vit_large_r50_s32_224.augreg_in21k_ft_in1k",
    "resnetv2_50x1_bit.goog_in21k_ft_in1k",
    "resnetv2_101x1_bit.goog_in21k_ft_in1k",
    *(f"{name}.fb_in1k" for name in DEIT_FILES),
)
IMAGENET21K = DATA["ImageNet-21k"]
TIMM_BIT_IMAGE = 448  # pixels; not part of the names
HUGGING_FACE = (
    "google/vit-base-patch16-224",
    "google/vit-base-patch16-384",
    "google/vit-base-patch32-384",
    "google/vit-large-patch16-224",
    "google/vit-large-patch32-384",
    "google/vit-base-patch16-224-in21k",
    "google/vit-large-patch16-224-in21k",
)


@dataclass(frozen=True)
class Release:
    """A released file. `bytes` is the size of its float32 parameters; names and shapes add a little.

    `conventions` and `image` (pixels) are those of its last training, which few files state.
    """

    name: str
    url: str
    model: str
    source: str
    bytes: int
    licence: str = "Apache-2.0"
    sha256: str = ""  # complete, or the first digits; empty if unknown
    conventions: Conventions = CONVENTIONS["paper"]
    image: int = 224

    @property
    def file(self) -> str:
        """A file name that is safe on every file system."""
        return re.sub(r"[^A-Za-z0-9._+-]", "-", self.name) + f".{self.url.rpartition('.')[2]}"

    @property
    def largest(self) -> int:
        """The largest plausible size in bytes."""
        return round(1.05 * self.bytes) + 2**20


@cache
def releases() -> dict[str, Release]:
    """Return every known release by its name."""
    found = [*_google(), *_bit(), *_deit(), *_hubs()]
    return {release.name: release for release in found}


def list_releases() -> list[Release]:
    """List all released weights that `download` can fetch."""
    return list(releases().values())


def find_release(name: str) -> Release:
    """The release of this name; the error for an unknown name suggests similar ones."""
    if name not in releases():
        raise ValueError(f"no released weights are named {name!r}; {suggestion(name)}")
    return releases()[name]


def suggestion(name: str) -> str:
    """Advice for a name that is not in the catalogue: releases of the same model, or names spelt alike."""
    models = meant(name)  # one if the name is that of a model, in any spelling
    near = difflib.get_close_matches(name, releases(), n=1, cutoff=0.9)
    near = near or [release.name for release in releases().values() if [canonical(release.model)] == models][:3]
    near = near or difflib.get_close_matches(name, releases(), n=3, cutoff=0.4)
    return f"{did_you_mean(near)}vitlab download lists all names"


def _google() -> list[Release]:
    stem, many = f"{GOOGLE}/vit_models", IMAGENET21K.classes
    first, then = "vision_transformer, ImageNet-21k", "vision_transformer, ImageNet-21k then ImageNet"
    found = [
        *(_release(f"{m}-i21k", f"{stem}/imagenet21k/{m}.npz", m, first, many, head="mlp") for m in ORIGINAL),
        *(_release(f"{m}-i1k-384", f"{stem}/imagenet21k+imagenet2012/{m}.npz", m, then, image=384) for m in FINE_TUNED),
    ]
    for model, (recipe, rate) in AUGREG.items():
        url = f"{stem}/augreg/{model}-i21k-300ep-lr_0.001-{recipe}"
        tuned = f"{url}--imagenet2012-steps_20k-{rate}-res_224.npz"
        if not model.startswith("R"):  # the best hybrid before fine-tuning is another file
            found.append(_release(f"augreg-{model}-i21k", f"{url}.npz", model, "AugReg, ImageNet-21k", many))
        found.append(_release(f"augreg-{model}-i1k-224", tuned, model, "AugReg, ImageNet-21k then ImageNet"))
    return found


def _bit() -> list[Release]:
    return [
        _release(f"BiT-{letter}-{m}", f"{GOOGLE}/bit_models/BiT-{letter}-{m}.npz", m, f"big_transfer, {data}", classes)
        for letter, data, classes in (("S", "ImageNet", 1000), ("M", "ImageNet-21k", IMAGENET21K.classes))
        for m in BIT
    ]


def _deit() -> list[Release]:
    how = CONVENTIONS["deit"]
    return [
        _release(f"facebook/{m}", f"{DEIT}/{m}-{start}.pth", m, "DeiT, ImageNet", sha256=start, conventions=how)
        for m, start in DEIT_FILES.items()
    ]


def _hubs() -> list[Release]:
    found = []
    for name in TIMM:
        image = int(sizes[0]) if (sizes := re.findall(r"_(\d{3})\.", name)) else TIMM_BIT_IMAGE
        url, how = HUB.format(f"timm/{name}"), _timm_conventions(name)
        found.append(_release(f"timm/{name}", url, name, "timm on Hugging Face", image=image, conventions=how))
    for name in HUGGING_FACE:
        image, how = int(re.findall(r"-(\d{3})(?:-|$)", name)[0]), CONVENTIONS["hf"]
        classes, head = (0, "mlp") if name.endswith("in21k") else (1000, "linear")  # a pooler and no classes
        source = "Google on Hugging Face"
        found.append(_release(name, HUB.format(name), name, source, classes, image=image, head=head, conventions=how))
    return found


def _timm_conventions(name: str) -> Conventions:
    """Return timm's conventions with the preprocessing that its config.json states."""
    if name.startswith("deit"):  # ImageNet's mean and std, and a larger crop than in DeiT's code
        own = CONVENTIONS["deit"]
        own = own if "distilled" in name else replace(CONVENTIONS["timm"], preprocessing=own.preprocessing)
        return replace(own, preprocessing=replace(own.preprocessing, fraction=0.9))
    own = CONVENTIONS["timm"]
    if name.startswith("resnetv2"):
        return replace(own, preprocessing=replace(own.preprocessing, fraction=1.0, interpolation="bilinear"))
    return replace(own, preprocessing=replace(own.preprocessing, fraction=1.0)) if "_384." in name else own


def _release(
    name: str,
    url: str,
    model: str,
    source: str,
    classes: int = 1000,
    *,
    image: int = 224,
    head: HeadKind = "linear",
    sha256: str = "",
    conventions: Conventions = CONVENTIONS["paper"],
) -> Release:
    """Return a release; its size follows from the parameters of its model."""
    size = 4 * count(model, classes=classes, image=image, head=head).parameters
    return Release(name, url, model, source, size, sha256=sha256, conventions=conventions, image=image)


# -- The cache -----------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """The folder VITLAB_CACHE, or `vitlab/weights` in the user's cache."""
    if own := os.environ.get("VITLAB_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vitlab" / "weights"


def cached(release: Release) -> Path:
    """The path of a release in the cache, downloaded or not."""
    return cache_folder() / release.file


@dataclass(frozen=True)
class Fetched:
    """Facts about a downloaded file. It was trained with `conventions`, on images of `image` pixels a side."""

    format: Literal["vitlab-fetched"]
    name: str
    url: str
    size: int
    sha256: str
    conventions: Conventions
    image: int


def fetched(release: Release, path: Path) -> Fetched:
    """Return the facts to record about a release that is at `path`."""
    size = path.stat().st_size
    return Fetched(FORMAT, release.name, release.url, size, sha256(path), release.conventions, release.image)


def beside(path: Path) -> Path:
    """The path of the JSON that belongs to a downloaded file."""
    return path.with_name(f"{path.name}.json")


def write_fetched(path: Path, facts: Fetched) -> None:
    """Write the facts about the file at `path` beside it."""
    write_json(beside(path), to_json(facts))


def read_fetched(path: Path) -> Fetched | None:
    """Read the facts about the file at `path`; None if vitlab did not download it. Any other JSON is ignored."""
    if not beside(path).is_file():
        return None
    try:
        value = read_json(beside(path))
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            return None
        facts = from_json(Fetched, value, beside(path).name)
    except ValueError as error:
        raise ValueError(f"{error}; remove {beside(path)}, and vitlab download writes it again") from None
    size = path.stat().st_size
    advice = f"remove it and download it again, or remove {beside(path).name} if the file is your own"
    require(facts.size == size, f"{path} is damaged: it has {size:,} bytes instead of {facts.size:,}; {advice}")
    return facts
