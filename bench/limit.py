"""What a machine could reach: the sum over a model's matrix products of the best time at the same shape.

Every distinct product is measured by itself in the ways that torch has, at the same dtype and number of threads, and
counts as often as it occurs. Softmax, LayerNorm, GELU, additions and copies cost nothing here, and the operands of a
product stay in the cache between its calls, so nothing that runs one operator at a time on all threads is faster.
Independent streams on each core avoid the wait at the end of every operator, and may come closer to 1 or beyond it.
For inference, the products of the last layer are those of the tokens that the head reads, which are all that it needs;
a library that computes the others too has more products than the limit counts.
"""

import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.spec import ViTSpec

REPEATS = 3  # calls of which the fastest counts; the first may find its operands outside of the cache


class Product(NamedTuple):
    """(batch, rows, inner) @ (batch, inner, columns); a batch of 1 is a dense layer with weights that never change."""

    batch: int
    rows: int
    inner: int
    columns: int


def forward_products(spec: ViTSpec, images: int) -> Counter[Product]:
    """Return the products of a forward pass of a ViT with a linear head, and how often each one occurs."""
    grid = spec.grid[0] * spec.grid[1]
    stem = Product(1, images * grid, 3 * spec.patch**2, spec.width)
    counts = Counter({stem: 1, Product(1, images, spec.width, spec.classes): 1})
    for product, number in _layer_products(spec, images, spec.tokens).items():
        counts[product] += number * spec.layers
    return counts


def inference_products(spec: ViTSpec, images: int) -> Counter[Product]:
    """Return the products that the logits need: in the last layer those of the tokens that the head reads."""
    read = spec.tokens if spec.pool == "mean" else spec.prefix
    whole, short = (_layer_products(spec, images, tokens) for tokens in (spec.tokens, read))
    return forward_products(spec, images) - whole + short


def _layer_products(spec: ViTSpec, images: int, read: int) -> Counter[Product]:
    """The products of a layer that `read` tokens of an image leave."""
    width, mlp, tokens, heads = spec.width, spec.mlp, images * spec.tokens, images * spec.heads
    left, per_head = images * read, width // spec.heads
    projections = [Product(1, tokens, width, 3 * width)]  # to q, k, v
    if read < spec.tokens:
        projections = [Product(1, left, width, width), Product(1, tokens, width, 2 * width)]  # to q; to k, v
    attention = [Product(heads, read, per_head, spec.tokens), Product(heads, read, spec.tokens, per_head)]
    dense = [Product(1, left, width, width), Product(1, left, width, mlp), Product(1, left, mlp, width)]
    return Counter([*projections, *attention, *dense])


def training_products(spec: ViTSpec, images: int) -> Counter[Product]:
    """Return the products of a training step: each forward product, and one for the gradient of either operand.

    The gradient of the images is not needed.
    """
    counts: Counter[Product] = Counter()
    for product, number in forward_products(spec, images).items():
        batch, rows, inner, columns = product
        counts[product] += number
        counts[Product(batch, inner, rows, columns)] += number
        if inner != 3 * spec.patch**2 or rows != images * spec.grid[0] * spec.grid[1]:
            counts[Product(batch, rows, columns, inner)] += number
    return counts


class MatmulLimit:
    """The limit of a set of products; `measure` is called once in every round."""

    def __init__(self, counts: Counter[Product]) -> None:
        self.counts = counts
        self.ways = {product: _ways(product) for product in counts}
        self.found = {product: {way: [] for way in ways} for product, ways in self.ways.items()}

    @torch.inference_mode()
    def measure(self) -> None:
        for product, ways in self.ways.items():
            for way, call in ways.items():
                self.found[product][way].append(min(_seconds(call) for _ in range(REPEATS)))

    def seconds(self) -> float:
        """Sum the best way of every product, each by its median over the rounds."""
        return sum(
            number * min(statistics.median(taken) for taken in self.found[product].values())
            for product, number in self.counts.items()
        )


def _seconds(call: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@torch.inference_mode()
def _ways(product: Product) -> dict[str, Callable[[], Tensor]]:
    batch, rows, inner, columns = product
    if batch > 1:
        left, right = torch.randn(batch, rows, inner), torch.randn(batch, inner, columns)
        return {"bmm": lambda: torch.bmm(left, right)}
    x, weight, bias = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(columns)
    flat = weight.mT.contiguous()
    ways: dict[str, Callable[[], Tensor]] = {
        "linear": lambda: F.linear(x, weight, bias),
        "mm": lambda: torch.mm(x, flat),
    }
    if torch.backends.mkldnn.is_available():
        operators = torch.ops.mkldnn
        packed = operators._reorder_linear_weight(weight, rows)
        ways["packed oneDNN"] = lambda: operators._linear_pointwise(x, packed, bias, "none", [], "")
    return ways
