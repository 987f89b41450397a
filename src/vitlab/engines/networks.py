"""Models prepared for inference: no work whose result is not read, no weight computed or laid out again per batch.

The results stay the same up to rounding. The last layer computes only the tokens that the head reads, convolutions are
standardised once, and dense layers can use weights that oneDNN has laid out for this processor. A network shares the
other weights with the model, or has copies, so that later changes of the model do not reach it.
"""

import copy
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from vitlab.engines.dense import Dense, MakeDense, PackedDense, both, drop_dense
from vitlab.engines.windows import LeanSwin
from vitlab.models.axial import AxialResNet
from vitlab.models.build import Model, empty_model
from vitlab.models.embedding import PatchEmbedding, patchify
from vitlab.models.merging import MergingBlock, merged, proportional, unmerged
from vitlab.models.resnet import ResNet, StandardConv, pad_same, standardised
from vitlab.models.sparse import Layout, SparseAttention, attended
from vitlab.models.swin import Swin, SwinBlock, WindowAttention
from vitlab.models.transformer import MLP, Attention, Block, is_traced
from vitlab.models.vit import ViT
from vitlab.spec import ModelSpec


def can_pack(model: nn.Module) -> bool:
    """Whether oneDNN can lay out this model's weights: a ViT or Swin in 32 bits on an x86 CPU, with a torch for it."""
    weight = next(model.parameters())
    has_operators = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return _is_lean(model) and has_operators and weight.device.type == "cpu" and weight.dtype == torch.float32


def _is_lean(model: nn.Module) -> bool:
    return isinstance(model, ViT | Swin) and _is_plain(model)


def prepared(model: Model, *, pack: bool = False, own: bool = False) -> nn.Module:
    """A module from images (B, 3, H, W) to features (B, D) and logits (B, K).

    It shares the model's weights where it uses them as they are; with `own` these are copied, so that it computes with
    the weights of now, however the model changes later. With `pack`, dense layers use oneDNN's operators, which
    torch.export and other devices do not know.
    """
    dense = PackedDense if pack and can_pack(model) else Dense
    again = {id(weight) for weight in _laid_out_again(model, is_packed=dense is PackedDense)}
    weights = [*model.parameters(), *model.buffers()]
    held = {id(one): _copied(one) if own and id(one) not in again else one for one in weights}
    ready = frozen(model, held)
    if not _is_lean(model):
        return Whole(ready)
    return LeanSwin(ready, dense) if isinstance(ready, Swin) else LeanViT(cast(ViT, ready), dense)


def frozen(model: Model, held: dict[int, Tensor] | None = None) -> Model:
    """A copy for inference whose convolutions are standardised; it shares the model's weights, or those of `held` by
    the id of the model's.
    """
    held = held or {id(one): one for one in [*model.parameters(), *model.buffers()]}
    copied = copy.deepcopy(model, held).eval()  # modules of its own, so that nothing changes in the model
    for name, part in list(copied.named_modules()):
        if isinstance(part, StandardConv):
            parent, _, child = name.rpartition(".")
            setattr(copied.get_submodule(parent), child, FrozenConv(part))
    return copied


def _laid_out_again(model: Model, *, is_packed: bool) -> Iterator[Tensor]:
    """Yield the weights that a prepared network holds in another form anyway."""
    yield from (part.weight for part in model.modules() if isinstance(part, StandardConv))
    if is_packed:
        yield cast(ViT | Swin, model).patches.weight
        for block in _blocks(cast(ViT | Swin, model)):
            yield from (layer.weight for layer in _dense_layers(block))
    if is_packed and isinstance(model, Swin):
        yield from (stage.merging.dense.weight for stage in model.parts if stage.merging is not None)


def _copied(weight: Tensor) -> Tensor:
    copied = weight.detach().clone()
    return nn.Parameter(copied, requires_grad=False) if isinstance(weight, nn.Parameter) else copied


def is_untouched(model: nn.Module) -> bool:
    """Whether a model computes what its spec says: no hooks, no replaced parts or methods, no other settings of a part,
    no wrapper around it.
    """
    if type(model) not in (ViT, ResNet, AxialResNet, Swin) or _global_forward_hooks or _global_forward_pre_hooks:
        return False
    own = cast(Model, model)
    usual = _structure_of(own.spec)
    return _structure(own, usual) == usual and not any(map(_is_changed, own.modules()))


def _is_changed(part: nn.Module) -> bool:
    """Whether a module has hooks, or an attribute instead of a method of its class."""
    has_hooks = bool(part._forward_hooks or part._forward_pre_hooks)
    return has_hooks or any(callable(getattr(type(part), name, None)) for name in vars(part))


class Part(NamedTuple):
    """A module: its type, the shapes of its own parameters and buffers, and its settings, such as a norm's epsilon."""

    kind: type
    shapes: dict[str, torch.Size]
    settings: dict[str, object]


Structure = dict[str, Part]
UNREAD = {"training", "is_lean", "drop", "dropout"}  # settings that inference does not read
DESCRIPTIONS = {"spec", "class_names", "task", "provenance"}  # what a model has besides: read by name, or not at all


def _structure(model: Model, usual: Structure | None = None) -> Structure:
    """The parts of a model by their names; of their settings only those that the parts of `usual` have."""

    def described(name: str, part: nn.Module) -> Part:
        own = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        settings = {key: value for key, value in vars(part).items() if not key.startswith("_")}
        if usual is None:
            known = settings.keys() - (UNREAD if name else UNREAD | DESCRIPTIONS)
        else:
            known = usual[name].settings.keys() if name in usual else ()
        return Part(
            type(part),
            {key: tensor.shape for key, tensor in own},
            {key: settings[key] for key in known if key in settings},
        )

    return {name: described(name, part) for name, part in model.named_modules(remove_duplicate=False)}


@lru_cache(maxsize=64)
def _structure_of(spec: ModelSpec) -> Structure:
    """The structure of a new model."""
    return _structure(empty_model(spec))


def _is_plain(model: ViT | Swin) -> bool:
    """Whether every layer is of a known kind: without learned biases unless it is a Swin's, with dense layers of torch.

    In all of these the class token attends to all tokens.
    """
    of_vit = (Block, MergingBlock), (Attention, SparseAttention)
    blocks, attentions = ((SwinBlock,), (WindowAttention,)) if isinstance(model, Swin) else of_vit

    def is_plain(block: Block) -> bool:
        known = type(block) in blocks, type(block.attention) in attentions, type(block.mlp) is MLP
        return all(known) and all(type(layer) is nn.Linear for layer in _dense_layers(block))

    return all(map(is_plain, _blocks(model)))


def _blocks(model: ViT | Swin) -> Iterable[Block]:
    return model.blocks if isinstance(model, Swin) else model.layers


def _dense_layers(block: Block) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
    return block.attention.qkv, block.attention.out, block.mlp.dense1, block.mlp.dense2


class Whole(nn.Module):
    """Features and logits of any model, computed as the model does."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) -> (B, D), (B, K)."""
        return both(self.model, self.model.pooled(images))


class FrozenConv(nn.Module):
    """A convolution whose weight is standardised once."""

    def __init__(self, conv: StandardConv) -> None:
        super().__init__()
        self.kernel, self.stride, self.same = conv.kernel, conv.stride, conv.same
        self.register_buffer("weight", standardised(conv.weight.detach(), conv.how))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H/stride, W/stride), rounded up."""
        weight = cast(Tensor, self.weight)
        if self.same:
            return F.conv2d(pad_same(x, self.kernel, self.stride), weight, stride=self.stride)
        return F.conv2d(x, weight, stride=self.stride, padding=self.kernel // 2)


class LeanViT(nn.Module):
    """A plain ViT or hybrid whose last layer computes only the tokens that the head reads."""

    def __init__(self, model: ViT, dense: MakeDense) -> None:
        super().__init__()
        self.model = model
        is_mean = model.spec.pool == "mean"
        read = None if is_mean else model.spec.prefix
        self.patches = LeanPatches(model.patches, dense)
        *before, last = model.layers
        self.blocks = [*(LeanBlock(block, dense) for block in before), LeanBlock(last, dense, read)]
        drop_dense(model.patches, model.layers)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) -> features (B, D), logits (B, K)."""
        model = self.model
        model.check(images)
        z = model.sequence(self.patches(images))  # (B, n, D)  Eq. 1
        z = self._merging(z) if model.spec.merge else self._encoded(z)  # (B, n, D)  Eq. 2, 3
        return both(model, model.pool_tokens(z))  # Eq. 4

    def _encoded(self, z: Tensor) -> Tensor:
        """(B, n, D) -> (B, n, D), or (B, read, D)."""
        for number, block in enumerate(self.blocks):
            z = self.model.with_positions(number, z)
            z = block.attended(z)[0] if block.layout is None else block.attended_in(block.layout, z)
            z = block.transformed(z)
        return z

    def _merging(self, z: Tensor) -> Tensor:
        """The same for a model that merges tokens; in a layer that few tokens leave, merging would not change them."""
        tokens, spec = unmerged(z), self.model.spec
        for block, (before, after) in zip(self.blocks, pairwise(spec.layer_tokens), strict=True):
            z, k = block.attended(tokens.z, proportional(tokens.sizes, tokens.z))
            if block.read is not None:
                return block.transformed(z)
            tokens = merged(tokens._replace(z=z), k, before - after, spec.prefix)
            tokens = tokens._replace(z=block.transformed(tokens.z))
        return tokens.spread()


class LeanPatches:
    """Eq. 1's embedding E of the patches of an image, or of the feature map of a hybrid's ResNet."""

    def __init__(self, patches: PatchEmbedding, dense: MakeDense) -> None:
        self.backbone = getattr(patches, "backbone", None)
        self.patch = patches.patch
        self.dense = dense(patches.weight.flatten(1), patches.bias)

    def __call__(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, N, D)."""
        return self.dense(patchify(images if self.backbone is None else self.backbone(images), self.patch))


class LeanBlock:
    """One encoder layer; with `read`, only the first so many tokens leave it."""

    def __init__(self, block: Block, dense: MakeDense, read: int | None = None) -> None:
        self.norm1, self.norm2, self.read = block.norm1, block.norm2, read
        self.heads, width = block.attention.heads, block.attention.out.out_features
        is_sparse = isinstance(block.attention, SparseAttention) and read is None  # tokens that are read attend to all
        self.layout = cast(SparseAttention, block.attention).layout if is_sparse else None
        qkv, self.approximate = block.attention.qkv, block.mlp.approximate
        rows = [3 * width] if read is None else [width, 2 * width]  # of q, k, v together, or of q, and k, v
        parts = zip(qkv.weight.split(rows), qkv.bias.split(rows), strict=True)
        self.projections = [dense(weight, bias) for weight, bias in parts]
        self.out = dense(block.attention.out.weight, block.attention.out.bias)
        self.dense1, self.dense2 = (dense(one.weight, one.bias) for one in (block.mlp.dense1, block.mlp.dense2))

    def attended(self, z: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, n, D) -> (B, n, D), or (B, read, D), and the keys (B, h, n, Dh); `bias` is added to the logits."""
        q, k, v = self._project(self.norm1(z))  # (B, h, n, Dh)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)  # (B, n, D)
        return self.out.plus(a, z if self.read is None else z[:, : self.read].contiguous()), k  # Eq. 2

    def attended_in(self, layout: Layout, z: Tensor) -> Tensor:
        """(B, n, D) -> (B, n, D), where a patch attends to some of the patches."""
        (dense,) = self.projections
        return self.out.plus(attended(dense(self.norm1(z)), layout, self.heads), z)  # Eq. 2

    def transformed(self, z: Tensor) -> Tensor:
        """(B, n, D) -> (B, n, D)."""
        rows = self.dense1.rows
        if rows is None or is_traced() or z.shape[0] * z.shape[1] <= rows:
            return self._transformed(z)
        return torch.cat([self._transformed(part) for part in z.flatten(0, 1).split(rows)]).view_as(z)

    def _transformed(self, z: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        m = self.dense1.gelu(self.norm2(z), self.approximate)  # (..., M)
        return self.dense2.plus(m, z)  # Eq. 3

    def _project(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, n, D) -> q, k, v of (B, h, n, Dh); q only of the tokens that leave the layer."""
        if self.read is None:
            (dense,) = self.projections
            q, k, v = dense(u).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
            return q, k, v
        dense_q, dense_kv = self.projections
        q = dense_q(u[:, : self.read].contiguous()).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = dense_kv(u).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v
