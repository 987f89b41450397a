"""Released weights by name: their URL, licence and size.

No SHA-256 hashes are published for these files. DeiT's file names contain the first eight digits. For the others the
size follows from the number of parameters, and the hash is recorded when a file is downloaded.
"""

import difflib
import re
from dataclasses import dataclass, replace
from functools import cache

from vitlab.counting import count
from vitlab.errors import did_you_mean
from vitlab.paper.names import canonical, meant
from vitlab.paper.pretraining import DATA
from vitlab.spec import CONVENTIONS, Conventions

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
DISTILLED = {
    "deit_tiny_patch16_224": "a1311bcf",
    "deit_small_patch16_224": "cd65a155",
    "deit_base_patch16_224": "b5f2ef4d",
    "deit_tiny_distilled_patch16_224": "b40b3cf7",
    "deit_small_distilled_patch16_224": "649709d9",
    "deit_base_distilled_patch16_224": "df68dfff",
}
TIMM = (
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
    "vit_small_patch16_224.augreg_in21k_ft_in1k",
    "vit_base_patch16_224.augreg_in21k_ft_in1k",
    "vit_large_patch16_224.augreg_in21k_ft_in1k",
    "vit_small_r26_s32_224.augreg_in21k_ft_in1k",
    "vit_base_r50_s16_384.orig_in21k_ft_in1k",
    "vit_large_r50_s32_224.augreg_in21k_ft_in1k",
    "resnetv2_50x1_bit.goog_in21k_ft_in1k",
    "resnetv2_101x1_bit.goog_in21k_ft_in1k",
    "deit_tiny_patch16_224.fb_in1k",
    "deit_small_patch16_224.fb_in1k",
    "deit_base_patch16_224.fb_in1k",
    "deit_tiny_distilled_patch16_224.fb_in1k",
    "deit_small_distilled_patch16_224.fb_in1k",
    "deit_base_distilled_patch16_224.fb_in1k",
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
    found = []
    for model in ORIGINAL:
        url, size = f"{GOOGLE}/vit_models/imagenet21k/{model}.npz", _bytes(model, IMAGENET21K.classes, head="mlp")
        found.append(Release(f"{model}-i21k", url, model, "vision_transformer, ImageNet-21k", size))
    for model in FINE_TUNED:
        url, size = f"{GOOGLE}/vit_models/imagenet21k+imagenet2012/{model}.npz", _bytes(model, 1000, image=384)
        source = "vision_transformer, ImageNet-21k then ImageNet"
        found.append(Release(f"{model}-i1k-384", url, model, source, size, image=384))
    for model, (recipe, rate) in AUGREG.items():
        stem = f"{GOOGLE}/vit_models/augreg/{model}-i21k-300ep-lr_0.001-{recipe}"
        tuned = f"{stem}--imagenet2012-steps_20k-{rate}-res_224.npz"
        if not model.startswith("R"):  # the best hybrid before fine-tuning is another file
            size = _bytes(model, IMAGENET21K.classes)
            found.append(Release(f"augreg-{model}-i21k", f"{stem}.npz", model, "AugReg, ImageNet-21k", size))
        size = _bytes(model, 1000)
        found.append(Release(f"augreg-{model}-i1k-224", tuned, model, "AugReg, ImageNet-21k then ImageNet", size))
    return found


def _bit() -> list[Release]:
    found = []
    for letter, data, classes in (("S", "ImageNet", 1000), ("M", "ImageNet-21k", IMAGENET21K.classes)):
        for model in BIT:
            name = f"BiT-{letter}-{model}"
            url, size = f"{GOOGLE}/bit_models/{name}.npz", _bytes(model, classes)
            found.append(Release(name, url, model, f"big_transfer, {data}", size))
    return found


def _deit() -> list[Release]:
    return [
        Release(
            f"facebook/{name}",
            f"{DEIT}/{name}-{start}.pth",
            name,
            "DeiT, ImageNet",
            _bytes(name, 1000),
            sha256=start,
            conventions=CONVENTIONS["deit"],
        )
        for name, start in DISTILLED.items()
    ]


def _hubs() -> list[Release]:
    found = []
    for name in TIMM:
        image = int(sizes[0]) if (sizes := re.findall(r"_(\d{3})\.", name)) else TIMM_BIT_IMAGE
        url, size = HUB.format(f"timm/{name}"), _bytes(name, 1000, image=image)
        how = _timm_conventions(name)
        found.append(Release(f"timm/{name}", url, name, "timm on Hugging Face", size, conventions=how, image=image))
    for name in HUGGING_FACE:
        image = int(re.findall(r"-(\d{3})(?:-|$)", name)[0])
        bare = name.endswith("in21k")  # has a pooler and no classes
        size = _bytes(name, 0 if bare else 1000, image=image, head="mlp" if bare else "linear")
        how = CONVENTIONS["hf"]
        found.append(
            Release(name, HUB.format(name), name, "Google on Hugging Face", size, conventions=how, image=image)
        )
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


def _bytes(model: str, classes: int, *, image: int = 224, head: str = "linear") -> int:
    return 4 * count(model, classes=classes, image=image, head="mlp" if head == "mlp" else "linear").parameters
