"""Rollout, head maps, distance, filters and positions against NumPy written here, on random parameters."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import vitlab
from agreement import randomised
from vitlab.inspection import attention as streaming
from vitlab.inspection.attention import attention_distance, batch_size, even_distance
from vitlab.inspection.rollout import look, rendered, rollout
from vitlab.inspection.weights import as_pictures, likeness, neighbour_agreement, position_similarity, principal_filters
from vitlab.models.build import build_from_spec
from vitlab.spec import Backbone, ResNetSpec, SwinSpec, ViTSpec

CASES = {  # pool, image, patch: square and not, with and without class token, another grid than the patch suggests
    "class token": ("class", (16, 16), 4),
    "wide": ("class", (8, 24), 4),
    "tall, mean of patches": ("mean", (20, 8), 4),
    "patches of 7": ("mean", (14, 21), 7),
}


@pytest.fixture(params=CASES)
def model(request):
    pool, image, patch = CASES[request.param]
    spec = ViTSpec(patch, layers=3, width=24, mlp=40, heads=3, image=image, classes=5, pool=pool)
    return randomised(build_from_spec(spec), seed=3).double()


@pytest.fixture
def images(model):
    return torch.randn(5, 3, *model.spec.image, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def norm(x, w, name):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}.weight"] + w[f"{name}.bias"]


def attentions(model, image):
    """One image (3, H, W) -> (L, h, n, n), patch by patch, head by head."""
    spec = model.spec
    w = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    p, (rows, columns), size = spec.patch, spec.grid, spec.width // spec.heads
    tokens = []
    for r in range(rows):
        for c in range(columns):
            patch = image[:, r * p : (r + 1) * p, c * p : (c + 1) * p]
            tokens.append([(patch * kernel).sum() for kernel in w["patches.weight"]] + w["patches.bias"])
    if spec.pool == "class":
        tokens.insert(0, w["class_token"][0, 0])
    z, found = np.array(tokens) + w["positions.table"][0], []
    for layer in range(spec.layers):
        b = f"blocks.{layer}"
        qkv = norm(z, w, f"{b}.norm1") @ w[f"{b}.attention.qkv.weight"].T + w[f"{b}.attention.qkv.bias"]
        heads, gathered = [], []
        for head in range(spec.heads):
            q, k, v = (
                qkv[:, part * spec.width + head * size : part * spec.width + (head + 1) * size] for part in range(3)
            )
            e = np.exp(q @ k.T / math.sqrt(size))
            heads.append(e / e.sum(axis=1, keepdims=True))
            gathered.append(heads[-1] @ v)
        z = z + np.concatenate(gathered, axis=1) @ w[f"{b}.attention.out.weight"].T + w[f"{b}.attention.out.bias"]
        m = norm(z, w, f"{b}.norm2") @ w[f"{b}.mlp.dense1.weight"].T + w[f"{b}.mlp.dense1.bias"]
        m = 0.5 * m * (1 + np.tanh(np.sqrt(2 / np.pi) * (m + 0.044715 * m**3)))
        z = z + m @ w[f"{b}.mlp.dense2.weight"].T + w[f"{b}.mlp.dense2.bias"]
        found.append(heads)
    return np.array(found)


def read_from(matrix, spec):
    """(n, n) -> (rows, columns): the class token's row, or the mean row."""
    row = matrix[0, 1:] if spec.pool == "class" else matrix.mean(axis=0)
    return row.reshape(spec.grid)


def numpy_rollout(a, spec):
    joint = np.eye(a.shape[-1])
    for layer in a:
        with_residual = layer.mean(axis=0) + np.eye(a.shape[-1])
        joint = with_residual / with_residual.sum(axis=1, keepdims=True) @ joint
    return read_from(joint, spec)


def numpy_distance(a, spec):
    """(L, h) of one image, by loops over queries and keys."""
    first, (_, columns) = int(spec.pool == "class"), spec.grid
    patches = a.shape[-1] - first
    total = np.zeros(a.shape[:2])
    for i in range(patches):
        for j in range(patches):
            apart = math.hypot(i // columns - j // columns, i % columns - j % columns) * spec.patch
            total += a[:, :, first + i, first + j] * apart
    return total / patches


def test_rollout_and_head_maps_and_distance_equal_numpy(model, images):
    spec = model.spec
    by_hand = [attentions(model, image.numpy()) for image in images]
    np.testing.assert_allclose(rollout(model, images), [numpy_rollout(a, spec) for a in by_hand], rtol=1e-10)
    maps = [[[read_from(head, spec) for head in layer] for layer in a] for a in by_hand]
    np.testing.assert_allclose(look(model, images).maps, maps, rtol=1e-10)
    distances = np.array([numpy_distance(a, spec) for a in by_hand])
    np.testing.assert_allclose(attention_distance(model, images), distances.mean(axis=0), rtol=1e-10)


def test_one_look_says_what_the_three_functions_say(model, images):
    saw = look(model, images)
    torch.testing.assert_close(saw.rollout, rollout(model, images))
    torch.testing.assert_close(saw.distance.mean(dim=0), attention_distance(model, images))


def test_small_batches_change_nothing(model, images, monkeypatch):
    whole = look(model, images)
    monkeypatch.setattr(streaming, "LAYER_BYTES", 2 * 4 * model.spec.heads * model.spec.tokens**2)
    assert batch_size(model) == 2
    for one, other in zip(look(model, images), whole, strict=True):
        torch.testing.assert_close(one, other)


def lanczos_by_hand(values, side):
    """(cells,) -> (side,): three lobes, half-pixel centres."""
    result = []
    for place in range(side):
        centre = (place + 0.5) * len(values) / side - 0.5
        weights = [
            np.sinc(centre - i) * np.sinc((centre - i) / 3) if abs(centre - i) < 3 else 0.0 for i in range(len(values))
        ]
        result.append(np.dot(weights, values) / sum(weights))
    return np.array(result)


def test_explain_is_the_authors_rendering_by_numpy_and_scipy(model, images):
    seen = vitlab.explain(model, images)
    assert seen.shape == (5, *model.spec.image)
    height, width = model.spec.image
    for got, raw in zip(seen.numpy(), rollout(model, images).numpy(), strict=True):
        large = np.apply_along_axis(lanczos_by_hand, 1, raw / raw.max(), width)
        large = np.apply_along_axis(lanczos_by_hand, 0, large, height)
        smooth = gaussian_filter(large, model.spec.patch, mode="nearest", truncate=4)
        np.testing.assert_allclose(got, (smooth - smooth.min()) / (smooth.max() - smooth.min()), atol=1e-9)


def test_the_enlargement_is_that_of_pillow(tiny, monkeypatch):
    raw = torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("vitlab.inspection.rollout._blur", lambda side, *_: torch.eye(side))
    large = np.asarray(Image.fromarray(raw.numpy()).resize((16, 16), Image.Resampling.LANCZOS))
    np.testing.assert_allclose(rendered(raw, tiny.spec), (large - large.min()) / np.ptp(large), atol=1e-6)


def test_a_flat_map_is_dark_and_not_nan(tiny):
    assert rendered(torch.full((4, 4), 0.3), tiny.spec).max() < 0.01
    assert rendered(torch.zeros(4, 4), tiny.spec).max() == 0


def test_filters_equal_the_eigenvectors_of_the_covariance_up_to_sign(model):
    weight = model.patches.weight.detach().numpy().reshape(24, -1)
    values, vectors = np.linalg.eigh(np.cov(weight, rowvar=False))
    found = principal_filters(model)
    number = 23  # of 24 filters; centring takes one
    assert found.directions.shape == (number, 3, model.spec.patch, model.spec.patch)
    for got, wanted in zip(found.directions.flatten(1).numpy(), vectors.T[::-1][:number], strict=True):
        np.testing.assert_allclose(got * np.sign(got @ wanted), wanted, atol=1e-9)
        assert got[np.abs(got).argmax()] > 0
    np.testing.assert_allclose(found.share, values[::-1][:number] / values.sum(), rtol=1e-9)
    assert len(principal_filters(model, 5).share) == 5
    assert found.number == principal_filters(model, 5).number == number


def test_the_distance_of_even_attention_is_that_of_a_head_that_weighs_all_tokens_alike(model):
    tokens = model.spec.tokens
    alike = np.full((1, 1, tokens, tokens), 1 / tokens)
    assert even_distance(model.spec) == pytest.approx(numpy_distance(alike, model.spec).item(), rel=1e-12)


def test_neighbouring_pixels_agree_as_loops_say():
    directions = torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cosines = []
    for one in directions.numpy():
        for step in ((0, 1), (1, 0)):
            places = [(y, x) for y in range(4 - step[0]) for x in range(4 - step[1])]
            here = np.concatenate([one[:, y, x] for y, x in places])
            there = np.concatenate([one[:, y + step[0], x + step[1]] for y, x in places])
            cosines.append(here @ there / np.sqrt((here @ here) * (there @ there)))
    assert neighbour_agreement(directions) == pytest.approx(np.mean(cosines), rel=1e-12)
    assert neighbour_agreement(torch.ones(2, 3, 4, 4)) == pytest.approx(1)
    checkers = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).expand(1, 3, 2, 2)
    assert neighbour_agreement(checkers) == pytest.approx(-1)
    assert neighbour_agreement(torch.ones(2, 3, 1, 1)) is None


def test_filters_as_pictures_have_grey_for_zero(model):
    directions = principal_filters(model).directions
    pictures = as_pictures(directions)
    assert pictures.shape[1:] == (model.spec.patch, model.spec.patch, 3)
    assert pictures.min() >= 0
    assert torch.all(pictures.amax(dim=(1, 2, 3)) == 1)
    assert pictures[2, 1, 0, 2] == 0.5 + 0.5 * directions[2, 2, 1, 0] / directions[2].abs().max()


def test_position_similarity_equals_loops_over_pairs(model):
    table = model.positions.table.detach().numpy()[0, int(model.spec.pool == "class") :]
    rows, columns = model.spec.grid
    found = position_similarity(model).numpy()
    assert found.shape == (rows, columns, rows, columns)
    for i, a in enumerate(table):
        for j, b in enumerate(table):
            wanted = np.dot(a, b) / math.sqrt(np.dot(a, a) * np.dot(b, b))
            assert found[i // columns, i % columns, j // columns, j % columns] == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("grid", [(3, 4), (1, 4), (2, 2), (1, 1)])
def test_likeness_is_the_mean_over_three_kinds_of_pairs(grid):
    similarity = torch.rand(*grid, *grid, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kinds = {"beside": [], "in_line": [], "elsewhere": []}
    for (r, c, i, j), value in np.ndenumerate(similarity.numpy()):
        apart = abs(r - i) + abs(c - j)
        if apart:
            kinds["beside" if apart == 1 else "in_line" if r == i or c == j else "elsewhere"].append(value)
    for kind, value in likeness(similarity)._asdict().items():
        assert value == (pytest.approx(np.mean(kinds[kind]), rel=1e-12) if kinds[kind] else None)


class LargeTensors(TorchDispatchMode):
    """Counts the storages as large as one layer's attention that are alive at once."""

    def __init__(self, size):
        super().__init__()
        self.size, self.alive, self.most = size, {}, 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        if isinstance(result, torch.Tensor) and result.numel() >= self.size:
            storage = result.untyped_storage()
            self.alive[storage._cdata] = StorageWeakRef(storage)
        self.alive = {key: weak for key, weak in self.alive.items() if not weak.expired()}
        self.most = max(self.most, len(self.alive))
        return result


@pytest.mark.parametrize("see", [rollout, attention_distance, look])
def test_the_attention_of_one_layer_is_alive_at_a_time(see):
    spec = ViTSpec(patch=2, layers=6, width=8, mlp=8, heads=4, image=(16, 16), classes=2)
    model = randomised(build_from_spec(spec))
    with LargeTensors(4 * 2 * 64 * 64) as counter:
        see(model, torch.randn(2, 3, 16, 16))
    # Inside a layer an operation has its input and its result: logits and their softmax. An earlier layer makes it 3.
    assert counter.most == 2


def test_a_model_in_training_is_looked_at_without_dropout_and_left_in_training():
    spec = ViTSpec(4, 2, 24, 40, 3, (16, 16), 5, dropout=0.5, stochastic_depth=0.5)
    model = randomised(build_from_spec(spec)).train()
    model.blocks[0].eval()
    images = torch.randn(2, 3, 16, 16)
    first = vitlab.explain(model, images)
    assert torch.equal(first, vitlab.explain(model, images))
    assert not first.requires_grad
    assert model.training
    assert model.blocks[1].training
    assert not model.blocks[0].training


def test_half_precision_is_close(tiny):
    images = torch.randn(2, 3, 16, 16)
    exact = look(tiny, images)
    half = look(tiny.bfloat16(), images)
    assert half.rollout.dtype == torch.float32
    torch.testing.assert_close(half.rollout, exact.rollout, rtol=0.1, atol=0.01)
    torch.testing.assert_close(half.distance, exact.distance, rtol=0.05, atol=0.05)


VIT = {"patch": 8, "layers": 2, "width": 24, "mlp": 48, "heads": 3, "image": (32, 32), "classes": 4, "head": "linear"}


@pytest.mark.parametrize("change", [{"distilled": True}, {"patch": 2, "backbone": Backbone((1,), 8)}])
def test_distilled_models_and_hybrids_are_looked_at_too(change):
    """The patches are the last tokens, whatever stands before them."""
    model = randomised(build_from_spec(ViTSpec(**(VIT | change))))
    images = torch.randn(2, 3, 32, 32)
    saw = look(model, images)
    attention = [layer.double() for layer in model.layer_attention(images)]
    patches = model.spec.grid[0] * model.spec.grid[1]
    expected = attention[0][:, :, 0, -patches:].unflatten(-1, model.spec.grid)
    torch.testing.assert_close(saw.maps[:, 0].double(), expected, rtol=0, atol=1e-6)
    assert vitlab.explain(model, images).shape == (2, 32, 32)
    assert attention_distance(model, images).shape == (2, 3)


def test_two_dimensional_positions_are_compared():
    model = randomised(build_from_spec(ViTSpec(**(VIT | {"positions": "2d"}))))
    found = position_similarity(model)
    table = model.positions.table()[0, -16:].detach().double()
    expected = torch.nn.functional.cosine_similarity(table[:, None], table[None], dim=-1)
    torch.testing.assert_close(found.flatten(2).flatten(0, 1), expected, rtol=0, atol=1e-9)


def test_images_that_are_no_tensor_or_not_normalised_are_refused(tiny):
    for given in (["cat.png"], torch.zeros(1, 3, 16, 16, dtype=torch.uint8)):
        with pytest.raises(ValueError, match=r"vitlab.preprocess"):
            vitlab.explain(tiny, given)


class TestMistakes:
    class Convolutions(torch.nn.Module):
        """A stranger without attention, patches or positions."""

    @pytest.mark.parametrize("see", [vitlab.explain, rollout, attention_distance, look])
    def test_a_model_without_attention_says_so(self, see):
        resnet = build_from_spec(ResNetSpec((1,), 8, (32, 32), 4))
        axial = build_from_spec(ViTSpec(**(VIT | {"attention": "axial", "pool": "mean", "positions": "2d"})))
        swin = build_from_spec(SwinSpec((2, 2), 12, 3, 3, image=(32, 32), classes=4))
        without = (self.Convolutions(), "no attention"), (resnet, "no attention"), (axial, "along rows")
        for model, why in (*without, (swin, "within windows; vitlab.inspect and vitlab.window_attention")):
            with pytest.raises(ValueError, match=f"{why}.*; give a Vision"):
                see(model, torch.zeros(1, 3, 32, 32))

    def test_a_model_that_says_nothing_is_named(self):
        with pytest.raises(ValueError, match="Identity cannot be inspected: it has no attention"):
            vitlab.explain(torch.nn.Identity(), torch.zeros(1, 3, 8, 8))

    def test_a_model_without_patches_or_positions_says_so(self):
        with pytest.raises(ValueError, match="Convolutions has no patch embedding"):
            principal_filters(self.Convolutions())
        with pytest.raises(ValueError, match="Convolutions has no position table"):
            position_similarity(self.Convolutions())

    @pytest.mark.parametrize("shape", [(3, 16, 16), (0, 3, 16, 16), (1, 3, 16, 20), (1, 1, 16, 16)])
    def test_images_of_another_shape_are_refused(self, tiny, shape):
        with pytest.raises(ValueError, match="images"):
            vitlab.explain(tiny, torch.zeros(shape))

    def test_numbers_that_are_not_finite_are_refused(self, tiny):
        with pytest.raises(ValueError, match="not finite"):
            vitlab.explain(tiny, torch.full((1, 3, 16, 16), torch.nan))
        tiny.patches.weight.data[0, 0, 0, 0] = torch.inf
        with pytest.raises(ValueError, match="filters contain NaN"):
            principal_filters(tiny)
        tiny.positions.table.data[0, 3, 0] = torch.nan
        with pytest.raises(ValueError, match="position embeddings contain NaN"):
            position_similarity(tiny)

    def test_no_components_are_refused(self, tiny):
        with pytest.raises(ValueError, match="components 0"):
            principal_filters(tiny, 0)
