"""Tokens, parameters, multiply-accumulates and exaFLOPs in closed form, without torch and without allocation."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise

from vitlab.paper.models import model_spec
from vitlab.paper.names import MODELS
from vitlab.paper.pretraining import DATA
from vitlab.paper.recipes.finetuning import QUICK, QUICK_EPOCHS, QUICK_LEAST, development_share, finetuning_names
from vitlab.paper.recipes.named import find_recipe
from vitlab.paper.recipes.pretraining import pretraining_data, pretraining_head, pretraining_model, pretraining_names
from vitlab.spec import (
    AttentionLike,
    HeadKind,
    Image,
    ModelSpec,
    Pool,
    PositionKind,
    PositionPlace,
    ResNetSpec,
    SwinSpec,
    ViTSpec,
    image_size,
)
from vitlab.spec.recipe import Recipe


@dataclass(frozen=True)
class Count:
    """The cost of a model: `macs` are the multiply-accumulates of one image's forward pass (FLOPs are twice that).

    For a ResNet and a Swin `tokens` are the cells of its last feature map.
    """

    tokens: int
    parameters: int
    macs: int

    def _repr_html_(self) -> str:
        from vitlab.report.tables import Results

        return Results(("tokens", "parameters", "MACs"), ((self.tokens, self.parameters, self.macs),))._repr_html_()


def count(
    name: str,
    *,
    image: Image | None = None,
    classes: int = 1000,
    head: HeadKind | None = None,
    pool: Pool | None = None,
    positions: PositionKind | None = None,
    positions_at: PositionPlace | None = None,
    merge: int = 0,
    attention: AttentionLike | None = None,
    window: int | None = None,
) -> Count:
    """Count a model by its name. Attention counts what is computed: also masked pairs of tokens, and padding."""
    return count_spec(model_spec(**locals()))


def count_spec(spec: ModelSpec, *, padding: bool = True) -> Count:
    """Count a model of any spec; without `padding`, products of convolutions with padding zeros are not counted."""
    if isinstance(spec, ViTSpec):
        return Count(spec.tokens, _vit_parameters(spec), _vit_macs(spec, padding))
    if isinstance(spec, SwinSpec):
        return Count(math.prod(spec.maps[-1]), _swin_parameters(spec), _swin_macs(spec))
    convolutions = list(_convolutions(spec.stages, spec.root, spec.image))
    logits = spec.width * spec.classes
    if isinstance(spec, ResNetSpec):
        # One norm before every convolution of a unit, and one before the head.
        norms = sum(c.inputs for c in convolutions if c.place not in ("root", "shortcut")) + spec.width
        macs = sum(c.macs(padding) for c in convolutions)
        parameters = sum(c.parameters for c in convolutions)
    else:
        kept = [c for c in convolutions if c.place != "middle"]
        attentions = [a for c in convolutions if c.place == "middle" for a in _attentions_of(c, spec.heads)]
        norms = sum(c.outputs for c in kept)
        macs = sum(part.macs(padding) for part in (*kept, *attentions))
        parameters = sum(part.parameters for part in (*kept, *attentions))
    cells = math.prod(convolutions[-1].results)
    return Count(cells, parameters + 2 * norms + logits + spec.classes, macs + logits)


def count_models(
    *, image: Image = 224, classes: int = 1000, head: HeadKind | None = None
) -> tuple[list[dict[str, str | int]], list[str]]:
    """Rows of every model of the list: its place in the paper, its sizes and its cost.

    The layers of a ResNet are its bottleneck units, its width is that of its features, and it has 0 heads. A Swin has
    the width of its features and the heads of its first stage. The second
    list says which models do not take this size, and why.
    """
    rows, left_out = [], []
    for name, paper in MODELS.items():
        try:
            spec = model_spec(name, image=image, classes=classes, head=head)
        except ValueError as error:
            left_out.append(f"{name}: {error}")
            continue
        layers = spec.layers if isinstance(spec, ViTSpec) else sum(spec.stages)
        heads = 0 if isinstance(spec, ResNetSpec) else spec.heads
        sizes = {"layers": layers, "width": spec.width, "heads": heads}
        rows.append({"model": name, "paper": paper, **sizes, **asdict(count_spec(spec))})
    if not rows:
        height, width = image_size(image)
        raise ValueError(f"no model takes images of {height}x{width} pixels with {classes} classes; {left_out[0]}")
    return rows, left_out


def count_recipes() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Rows of every recipe of pre-training and of fine-tuning: its length, and its exaFLOPs or its held-out share.

    `images` counts those seen, repeats included. None is unknown without data: length and pixels of the recipe `quick`.
    """
    before = [_row(find_recipe(name), exaflops=_recipe_exaflops(name)) for name in pretraining_names()]
    after = [_row(find_recipe(name), held_out=development_share(name)) for name in (*finetuning_names(), QUICK)]
    more = f"; {QUICK_EPOCHS} epochs, at least {QUICK_LEAST} steps; the default without an accelerator"
    after[-1] |= {"images": None, "steps": None, "pixels": None, "source": f"{after[-1]['source']}{more}"}
    return before, after


def _row(recipe: Recipe, **more: float | None) -> dict[str, object]:
    steps, peak = recipe.schedule.total, recipe.schedule.peak
    length = {"images": steps * recipe.batch, "steps": steps, "batch": recipe.batch, "pixels": recipe.image[0]}
    kind = {"optimizer": recipe.optimizer.kind, "peak": peak}
    return {"recipe": recipe.name, **length, **kind, **more, "source": recipe.source}


def _recipe_exaflops(name: str) -> float | None:
    recipe, model = find_recipe(name), pretraining_model(name)
    if model not in MODELS:
        return None
    classes = DATA[pretraining_data(name)].classes if recipe.masking is None else 0
    spec = model_spec(model, image=recipe.image, classes=classes, head=pretraining_head(name))
    return training_exaflops(spec, recipe.batch * recipe.schedule.total)


def exaflops(name: str, epochs: int) -> float:
    """Return the exaFLOPs of pre-training on JFT-300M as in table 6, with the head of pre-training for its classes."""
    data = DATA["JFT-300M"]
    return training_exaflops(model_spec(name, classes=data.classes), epochs * data.images)


def training_exaflops(spec: ModelSpec, images: int) -> float:
    """Return the exaFLOPs of training on `images`, repeats included: forward and backward, two FLOPs per product.

    The paper does not state its formula. This one was chosen to match table 6: products with padding zeros are not
    counted.
    """
    return 3 * 2 * count_spec(spec, padding=False).macs * images / 1e18


def _vit_parameters(spec: ViTSpec) -> int:
    d, m = spec.width, spec.mlp
    block = 4 * _dense(d, d) + _dense(d, m) + _dense(m, d) + 2 * 2 * d
    if spec.positions == "relative":
        block += (2 * spec.tokens - 1) * d
    embedding = _dense(_patch_channels(spec) * spec.patch**2, d) + spec.prefix * d + _position_parameters(spec)
    if spec.backbone is not None:
        convolutions = list(_convolutions(spec.backbone.stages, spec.backbone.root, spec.image))
        embedding += sum(c.parameters + 2 * c.outputs for c in convolutions)
    pre_logits = _dense(d, d) if spec.head == "mlp" else 0
    heads = 2 if spec.distilled else 1
    return embedding + spec.blocks * block + 2 * d + pre_logits + heads * _dense(d, spec.classes)


def _position_parameters(spec: ViTSpec) -> int:
    table = {
        "1d": spec.tokens * spec.width,
        "2d": sum(spec.grid) * spec.width // 2 + spec.prefix * spec.width,
        "none": 0,
        "relative": 0,  # in the attention of each layer
    }[spec.positions]
    return table * (spec.layers if spec.positions_at == "every-layer" else 1)


def _vit_macs(spec: ViTSpec, padding: bool) -> int:
    """Count matrix products only, without norms, softmax, GELU and additions, as in the paper's exaFLOPs."""
    d = spec.width
    lengths = enumerate(pairwise(spec.layer_tokens))
    layers = sum(_layer_macs(spec, layer, before, after) for layer, (before, after) in lengths)
    embedding = math.prod(spec.grid) * _patch_channels(spec) * spec.patch**2 * d
    if spec.backbone is not None:
        convolutions = _convolutions(spec.backbone.stages, spec.backbone.root, spec.image)
        embedding += sum(c.macs(padding) for c in convolutions)
    pre_logits = d**2 if spec.head == "mlp" else 0
    heads = 2 if spec.distilled else 1
    return embedding + layers + pre_logits + heads * d * spec.classes


def _layer_macs(spec: ViTSpec, number: int, n: int, after: int) -> int:
    """Count a layer whose attention has `n` tokens, of which merging leaves some for its MLP and the next layer."""
    d = spec.width
    pairs = n**2 if spec.merge else spec.pattern.at_layer(number).pairs(spec.grid, spec.prefix)
    layer = spec.blocks // spec.layers * (4 * n * d**2 + 2 * after * d * spec.mlp) + 2 * pairs * d
    if spec.positions == "relative":
        layer += n * (2 * n - 1) * d
    if after < n:
        a = (n + 1) // 2 - (spec.prefix + 1) // 2  # of the mergeable tokens, which alternate into two sets
        layer += a * (n - spec.prefix - a) * (d // spec.heads)  # similarities of the keys
    return layer


def _swin_parameters(spec: SwinSpec) -> int:
    embedding = _dense(3 * spec.patch**2, spec.root) + 2 * spec.root
    total = embedding + 2 * spec.width + _dense(spec.width, spec.classes)
    for stage, (layers, c, windows) in enumerate(zip(spec.stages, spec.widths, spec.windows, strict=True)):
        biases = windows.offsets * spec.heads * 2**stage
        total += layers * (4 * _dense(c, c) + biases + _dense(c, 4 * c) + _dense(4 * c, c) + 2 * 2 * c)
        total += 2 * 2 * c + 2 * c * c if stage else 0  # merging: a norm of 2c channels, and a matrix from them to c
    return total


def _swin_macs(spec: SwinSpec) -> int:
    """Count matrix products only; those of cells that pad a map to whole windows are computed too."""
    total = math.prod(spec.maps[0]) * 3 * spec.patch**2 * spec.root + spec.width * spec.classes
    for stage, (layers, c, windows) in enumerate(zip(spec.stages, spec.widths, spec.windows, strict=True)):
        cells, inside = math.prod(windows.map), math.prod(windows.sides)
        padded = math.prod(windows.number) * inside
        total += layers * (4 * padded * c**2 + 2 * padded * inside * c + 8 * cells * c**2)
        total += cells * 2 * c * c if stage else 0
    return total


def _patch_channels(spec: ViTSpec) -> int:
    return spec.backbone.channels if spec.backbone else 3


def _dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


@dataclass(frozen=True)
class _Convolution:
    """One convolution of a ResNet on a map of `size`; `place` is its position in the unit."""

    place: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    size: tuple[int, int]

    @property
    def parameters(self) -> int:
        return self.kernel**2 * self.inputs * self.outputs

    @property
    def results(self) -> tuple[int, int]:
        """Height and width of the output."""
        return math.ceil(self.size[0] / self.stride), math.ceil(self.size[1] / self.stride)

    def macs(self, padding: bool) -> int:
        if padding:
            return math.prod(self.results) * self.parameters
        return self._taps(self.size[0]) * self._taps(self.size[1]) * self.inputs * self.outputs

    def _taps(self, side: int) -> int:
        """Return the number of kernel cells inside the map, summed over the outputs along one side.

        TensorFlow's SAME only moves the odd zero to the other end, so that v1 and v2 have the same number.
        """
        results = math.ceil(side / self.stride)
        starts = (result * self.stride - self.kernel // 2 for result in range(results))
        return sum(min(start + self.kernel, side) - max(start, 0) for start in starts)


def _convolutions(stages: tuple[int, ...], root: int, image: tuple[int, int]) -> Iterator[_Convolution]:
    """Yield every convolution of a bottleneck ResNet in order; they are the same in v1 and v2."""
    first = _Convolution("root", 3, root, 7, 2, image)
    yield first
    size = (math.ceil(first.results[0] / 2), math.ceil(first.results[1] / 2))  # after the pooling
    inputs = root
    for stage, units in enumerate(stages):
        middle = root * 2**stage
        for unit in range(units):
            stride = 2 if stage and not unit else 1
            if not unit and (stride != 1 or inputs != 4 * middle):
                yield _Convolution("shortcut", inputs, 4 * middle, 1, stride, size)
            yield _Convolution("first", inputs, middle, 1, 1, size)
            conv = _Convolution("middle", middle, middle, 3, stride, size)
            yield conv
            size, inputs = conv.results, 4 * middle
            yield _Convolution("last", middle, inputs, 1, 1, size)


@dataclass(frozen=True)
class _AxialAttention:
    """Position-sensitive attention along lines of `length` in a map of `cells`, instead of a 3x3 convolution."""

    width: int
    heads: int
    length: int
    cells: int

    @property
    def parameters(self) -> int:
        offsets = 2 * self.width // self.heads * (2 * self.length - 1)
        return 2 * self.width**2 + offsets + 2 * 2 * self.width + 2 * self.width

    def macs(self, padding: bool) -> int:
        """Count the projections, three terms of the logits at half the width, and two of the result at full width."""
        return self.cells * (2 * self.width**2 + self.length * (3 * self.width // 2 + 2 * self.width))


def _attentions_of(middle: _Convolution, heads: int) -> tuple[_AxialAttention, _AxialAttention]:
    height, width = middle.size
    cells = height * width
    return _AxialAttention(middle.inputs, heads, height, cells), _AxialAttention(middle.inputs, heads, width, cells)
