"""Hugging Face transformers: ViTModel and ViTForImageClassification, with the names of 4.x and 5.x."""

import re
from typing import Any, cast

import torch

from vitlab.spec import CONVENTIONS, Conventions, ModelSpec, Task, ViTSpec
from vitlab.spec.pixels import Preprocessing
from vitlab.weights.files.containers import Container, WeightsError
from vitlab.weights.formats import preprocessing, sizes, timm_config
from vitlab.weights.formats.layouts import QKV, STACKED, Entry, entries, under

IGNORED = ("embeddings.mask_token",)  # masked image modelling; not used in classification

# 5.x renamed the encoder's modules; files on the hub keep the names of 4.x, which are used below.
NAMES_5 = (
    (re.compile(r"^layers\."), "encoder.layer."),
    (re.compile(r"\.attention\.([qkv])_proj\."), lambda m: f".attention.attention.{QKV['qkv'.index(m[1])]}."),
    (re.compile(r"\.attention\.o_proj\."), ".attention.output.dense."),
    (re.compile(r"\.mlp\.fc1\."), ".intermediate.dense."),
    (re.compile(r"\.mlp\.fc2\."), ".output.dense."),
)
GELUS = {"gelu": "exact", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
MULTI_LABEL = "multi_label_classification"  # a `problem_type`
RESAMPLE = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
NAMES = {
    "patches": "embeddings.patch_embeddings.projection",
    "class_token": "embeddings.cls_token",
    "positions.table": "embeddings.position_embeddings",
    "norm": "layernorm",
    "head.pre_logits": "pooler.dense",
    "head.logits": "classifier",
    **under(
        "blocks.{}.",
        "encoder.layer.{}.",
        {
            "norm1": "layernorm_before",
            "attention.qkv": "attention.attention.{qkv}",
            "attention.out": "attention.output.dense",
            "norm2": "layernorm_after",
            "mlp.dense1": "intermediate.dense",
            "mlp.dense2": "output.dense",
        },
    ),
}
LAYOUTS = {f"blocks.{{}}.attention.qkv.{part}": STACKED for part in ("weight", "bias")}


def matches(container: Container) -> bool:
    """Whether the tensors have the names of transformers."""
    first = "embeddings.patch_embeddings.projection.weight"
    return first in container.shapes or f"vit.{first}" in container.shapes


def normalised(container: Container) -> Container:
    """Rename the tensors as in 4.x, without the `vit.` prefix and the mask token."""
    return container.renamed(_name_4)


def _name_4(name: str) -> str | None:
    name = name.removeprefix("vit.")
    for pattern, new in NAMES_5:
        name = pattern.sub(new, name)
    return None if name in IGNORED else name


def describe(container: Container, hints: sizes.Hints) -> ViTSpec:
    """Derive the spec from the shapes, and from config.json if there is one."""
    config = container.configs.get("config.json", {})
    for key, known in (("model_type", "vit"), ("pooler_act", "tanh")):
        if config.get(key, known) != known:
            raise WeightsError(f"config.json has {key} {config[key]!r:.40}; only {known!r} loads")
    timm_config.check_pooling(config, has_class=True)
    found = sizes.vit_sizes(container, NAMES)
    if found["classes"]:  # the pooler is the pre-logits layer of ViTModel; ViTForImageClassification has none
        found["head"] = "linear"
    rows = container.shape("embeddings.position_embeddings", 3)[1] - 1
    return ViTSpec(
        **found,
        heads=sizes.find_heads(container, found["width"], config.get("num_attention_heads"), hints),
        image=sizes.find_image(container, rows, found["patch"], config.get("image_size"), hints),
        dropout=sizes.rate_of(config, "hidden_dropout_prob"),
        conventions=_conventions(container, config),
    )


def table(spec: ViTSpec, own: dict[str, torch.Size], container: Container | None) -> list[Entry]:
    """Map every tensor of the model; written files of a classifier have the prefix `vit.`."""
    names = NAMES
    if container is None and spec.classes:
        names = under("", "vit.", NAMES) | {"head.logits": "classifier"}
    return entries(own, names, layouts=LAYOUTS)


def refusals(spec: ViTSpec, *, bare: bool) -> list[str]:
    """Return reasons why transformers could not run this model unchanged."""
    advice = "in Python, call reset_head or build with head='linear'"
    reasons = {
        f"ViTForImageClassification has no pre-logits layer; {advice}": spec.head == "mlp" and spec.classes,
        "its ViT classifies from the class token, this model from the mean of the patches": spec.pool == "mean",
    }
    return [reason for reason, holds in reasons.items() if holds] + preprocessing_refusals(spec)


def preprocessing_refusals(spec: ModelSpec) -> list[str]:
    """Return reasons why no processor of transformers prepares images as this model needs them."""
    own, is_square = spec.conventions.preprocessing, spec.image[0] == spec.image[1]
    reasons = {
        "its processors crop only squares, which its images are not": own.resize == "shorter" and not is_square,
        "its processors do not resize by area": own.interpolation == "area",
    }
    return [reason for reason, holds in reasons.items() if holds]


def configs(spec: ViTSpec, class_names: tuple[str, ...] | None, task: Task) -> dict[str, Any]:
    """Return config.json and preprocessor_config.json as `from_pretrained` reads them."""
    height, width = spec.image
    model = {
        "architectures": ["ViTForImageClassification" if spec.classes else "ViTModel"],
        "model_type": "vit",
        "hidden_size": spec.width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "intermediate_size": spec.mlp,
        "hidden_act": "gelu_pytorch_tanh" if spec.conventions.gelu == "tanh" else "gelu",
        "layer_norm_eps": spec.conventions.norm_eps,
        "image_size": height if height == width else [height, width],
        "patch_size": spec.patch,
        "num_channels": 3,
        "qkv_bias": True,
        "hidden_dropout_prob": spec.dropout,
        "attention_probs_dropout_prob": 0.0,
        "pooler_output_size": spec.width,
        "pooler_act": "tanh",
        **labels(spec, class_names, task),
    }
    return {"config.json": model, "preprocessor_config.json": preprocessor(spec)}


def labels(spec: ModelSpec, class_names: tuple[str, ...] | None, task: Task) -> dict[str, Any]:
    """Return the names of the classes, or transformers' placeholders, and the task, as config.json states them."""
    names = class_names or tuple(f"LABEL_{i}" for i in range(spec.classes))
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        **({"problem_type": MULTI_LABEL} if task == "multi-label" else {}),
    }


def preprocessor(spec: ModelSpec) -> dict[str, Any]:
    """Return the settings of the processor of ViT (squares), DeiT (with a crop) or CLIP (shorter side)."""
    height, width = spec.image
    own = spec.conventions.preprocessing
    rows, columns = (int(side / own.fraction + 1e-6) for side in spec.image)
    if own.resize == "shorter":
        how: dict[str, Any] = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": rows}}
    else:
        kind = "ViTImageProcessor" if own.fraction == 1 else "DeiTImageProcessor"
        how = {"image_processor_type": kind, "size": {"height": rows, "width": columns}}
    if own.resize == "shorter" or own.fraction < 1:
        how |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return {
        **how,
        **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True),
        "resample": next(number for number, name in RESAMPLE.items() if name == own.interpolation),
        "rescale_factor": 1 / 255,
        "image_mean": list(own.mean),
        "image_std": list(own.std),
    }


def class_names(container: Container) -> object:
    """Return the label names of config.json in class order, unchecked; None for transformers' placeholders."""
    labels = container.configs.get("config.json", {}).get("id2label")
    if not isinstance(labels, dict):
        return None
    names = [labels.get(str(i)) for i in range(len(labels))]
    return None if all(name == f"LABEL_{i}" for i, name in enumerate(names)) else names


def task(container: Container) -> Task:
    """Return the task that config.json states; by default one class per image."""
    kind = container.configs.get("config.json", {}).get("problem_type")
    return "multi-label" if kind == MULTI_LABEL else "single-label"


def assumptions(container: Container, *, is_told: bool) -> list[str]:
    """Return assumptions that change the predictions; none if `is_told`: the caller has given the conventions."""
    processor = container.configs.get("preprocessor_config.json", {})
    is_stated = "image_mean" in processor or not processor.get("do_normalize", True)
    is_known = is_told or is_stated or preprocessing.stated_preprocessing(container) is not None
    return [] if is_known else [preprocessing.normalisation_doubt(container)]


def _conventions(container: Container, config: dict[str, Any]) -> Conventions:
    """Return the conventions of transformers with what config.json and preprocessor_config.json state."""
    own = CONVENTIONS["hf"]
    processor = container.configs.get("preprocessor_config.json", {})
    usual = CONVENTIONS["deit"].preprocessing if preprocessing.is_named_deit(container) else own.preprocessing
    activation = config.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in GELUS:
        raise WeightsError(f"config.json asks for the activation {activation!r:.40}; known are {', '.join(GELUS)}")
    try:
        return Conventions(
            cast(Any, GELUS[activation]),
            float(config.get("layer_norm_eps", own.norm_eps)),
            own.position_resize,
            preprocessing.stated_preprocessing(container) or read_preprocessing(processor, usual),
        )
    except (TypeError, ValueError, ArithmeticError, KeyError) as error:
        raise WeightsError(f"config.json or preprocessor_config.json is unusable: {error}") from None


def read_preprocessing(processor: dict[str, Any], own: Preprocessing) -> Preprocessing:
    """Return the preprocessing of a processor; a ValueError if vitlab cannot express it."""
    resample = processor.get("resample", 2)
    if resample not in RESAMPLE:
        raise ValueError(f"resample {resample!r:.40}; bilinear (2) and bicubic (3) are known")
    if not processor.get("do_resize", True) or not processor.get("do_rescale", True):
        raise ValueError("images that are not resized or not rescaled to 0..1 are not supported")
    if abs(float(processor.get("rescale_factor", 1 / 255)) * 255 - 1) > 1e-3:
        raise ValueError(f"rescale_factor {processor['rescale_factor']!r:.40}; 1/255 is known")
    for key in ("do_flip_channel_order", "do_pad", "crop_pct"):
        if processor.get(key):
            raise ValueError(f"{key} {processor[key]!r:.40}; such a processor is not supported")
    normalises = bool(processor.get("do_normalize", True))
    keeps_shape, fraction = _crop(processor)
    return Preprocessing(
        resize="shorter" if keeps_shape else "square",
        fraction=fraction,
        interpolation=cast(Any, RESAMPLE[resample]),
        antialias=True,
        mean=preprocessing.triple(processor.get("image_mean", own.mean)) if normalises else (0.0, 0.0, 0.0),
        std=preprocessing.triple(processor.get("image_std", own.std)) if normalises else (1.0, 1.0, 1.0),
    )


def _crop(processor: dict[str, Any]) -> tuple[bool, float]:
    """Return whether images keep their aspect ratio, and the cropped side over the resized one."""
    size, crop = (processor.get(key) for key in ("size", "crop_size"))
    keeps_shape = isinstance(size, dict) and "shortest_edge" in size
    if not processor.get("do_center_crop") or size is None or crop is None:
        if keeps_shape:
            raise ValueError("images that keep their aspect ratio and are not cropped are not supported")
        return False, 1.0
    whole = float(size["shortest_edge"] if keeps_shape else size["height"] if isinstance(size, dict) else size)
    return keeps_shape, float(crop["height"] if isinstance(crop, dict) else crop) / whole
