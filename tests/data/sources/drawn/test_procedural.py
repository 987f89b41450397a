"""Built-in sources: fractals, shapes and digits, and what letters share with them."""

import hashlib
import importlib.util
import itertools
import os
import pickle
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from vitlab.data.sources import digits
from vitlab.data.sources.digits import DigitsSource
from vitlab.data.sources.drawn import fractals
from vitlab.data.sources.drawn.fractals import FractalSource
from vitlab.data.sources.drawn.letters import LetterSource
from vitlab.data.sources.drawn.procedural import Draws, Stream
from vitlab.data.sources.drawn.shapes import ARRANGEMENTS, COMBINATIONS, KINDS, TEXTURES, ShapeSource

BOTH = pytest.mark.parametrize("kind", [FractalSource, ShapeSource])
NEEDS_FONTS = pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="letters need matplotlib's fonts")
EVERY = pytest.mark.parametrize("kind", [FractalSource, ShapeSource, pytest.param(LetterSource, marks=NEEDS_FONTS)])

GOLDEN = {  # (source, size, seed, index): the start of the SHA-256 of its pixels
    ("fractals", 32, 0, 0): "17e4a13fdd31180d",
    ("fractals", 32, 5, 123_456_789_012): "725e96fcdd2a5752",
    ("fractals", 64, 0, 909): "6bd9e88777e2a2ad",
    ("fractals", 224, 0, 471): "abe14f5df294df25",
    ("shapes", 32, 0, 0): "c8563ce98801f07d",
    ("shapes", 32, 5, 123_456_789_012): "0390d6c61d3d9c36",
    ("shapes", 64, 0, 909): "e17ad7142ecee939",
    ("shapes", 224, 0, 471): "18e0383ae9a48dac",
}


def digest(sample):
    return hashlib.sha256(sample.data.tobytes()).hexdigest()


@pytest.mark.parametrize(("kind", "size", "seed", "index"), GOLDEN)
def test_pixels_are_those_of_the_first_release(kind, size, seed, index):
    source = {"fractals": FractalSource, "shapes": ShapeSource}[kind](size=size, seed=seed, images=10**12)
    assert digest(source.item(index))[:16] == GOLDEN[kind, size, seed, index]


def test_another_process_without_vector_instructions_draws_the_same_bytes():
    code = (
        "import hashlib\n"
        "from vitlab.data.sources.drawn.fractals import FractalSource\n"
        "from vitlab.data.sources.drawn.shapes import ShapeSource\n"
        "every = hashlib.sha256()\n"
        "for source in (FractalSource(size=48, classes=7), ShapeSource(size=48)):\n"
        "    for i in (60, 3, 900): every.update(source.item(i).data)\n"
        "print(every.hexdigest())"
    )
    here = hashlib.sha256()
    for source, i in itertools.product((FractalSource(size=48, classes=7), ShapeSource(size=48)), (60, 3, 900)):
        here.update(source.item(i).data)
    vectors = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    plain = os.environ | {"NPY_DISABLE_CPU_FEATURES": " ".join(vectors), "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here.hexdigest()


@EVERY
def test_a_sample_depends_neither_on_order_nor_on_the_length_of_the_source(kind):
    short, long = kind(classes=5, images=20, size=32), kind(classes=5, images=10**9, size=32)
    forwards = [digest(short.item(i)) for i in range(20)]
    fractals.fractal.cache_clear()
    assert [digest(long.item(i)) for i in reversed(range(20))] == forwards[::-1]


@EVERY
def test_thousands_of_samples_hold_no_duplicate(kind):
    source = kind(classes=20, size=16)
    assert len({digest(source.item(i)) for i in range(2000)}) == 2000


@EVERY
def test_another_seed_is_another_image(kind):
    assert digest(kind(size=32).item(4)) != digest(kind(size=32, seed=1).item(4))


def test_another_seed_is_other_fractal_classes():
    assert fractals.fractal(0, 3) != fractals.fractal(1, 3)
    assert fractals.fractal(0, 3) != fractals.fractal(0, 4)


def test_streams_and_indices_and_attempts_share_no_random_number():
    keys = itertools.product((0, 1), Stream, (0, 1, 2**63 - 1), (0, 1))
    words = [word for key in keys for word in Draws(*key).words(64).tolist()]
    assert len(set(words)) == len(words) == 12 * len(Stream) * 64


def test_random_numbers_keep_their_ranges():
    draws = Draws(0, Stream.SHAPE_IMAGE, 0)
    numbers = draws.uniform(-2, 3, 4000)
    assert -2 <= min(numbers) < -1.9
    assert 2.9 < max(numbers) < 3
    assert {draws.below(3) for _ in range(100)} == {0, 1, 2}
    assert sorted(draws.shuffled(9)) == list(range(9))
    angles = np.array([draws.any_turn() for _ in range(4000)])
    assert np.allclose((angles**2).sum(1), 1)
    share = np.histogram(np.arctan2(angles[:, 1], angles[:, 0]), bins=8, range=(-np.pi, np.pi))[0] / 4000
    assert np.abs(share - 1 / 8).max() < 0.03


@EVERY
def test_labels_go_round_so_that_classes_are_balanced(kind):
    source = kind(classes=7, images=70, size=16)
    assert len(source) == 70
    assert [source.label(i) for i in range(70)] == [(i % 7,) for i in range(70)]
    sample = source.item(9)
    assert (sample.labels, sample.id) == ((2,), "9") == (source.label(9), source.id(9))
    assert sample.data.shape == (16, 16, 3)
    assert sample.data.dtype == np.uint8


@EVERY
def test_class_names_are_unique_and_one_for_each_class(kind):
    source = kind()
    assert len(set(source.class_names)) == len(source.class_names) == source.classes


def test_shape_classes_are_all_combinations_and_read_as_english():
    names = ShapeSource().class_names
    assert len(names) == COMBINATIONS == len(KINDS) * len(TEXTURES) * len(ARRANGEMENTS) == 910
    assert names[0] == "1 solid disc"
    assert {"3 striped triangles", "2 dotted crosses in a row", "5 outlined hexagons in a column"} < set(names)


@BOTH
def test_opening_a_billion_images_costs_nothing(kind):
    most = {"images": 10**9} | ({"classes": 10**5} if kind is FractalSource else {})
    tracemalloc.start()
    source = kind(**most, size=32)
    labels = source.label(10**9 - 1)
    opened = tracemalloc.get_traced_memory()[1]
    source.item(10**9 - 1)
    drawn = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert labels == ((10**9 - 1) % source.classes,)
    assert opened < 20_000
    assert drawn < 4_000_000


def test_the_cache_of_classes_is_bounded():
    assert fractals.fractal.cache_info().maxsize == fractals.CACHED_CLASSES


@BOTH
def test_no_image_is_blank(kind):
    """Steps of more than 30 levels between neighbours: noise and gradients have none, things drawn have."""
    source = kind(size=64)
    for index in range(0, 300 * 3, 3):
        steps = np.abs(np.diff(source.item(index).data.astype(int), axis=0)).max(2)
        assert (steps > 30).mean() > 0.01, index


@BOTH
def test_colours_tell_nothing_about_the_class(kind):
    source = kind(classes=10, images=600, size=16)
    assert accuracy(source, lambda pixels: pixels.reshape(-1, 3).mean(0)) < 0.2


def test_images_of_a_fractal_class_are_alike_in_where_their_edges_are():
    source = FractalSource(classes=10, images=600, size=33)
    assert accuracy(source, edges) > 0.4  # chance is 0.1; measured 0.56


def test_images_of_a_shape_class_have_its_silhouette():
    source = ShapeSource(classes=10, images=600, size=64)
    assert accuracy(source, radii) > 0.9  # chance is 0.1; measured 0.99


def test_counts_and_layouts_are_what_the_name_says():
    source = ShapeSource(size=96)
    for label in (label for label in range(COMBINATIONS) if "solid disc" in source.class_name(label)):
        name = source.class_name(label)
        drawn = foreground(source.item(label + 7 * COMBINATIONS).data)
        height, width = (int(np.ptp(np.nonzero(drawn.any(axis))[0])) + 1 for axis in (1, 0))
        assert pieces(drawn) == int(name[0]), name
        assert ("row" in name) == (width > 1.5 * height), name
        assert ("column" in name) == (height > 1.5 * width), name


def test_every_fractal_contracts_however_it_is_perturbed():
    for label in range(40):
        for a, b, c, d, _, _ in fractals.fractal(0, label):
            corners = itertools.product((1 - fractals.PERTURBATION, 1 + fractals.PERTURBATION), repeat=4)
            worst = [np.linalg.norm(np.array([[a * p, b * q], [c * r, d * s]]), 2) for p, q, r, s in corners]
            assert max(worst) < 1


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ({"classes": 0}, "from 1"),
        ({"images": 0}, "from 1"),
        ({"images": 1e6}, "whole number"),
        ({"size": 8}, "from 16 to 1024"),
        ({"size": 4096}, "from 16 to 1024"),
        ({"seed": -1}, "from 0"),
        ({"seed": True}, "whole number"),
    ],
)
@EVERY
def test_bad_arguments_are_errors_that_say_what_is_allowed(kind, arguments, allowed):
    with pytest.raises(ValueError, match=rf"{next(iter(arguments))} is .*{allowed}"):
        kind(**arguments)


def test_more_shape_classes_than_combinations_is_an_error():
    with pytest.raises(ValueError, match="1 to 910"):
        ShapeSource(classes=911)


@EVERY
@pytest.mark.parametrize("index", [-1, 20])
def test_a_sample_outside_the_source_is_an_index_error(kind, index):
    source = kind(classes=5, images=20, size=16)
    for read in (source.item, source.label, source.id):
        with pytest.raises(IndexError, match="0 to 19"):
            read(index)


@EVERY
def test_a_pickled_source_is_the_same_source(kind):
    source = kind(classes=5, images=20, size=16, seed=3)
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert copy == source
    assert digest(copy.item(3)) == digest(source.item(3))


def test_digits_are_the_1797_scans_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    scans, source = datasets.load_digits(), DigitsSource()
    assert len(source) == 1797
    assert [source.label(i)[0] for i in range(1797)] == scans.target.tolist()
    for i in (0, 5, 1796):
        sample = source.item(i)
        grey = [[round(v * 255 / 16) for v in row] for row in scans.images[i].tolist()]
        assert sample.data.shape == (8, 8, 3)
        assert sample.data.dtype == np.uint8
        assert all(sample.data[..., channel].tolist() == grey for channel in range(3))
        assert (sample.labels, sample.id) == ((scans.target[i],), str(i))
    assert max(source.item(i).data.max() for i in range(1797)) == 255


def test_digits_split_takes_every_fifth_of_each_class_for_the_test():
    pytest.importorskip("sklearn")
    every, train, test = DigitsSource(), DigitsSource("train"), DigitsSource("test")
    of_class = {k: [every.id(i) for i in range(1797) if every.label(i) == (k,)] for k in range(10)}
    expected = {name for names in of_class.values() for name in names[4::5]}
    ids = {split: [source.id(i) for i in range(len(source))] for split, source in (("train", train), ("test", test))}
    assert (len(train), len(test)) == (1442, 355)
    assert set(ids["test"]) == expected
    assert sorted(ids["train"] + ids["test"], key=int) == [str(i) for i in range(1797)]
    assert (test.item(3).data == every.item(int(test.id(3))).data).all()
    assert (pickle.loads(pickle.dumps(test)).item(3).data == test.item(3).data).all()  # noqa: S301


def test_digits_refuse_other_splits_and_numbers():
    pytest.importorskip("sklearn")
    with pytest.raises(ValueError, match=r"'val'.*all, train, test"):
        DigitsSource("val")
    with pytest.raises(IndexError, match="0 to 354"):
        DigitsSource("test").item(355)
    with pytest.raises(IndexError, match="0 to 354"):
        DigitsSource("test").label(-1)


def test_digits_without_scikit_learn_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    digits._load.cache_clear()  # another test may have loaded them
    with pytest.raises(ModuleNotFoundError, match=r"vitlab\[demo\]"):
        DigitsSource()


def accuracy(source, feature):
    """Of the nearest class mean of a feature: two thirds of the samples to learn from, one third to score."""
    features = np.array([feature(source.item(i).data) for i in range(len(source))])
    labels = np.array([source.label(i)[0] for i in range(len(source))])
    end = len(source) * 2 // 3
    means = np.array([features[:end][labels[:end] == k].mean(0) for k in range(source.classes)])
    nearest = ((features[end:, None] - means) ** 2).sum(-1).argmin(1)
    return (nearest == labels[end:]).mean()


def edges(pixels):
    """Where the steps between neighbours are, on a grid of 8x8; blind to colours."""
    steps = sum(np.abs(np.diff(pixels.astype(int), axis=axis)).sum(2)[-32:, -32:] for axis in (0, 1))
    grid = steps.reshape(8, 4, 8, 4).sum((1, 3)).ravel()
    return grid / grid.sum()


def foreground(pixels):
    """Whatever is in another third of the brightness range than the corner, in some channel; grain is +-8."""
    band = (pixels.astype(int) + 16) // 96
    return (band != band[0, 0]).any(2)


def radii(pixels):
    """Histogram of the distances from the middle of what is drawn; blind to place, size, turn and colours."""
    rows, columns = np.nonzero(foreground(pixels))
    distance = np.hypot(rows - rows.mean(), columns - columns.mean())
    return np.histogram(distance / np.sqrt((distance**2).mean()), bins=16, range=(0, 2))[0] / len(rows)


def pieces(drawn):
    """How many connected regions, by flooding from each."""
    left, found = set(zip(*map(np.ndarray.tolist, np.nonzero(drawn)), strict=True)), 0
    while left:
        found, edge = found + 1, [left.pop()]
        while edge:
            row, column = edge.pop()
            for near in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                if near in left:
                    left.remove(near)
                    edge.append(near)
    return found
