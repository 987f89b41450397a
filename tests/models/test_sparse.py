"""Sparse attention: masks that loops in Python give, fast paths that equal full attention with that mask."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agreement import randomised
from vitlab.models import sparse
from vitlab.models.build import build_from_spec, build_model
from vitlab.models.sparse import SparseAttention, allowed, attended, layout_of, set_layout
from vitlab.models.transformer import Attention
from vitlab.paper.models import model_spec
from vitlab.spec import ViTSpec
from vitlab.spec.patterns import Axial, BigBird, Fixed, Neighbourhood, Strided, Window, parse_pattern

PATTERNS = [
    "window:1",
    "window:3",
    "window:9",
    "neighbourhood:1",
    "neighbourhood:3",
    "neighbourhood:7",
    "strided",
    "strided:3",
    "strided:50",
    "fixed",
    "fixed:block=5,summary=2",
    "fixed:block=3,summary=3",
    "bigbird:block=2,seed=1",
    "bigbird:block=3,global=1,window=1,random=1",
    "bigbird:block=4,global=0,random=0",
    "bigbird",
]
GRIDS = [(1, 1), (1, 7), (6, 6), (4, 5), (9, 2)]
WIDTH, HEADS = 12, 3


def sees(pattern, grid, i, j):
    """Whether patch i attends to patch j, by the definition of the pattern; BigBird's random blocks left out."""
    columns = grid[1]
    here, there = divmod(i, columns), divmod(j, columns)
    if isinstance(pattern, Window):
        return all(a // pattern.size == b // pattern.size for a, b in zip(here, there, strict=True))
    if isinstance(pattern, Neighbourhood):

        def near(a, b, side):
            size = min(pattern.size, side)
            starts = [start for start in range(side - size + 1) if start <= a < start + size]
            start = min(starts, key=lambda one: abs(one + (size - 1) / 2 - a))
            return start <= b < start + size

        return all(near(a, b, side) for a, b, side in zip(here, there, grid, strict=True))
    n = grid[0] * grid[1]
    root = math.ceil(math.sqrt(n))
    if isinstance(pattern, Strided):
        stride = pattern.stride or root
        return abs(i - j) <= stride or abs(i - j) % stride == 0
    if isinstance(pattern, Fixed):
        block = min(pattern.block or root, n)
        return i // block == j // block or j % block >= block - pattern.summary
    assert isinstance(pattern, BigBird)
    blocks = math.ceil(n / pattern.block)
    ends = [block for pair in zip(range(blocks), range(blocks - 1, -1, -1), strict=True) for block in pair]
    ends = list(dict.fromkeys(ends))[: pattern.global_]
    a, b = i // pattern.block, j // pattern.block
    return a in ends or b in ends or abs(a - b) <= pattern.window // 2


def made(text, grid, prefix, layer=0, width=WIDTH, heads=HEADS):
    attention = randomised(Attention(width, heads))
    set_layout(attention, layout_of(parse_pattern(text), layer, grid, prefix))
    return attention


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("text", PATTERNS)
def test_the_mask_is_that_of_the_definition(text, grid):
    pattern, n = parse_pattern(text), grid[0] * grid[1]
    mask = allowed(layout_of(pattern, 0, grid, prefix=2))
    assert mask[:2].all()
    assert mask[:, :2].all()
    expected = torch.tensor([[sees(pattern, grid, i, j) for j in range(n)] for i in range(n)])
    inner = mask[2:, 2:]
    if isinstance(pattern, BigBird):
        assert inner[expected].all()
        more = inner & ~expected  # the random blocks, which are whole
        for row in more:
            drawn = {j // pattern.block for j in row.nonzero().flatten().tolist()}
            assert len(drawn) <= pattern.random
            assert int(row.sum()) == sum(min(pattern.block, n - block * pattern.block) for block in drawn)
    else:
        assert torch.equal(inner, expected)


def test_random_blocks_differ_between_layers_of_a_model():
    spec = ViTSpec(8, 2, 12, 24, 3, (64, 64), 4, attention="bigbird:block=2")
    first, second = (allowed(block.attention.layout) for block in build_from_spec(spec).layers)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("text", PATTERNS)
@torch.no_grad()
def test_the_fast_path_equals_full_attention_with_the_mask(text, grid, prefix):
    attention = made(text, grid, prefix)
    u = torch.randn(2, prefix + grid[0] * grid[1], WIDTH, generator=torch.Generator().manual_seed(0))
    expected, probabilities = attention.explain(u)
    assert (attention(u) - expected).abs().max() <= 1e-6
    assert torch.equal(probabilities[0, 0] > 0, allowed(attention.layout))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_fast_path_equals_the_mask_on_any_grid_in_values_and_gradients(data):
    kind = data.draw(st.sampled_from(["window", "neighbourhood", "strided", "fixed", "bigbird"]))
    number = data.draw(st.integers(1, 9))
    more = {"fixed": f",summary={data.draw(st.integers(1, 4))}"}
    more["bigbird"] = "".join(f",{name}={data.draw(st.integers(0, 4))}" for name in ("global", "random", "seed"))
    number += number % 2 == 0 and kind == "neighbourhood"
    first = next(iter(type(parse_pattern(f"{kind}:{number}")).options()))
    grid = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    prefix, layer = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 3))
    attention = made(f"{kind}:{first}={number}{more.get(kind, '')}", grid, prefix, layer)
    u = torch.randn(1, prefix + grid[0] * grid[1], WIDTH, generator=torch.Generator().manual_seed(layer))
    with torch.no_grad():
        assert (attention(u) - attention.explain(u)[0]).abs().max() <= 1e-6
    u = u.double().requires_grad_()
    out = torch.randn(u.shape, dtype=u.dtype, generator=torch.Generator().manual_seed(1))
    inputs = [u, *attention.double().parameters()]
    fast, masked = (torch.autograd.grad((form * out).sum(), inputs) for form in (attention(u), attention.explain(u)[0]))
    assert max((a - b).abs().max() for a, b in zip(fast, masked, strict=True)) <= 1e-12


@pytest.mark.parametrize("text", ["neighbourhood:3", "bigbird:block=3,global=1", "bigbird:block=2"])
@torch.no_grad()
def test_keys_may_be_gathered_in_parts(text, monkeypatch):
    attention = made(text, (7, 5), 1)
    u = torch.randn(2, 36, WIDTH, generator=torch.Generator().manual_seed(0))
    whole = attention(u)
    for numbers in (1, 2000):
        monkeypatch.setattr(sparse, "GATHERED", numbers)
        assert (attention(u) - whole).abs().max() <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("text", PATTERNS)
def test_gradients_are_those_of_the_mask_and_of_differences(text, prefix):
    grid = (3, 4)
    attention = made(text, grid, prefix, width=4, heads=2).double()
    u = torch.randn(2, prefix + 12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    u.requires_grad_()
    out = torch.randn(u.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    inputs = [u, *attention.parameters()]
    fast, masked = (
        torch.autograd.grad((form(u) * out).sum(), inputs) for form in (attention, lambda u: attention.explain(u)[0])
    )
    assert max((a - b).abs().max() for a, b in zip(fast, masked, strict=True)) <= 1e-12
    assert torch.autograd.gradcheck(attention, (u,))


class Allocated(TorchDispatchMode):
    """Bytes of the tensors that operators return, views of others left out."""

    def __init__(self):
        super().__init__()
        self.bytes, self._known, self._kept = 0, set(), []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for tensor in filter(torch.is_tensor, tree_leaves([args, kwargs])):
            self._known.add(tensor.untyped_storage()._cdata)
        for tensor in filter(torch.is_tensor, tree_leaves(found)):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                self._known.add(storage._cdata)
                self._kept.append(tensor)  # so that no address is used twice
                self.bytes += storage.nbytes()
        return found


@torch.no_grad()
def allocated(text, side, form=SparseAttention.forward):
    attention = made(text, (side, side), 1)
    u = torch.zeros(1, 1 + side**2, WIDTH)
    with Allocated() as counted:
        form(attention, u)
    return counted.bytes


SIDES = (16, 32, 64)  # of the grid: 256, 1024 and 4096 patches


def powers(text, form=SparseAttention.forward):
    """The power of the number of patches with which memory grows, from each of the sides to the next."""
    return [math.log(b / a, 4) for a, b in pairwise(allocated(text, side, form) for side in SIDES)]


LINEAR = ["window:8", "window:7", "neighbourhood:5", "bigbird"]


@pytest.mark.parametrize("text", [*LINEAR, "strided", "fixed"])
def test_memory_grows_with_the_tokens_or_with_their_power_of_three_halves(text):
    assert max(powers(text)) <= (1.1 if text in LINEAR else 1.5)


def test_memory_of_the_mask_grows_with_the_square():
    assert min(powers("window:8", SparseAttention.explain)) >= 1.9


@pytest.mark.parametrize("text", ["window:3", "window:2+global:2", "neighbourhood:3", "strided", "fixed", "bigbird:2"])
def test_weights_of_a_plain_vit_fit_every_pattern_and_back(text):
    plain = randomised(build_model("ViT-Ti/16", image=64, classes=3)).eval()
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    state = {name: value.clone() for name, value in plain.state_dict().items()}
    with torch.no_grad():
        dense = plain(images)
        plain.set_attention(text)
        sparse = plain(images)
        assert (sparse - dense).abs().max() > 1e-3
        assert plain.spec.attention == text
        other = build_model("ViT-Ti/16", image=64, classes=3, attention=text).eval()
        other.load_state_dict(state)
        assert torch.equal(other(images), sparse)
        plain.set_attention("full")
        assert torch.equal(plain(images), dense)
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in state.items())
    assert all(type(block.attention) is Attention for block in plain.layers)


@torch.no_grad()
def test_a_model_attends_in_its_pattern_after_resizing():
    model = randomised(build_model("ViT-Ti/16", image=64, classes=3, attention="bigbird:2")).eval()
    model.resize((48, 96))
    assert {block.attention.layout.grid for block in model.layers} == {(3, 6)}
    images = torch.randn(1, 3, 48, 96, generator=torch.Generator().manual_seed(0))
    other = build_model("ViT-Ti/16", image=(48, 96), classes=3, attention="bigbird:2").eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images), model(images))


@torch.no_grad()
def test_a_pattern_that_sees_everything_is_full_attention():
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    model = randomised(build_model("ViT-Ti/16", image=64, classes=3)).eval()
    dense = model(images)
    for text in ("window:4", "neighbourhood:7", "strided:16", "fixed:16", "bigbird:16", "bigbird:block=2,random=9"):
        model.set_attention(text)
        assert (model(images) - dense).abs().max() <= 2e-5, text


def test_families_without_attention_between_patches_have_no_pattern():
    model = build_model("R14x0.25", image=64, classes=3)
    model.set_attention("full")
    with pytest.raises(ValueError, match="attention 'window:7' is for Vision Transformers and hybrids"):
        model.set_attention("window:7")
    with pytest.raises(ValueError, match="it has no attention"):
        build_model("R50x1", attention="window:7")
    for unknown in ("windows", "axial:3"):
        with pytest.raises(ValueError, match=r"is unknown|not understood"):
            model.set_attention(unknown)
    swin = build_model("Swin-T", image=32, classes=3)
    within = (
        r"attention 'window:7' is for Vision Transformers and hybrids; a Swin always attends within its own windows"
    )
    with pytest.raises(ValueError, match=within):
        swin.set_attention("window:7")
    with pytest.raises(ValueError, match=within):
        build_model("Swin-T", attention="window:7")


@pytest.mark.parametrize("name", ["ViT-B/16", "ViT-B/32", "ViT-Ti/16"])
def test_axial_attention_builds_the_axial_vit_of_the_paper(name):
    assert model_spec(name, attention="axial") == model_spec(f"Axial-{name}")
    given = model_spec(name, attention=Axial(), positions="1d", head="mlp")
    assert (given.positions, given.head, given.pool) == ("1d", "mlp", "mean")


def test_axial_attention_fits_no_weights_with_a_class_token():
    model = build_model("ViT-Ti/16", image=32, classes=3)
    with pytest.raises(
        ValueError, match="axial attention does not fit weights for full attention; axial attention has"
    ):
        model.set_attention("axial")
    with pytest.raises(ValueError, match="axial attention has no class token, which a distilled model needs"):
        build_model("DeiT-Ti/16-distilled", attention="axial")


def test_sparse_attention_reads_the_class_token_alone():
    attention = made("window:2", (4, 4), 1)
    assert isinstance(attention, SparseAttention)
    u = torch.randn(2, 17, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert (attention(u, 1) - attention(u)[:, :1]).abs().max() <= 1e-6
        assert attended(attention.qkv(u), attention.layout, HEADS).shape == (2, 17, WIDTH)
