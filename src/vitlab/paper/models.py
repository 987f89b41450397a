"""Model names and sizes: table 1 of the paper, and the neighbours that its readers use."""

import difflib
import operator
import re

from vitlab.spec import ConventionName, Conventions, HeadKind, Image, Pool, ViTSpec, image_size, named_conventions

SIZES = {  # size: layers L, width D, MLP, heads h
    "Ti": (12, 192, 768, 3),  # DeiT and AugReg
    "S": (12, 384, 1536, 6),  # DeiT and AugReg
    "b": (12, 384, 1536, 6),  # figure 4: every hidden size of B halved; the paper does not state the heads
    "B": (12, 768, 3072, 12),  # table 1
    "L": (24, 1024, 4096, 16),  # table 1
    "H": (32, 1280, 5120, 16),  # table 1
    "g": (40, 1408, 6144, 16),  # later work of the authors
    "G": (48, 1664, 8192, 16),  # later work of the authors
}

# Where a name stands in the paper; the empty string marks models that came after it.
MODELS = {
    "ViT-Ti/16": "",
    "ViT-S/16": "",
    "ViT-S/32": "",
    "ViT-b/32": "figure 4",
    "ViT-B/8": "",
    "ViT-B/16": "tables 1, 5, 6, 8",
    "ViT-B/32": "tables 1, 5, 6",
    "ViT-L/16": "tables 1, 2, 5, 6, 9",
    "ViT-L/32": "tables 1, 5, 6",
    "ViT-H/14": "tables 1, 2, 5, 6, 9",
    "ViT-g/14": "",
    "ViT-G/14": "",
}

# Words that tell sizes apart where letter case is lost: b and B, g and G.
WORDS = {
    "Ti": "tiny",
    "S": "small",
    "b": "halfbase",
    "B": "base",
    "L": "large",
    "H": "huge",
    "g": "giant",
    "G": "gigantic",
}

_OURS = re.compile(r"(?:ViT-)?(Ti|S|b|B|L|H|g|G)[/_](\d+)")  # ViT-B/16, and Google's ViT-B_16, B/16, B_16
# timm's vit_base_patch16_224.augreg_in21k, Hugging Face's google/vit-base-patch16-224-in21k, DeiT's, and our slugs
_LONG = re.compile(
    r"(?:google/)?(?:vit|deit)[-_](tiny|small|halfbase|base|large|huge|giant|gigantic)[-_](?:patch)?(\d+)"
    r"(?:[-_](\d+))?(?:-in21k)?(?:\..*)?"
)
_TORCHVISION = re.compile(r"vit_([blh])_(\d+)")


def list_models() -> list[str]:
    """Every name of the canonical list, smallest first. Other patch sizes (ViT-S/8) build too."""
    return list(MODELS)


def canonical(name: str) -> str:
    """The paper's spelling of a name that may be spelt as Google, timm or torchvision do.

    >>> canonical("vit_base_patch16_224")
    'ViT-B/16'
    """
    if match := _OURS.fullmatch(name):
        size, patch = match.groups()
    elif match := _LONG.fullmatch(name):
        size = next(letter for letter, word in WORDS.items() if word == match[1])
        patch = match[2]
    elif match := _TORCHVISION.fullmatch(name):
        size, patch = match[1].upper(), match[2]
    else:
        near = difflib.get_close_matches(name, MODELS, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"no model is named {name!r}; {hint}names are ViT-SIZE/PATCH with SIZE one of {', '.join(SIZES)}"
        )
    return f"ViT-{size}/{int(patch)}"


def slug(name: str) -> str:
    """A file name for a model that stays distinct where letter case is not kept.

    >>> slug("ViT-B/16"), slug("ViT-b/16")
    ('vit-base-16', 'vit-halfbase-16')
    """
    size, patch = _parts(name)
    return f"vit-{WORDS[size]}-{patch}"


def vit_spec(
    name: str,
    *,
    image: Image | None = None,
    classes: int = 1000,
    head: HeadKind = "mlp",
    pool: Pool = "class",
    dropout: float = 0.0,
    stochastic_depth: float = 0.0,
    conventions: ConventionName | Conventions = "paper",
) -> ViTSpec:
    """The complete description of a model by its name; every keyword's default is the paper's choice.

    `image` is 224 unless the name says otherwise, as timm's vit_base_patch16_384 does.
    """
    size, patch = _parts(name)
    layers, width, mlp, heads = SIZES[size]
    return ViTSpec(
        patch=patch,
        layers=layers,
        width=width,
        mlp=mlp,
        heads=heads,
        image=image_size(_stated_image(name) if image is None else image),
        classes=operator.index(classes),
        head=head,
        pool=pool,
        dropout=dropout,
        stochastic_depth=stochastic_depth,
        conventions=named_conventions(conventions),
    )


def name_of(spec: ViTSpec) -> str:
    """The paper's name of a spec, or a short description where it has none."""
    sizes = (spec.layers, spec.width, spec.mlp, spec.heads)
    for size, known in SIZES.items():
        if sizes == known and size != "b":  # b and S are the same network
            return f"ViT-{size}/{spec.patch}"
    return f"ViT (L={spec.layers}, D={spec.width}, MLP={spec.mlp}, h={spec.heads})/{spec.patch}"


def _stated_image(name: str) -> int:
    match = _LONG.fullmatch(name)
    return int(match[3]) if match and match[3] else 224


def _parts(name: str) -> tuple[str, int]:
    size, _, patch = canonical(name).removeprefix("ViT-").partition("/")
    return size, int(patch)
