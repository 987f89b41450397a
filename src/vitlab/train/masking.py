"""Masked patch prediction: the targets, the loss, and predictions converted back to colours."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.spec.recipe import CELLS, COLOUR_BITS, COLOURS, Masking
from vitlab.train.objectives import Call, Piece

LEVELS = 2**COLOUR_BITS  # per channel
STEP = 256 // LEVELS  # values per level


def patches_at(pixels: Tensor, side: int, places: Tensor) -> Tensor:
    """(n, 3, H, W) and (n, M) places in raster order -> (n, M, 3, S, S)."""
    z = pixels.unflatten(2, (-1, side)).unflatten(4, (-1, side))  # (n, 3, H/S, S, W/S, S)
    z = z.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (n, N, 3, S, S)
    return z[torch.arange(len(z), device=z.device)[:, None], places]


def colour_classes(patches: Tensor, cells: int) -> Tensor:
    """(..., 3, S, S) of 0..255 in uint8 -> (..., cells cells): 64 R + 8 G + B of each cell's mean, in whole numbers.

    A patch is averaged over cells of equal area. If `cells` does not divide the side, a pixel on an edge counts for
    both cells, in proportion to its overlap with each.
    """
    side = patches.shape[-1]
    shares = _shares(side, cells, patches.device)  # (cells, S), whole numbers
    across = torch.stack([(patches.int() * share).sum(dim=-1) for share in shares], dim=-1)  # (..., 3, S, cells)
    sums = torch.stack([(across * share[:, None]).sum(dim=-2) for share in shares], dim=-2)  # (..., 3, cells, cells)
    levels = sums.flatten(-2) // (STEP * side**2)  # floor(mean / 32), without rounding
    red, green, blue = levels.unbind(-2)
    return (red * LEVELS + green) * LEVELS + blue


def _shares(side: int, cells: int, device: torch.device) -> Tensor:
    """(cells, S): overlap of each pixel with each cell, in units of 1/cells pixel; a row sums to S."""
    pixel, cell = torch.arange(side, device=device), torch.arange(cells, device=device)[:, None]
    overlap = torch.minimum((pixel + 1) * cells, (cell + 1) * side) - torch.maximum(pixel * cells, cell * side)
    return overlap.clamp(min=0).int()


@dataclass(frozen=True)
class PatchPrediction:
    """The objective of masked patch prediction, for tokens of `side` x `side` pixels.

    `prepare` is the model's normalisation: pixels are predicted in its units, about -1 to 1, so that channels with a
    small deviation count as much as the others.
    """

    how: Masking
    side: int
    prepare: Callable[[Tensor], Tensor]

    def __call__(self, call: Call, piece: Piece) -> Tensor:
        """(n,): the loss of each example; its targets are its corruption plan, see `data.transforms.corruption`."""
        return self.losses(call(piece.inputs, piece.targets), piece.pixels, piece.targets)

    def losses(self, predictions: Tensor, pixels: Tensor, plan: Tensor) -> Tensor:
        """(n, M, outputs), (n, 3, H, W) of uint8 and (n, 2, M) -> (n,): the mean over an image's corrupted patches.

        The predictions of one patch (16 colours, or the squared errors of all pixels) are averaged.
        """
        if self.how.target == "pixels":
            wanted = patches_at(self.prepare(pixels), self.side, plan[:, 0]).flatten(2)  # (n, M, 3 S S)
            return (predictions - wanted.to(predictions.dtype)).square().mean(dim=(1, 2))
        wanted = self._classes(pixels, plan)  # (n, M, cells cells)
        logits = predictions.unflatten(-1, (-1, COLOURS))  # (n, M, cells cells, 512)
        return F.cross_entropy(logits.flatten(0, 2), wanted.flatten(), reduction="none").view_as(wanted).mean((1, 2))

    def right(self, predictions: Tensor, pixels: Tensor, plan: Tensor) -> Tensor:
        """(n,): the share of colours predicted correctly; for pixels, of the patches' mean colours."""
        if self.how.target == "pixels":
            wanted = colour_classes(patches_at(pixels, self.side, plan[:, 0]), 1)
            found = colour_classes(self.painted(predictions), 1)
        else:
            wanted, found = self._classes(pixels, plan), predictions.unflatten(-1, (-1, COLOURS)).argmax(dim=-1)
        return (found == wanted).float().mean(dim=(1, 2))

    def painted(self, predictions: Tensor) -> Tensor:
        """(n, M, outputs) -> (n, M, 3, S, S) of uint8: the predicted colours or pixels."""
        if self.how.target == "pixels":
            values = predictions.unflatten(-1, (3, self.side, self.side)).float()
            return self._unprepared(values).round().clamp(0, 255).to(torch.uint8)
        cells = CELLS[self.how.target]
        colour = predictions.unflatten(-1, (cells, cells, COLOURS)).argmax(dim=-1)  # (n, M, cells, cells)
        levels = torch.stack([colour // LEVELS**2, colour // LEVELS % LEVELS, colour % LEVELS], dim=2)
        nearest = (torch.arange(self.side, device=colour.device) * 2 + 1) * cells // (2 * self.side)  # a pixel's cell
        return (levels * STEP + STEP // 2).to(torch.uint8)[..., nearest[:, None], nearest]

    def _classes(self, pixels: Tensor, plan: Tensor) -> Tensor:
        return colour_classes(patches_at(pixels, self.side, plan[:, 0]), CELLS[self.how.target])

    def _unprepared(self, values: Tensor) -> Tensor:
        """(..., 3, S, S) in the model's units -> 0..255; the normalisation is linear, so two values determine it."""
        black, white = (
            self.prepare(torch.full((1, 3, 1, 1), grey, dtype=torch.uint8, device=values.device)) for grey in (0, 255)
        )
        return (values - black) / (white - black) * 255
