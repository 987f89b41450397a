"""Read and write timm's config.json: the constructor's arguments, the pooling and the preprocessing."""

from typing import Any

from vitlab.spec import ModelSpec
from vitlab.spec.pixels import Preprocessing
from vitlab.weights.files.containers import Container, WeightsError
from vitlab.weights.formats.preprocessing import triple

POOLING = ("global_pool", "pool_type", "pool", "pooling")  # keys in configs
CLASS_TOKEN = ("token", "tok", "cls", "class")
MEAN = ("avg", "gap", "mean")


def arguments_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the model's constructor."""
    found = config.get("model_args", {})
    if not isinstance(found, dict):
        raise WeightsError(f"config.json has model_args {found!r:.40}; expected a JSON object")
    return found


def check_arguments(arguments: dict[str, Any], neutral: frozenset[str], built: dict[str, tuple[object, ...]]) -> None:
    """Raise unless each argument is `neutral`, because the weights imply it, or has a value that `built` lists."""
    for name, value in arguments.items():
        if name in neutral or any(value is known or value == known for known in built.get(name, ())):
            continue
        allowed = f"; {' and '.join(map(repr, built[name]))} load" if name in built else ", which vitlab does not know"
        raise WeightsError(f"config.json has the model argument {name} = {value!r:.40}{allowed}")


def check_pooling(*configs: dict[str, Any], has_class: bool) -> None:
    """Raise unless a config pools as vitlab does: by the class token, or by the mean if there is none."""
    known, given = (CLASS_TOKEN, "with") if has_class else (MEAN, "without")
    for key, stated in ((key, config.get(key)) for config in configs for key in POOLING):
        if stated is not None and stated not in known:
            pools = f"config.json pools by {stated!r:.40} {given} a class token ({key})"
            raise WeightsError(f"{pools}; only {known[0]!r} loads")


def pretrained_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of pre-training; older versions of config.json have them at the top level."""
    found = config.get("pretrained_cfg")
    return found if isinstance(found, dict) else config


def read_preprocessing(config: dict[str, Any], usual: Preprocessing) -> Preprocessing:
    """Return the preprocessing that config.json states; `usual` fills in the rest."""
    stated = pretrained_of(config)
    mode = stated.get("crop_mode", "squash" if usual.resize == "square" else "center")
    if mode not in ("center", "squash"):
        raise WeightsError(f"config.json has crop_mode {mode!r:.40}; 'center' and 'squash' are known")
    try:
        return Preprocessing(
            resize="square" if mode == "squash" else "shorter",
            fraction=float(stated.get("crop_pct", usual.fraction)),
            interpolation=stated.get("interpolation", usual.interpolation),
            antialias=True,
            mean=triple(stated.get("mean", usual.mean)),
            std=triple(stated.get("std", usual.std)),
        )
    except (TypeError, ValueError, ArithmeticError) as error:
        raise WeightsError(f"config.json has an unusable pretrained_cfg: {error}") from None


def config_json(
    architecture: str,
    spec: ModelSpec,
    class_names: tuple[str, ...] | None,
    first_conv: str,
    classifier: str | list[str],
    arguments: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return config.json as timm's `local-dir:` and hub loaders read it, by file name."""
    preprocessing = spec.conventions.preprocessing
    stated = {
        "architecture": architecture,
        "num_classes": spec.classes,
        "num_features": spec.width,
        "global_pool": arguments["global_pool"] if arguments else "avg",
        **({"model_args": arguments} if arguments else {}),
        "pretrained_cfg": {
            "input_size": [3, *spec.image],
            "num_classes": spec.classes,
            "interpolation": preprocessing.interpolation,
            "crop_pct": preprocessing.fraction,
            "crop_mode": "center" if preprocessing.resize == "shorter" else "squash",
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "first_conv": first_conv,
            "classifier": classifier,
        },
        **({"label_names": list(class_names)} if class_names else {}),
    }
    return {"config.json": stated}


def class_names(container: Container) -> object:
    """Return the label names of config.json, unchecked; None for files without such a config."""
    return container.configs.get("config.json", {}).get("label_names")
