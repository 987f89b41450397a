"""The 1,000 classes of ILSVRC-2012 in the usual order, sorted by WordNet id."""

from functools import cache
from importlib.resources import files


@cache
def imagenet_classes() -> tuple[tuple[str, str], ...]:
    """Return (WordNet id, name) of classes 0 to 999. A name is the first WordNet 3.0 lemma, or two to be unique."""
    lines = files("vitlab.paper").joinpath("imagenet_classes.tsv").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t") for line in lines)
    return tuple((wordnet_id, name) for wordnet_id, name in pairs)
