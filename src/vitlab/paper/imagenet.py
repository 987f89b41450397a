"""The thousand classes of ILSVRC-2012 in the order every classifier uses: sorted by WordNet id."""

from functools import cache
from importlib.resources import files


@cache
def imagenet_classes() -> tuple[tuple[str, str], ...]:
    """(WordNet id, name) of class 0 to 999. Names are WordNet 3.0's first lemmas, two where one is not unique."""
    lines = files("vitlab.paper").joinpath("imagenet_classes.tsv").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("\t") for line in lines)
    return tuple((wordnet_id, name) for wordnet_id, name in pairs)
