"""Patterns of attention as values: their string form, what is refused, and the blocks that BigBird draws."""

import json
import math

import pytest

from vitlab.files.strict_json import from_json, to_json
from vitlab.spec import ViTSpec, with_attention
from vitlab.spec.patterns import (
    EXAMPLES,
    KINDS,
    Axial,
    BigBird,
    Fixed,
    Full,
    Neighbourhood,
    Pattern,
    Strided,
    Window,
    parse_pattern,
)

VIT = {"patch": 8, "layers": 12, "width": 24, "mlp": 48, "heads": 3, "image": (32, 40), "classes": 4}
FORMS = {
    "full": Full(),
    "axial": Axial(),
    "window:7": Window(7),
    "window:7+global:6": Window(7, 6),
    "neighbourhood:5": Neighbourhood(5),
    "strided": Strided(),
    "strided:14": Strided(14),
    "fixed": Fixed(),
    "fixed:14": Fixed(14),
    "fixed:summary=2": Fixed(summary=2),
    "fixed:block=14,summary=2": Fixed(14, 2),
    "bigbird": BigBird(),
    "bigbird:32": BigBird(32),
    "bigbird:block=8,global=1,window=5,random=0,seed=7": BigBird(8, 1, 5, 0, 7),
}


@pytest.mark.parametrize("text", FORMS)
def test_a_pattern_and_its_string_form_are_the_same(text):
    assert parse_pattern(text) == FORMS[text]
    assert str(FORMS[text]) == text
    assert parse_pattern(FORMS[text]) is FORMS[text]


def test_every_kind_has_a_string_form_here_and_an_example():
    assert {type(pattern) for pattern in FORMS.values()} == set(KINDS.values())
    assert {type(parse_pattern(example)) for example in EXAMPLES} == set(KINDS.values())


def test_other_spellings_of_a_pattern_become_one():
    assert str(parse_pattern("fixed:summary=1,block=7")) == "fixed:7"
    assert str(parse_pattern("window:size=7,every=6")) == "window:7+global:6"
    assert str(parse_pattern("bigbird:seed=0,block=16")) == "bigbird"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("windows:7", "attention 'windows:7' is unknown; allowed are full, axial, window:7"),
        ("", "is unknown; allowed are"),
        ("window", "lacks its size; allowed are"),
        ("window:0", "attention 'window': size 0 is outside 1..65,536"),
        ("window:99999999", "size 99999999 is outside 1..65,536"),
        ("window:-7", "option '-7' is not understood; its options are size, every, as in window:size=7"),
        ("window:7,every=6", "option '7' is not understood"),
        ("window:7+global:0", "is unknown"),
        ("window:size=7,every=6+global:6", "is unknown"),
        ("strided+global:6", "is unknown"),
        ("full:7", "option '7' is not understood; it has none"),
        ("neighbourhood:4", "has no patch in the middle; give an odd size, 3 or 5"),
        ("fixed:block=7,block=8", "option 'block=8' is not understood; its options are block, summary"),
        ("fixed:blocks=7", "option 'blocks=7' is not understood"),
        ("fixed:summary=0", "summary 0 is outside 1..65,536"),
        ("bigbird:window=2", "a window of 2 blocks has none in the middle; give an odd number"),
        ("bigbird:global=-1", "option 'global=-1' is not understood; its options are block, global, window, random"),
        ("window:٧", "not understood"),
        (7, "attention 7 is not text"),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(text, problem):
    with pytest.raises(ValueError) as caught:
        parse_pattern(text)
    assert problem in str(caught.value)


def test_a_spec_keeps_the_string_form_in_json_and_takes_the_patterns_themselves():
    spec = ViTSpec(**VIT, attention=BigBird(seed=3))
    assert spec.attention == "bigbird:seed=3"
    assert spec.pattern == BigBird(seed=3)
    value = json.loads(json.dumps(to_json(spec)))
    assert value["attention"] == "bigbird:seed=3"
    assert from_json(ViTSpec, value) == spec
    for old in ("full", "axial"):
        value |= {"attention": old, "pool": "mean"}
        assert from_json(ViTSpec, value).attention == old
        assert f"attention='{old}'" in repr(from_json(ViTSpec, value))  # on which fingerprints depend
    with pytest.raises(ValueError, match="attention 'half' is unknown"):
        from_json(ViTSpec, value | {"attention": "half"})


@pytest.mark.parametrize("attention", ["window:7", "neighbourhood:3", "strided", "fixed", "bigbird"])
def test_what_needs_every_token_at_its_place_is_refused(attention):
    with pytest.raises(ValueError, match=f"{attention} attention has no relative positions; give 2d, 1d or none"):
        ViTSpec(**VIT, attention=attention, positions="relative")
    with pytest.raises(ValueError, match=f"{attention} attention needs the whole grid of patches; merge must be 0"):
        ViTSpec(**VIT, attention=attention, merge=2)


def test_axial_weights_fit_axial_attention_alone():
    axial = ViTSpec(**VIT, attention="axial", pool="mean")
    assert with_attention(axial, "axial") == axial
    with pytest.raises(
        ValueError, match="window:7 attention does not fit weights for axial attention; axial attention"
    ):
        with_attention(axial, "window:7")
    with pytest.raises(ValueError, match="axial attention does not fit weights for full attention"):
        with_attention(ViTSpec(**VIT, pool="mean"), "axial")


def test_every_sixth_layer_of_twelve_is_full():
    pattern = Window(7, 6)
    assert [layer for layer in range(12) if pattern.at_layer(layer) == Full()] == [5, 11]
    assert {str(pattern.at_layer(layer)) for layer in range(5)} == {"window:7"}
    assert all(Window(7).at_layer(layer) == Window(7) for layer in range(12))


def test_defaults_follow_the_grid():
    assert Strided().step((14, 14)) == 14
    assert Strided().step((4, 100)) == 20
    assert Strided(50).step((3, 5)) == 15
    assert Fixed(summary=9).sizes((3, 4)) == (4, 4)
    for rows in range(1, 12):
        for columns in range(1, 12):
            assert Strided().step((rows, columns)) == math.ceil(math.sqrt(rows * columns))


@pytest.mark.parametrize("grid", [(14, 14), (32, 32), (5, 31)])
@pytest.mark.parametrize("layer", [0, 7])
def test_the_blocks_of_bigbird(grid, layer):
    pattern = BigBird(block=4, global_=3, window=3, random=2, seed=11)
    blocks = math.ceil(math.prod(grid) / 4)
    table = pattern.table(grid, layer)
    assert len(table) == blocks - 3  # two blocks before, one after
    for row, seen in enumerate(table, start=2):
        own = {0, 1, blocks - 1} | {block for block in (row - 1, row, row + 1) if block < blocks}
        found = [block for block in seen if block >= 0]
        assert own <= set(found) <= set(range(blocks))
        assert len(found) == len(set(found)) == min(len(own) + 2, blocks)
        assert len(seen) == min(3 + 3 + 2, blocks)


def test_the_tables_of_all_layers_together_are_limited():
    """A small file could otherwise ask for minutes and gigabytes: specs are checked before any weight is read."""
    huge = VIT | {"patch": 1, "image": (32_768, 32_768), "attention": "bigbird:8192"}
    with pytest.raises(ValueError, match=r"'bigbird:8192' needs tables of 12,582,912 blocks in 12 layers; at most"):
        ViTSpec(**huge)
    ViTSpec(**(VIT | {"patch": 14, "image": (4088, 4088), "layers": 32, "attention": "bigbird"}))


def test_random_blocks_depend_on_seed_layer_and_grid_alone():
    def drawn(seed=0, grid=(32, 32), layer=0):
        return BigBird(block=4, seed=seed).table(grid, layer)

    assert drawn() == drawn()
    assert len({drawn(), drawn(seed=1), drawn(layer=1), drawn(grid=(32, 33))}) == 4
    # Drawn by Python's Mersenne Twister, whose `random` never changes: models saved today attend to the same blocks.
    assert drawn()[:3] == PINNED


PINNED = (
    (0, 1, 2, 11, 44, 132, 255, -1),
    (0, 1, 2, 3, 36, 134, 139, 255),
    (0, 2, 3, 4, 58, 133, 233, 255),
)


def test_a_pattern_costs_what_its_formula_says():
    patches = 64 * 64
    assert Full().pairs((64, 64), 1) == (patches + 1) ** 2
    assert Window(8).pairs((64, 64), 1) == patches + 1 + patches * 65
    smaller = 18 * 7 * 8 + 1 * 2  # windows of 1 x 7, and one patch in the corner
    assert Window(7).pairs((64, 64), 1) == patches + 1 + 9 * 9 * 49 * 50 + smaller
    assert Window(7).pairs((3, 5), 0) == 15 * 15
    assert Fixed(64, 2).pairs((64, 64), 0) == patches * (62 + 128)
    assert Strided(64).pairs((64, 64), 2) == 2 * (patches + 2) + patches * (192 + 64 + 2)
    assert isinstance(Full(), Pattern)
