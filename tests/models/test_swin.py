"""Swins: windows by hand, the numbers of timm and transformers at any size, other windows, and features of stages."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from agreement import disagreement, randomised
from families import FAMILIES, SWIN, images
from vitlab import build_model, count
from vitlab.counting import count_spec
from vitlab.models.build import build_from_spec
from vitlab.models.swin import resized_offsets
from vitlab.spec import CONVENTIONS, SwinSpec

TIMM = {"conventions": CONVENTIONS["timm"]}


# -- The layer by hand ---------------------------------------------------------------------------


def attended_by_hand(attention, u, *, order):
    """Every window cut, every pair of its cells looked up and compared one by one, in plain numpy."""
    (height, width), (a, b), (down, right) = attention.windows.map, attention.windows.sides, attention.windows.shift
    below, beside = -height % a, -width % b
    qkv, out = attention.qkv, attention.out
    weight, bias, table = (t.detach().numpy() for t in (qkv.weight, qkv.bias, attention.table))
    x, source = u.numpy().reshape(height, width, -1), np.arange(height * width).reshape(height, width)
    pad, roll = ((0, below), (0, beside)), (-down, -right)

    def moved(map, fill):
        wide = (*pad, (0, 0))[: map.ndim]
        if order == "pad-roll":
            return np.roll(np.pad(map, wide, constant_values=fill), roll, (0, 1))
        return np.pad(np.roll(map, roll, (0, 1)), wide, constant_values=fill)

    x, source = moved(x, 0), moved(source, -1)
    rows, columns = x.shape[:2]
    region = [[(i >= rows - down) * 2 + (j >= columns - right) for j in range(columns)] for i in range(rows)]
    result = np.zeros((height * width, out.out_features))
    for top, left in itertools.product(range(0, rows, a), range(0, columns, b)):
        cells = [(i, j) for i in range(top, top + a) for j in range(left, left + b)]
        q, k, v = np.split(np.stack([weight @ x[cell] + bias for cell in cells]), 3, axis=1)
        size = q.shape[1] // attention.heads
        heads = []
        for h in range(attention.heads):
            part = slice(h * size, (h + 1) * size)
            logits = q[:, part] @ k[:, part].T / math.sqrt(size)
            for (m, (i, j)), (n, (p, r)) in itertools.product(enumerate(cells), enumerate(cells)):
                logits[m, n] += table[(i - p + a - 1) * (2 * b - 1) + j - r + b - 1, h]
                logits[m, n] -= 100 * (region[i][j] != region[p][r])
            e = np.exp(logits - logits.max(axis=1, keepdims=True))
            heads.append(e / e.sum(axis=1, keepdims=True) @ v[:, part])
        for cell, y in zip(cells, np.concatenate(heads, axis=1), strict=True):
            if source[cell] >= 0:
                result[source[cell]] = out.weight.detach().numpy() @ y + out.bias.detach().numpy()
    return torch.from_numpy(result)


@pytest.mark.parametrize("family", ["Swin", "Swin of timm"])
def test_attention_within_windows_equals_a_loop_over_pairs_of_cells(family):
    model = randomised(build_from_spec(FAMILIES[family])).double()
    shifted = [any(block.attention.windows.shift) for block in model.blocks]
    assert any(shifted)
    assert not all(shifted)
    for block in model.blocks:
        attention = block.attention
        u = torch.randn(math.prod(attention.windows.map), attention.out.in_features, dtype=torch.float64)
        with torch.no_grad():
            expected = attended_by_hand(attention, u, order=model.spec.order)
            assert disagreement(attention(u[None])[0], expected) <= 1e-12
            same, probabilities = attention.explain(u[None])
        assert disagreement(same[0], expected) <= 1e-12
        cells = math.prod(attention.windows.sides)
        assert probabilities.shape == (1, math.prod(attention.windows.number), attention.heads, cells, cells)
        assert torch.allclose(probabilities.sum(dim=-1), torch.ones(()).double())


def windows_of(**options):
    return [(w.map, w.sides, w.shift) for w in SwinSpec(**(SWIN | options)).windows]


def test_windows_shrink_to_small_maps_by_each_rule():
    four = {"stages": (1, 1, 1, 1), "window": 7}
    assert windows_of(**four, image=(224, 224))[-1] == ((7, 7), (7, 7), (0, 0))
    assert windows_of(**four, image=(224, 224))[2] == ((14, 14), (7, 7), (3, 3))
    assert windows_of(**four, image=(160, 448))[-1] == ((5, 14), (5, 5), (0, 0))  # the authors: a square, no shift
    assert windows_of(**four, image=(160, 448), **TIMM)[-1] == ((5, 14), (5, 7), (0, 3))  # timm: each side by itself
    assert windows_of(**four, image=(225, 1))[0] == ((57, 1), (1, 1), (0, 0))


def test_a_swin_takes_any_image():
    for size in ((1, 1), (5, 3), (31, 47), (64, 7)):
        model = randomised(build_from_spec(SwinSpec(**(SWIN | {"image": size}))))
        assert model(torch.randn(2, 3, *size)).shape == (2, 4)


# -- The numbers of other libraries --------------------------------------------------------------


def hugging_face(peers, spec):
    config = peers.SwinConfig(
        image_size=spec.image,
        patch_size=spec.patch,
        embed_dim=spec.root,
        depths=list(spec.stages),
        num_heads=[spec.heads * 2**stage for stage in range(len(spec.stages))],
        window_size=spec.window,
        num_labels=spec.classes,
    )
    model = peers.SwinForImageClassification(config)
    return model, [block for stage in model.swin.encoder.layers for block in stage.blocks]


def timm(peers, spec):
    model = peers.TimmSwin(
        img_size=spec.image,
        patch_size=spec.patch,
        embed_dim=spec.root,
        depths=spec.stages,
        num_heads=tuple(spec.heads * 2**stage for stage in range(len(spec.stages))),
        window_size=spec.window,
        num_classes=spec.classes,
        strict_img_size=False,  # which makes masks for the maps that there are
    )
    return model, [block for stage in model.layers for block in stage.blocks]


LIBRARIES = {"timm": timm, "hf": hugging_face}
FOUR = {"stages": (2, 2, 2, 2), "root": 12, "heads": 3, "classes": 5}
WHOLE = {  # every map is a whole number of windows
    "window 7": {"window": 7, "image": (224, 224)},
    "wide": {"window": 7, "image": (224, 448)},
    "tall": {"window": 7, "image": (672, 448)},
    "window 12": {"window": 12, "image": (384, 384)},
    "window 4": {"window": 4, "image": (256, 384)},
    "window 3": {"window": 3, "image": (192, 96)},
}
PARTIAL = {
    "windows over the edge": {"window": 7, "image": (256, 320)},
    "odd maps": {"window": 3, "image": (152, 108)},
    "odd and wide maps": {"window": 5, "image": (180, 340)},
    "an even window": {"window": 4, "image": (164, 228)},
}
CASES = [*itertools.product(LIBRARIES, WHOLE | PARTIAL), ("hf", "no whole patches")]
SIZES = WHOLE | PARTIAL | {"no whole patches": {"window": 3, "image": (149, 106)}}


def each_output(model, blocks, images):
    """The outputs of all blocks as (B, N, C), and the logits."""
    seen = []

    def keep(module, inputs, output):
        seen.append(output[0] if isinstance(output, tuple) else output.flatten(1, -2))

    hooks = [block.register_forward_hook(keep) for block in blocks]
    answer = model(images)
    for hook in hooks:
        hook.remove()
    return [*seen, getattr(answer, "logits", answer)]


@torch.inference_mode()
def worst(ours, theirs, blocks, given):
    expected = each_output(theirs, blocks, given)
    found = [*ours.layer_features(given), ours(given)]
    return max(disagreement(a, b) for a, b in zip(found, expected, strict=True))


def pair(library, spec, peers, tmp_path):
    """Their model, its blocks, and ours with its weights."""
    from safetensors.torch import save_file

    from vitlab import load_model

    theirs, blocks = LIBRARIES[library](peers, spec)
    randomised(theirs)
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors", {"image": "{}x{}".format(*spec.image)})
    return theirs, blocks, load_model(tmp_path / "weights.safetensors")


@pytest.fixture(scope="module")
def peers():
    return pytest.importorskip("peers", reason="the peer libraries are not installed", exc_type=ImportError)


@pytest.mark.slow
@pytest.mark.parametrize(("library", "size"), CASES)
def test_same_weights_give_the_same_numbers(library, size, peers, tmp_path):
    spec = SwinSpec(**FOUR, **SIZES[size])
    theirs, blocks, ours = pair(library, spec, peers, tmp_path)
    assert (ours.spec.image, ours.spec.window) == (spec.image, spec.window)
    assert any(any(windows.padding) for windows in ours.spec.windows) == (size not in WHOLE)
    given = torch.randn(1, 3, *spec.image, generator=torch.Generator().manual_seed(1))
    assert worst(ours, theirs, blocks, given) <= 5e-6
    assert worst(ours.double(), theirs.double(), blocks, given.double()) <= 1e-12


@pytest.mark.slow
def test_the_order_of_timm_is_another_only_where_a_map_is_padded_or_small(peers, tmp_path):
    for size, differs in (("window 12", False), ("tall", False), ("odd maps", True), ("wide", True)):
        spec = SwinSpec(**FOUR, **SIZES[size])
        folder = tmp_path / size
        folder.mkdir()
        _, _, ours = pair("timm", spec, peers, folder)
        other = build_from_spec(replace(ours.spec, conventions=CONVENTIONS["deit"]))
        other.load_state_dict(ours.state_dict())
        given = torch.randn(1, 3, *spec.image, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            assert (disagreement(other.eval()(given), ours(given)) > 1e-3) == differs, size


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_whole_swin_t_gives_the_same_numbers_and_features(library, peers, tmp_path):
    theirs, blocks, ours = pair(library, build_model("Swin-T").spec, peers, tmp_path)
    given = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    assert worst(ours, theirs, blocks, given) <= 5e-6
    with torch.inference_mode():
        if library == "timm":
            expected = theirs.forward_intermediates(given, intermediates_only=True)
            pooled = theirs.forward_head(theirs.forward_features(given), pre_logits=True)
        else:
            encoded = theirs.swin.encoder(
                *theirs.swin.embeddings(given),
                output_hidden_states=True,
                output_hidden_states_before_downsampling=True,
            )
            expected, pooled = encoded.reshaped_hidden_states[1:], theirs.swin(given).pooler_output
        assert [map.shape for map in ours.feature_maps(given)] == [
            (1, 96, 56, 56),
            (1, 192, 28, 28),
            (1, 384, 14, 14),
            (1, 768, 7, 7),
        ]
        for found, map in zip(ours.feature_maps(given), expected, strict=True):
            assert disagreement(found, map) <= 5e-6
        assert disagreement(ours.features(given), pooled) <= 5e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Swin-T", "Swin-S", "Swin-B", "Swin-L"])
def test_timm_counts_the_same_products_and_parameters(name, peers):
    for image, window in ((224, 7), (384, 12), (256, 8), (256, 7)):  # the last one padded
        with torch.device("meta"):
            spec = build_model(name, image=image, window=window, conventions="timm").spec
            theirs, _ = timm(peers, spec)
            theirs.eval()
            with FlopCounterMode(display=False) as counter:
                theirs(torch.empty(1, 3, image, image))
        cost = count_spec(spec)
        assert counter.get_total_flops() == 2 * cost.macs
        assert sum(parameter.numel() for parameter in theirs.parameters()) == cost.parameters


# -- Counts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("conventions", ["deit", "timm"])
@pytest.mark.parametrize("image", [(224, 224), (33, 70), (24, 9), (225, 31), (160, 448)])
def test_a_swin_of_any_size_is_counted(image, conventions):
    spec = SwinSpec((1, 2, 1, 1), 12, 3, 7, 4, image, 5, conventions=CONVENTIONS[conventions])
    with torch.device("meta"):
        model = build_from_spec(spec)
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, *image))
    cost = count_spec(spec)
    assert counter.get_total_flops() == 2 * cost.macs
    assert sum(parameter.numel() for parameter in model.parameters()) == cost.parameters
    assert cost.tokens == math.prod(spec.maps[-1])


PUBLISHED = {  # name: GMACs at 224 as its authors round them
    "Swin-T": 4.5,
    "Swin-S": 8.7,
    "Swin-B": 15.4,
    "Swin-L": 34.5,
}


def test_products_are_those_that_the_authors_publish():
    for name, gmacs in PUBLISHED.items():
        assert count(name).macs / 1e9 == pytest.approx(gmacs, rel=0.015)
    assert count("Swin-B", image=384, window=12).macs / 1e9 == pytest.approx(47.0, rel=0.015)


# -- Other sizes and windows ---------------------------------------------------------------------


def test_tables_are_resized_as_the_authors_resize_them():
    """Their code: the table of a head as a picture, interpolated by torch's bicubic."""
    table = torch.randn(13 * 13, 6, generator=torch.Generator().manual_seed(0))
    found = resized_offsets(table, (7, 7), (12, 12))
    expected = F.interpolate(table.T.reshape(1, 6, 13, 13), size=(23, 23), mode="bicubic").view(6, 23 * 23).T
    assert torch.equal(found, expected)
    assert torch.equal(resized_offsets(table, (7, 7), (7, 7)), table)


def test_another_window_and_another_size_build_what_a_new_model_builds():
    model = randomised(build_model("Swin-T", classes=5))
    model.set_window(12)
    model.resize((384, 384))
    expected = build_model("Swin-T", classes=5, image=384, window=12)
    assert model.spec == expected.spec
    assert {n: t.shape for n, t in model.state_dict().items()} == {n: t.shape for n, t in expected.state_dict().items()}
    assert [b.attention.windows for b in model.blocks] == [b.attention.windows for b in expected.blocks]


def test_resizing_an_image_keeps_the_weights_where_windows_stay():
    model = randomised(build_from_spec(FAMILIES["Swin"]))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.resize((50, 61))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    fresh = build_from_spec(model.spec)
    fresh.load_state_dict(before)
    given = torch.randn(2, 3, 50, 61)
    with torch.no_grad():
        assert torch.equal(model(given), fresh.eval()(given))
    with pytest.raises(ValueError, match="expects 50x61"):
        model(images(1))


# -- New weights, names and options --------------------------------------------------------------


def test_new_weights_are_drawn_as_the_authors_do():
    model = build_from_spec(SwinSpec((2, 2), 48, 3, 7, classes=5), seed=3)
    for name, tensor in model.state_dict().items():
        if name.startswith("head"):
            assert not tensor.any()
        elif "norm" in name:
            assert torch.equal(tensor, torch.full_like(tensor, float(name.endswith("weight"))))
        elif name.startswith("patches"):
            assert 0.9 / math.sqrt(48) < tensor.abs().max() <= 1 / math.sqrt(48)
        elif name.endswith("bias"):
            assert not tensor.any()
        else:
            assert tensor.std().item() == pytest.approx(0.02, rel=0.15), name
    assert torch.equal(model(torch.zeros(1, 3, 224, 224)), torch.zeros(1, 5))


@pytest.mark.parametrize(
    ("given", "name", "window", "side"),
    [
        ("Swin-B", "Swin-B", 7, 224),
        ("swin_base_patch4_window12_384", "Swin-B", 12, 384),
        ("microsoft/swin-tiny-patch4-window7-224", "Swin-T", 7, 224),
        ("swin_large_patch4_window12_384_22kto1k", "Swin-L", 12, 384),
        ("swin_small_patch4_window7_224.ms_in22k_ft_in1k", "Swin-S", 7, 224),
    ],
)
@pytest.mark.filterwarnings("ignore::vitlab.errors.WeightsWarning")  # of names of released weights
def test_names_of_all_sources(given, name, window, side):
    with torch.device("meta"):
        spec = build_model(given).spec
        expected = build_model(name, window=window, image=side).spec
    assert spec == expected


def test_options_of_other_families_are_refused():
    for option in ({"pool": "class"}, {"positions": "2d"}, {"merge": 2}, {"dropout": 0.1}, {"head": "mlp"}):
        with pytest.raises(ValueError, match="Swin-T pools the mean of its last map"):
            build_model("Swin-T", **option)
    with pytest.raises(ValueError, match="ViT-Ti/16 has no windows"):
        build_model("ViT-Ti/16", window=7)
    with pytest.raises(ValueError, match=r"window 0 is outside 1\.\.128"):
        build_model("Swin-T", window=0)
    with pytest.raises(ValueError, match="not a multiple of 5 heads"):
        SwinSpec(**(SWIN | {"heads": 5}))
