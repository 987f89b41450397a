"""What the page says in words about a head, for attention that is made up to say one thing."""

import json

import numpy as np
import pytest

from page.serving import STATIC

RUN = """
import { Reading } from "%s";
import { sentence } from "%s";
import { readFileSync } from "node:fs";
const { seen, query } = JSON.parse(readFileSync(0, "utf8"));
const n = seen.length;
const card = { kind: "vit", patch: 1, prefix: 1, layers: 1, heads: 1, width: 1, classes: 1 };
const attention = new Float32Array(n * n);
for (let row = 0; row < n; row++) attention.set(seen, row * n);
const reading = new Reading(card, [8, 8], { attention }, new Uint8Array(n - 1).fill(1), null);
process.stdout.write(sentence(reading, { view: "head", layer: 1, head: 0, query }));
"""


ANSWERS_ONLY = """
import { Reading } from "%s";
import { sentence } from "%s";
const card = { kind: "answers only", name: "BiT", patch: 1, prefix: 0, layers: 0, heads: 0, width: 1, classes: 1 };
const reading = new Reading(card, [8, 8], { attention: new Float32Array(0) }, new Uint8Array(0), null);
for (const view of ["head", "rollout", "similarity", "colours", "picture"])
  process.stdout.write(sentence(reading, { view, layer: 1, head: 0, query: "class" }) + "\\n");
"""


def test_a_model_without_layers_has_a_sentence_in_every_view(node):
    script = ANSWERS_ONLY % tuple((STATIC / "inside" / name).as_uri() for name in ("reading.js", "sentences.js"))
    text = "BiT has no attention between all patches, so only its answer can be shown."
    assert node(script, b"").decode().splitlines() == [text] * 5


@pytest.fixture
def said(node):
    """A function from shares by token, the rest spread evenly, and a query to the sentence. Token 0 is the class."""

    def say(shares, query):
        seen = np.full(65, (1 - sum(shares.values())) / (65 - len(shares)))
        for token, share in shares.items():
            seen[token] = share
        script = RUN % tuple((STATIC / "inside" / name).as_uri() for name in ("reading.js", "sentences.js"))
        return node(script, json.dumps({"seen": seen.tolist(), "query": query}).encode()).decode()

    return say


@pytest.mark.parametrize(
    ("patch", "where"),
    [
        (27, "the patch itself"),
        (28, "its neighbour on the right"),
        (19, "its neighbour above"),
        (34, "its neighbour below on the left"),
        (43, "row 6, column 4"),
    ],
)
def test_the_brightest_patch_is_named_as_seen_from_the_query(said, patch, where):
    assert f"The brightest patch, {where}, gets 90.0 % of its attention." in said({1 + patch: 0.9}, 27)


def test_even_attention_is_everywhere(said):
    assert "the class token looks almost everywhere alike." in said({}, "class")


def test_attention_in_a_corner_is_at_the_top_left(said):
    assert "looks at about 4 of 64 patches, mostly at the top left." in said({1: 0.25, 2: 0.25, 9: 0.25, 10: 0.25}, 60)


def test_attention_on_the_class_token_is_not_on_the_picture(said):
    assert "60 % goes to the class token, which is not on the picture." in said({0: 0.6}, 27)


def test_a_head_that_looks_at_no_patch_says_so(said):
    assert "looks at no patch in particular." in said({0: 0.999}, 27)
