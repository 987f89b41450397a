"""The numbers that the page computes, in Node, against the Python functions of `vitlab.inspection` and NumPy."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from agreement import randomised
from page.serving import STATIC
from vitlab.inspection.attention import attention_distance, even_distance, patch_distances
from vitlab.inspection.rollout import look, rollout
from vitlab.models.build import build_from_spec
from vitlab.page.trace import Trace, trace
from vitlab.spec import ViTSpec

RUN = """
import * as maths from "%s";
import * as edits from "%s";
import { readFileSync } from "node:fs";
const given = JSON.parse(readFileSync(0, "utf8"));
const f32 = (values) => Float32Array.from(values);
const f64 = (values) => Float64Array.from(values);
const u8 = (values) => Uint8Array.from(values);
const plain = (key, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value);
const found = (() => { %s })();
process.stdout.write(JSON.stringify(found, plain));
"""
SHAPES = {  # pool, image, patch, distilled: square and not, with one, two or no tokens before the patches
    "class token": ("class", (32, 32), 8, False),
    "wide": ("class", (16, 40), 8, False),
    "mean of patches": ("mean", (40, 24), 8, False),
    "distilled": ("class", (24, 24), 8, True),
}


@pytest.fixture
def run(node):
    """A function that evaluates JavaScript over `maths`, `edits` and the given values."""

    def evaluate(body: str, **given):
        arrays = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in given.items()}
        addresses = [(STATIC / name).as_uri() for name in ("maths.js", "edits.js")]
        return json.loads(node(RUN % (*addresses, body), json.dumps(arrays).encode()))

    return evaluate


@pytest.fixture(params=SHAPES)
def model(request):
    pool, image, patch, distilled = SHAPES[request.param]
    spec = ViTSpec(patch, layers=3, width=24, mlp=40, heads=2, image=image, classes=5, pool=pool, head="linear")
    return randomised(build_from_spec(replace(spec, distilled=distilled)), seed=3)


@pytest.fixture
def pixels(model):
    return np.random.default_rng(1).integers(0, 256, (*model.spec.image, 3), dtype=np.uint8)


def normalised(model, pixels):
    """The batch of one picture that the functions of `inspection` take."""
    traced = Trace(model)
    return (torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255 - traced.mean) / traced.std


def shape_of(model):
    spec = model.spec
    return {"layers": spec.layers, "heads": spec.heads, "n": spec.tokens, "prefix": spec.prefix}


def query_of(model):
    return "class" if model.spec.pool == "class" else "mean"


def test_rollout_and_head_maps_equal_those_of_inspection(run, model, pixels):
    found = trace(model, pixels)
    made = run(
        """
        const { shape, query } = given;
        const attention = f32(given.attention);
        const kept = new Uint8Array(shape.n - shape.prefix).fill(1);
        const weights = maths.queryWeights(query, shape, kept);
        const mean = maths.meanOverHeads(attention, shape);
        const maps = [];
        for (let l = 0; l < shape.layers; l++)
          for (let h = 0; h < shape.heads; h++) maps.push(maths.attentionFrom(weights, attention, shape, l, h));
        return { rolled: maths.rollout(weights, mean, shape.n, shape.layers), maps };
        """,
        attention=found.attention.ravel(),
        shape=shape_of(model),
        query=query_of(model),
    )
    images, prefix = normalised(model, pixels), model.spec.prefix
    expected = rollout(model, images)[0].flatten()
    np.testing.assert_allclose(made["rolled"][prefix:], expected, rtol=1e-5)
    maps = look(model, images).maps[0].flatten(0, 1).flatten(1)  # (L h, N)
    np.testing.assert_allclose(np.array(made["maps"])[:, prefix:], maps, rtol=1e-5)


def test_attention_distances_equal_those_of_inspection(run, model, pixels):
    spec = model.spec
    made = run(
        """
        const { shape, grid, image } = given;
        const kept = new Uint8Array(shape.n - shape.prefix).fill(1);
        const distances = maths.patchDistances(grid, image);
        const found = maths.attentionDistances(f32(given.attention), shape, distances, kept);
        return { distances, found, even: maths.evenDistance(distances, shape.n) };
        """,
        attention=trace(model, pixels).attention.ravel(),
        shape=shape_of(model),
        grid=spec.grid,
        image=spec.image,
    )
    np.testing.assert_allclose(made["distances"], patch_distances(spec).flatten(), rtol=1e-12)
    expected = attention_distance(model, normalised(model, pixels)).flatten()
    np.testing.assert_allclose(made["found"], expected, rtol=1e-5)
    assert made["even"] == pytest.approx(even_distance(spec))


def test_dropped_patches_count_for_nothing(run):
    """As if they were not there: uniform attention over two kept patches of three, two patches apart."""
    made = run(
        """
        const shape = { layers: 1, heads: 1, n: 3, prefix: 0 };
        const attention = f32([0.5, 0, 0.5, 0.9, 0, 0.1, 0.5, 0, 0.5]);
        const distances = maths.patchDistances([1, 3], [8, 24]);
        const kept = u8([1, 0, 1]);
        return [maths.attentionDistances(attention, shape, distances, kept), maths.queryWeights("mean", shape, kept)];
        """
    )
    assert made == [[8.0], [0.5, 0, 0.5]]


def test_similarity_and_norms_equal_those_of_torch(run):
    vectors = np.random.default_rng(0).normal(size=(9, 6))
    vectors[4] = 0
    made = run(
        "return [maths.cosineSimilarity(f64(given.v), 9, 6, 2), maths.norms(f64(given.v), 9, 6)];", v=vectors.ravel()
    )
    expected = torch.cosine_similarity(torch.tensor(vectors), torch.tensor(vectors[2:3]))
    np.testing.assert_allclose(made[0], expected, atol=1e-7)
    np.testing.assert_allclose(made[1], np.linalg.norm(vectors, axis=1), rtol=1e-12)


@pytest.mark.parametrize(("count", "width"), [(196, 48), (30, 64), (5, 3), (3, 8)])
def test_principal_components_equal_those_of_numpy(run, count, width):
    vectors = np.random.default_rng(0).normal(size=(count, width)) * np.linspace(3, 0.5, width) + 5
    made = run(
        "return maths.principalComponents(f64(given.v), given.count, given.width, 3);",
        v=vectors.ravel(),
        count=count,
        width=width,
    )
    centred = vectors - vectors.mean(0)
    u, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    number = min(3, count - 1, width)
    expected = (u * sizes)[:, :number]
    expected *= np.sign(expected[np.abs(expected).argmax(0), np.arange(number)])
    scores = np.array(made["scores"]).reshape(count, 3)
    np.testing.assert_allclose(scores[:, :number], expected, atol=2e-3 * sizes[0] / count**0.5)
    np.testing.assert_allclose(made["share"][:number], (sizes**2 / (sizes**2).sum())[:number], rtol=1e-6)


def test_vectors_that_are_all_alike_have_no_components(run):
    made = run("return maths.principalComponents(new Float64Array(40).fill(2), 10, 4, 3);")
    assert made["share"] == [0, 0, 0]
    assert np.array(made["scores"]).max() == 0


def test_probabilities_equal_those_of_torch(run):
    logits = torch.tensor([1000.0, 998.0, -1000.0, 3.0], dtype=torch.float64)
    made = run(
        "return ['single-label', 'multi-label'].map((task) => maths.probabilities(f64(given.x), task));", x=logits
    )
    np.testing.assert_allclose(made[0], logits.softmax(0))
    np.testing.assert_allclose(made[1], logits.sigmoid())


def test_the_largest_come_first_and_equals_in_order(run):
    made = run("return maths.largest(f64([1, 3, 2, 3]), 3).map(({ index }) => index);")
    assert made == [1, 3, 2]


def test_entropy_is_in_bits(run):
    assert run("return [maths.entropy([0.25, 0.25, 0.25, 0.25, 0]), maths.entropy([1])];") == [2, 0]


def test_a_shuffle_is_a_permutation_that_depends_on_its_seed_alone(run):
    made = run("return [1, 1, 2, 0].map((seed) => maths.shuffled(196, seed));")
    assert all(sorted(order) == list(range(196)) for order in made)
    assert made[0] == made[1] != made[2]
    assert made[3] == list(range(196))


def test_edits_of_pixels_move_and_grey_whole_patches(run):
    """On a wide picture of 2 x 3 patches, each of its own value."""
    pixels = np.kron(np.arange(6).reshape(2, 3), np.ones((4, 4), int))[..., None].repeat(3, axis=2).astype(np.uint8)
    made = run(
        """
        const changes = { ...edits.noEdits(6), shuffle: 7, grey: u8([0, 1, 0, 0, 0, 0]) };
        return [edits.editedPixels(u8(given.pixels), [8, 12], [2, 3], changes), maths.shuffled(6, 7)];
        """,
        pixels=pixels.ravel(),
    )
    shown = np.array(made[0]).reshape(8, 12, 3)
    expected = [value if patch != 1 else 128 for patch, value in enumerate(made[1])]
    for patch, value in enumerate(expected):
        row, column = divmod(patch, 3)
        assert (shown[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] == value).all()


def test_marks_survive_a_link_and_damaged_ones_are_left_out(run):
    marks = np.random.default_rng(0).integers(0, 2, 196)
    made = run(
        """
        const text = edits.packed(u8(given.marks));
        return [text, edits.unpacked(text, 196), edits.unpacked(text, 49), edits.unpacked("%%%", 196)];
        """,
        marks=marks,
    )
    assert made[1] == marks.tolist()
    assert not any(made[2] + made[3])
    assert set(made[0]) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
