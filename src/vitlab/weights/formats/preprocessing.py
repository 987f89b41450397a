"""Preprocessing that a weights file states or its name implies, and the header that states it."""

import json
from typing import Any

from vitlab.files.strict_json import from_json, parse_json, to_json
from vitlab.spec import ModelSpec
from vitlab.spec.pixels import Preprocessing
from vitlab.weights.files.containers import Container, WeightsError
from vitlab.weights.formats.sizes import heads_of

PREPROCESSING = "preprocessing"  # in the header of a bare safetensors file that vitlab writes


def metadata(spec: ModelSpec) -> dict[str, str]:
    """Return the header of a bare safetensors file: image size, heads and preprocessing."""
    preprocessing = json.dumps(to_json(spec.conventions.preprocessing), allow_nan=False)
    image = f"{spec.image[0]}x{spec.image[1]}"
    return {"format": "pt", "image": image, "heads": str(heads_of(spec)), PREPROCESSING: preprocessing}


def stated_preprocessing(container: Container) -> Preprocessing | None:
    """Return the preprocessing stated in the header of a bare file; config files beside it take precedence."""
    text = container.metadata.get(PREPROCESSING)
    if text is None or container.configs:
        return None
    try:
        return from_json(Preprocessing, parse_json(text.encode(), PREPROCESSING), PREPROCESSING)
    except ValueError as error:
        raise WeightsError(f"{container.path.name} has an unusable header: {error}") from None


def is_named_deit(container: Container) -> bool:
    """Whether the name of a file, or of its folder if the file has the usual name, contains "deit"."""
    path = container.path
    return "deit" in (path.parent.name if path.name.startswith("model") else path.name).lower()


def normalisation_doubt(container: Container) -> str:
    """Return the warning for weights that do not state their normalisation."""
    said = f"{container.path.name} does not state how its images were normalised; "
    if is_named_deit(container):
        return f"{said}DeiT's ImageNet mean and std are assumed because of its name. conventions='deit' confirms this"
    return (
        f"{said}mean 0.5 and std 0.5 are assumed, as for Google's weights, which conventions='timm' or 'hf' confirms. "
        "For DeiT's weights the answers would be wrong: conventions='deit' takes ImageNet's mean and std"
    )


def triple(values: Any) -> tuple[float, float, float]:
    """Return three numbers of a config, such as a mean per channel."""
    red, green, blue = (float(value) for value in values)
    return red, green, blue
