"""The models of a service, in its worker: bytes of pictures in, the bodies of HTTP answers out.

`vitlab serve` and `vitlab predict` share every step: the image gate, preprocessing, engine, guesses and their JSON.
"""

import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from vitlab.artefacts.artefact import Artefact, is_artefact
from vitlab.data.images.pictures import Named
from vitlab.data.images.refusals import BadImage
from vitlab.data.transforms.evaluation import normalised
from vitlab.engines.engine import Engine, EngineName
from vitlab.engines.opening import open_engine
from vitlab.inspection.attention import attentive
from vitlab.inspection.rollout import explain
from vitlab.models.build import Model
from vitlab.page.model_card import model_card, unique_slugs
from vitlab.page.samples import samples
from vitlab.page.trace import Trace, at_size, trace
from vitlab.require import require
from vitlab.run_dir import MODEL
from vitlab.runs.measure.inputs import ModelOptions, class_names, label_of, open_any, open_model
from vitlab.runs.measure.prediction import Answer as Prediction
from vitlab.runs.measure.prediction import Answers, Prepared, begun, decoded, guesses_of, prepared
from vitlab.service.messages import JSON, Answered
from vitlab.service.refusals import Refused
from vitlab.spec import ViTSpec
from vitlab.world.device import products_in

NPY, PNG, BYTES = "application/x-npy", "image/png", "application/octet-stream"
SCALES = (0.5, 0.75, 1.0, 1.5, 2.0)  # of the model's own size: what the page offers
MOST_TOKENS = 1200  # of a size that the page offers
CPU = torch.device("cpu")
KEPT_SIZES = 3  # traced models of other sizes that stay in memory


@dataclass
class ServedModel:
    """A loaded model with its engine: `label` is how `vitlab predict` calls it, `id` how clients do."""

    id: str
    label: str
    model: Model
    engine: Engine
    card: dict[str, object]
    max_pixels: int | None
    traces: dict[tuple[int, int], Trace] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.engine.device

    def predict(self, items: list[dict[str, Any]], bodies: list[bytes], pool: ThreadPoolExecutor) -> list[Answered]:
        """Classify pictures together; one that cannot be read does not disturb the others."""
        read = list(pool.map(self._read, items, bodies))
        pixels = [one.pixels for one in read if isinstance(one, Prepared)]
        logits = iter(begun(self.model, self.engine, torch.stack(pixels)).result() if pixels else ())
        return [
            _refused(one)
            if isinstance(one, BadImage)
            else _answer(self.model, self.label, self.engine.name, one, next(logits), item["top"])
            for one, item in zip(read, items, strict=True)
        ]

    def explain(self, item: dict[str, Any], body: bytes) -> Answered:
        """The attention rollout of a picture: over the picture as PNG, or its values as JSON or .npy."""
        try:
            attentive(self.model)
        except ValueError as error:
            return _error(Refused("no_attention", str(error), "model"))
        one = self._read(item, body)
        if isinstance(one, BadImage):
            return _refused(one)
        seen = explain(self.model, normalised(one.pixels[None], self.model.spec.conventions.preprocessing))[0]
        mask = seen.float().cpu().numpy()  # (H, W)
        if item["format"] == "npy":
            file = io.BytesIO()
            np.save(file, mask, allow_pickle=False)
            return 200, NPY, file.getvalue()
        if item["format"] == "json":
            rows = [[round(value, 6) for value in row] for row in mask.tolist()]
            return _json({"model": self.label, "shape": list(mask.shape), "rollout": rows})
        picture = one.pixels.permute(1, 2, 0).numpy()
        return 200, PNG, _png(np.rint(picture * mask[..., None]).astype(np.uint8))

    def trace(self, item: dict[str, Any], body: bytes) -> Answered:
        """One picture through every layer: H*W*3 bytes of RGB, then a bit for each patch that takes part."""
        size = cast(tuple[int, int], tuple(item["size"] or self.model.spec.image))
        offered = [tuple(one) for one in cast(list[list[int]], self.card["sizes"])]
        if size not in offered:
            known = ", ".join(f"{height}x{width}" for height, width in offered)
            return _error(Refused("invalid_value", f"size is {size[0]}x{size[1]}; offered are {known}", "size"))
        traced = self._traced(size)
        picture, bits = size[0] * size[1] * 3, -(-traced.patches // 8)
        if len(body) != picture + bits:
            expected = f"{picture} bytes of RGB and {bits} of the patches that are kept"
            return _error(Refused("invalid_value", f"the body has {len(body)} bytes; expected {expected}", "body"))
        pixels = np.frombuffer(body[:picture], np.uint8).reshape(*size, 3)
        kept = np.unpackbits(np.frombuffer(body[picture:], np.uint8), bitorder="little")[: traced.patches].astype(bool)
        try:
            return 200, BYTES, trace(traced, pixels, kept).to_bytes()
        except ValueError as error:
            return _error(Refused("invalid_value", str(error), "body"))

    def _traced(self, size: tuple[int, int]) -> Trace:
        found = self.traces.pop(size, None) or Trace(at_size(self.model, size))
        self.traces[size] = found  # the last one used is the last one forgotten
        while len(self.traces) > KEPT_SIZES:
            del self.traces[next(iter(self.traces))]
        return found

    def _read(self, item: dict[str, Any], body: bytes) -> Prepared | BadImage:
        return next(prepared(self.model, [Named(item["name"], body)], self.max_pixels))


@dataclass
class ServedArtefact:
    """An exported model: it classifies pictures, but has no attention or activations to show."""

    id: str
    label: str
    artefact: Artefact
    max_pixels: int | None
    card: None = None  # the page does not show it
    device: torch.device = CPU

    def predict(self, items: list[dict[str, Any]], bodies: list[bytes], pool: ThreadPoolExecutor) -> list[Answered]:
        """Classify pictures; one that cannot be read does not disturb the others."""
        named = [Named(item["name"], body) for item, body in zip(items, bodies, strict=True)]
        read = list(pool.map(lambda one: decoded(one, self.max_pixels), named))
        pixels = [one.pixels for one in read if isinstance(one, Prepared)]
        logits = iter(self.artefact.outputs(pixels) if pixels else ())
        return [
            _refused(one)
            if isinstance(one, BadImage)
            else _answer(self.artefact, self.label, self.artefact.engine, one, next(logits), item["top"])
            for one, item in zip(read, items, strict=True)
        ]

    def explain(self, item: dict[str, Any], body: bytes) -> Answered:
        """Refuse: the rollout needs the model itself."""
        return _error(Refused("no_attention", "an exported model has no rollout; serve the model itself", "model"))

    trace = explain


@dataclass
class Served:
    """All models of the service, by their ids."""

    models: dict[str, ServedModel | ServedArtefact]
    pool: ThreadPoolExecutor

    @property
    def is_on_cpu(self) -> bool:
        """Whether no model is on a GPU."""
        return all(one.device.type == "cpu" for one in self.models.values())

    def described(self) -> list[dict[str, object]]:
        """What the front tells clients about the models."""
        return [
            {"id": one.id, "name": one.card["name"] if one.card else one.id, "card": one.card}
            for one in self.models.values()
        ]

    def samples(self) -> tuple[list[str], list[bytes]]:
        """The pictures that the page begins with: their names, and PNG files."""
        drawn = samples()
        return [one.name for one in drawn], [one.png for one in drawn]

    def answer(self, kind: str, model: str, items: list[dict[str, Any]], bodies: list[bytes]) -> list[Answered]:
        """Answer a batch of requests of one kind to one model."""
        own = self.models[model]
        with products_in("fp32", own.device):  # as `vitlab predict` computes
            if kind == "predict":
                return own.predict(items, bodies, self.pool)
            answer = {"explain": own.explain, "trace": own.trace}[kind]
            return [answer(item, body) for item, body in zip(items, bodies, strict=True)]


def _answer(
    model: Model | Artefact, label: str, engine: EngineName, one: Prepared, logits: torch.Tensor, top: int
) -> Answered:
    """The answer for a picture, as `vitlab predict --json` prints it."""
    try:
        (guesses,) = guesses_of(model, logits[None], class_names(model)[0], min(top, model.spec.classes))
    except ValueError as error:  # NaN or infinity
        return _error(Refused("internal", str(error)))
    said = Answers([Prediction(one.name, guesses, one.notes)], model, label, engine)
    return _json(said.to_json())


def open_served(setup: dict[str, Any], say: Callable[[str], None]) -> Served:
    """Load the models, prepare their engines, and let each answer for a drawn picture.

    `setup` has the fields of the worker's first message: `models`, `engine`, `batch`, `max_pixels` and the `options` of
    `ModelOptions`. Weights of vitlab folders are checked against their hashes as they are loaded.
    """
    options = ModelOptions(**{name: _tupled(value) for name, value in setup["options"].items()})
    silent, names = Console(quiet=True), setup["models"]
    pool = ThreadPoolExecutor(max(torch.get_num_threads(), 1), thread_name_prefix="decode")
    served = Served({}, pool)
    for given, id in zip(names, unique_slugs(map(short_name, names)), strict=True):
        if is_artefact(given):
            artefact = cast(Artefact, open_any(given, options, silent))
            served.models[id] = ServedArtefact(id, label_of(given, artefact), artefact, setup["max_pixels"])
            _warm_up(served, id, setup["batch"])
            continue
        model = open_model(given, options, silent)
        require(model.spec.classes > 0, f"{given} has no classes, only features; fine-tune it on labelled images")
        engine = open_engine(model, setup["engine"], batch=setup["batch"])
        if engine.note:
            say(f"engine {engine.name}: {engine.note}")
        card = model_card(model, short_name(given), offered_sizes(model), id=id)
        served.models[id] = ServedModel(id, label_of(given, model), model, engine, card, setup["max_pixels"])
        _warm_up(served, id, setup["batch"])
    return served


def short_name(given: str) -> str:
    """What the page calls a model: the name of its file or folder; for the model of a run, that of the run."""
    path = Path(given)
    return (path.parent.name if path.name == MODEL else path.name) or path.name or given


def offered_sizes(model: Model) -> list[tuple[int, int]]:
    """The sizes that the page offers besides the model's own: as far as its positions can be resized."""
    spec = model.spec
    if not isinstance(spec, ViTSpec):
        return []
    found = []
    for scale in SCALES:
        rows, columns = (max(round(scale * side), 1) for side in spec.grid)
        size = rows * spec.stride, columns * spec.stride
        try:
            if rows * columns <= MOST_TOKENS:
                at_size(model, size)
                found.append(size)
        except ValueError:  # relative positions belong to one grid
            continue
    return found


def _warm_up(served: Served, id: str, batch: int) -> None:
    """Answer for a drawn picture, alone and in a full batch; raises ValueError if the model cannot."""
    x, y = np.meshgrid(np.linspace(0, 255, 48), np.linspace(0, 255, 32))
    body = _png(np.stack([x, y, (x + y) / 2], axis=-1).astype(np.uint8))
    for number in dict.fromkeys((1, batch)):
        answers = served.answer("predict", id, [{"name": "-", "top": 1}] * number, [body] * number)
        bad = [text for status, _, text in answers if status != 200]
        require(not bad, f"{id} fails on a drawn picture: {b''.join(bad[:1]).decode()}")


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _json(value: dict[str, object]) -> Answered:
    return 200, JSON, json.dumps(value, allow_nan=False).encode() + b"\n"


def _refused(bad: BadImage) -> Answered:
    return _error(Refused(str(bad.reason), f"the image {bad.detail}", "image", status=422))


def _error(refused: Refused) -> Answered:
    return refused.status, JSON, refused.body


def _tupled(value: Any) -> Any:
    """JSON has no tuples."""
    return tuple(value) if isinstance(value, list) else value
