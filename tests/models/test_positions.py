"""Positions stretched to another grid as scipy and each library do it."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch.nn import functional as F

from vitlab.models.embedding import Positions, resize_grid

GRIDS = [
    ((14, 14), (24, 24)),
    ((7, 7), (12, 12)),
    ((16, 16), (37, 37)),
    ((24, 24), (14, 14)),
    ((14, 14), (9, 20)),
    ((5, 5), (1, 1)),
]


def random_table(grid, width=6, class_row=False):
    rows = grid[0] * grid[1] + class_row
    return torch.randn(1, rows, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_paper_resizing_equals_scipy_zoom_of_order_one(old, new):
    table = random_table(old)
    grid = table.numpy().astype(np.float64).reshape(*old, -1)
    expected = ndimage.zoom(grid, (new[0] / old[0], new[1] / old[1], 1), order=1)
    resized = resize_grid(table.double(), old, new, "paper")
    np.testing.assert_allclose(resized.numpy().reshape(*new, -1), expected, atol=1e-12)


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_deit_resizing_is_bicubic_with_half_pixel_centres(old, new):
    table = random_table(old)
    grid = table.reshape(1, *old, -1).permute(0, 3, 1, 2)
    expected = F.interpolate(grid, size=new, mode="bicubic", align_corners=False).permute(0, 2, 3, 1).flatten(1, 2)
    torch.testing.assert_close(resize_grid(table, old, new, "deit"), expected, rtol=0, atol=0)


@pytest.mark.slow
class TestPeers:
    peers = None

    @pytest.fixture(autouse=True)
    def libraries(self):
        TestPeers.peers = pytest.importorskip(
            "peers", reason="the peer libraries are not installed", exc_type=ImportError
        )

    @pytest.mark.parametrize(("old", "new"), GRIDS)
    def test_timm(self, old, new):
        table = random_table(old)
        expected = self.peers.resample_abs_pos_embed(table, new, old, num_prefix_tokens=0)
        torch.testing.assert_close(resize_grid(table, old, new, "timm"), expected, rtol=0, atol=0)

    @pytest.mark.parametrize(("old", "new"), [g for g in GRIDS if g[1][0] == g[1][1]])
    def test_torchvision(self, old, new):
        table = random_table(old, class_row=True)
        state = {"encoder.pos_embedding": table}
        self.peers.interpolate_embeddings(new[0] * 16, 16, state)
        torch.testing.assert_close(
            resize_grid(table[:, 1:], old, new, "torchvision"), state["encoder.pos_embedding"][:, 1:], rtol=0, atol=0
        )

    @pytest.mark.parametrize(("old", "new"), [g for g in GRIDS if g[0] != (5, 5)])
    def test_hugging_face(self, old, new):
        config = self.peers.ViTConfig(
            hidden_size=6, num_attention_heads=1, num_hidden_layers=1, image_size=[16 * old[0], 16 * old[1]]
        )
        embeddings = self.peers.ViTModel(config).embeddings
        table = random_table(old, class_row=True)
        embeddings.position_embeddings.data.copy_(table)
        patches = torch.zeros(1, new[0] * new[1] + 1, 6)
        expected = embeddings.interpolate_pos_encoding(patches, 16 * new[0], 16 * new[1])
        torch.testing.assert_close(resize_grid(table[:, 1:], old, new, "hf"), expected[:, 1:].detach(), rtol=0, atol=0)


def test_the_class_row_stays_and_the_patch_rows_move():
    positions = Positions((4, 4), 6, prefix=1)
    positions.initialise(torch.Generator().manual_seed(0))
    before = positions.table.detach().clone()
    positions.resize((8, 6), "paper")
    assert positions.table.shape == (1, 49, 6)
    assert positions.grid == (8, 6)
    torch.testing.assert_close(positions.table[:, 0], before[:, 0], rtol=0, atol=0)
    corners = positions.table[0, 1:].unflatten(0, (8, 6))[[0, 0, -1, -1], [0, -1, 0, -1]]
    torch.testing.assert_close(corners, before[0, 1:].unflatten(0, (4, 4))[[0, 0, -1, -1], [0, -1, 0, -1]])


def test_the_same_grid_is_left_untouched_bit_for_bit():
    table = random_table((3, 5))
    assert resize_grid(table, (3, 5), (3, 5), "timm") is table
