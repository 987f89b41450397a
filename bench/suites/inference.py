"""Images per second of a forward pass, fp32 and int8, as a multiple of timm's eager model.

All contestants of a case have the same weights and images. ViT-Ti/16 has the released AugReg weights and photographs
where VITLAB_REFERENCE names them; all others have random weights, and so has it elsewhere. ONNX Runtime and OpenVINO
run timm's exported model with their default settings, by hand; the engines are vitlab's. The limit is the matrix
products that the logits need: in the last layer those of the class token.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bench import libraries
from bench.limit import MatmulLimit, inference_products
from bench.runner import Call, Case, Contestant
from vitlab.paper.models import model_spec
from vitlab.spec import CONVENTIONS, ViTSpec

ROUNDS = 9
CASES = (("ViT-Ti/16", 8), ("ViT-S/16", 8), ("ViT-B/16", 1), ("ViT-B/16", 8))
BASELINE = "timm"
ENGINES = ("plain", "torch", "compiled", "onnxruntime", "openvino", "auto", "onnxruntime-int8")


def cases(is_quick: bool) -> Iterator[Case]:
    for name, batch in CASES[:1] if is_quick else CASES:
        yield inference_case(name, batch)


def inference_case(name: str, batch: int, *, beside: int = 0) -> Case:
    model, images, what = model_and_images(name, batch)
    found = contestants(name, model, images)
    return Case(
        title=f"{name}, batch {batch}, {what}" + (f", beside {beside} busy loops" if beside else ""),
        contestants=found,
        images=batch,
        beside=beside,
        limit=None if beside else lambda: MatmulLimit(inference_products(model.spec, batch)),
    )


def model_and_images(name: str, batch: int) -> tuple[torch.nn.Module, Tensor, str]:
    """Return a model, inputs and what they are: real where they are at hand."""
    import vitlab

    if name == "ViT-Ti/16" and libraries.reference():
        model = libraries.real_model()
        files = sorted(libraries.photographs().glob("*.JPEG"))[:batch]
        return model, vitlab.preprocess(model, files), "AugReg weights"
    images = torch.randn(batch, 3, 224, 224, generator=torch.Generator().manual_seed(2))
    return libraries.random_model(spec_of(name)), images, "random weights"


def paper_model(name: str) -> torch.nn.Module:
    return libraries.random_model(spec_of(name, "paper"))


def spec_of(name: str, conventions: str = "timm") -> ViTSpec:
    return model_spec(name, classes=1000, head="linear", conventions=CONVENTIONS[conventions])


def contestants(name: str, model: torch.nn.Module, images: Tensor) -> list[Contestant]:
    def contestant(label: str, make: Callable[[], Callable[[Tensor], Tensor]], is_compared: bool = True) -> Contestant:
        return Contestant(label, lambda: without_gradients(make(), images), is_compared)

    def hugging_face() -> Callable[[Tensor], Tensor]:
        theirs = libraries.hugging_face_model(model)
        return lambda x: theirs(x).logits

    return [
        contestant(BASELINE, lambda: libraries.timm_model(model)),
        contestant("torchvision", lambda: libraries.torchvision_model(model)),
        contestant("Hugging Face", hugging_face),
        contestant("ONNX Runtime", lambda: libraries.onnxruntime_forward(model, images)),
        contestant("OpenVINO", lambda: libraries.openvino_forward(model, images)),
        contestant("ONNX Runtime, int8", lambda: libraries.onnxruntime_forward(model, images, is_int8=True)),
        contestant("vitlab, the module", lambda: model),
        contestant("vitlab, the module, tanh GELU (paper)", lambda: paper_model(name), is_compared=False),
        *(
            contestant(f"vitlab, engine {kind}", lambda kind=kind: libraries.engine_forward(model, kind, images))
            for kind in ENGINES
        ),
    ]


def without_gradients(forward: Callable[[Tensor], Tensor], images: Tensor) -> Call:
    @torch.inference_mode()
    def call() -> Tensor:
        return forward(images)

    return call
