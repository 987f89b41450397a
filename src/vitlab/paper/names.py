"""Model names: the paper's list, the sizes behind each name, and the spellings of other libraries."""

import difflib
import re

from vitlab.errors import did_you_mean

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

STAGES = {  # depth of a ResNet: bottleneck units of each stage
    "14": (1, 1, 1, 1),  # vitlab's own, for small machines
    "26": (2, 2, 2, 2),
    "50": (3, 4, 6, 3),
    "101": (3, 4, 23, 3),
    "152": (3, 8, 36, 3),
    "200": (3, 24, 36, 3),
}

SWINS = {  # size: layers of each stage, channels and heads of the first
    "T": ((2, 2, 6, 2), 96, 3),
    "S": ((2, 2, 18, 2), 96, 3),
    "B": ((2, 2, 18, 2), 128, 4),
    "L": ((2, 2, 18, 2), 192, 6),
}

HYBRIDS = {  # ResNet, total stride: units of each stage, patch on the feature map
    ("R50", 32): ((3, 4, 6, 3), 1),
    ("R50", 16): ((3, 4, 9), 1),  # stage 4 removed, its units moved to stage 3 (section 4.1)
    ("R26", 32): ((2, 2, 2, 2), 1),
    # The root alone reduces by 4, so that 8x8 patches make /32: the released name says 16.
    ("R", 16): ((), 8),
}

# Where a model appears in the paper; the empty string marks later models.
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
    "R50x1": "tables 6, 7",
    "R50x2": "table 6",
    "R50x3": "",
    "R101x1": "table 6",
    "R101x3": "",
    "R152x1": "table 6",
    "R152x2": "tables 6, 7",
    "R152x4": "table 2",
    "R200x3": "table 6",
    "R+ViT-Ti/16": "",
    "R26+ViT-S/32": "",
    "R26+ViT-B/32": "",
    "R50+ViT-B/16": "table 6",
    "R50+ViT-B/32": "table 6",
    "R50+ViT-L/16": "table 6",
    "R50+ViT-L/32": "table 6",
    "Axial-ViT-B/16": "figure 13",
    "Axial-ViT-B/32": "figure 13",
    "AxialResNet-50": "figure 13",
    "DeiT-Ti/16": "",
    "DeiT-S/16": "",
    "DeiT-B/16": "",
    "DeiT-Ti/16-distilled": "",
    "DeiT-S/16-distilled": "",
    "DeiT-B/16-distilled": "",
    "Swin-T": "",
    "Swin-S": "",
    "Swin-B": "",
    "Swin-L": "",
}

# Words that distinguish sizes if letter case is lost: b and B, g and G.
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
_LETTERS = {word: letter for letter, word in WORDS.items()}
_SIZE, _WORD = "|".join(SIZES), "|".join(_LETTERS)

_DEPTH = "|".join(STAGES)
_FACTOR = r"\d{1,4}(?:\.\d{1,20})?"

# The paper's spelling of each family. Only ASCII digits match.
VIT = re.compile(rf"(?:(R|R26|R50)\+|(Axial)-)?ViT-({_SIZE})/(\d{{1,5}})", re.ASCII)
DEIT = re.compile(rf"DeiT-({_SIZE})/(\d{{1,5}})(-distilled)?", re.ASCII)
RESNET = re.compile(rf"R({_DEPTH})x({_FACTOR})", re.ASCII)
AXIAL_RESNET = re.compile(rf"AxialResNet-({_DEPTH})")
SWIN = re.compile(rf"Swin-({'|'.join(SWINS)})")

# Other spellings: Google's ViT-B_16 and R50_L_32, table 6's ResNet50x1 and R50x1+ViT-B/32, BiT's BiT-M-R50x1, timm's
# vit_base_patch16_224.augreg_in21k, vit_base_r50_s16_384, resnetv2_50x1_bit and deit_base_distilled_patch16_224,
# Hugging Face's google/vit-base-patch16-224-in21k, torchvision's vit_b_16, vitlab's slugs. Of Swins timm's and
# Microsoft's swin_base_patch4_window12_384, Hugging Face's microsoft/swin-tiny-patch4-window7-224.
_GOOGLE = re.compile(rf"(?:(R|R26|R50)(?:x1)?[+_])?(?:ViT-)?({_SIZE})[/_](\d{{1,5}})", re.ASCII)
_BIT = re.compile(
    rf"(?:BiT-[SML]-R|ResNet|resnetv2_|resnet-|google/bit-)({_DEPTH})x({_FACTOR})(?:_bit[ms]?)?(?:\..*)?", re.ASCII
)
_AXIAL_RESNET = re.compile(rf"axial-?resnet-?({_DEPTH})", re.IGNORECASE | re.ASCII)
TIMM_HYBRID = re.compile(rf"vit_({_WORD})_(r|r26|r50)_s(\d{{1,5}})(?:_p8)?(?:_(?P<side>\d{{1,5}}))?(?:\..*)?", re.ASCII)
LONG = re.compile(
    rf"(?:google/|facebook/)?(axial-)?(?:(r|r26|r50)-)?(vit|deit)[-_]({_WORD})(-distilled|_distilled)?[-_](?:patch)?"
    r"(\d{1,5})(?:[-_](?P<side>\d{1,5}))?(-distilled)?(?:-in21k)?(?:\..*)?",
    re.ASCII,
)
LONG_SWIN = re.compile(
    r"(?:microsoft/)?swin[-_](tiny|small|base|large)[-_]patch4[-_]window(?P<window>\d{1,3})[-_](?P<side>\d{1,5})"
    r"(?:[-_](?:in22k|22k|22kto1k|22kto1k_finetune))?(?:\..*)?",
    re.ASCII,
)
_LOOSE = re.compile(rf"(vit|deit)[-_/ ]*({_SIZE})[-_/ ]*(\d{{1,5}})", re.IGNORECASE | re.ASCII)
_LOOSE_RESNET = re.compile(
    rf"(?:bit[-_ ]*(?:[sml][-_ ]+)?)?r(?:es)?(?:net)?(?:v2)?[-_ ]*({_DEPTH})(?:[-_ ]*x?[-_ ]*({_FACTOR}))?",
    re.IGNORECASE | re.ASCII,
)
_TORCHVISION = re.compile(r"vit_([blh])_(\d{1,5})", re.ASCII)


def list_models() -> list[str]:
    """List the names of all models. Other patch sizes (ViT-S/8), depths and widths (R26x0.25) build too."""
    return list(MODELS)


def canonical(name: str) -> str:
    """Return the paper's spelling of a name that may be spelt as in Google's code, timm or torchvision.

    >>> canonical("vit_base_patch16_224"), canonical("resnetv2_50x1_bit"), canonical("R50_L_32")
    ('ViT-B/16', 'R50x1', 'R50+ViT-L/32')
    """
    found = _known(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(
            f"no model is named {name!r:.80}; {did_you_mean(meant(str(name)))}names are "
            f"ViT-SIZE/PATCH with SIZE one of {', '.join(SIZES)}, R(DEPTH)x(WIDTH) with "
            f"DEPTH one of {', '.join(STAGES)}, and the others of vitlab models"
        )
    return found


def is_model(name: str) -> bool:
    """Whether a name is that of a model, in any of the known spellings."""
    return _known(name) is not None


def _known(name: str) -> str | None:
    found = _spelt(name)
    hybrid = VIT.fullmatch(found or "")
    return None if hybrid and hybrid[1] and (hybrid[1], int(hybrid[4])) not in HYBRIDS else found


def meant(name: str) -> list[str]:
    """Return the model of a name, or the models it may be a misspelling of, the most likely first.

    The case of a size letter only matters if the family is spelt as in the paper: `vit-b/32` is ViT-B/32. A name keeps
    its kind: `resnet50` is R50x1, not AxialResNet-50.

    >>> meant("vit-b/32"), meant("ViT_b_32"), meant("resnet50")
    (['ViT-B/32'], ['ViT-b/32'], ['R50x1'])
    """
    if found := _known(name):
        return [found]
    if match := _LOOSE.fullmatch(name):
        family = "DeiT" if match[1].lower() == "deit" else "ViT"
        return [f"{family}-{size}/{int(match[3])}" for size in _sizes(match[2], is_exact=match[1] == family)]
    if match := _LOOSE_RESNET.fullmatch(name):
        return [f"R{match[1]}x{_without_idle_zeros(match[2] or '1')}"]
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    plain = {re.sub(r"[^a-z0-9]", "", known.lower()): known for known in MODELS}
    if "resnet" in letters and "axial" not in letters:
        plain = {key.replace("r", "resnet", 1): known for key, known in plain.items() if RESNET.fullmatch(known)}
    near = difflib.get_close_matches(letters, plain, n=3, cutoff=0.4)
    return [plain[found] for found in near]


def _sizes(letter: str, *, is_exact: bool) -> list[str]:
    """Return the sizes that a letter may stand for; `b`, used in one figure, only if case matters."""
    if is_exact and letter in SIZES:
        return [letter]
    return [size for size in SIZES if size.lower() == letter.lower() and size != "b"]


def _spelt(name: str) -> str | None:
    if any(pattern.fullmatch(name) for pattern in (VIT, DEIT, AXIAL_RESNET, SWIN)):
        return re.sub(r"/0*(\d)", r"/\1", name)
    if match := _GOOGLE.fullmatch(name):
        return f"{match[1]}+ViT-{match[2]}/{int(match[3])}" if match[1] else f"ViT-{match[2]}/{int(match[3])}"
    if match := RESNET.fullmatch(name) or _BIT.fullmatch(name):
        return f"R{match[1]}x{_without_idle_zeros(match[2])}"
    if match := TIMM_HYBRID.fullmatch(name):
        return f"{match[2].upper()}+ViT-{_LETTERS[match[1]]}/{int(match[3])}"
    if match := _TORCHVISION.fullmatch(name):
        return f"ViT-{match[1].upper()}/{int(match[2])}"
    if match := _AXIAL_RESNET.fullmatch(name):
        return f"AxialResNet-{match[1]}"
    if match := LONG_SWIN.fullmatch(name):
        return f"Swin-{match[1][0].upper()}"
    if match := LONG.fullmatch(name):
        axial, hybrid, family, word, inside, patch, _, after = match.groups()
        stem = f"{_LETTERS[word]}/{int(patch)}"
        if family == "deit":
            return f"DeiT-{stem}-distilled" if inside or after else f"DeiT-{stem}"
        return f"Axial-ViT-{stem}" if axial else f"{hybrid.upper()}+ViT-{stem}" if hybrid else f"ViT-{stem}"
    return None


def _without_idle_zeros(number: str) -> str:
    """01.50 -> 1.5."""
    whole, _, fraction = number.partition(".")
    fraction = fraction.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")


def stated_image(name: str) -> int | None:
    """Return the resolution in a name, such as timm's vit_base_patch16_384, or None."""
    match = LONG.fullmatch(name) or TIMM_HYBRID.fullmatch(name) or LONG_SWIN.fullmatch(name)
    return int(match["side"]) if match and match["side"] else None


def stated_window(name: str) -> int | None:
    """Return the side of the windows in a name, such as timm's swin_base_patch4_window12_384, or None."""
    match = LONG_SWIN.fullmatch(name)
    return int(match["window"]) if match else None
