"""The libraries that vitlab is compared with: one model in each of them."""

import logging
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import vitlab
import vitlab.weights.formats.timm
import vitlab.weights.formats.torchvision
from bench.peers import prepare
from vitlab.models.build import build_from_spec
from vitlab.spec import ModelSpec, ViTSpec
from vitlab.weights import formats
from vitlab.weights.save import translated

REFERENCE = "VITLAB_REFERENCE"  # names the folder with the real weights and the photographs
Forward = Callable[[Tensor], Tensor]


def reference() -> Path | None:
    """Return the folder with the real weights and photographs, if there is one."""
    return Path(os.environ[REFERENCE]) if REFERENCE in os.environ else None


def photographs() -> Path:
    """Return the folder of 200 photographs; raises where it is not."""
    found = reference()
    if found is None:
        raise FileNotFoundError(f"{REFERENCE} is not set; it names the folder with weights/ and imagenet_val_200/")
    return found / "imagenet_val_200"


def real_model() -> torch.nn.Module:
    """Return ViT-Ti/16 with the released AugReg weights and timm's conventions."""
    return vitlab.load_model(photographs().parent / "weights" / "ViT-Ti_16-augreg-in1k-224.npz", conventions="timm")


def random_model(spec: ModelSpec) -> torch.nn.Module:
    """Return a model with fresh weights and a linear head that is not zero, so that its logits tell images apart."""
    torch.manual_seed(0)
    model = build_from_spec(spec).eval()
    torch.nn.init.normal_(model.head.logits.weight, std=0.05, generator=torch.Generator().manual_seed(1))
    return model


def fresh_timm(spec: ViTSpec) -> torch.nn.Module:
    """timm's model of a spec with weights of its own."""
    prepare()
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=spec.image,
        patch_size=spec.patch,
        embed_dim=spec.width,
        depth=spec.layers,
        num_heads=spec.heads,
        num_classes=spec.classes,
    )


def fresh_torchvision(spec: ViTSpec) -> torch.nn.Module:
    """torchvision's model of a spec with weights of its own."""
    prepare()
    from torchvision.models.vision_transformer import VisionTransformer

    sizes = (spec.image[0], spec.patch, spec.layers, spec.heads, spec.width, spec.mlp)
    return VisionTransformer(*sizes, num_classes=spec.classes)


def fresh_hugging_face(spec: ViTSpec) -> torch.nn.Module:
    """Hugging Face's model of a spec with weights of its own."""
    prepare()
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=spec.width,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        intermediate_size=spec.mlp,
        image_size=spec.image[0],
        patch_size=spec.patch,
        num_labels=spec.classes,
    )
    return ViTForImageClassification(config)


def timm_model(model: torch.nn.Module) -> torch.nn.Module:
    """The same model in timm."""
    return _loaded(fresh_timm(model.spec), model, formats.timm.table)


def torchvision_model(model: torch.nn.Module) -> torch.nn.Module:
    """The same model in torchvision."""
    return _loaded(fresh_torchvision(model.spec), model, formats.torchvision.table)


def hugging_face_model(model: torch.nn.Module) -> torch.nn.Module:
    """The same model in Hugging Face's library, which renames the tensors of a folder when it loads them."""
    prepare()
    from transformers import ViTForImageClassification

    with tempfile.TemporaryDirectory() as folder:
        vitlab.save_model(model, Path(folder) / "hf", "hf")
        return ViTForImageClassification.from_pretrained(f"{folder}/hf").eval()


def _loaded(theirs: torch.nn.Module, model: torch.nn.Module, table: Callable) -> torch.nn.Module:
    own = model.state_dict()
    shapes = {name: tensor.shape for name, tensor in own.items()}
    theirs.load_state_dict(translated(own, table(model.spec, shapes, None), model.spec))
    return theirs.eval()


def exported(model: torch.nn.Module, images: Tensor, path: Path) -> Path:
    """Export timm's copy of a model to ONNX, as `torch.onnx.export` does it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(timm_model(model), (images,), path, dynamo=True, verbose=False, external_data=False)
    return path


def onnxruntime_forward(model: torch.nn.Module, images: Tensor, *, is_int8: bool = False) -> Forward:
    """ONNX Runtime with its default settings on timm's exported model; int8 by its dynamic quantization."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = exported(model, images, Path(folder) / "model.onnx")
        path = quantized(path) if is_int8 else path
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def quantized(path: Path) -> Path:
    """Quantize a model to int8 by ONNX Runtime's dynamic quantization with its default settings."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    model = onnx.load(path)
    del model.graph.value_info[:]  # the exporter's shapes contradict those of the layers that are quantized
    out = path.with_name("int8.onnx")
    logging.getLogger().setLevel(logging.ERROR)  # it recommends a step that is for static quantization
    quantize_dynamic(model, out)
    return out


def openvino_forward(model: torch.nn.Module, images: Tensor) -> Forward:
    """OpenVINO with its default settings on timm's exported model."""
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        path = exported(model, images, Path(folder) / "model.onnx")
        compiled = openvino.compile_model(openvino.Core().read_model(path), "CPU")
    return lambda x: torch.from_numpy(compiled(x.numpy())[0].copy())


def engine_forward(model: torch.nn.Module, name: str, images: Tensor) -> Forward:
    """An engine of vitlab."""
    from vitlab.engines.opening import open_engine

    return open_engine(model, name, batch=len(images))
