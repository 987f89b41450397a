"""Token merging (Bolya and others, 2023): every layer merges similar tokens, so that the layers after it cost less.

Bipartite soft matching: tokens alternate into two sets, A and B. Each token of A is linked to the most similar token of
B, by the cosine of their keys, and the strongest links are merged. A merged token stands for several patches and gets
the attention of as many keys.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.models.transformer import Block
from vitlab.spec import ViTSpec

LAST = 2**31 - 1  # a place after all others


class Tokens(NamedTuple):
    """Merged tokens `z` (B, m, D), their `sizes` (B, m), and `groups` (B, n): the token that each patch is part of.

    The size of a token is the number of its patches. The class and distillation tokens count as patches of their own.
    """

    z: Tensor
    sizes: Tensor
    groups: Tensor

    def spread(self) -> Tensor:
        """Return (B, n, D): a merged token repeated for each of its patches, so that a mean is one over patches."""
        return _rows(self.z, self.groups)

    def between_patches(self, attention: Tensor) -> Tensor:
        """(B, h, m, m) -> (B, h, n, n): patches share equally what their token gets, and attend as their token does."""
        equal = (attention / self.sizes[:, None, None]).transpose(0, 1)  # (h, B, m, m)
        return torch.stack([_rows(_rows(a, self.groups).mT, self.groups).mT for a in equal], dim=1)


class MergingBlock(Block):
    """An encoder layer that merges `pairs` of tokens between its attention and its MLP; never the first `prefix`.

    It has the parameters of a `Block` and no state of its own.
    """

    def forward(self, tokens: Tokens, pairs: int, prefix: int) -> Tokens:  # pyrefly: ignore[bad-override] - merges
        """(B, n, D) -> (B, n - pairs, D)."""
        q, k, v = self.attention._project(self.norm1(tokens.z))
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=proportional(tokens.sizes, q))  # (B, h, n, Dh)
        return self._reduced(tokens, heads, k, pairs, prefix)

    def explain(self, tokens: Tokens, pairs: int, prefix: int) -> tuple[Tokens, Tensor]:  # pyrefly: ignore[bad-override]
        """(B, n, D) -> the same result (B, n - pairs, D), and its attention probabilities (B, h, n, n)."""
        q, k, v = self.attention._project(self.norm1(tokens.z))
        logits = q @ k.mT / self.attention.scale + proportional(tokens.sizes, q)  # (B, h, n, n)
        probabilities = logits.softmax(dim=-1)
        return self._reduced(tokens, probabilities @ v, k, pairs, prefix), probabilities

    def _reduced(self, tokens: Tokens, heads: Tensor, k: Tensor, pairs: int, prefix: int) -> Tokens:
        a = self.attention._join_heads(heads)  # (B, n, D)
        z = tokens.z + self._branch(F.dropout(a, self.dropout, self.training))  # Eq. 2
        tokens = merged(tokens._replace(z=z), k, pairs, prefix)  # (B, n - pairs, D)
        return tokens._replace(z=tokens.z + self._branch(self.mlp(self.norm2(tokens.z))))  # Eq. 3


def merging_layers(
    blocks: Iterable[Block], tokens: Tokens, spec: ViTSpec, *, explain: bool = False
) -> Iterator[tuple[Tokens, Tensor | None]]:
    """Yield the tokens after each layer, with `explain` also its attention between all patches (B, h, n, n)."""
    for block, (before, after) in zip(cast(Iterable[MergingBlock], blocks), pairwise(spec.layer_tokens), strict=True):
        if explain:
            former = tokens
            tokens, attention = block.explain(former, before - after, spec.prefix)
            attention = former.between_patches(attention)
            yield tokens, attention
            del attention  # free it before the next layer allocates its own
        else:
            tokens = block(tokens, before - after, spec.prefix)
            yield tokens, None


def unmerged(z: Tensor) -> Tokens:
    """(B, n, D): every token stands for itself."""
    places = torch.arange(z.shape[1], device=z.device).expand(z.shape[0], -1)
    return Tokens(z, torch.ones_like(places), places)


def merged(tokens: Tokens, k: Tensor, pairs: int, prefix: int) -> Tokens:
    """(B, n, D) -> (B, n - pairs, D), given the keys (B, h, n, Dh); the tokens that stay keep their order."""
    z, sizes, groups = tokens
    if pairs == 0:
        return tokens
    places = torch.arange(z.shape[1], device=z.device).expand(z.shape[0], -1)  # (B, n)
    source, target = strongest_links(k.detach(), pairs, prefix)  # (B, pairs)
    kept = places.scatter(1, source, LAST).sort(dim=1).values[:, :-pairs]  # (B, n - pairs)
    # The new place of each token: that of the tokens that stay, and that of the partners of the others.
    place = torch.zeros_like(places).scatter(1, kept, places[:, :-pairs])  # (B, n)
    into = place.gather(1, target)  # (B, pairs)
    place = place.scatter(1, source, into)

    added = sizes.gather(1, source)  # (B, pairs)
    sizes = sizes.gather(1, kept).scatter_add(1, into, added)  # (B, n - pairs)
    share = added.to(z.dtype) / sizes.gather(1, into).to(z.dtype)
    # The mean weighted by sizes, as a step from the target: tokens without a link stay as they are, to the bit.
    step = share[..., None] * (_rows(z, source) - _rows(z, target))  # (B, pairs, D)
    z = _rows(z, kept).scatter_add(1, into[..., None].expand_as(step), step)  # (B, n - pairs, D)
    return Tokens(z, sizes, place.gather(1, groups))


def strongest_links(k: Tensor, pairs: int, prefix: int) -> tuple[Tensor, Tensor]:
    """(B, h, n, Dh) -> places (B, pairs) of tokens to merge, which are in A, and those of their partners in B.

    The whole sequence alternates, beginning with A, so that the class token is in A; the first `prefix` take no part.
    """
    keys = k.to(torch.promote_types(k.dtype, torch.float32)).mean(dim=1)  # (B, n, Dh)
    keys = F.normalize(keys, dim=-1)
    first = prefix + prefix % 2  # even places are A
    other = prefix + 1 - prefix % 2
    best, partner = (keys[:, first::2] @ keys[:, other::2].transpose(1, 2)).max(dim=-1)  # (B, |A|)
    strongest = best.topk(pairs, dim=-1).indices  # (B, pairs)
    in_a, in_b = (torch.arange(start, k.shape[2], 2, device=k.device) for start in (first, other))
    return in_a[strongest], in_b[partner.gather(1, strongest)]


def proportional(sizes: Tensor, q: Tensor) -> Tensor:
    """(B, n) -> (B, 1, 1, n): the logarithm that gives a token the attention of as many keys as it has patches."""
    return sizes.to(q.dtype).log()[:, None, None]


def _rows(z: Tensor, places: Tensor) -> Tensor:
    """(B, n, D) and (B, m) -> (B, m, D)."""
    # Several times faster than `gather`, which needs an index of (B, m, D).
    starts = torch.arange(z.shape[0], device=z.device)[:, None] * z.shape[1]  # (B, 1)
    return z.flatten(0, 1).index_select(0, (places + starts).flatten()).unflatten(0, places.shape)


# Symbolic tracing has no sizes to count to.
torch.fx.wrap("unmerged")
torch.fx.wrap("merged")
torch.fx.wrap("_rows")
