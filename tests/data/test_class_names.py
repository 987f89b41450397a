"""Classes of one set among those of another: by name, by number where names are numbers, and never by chance."""

import operator
import pickle

import pytest

from vitlab.data.class_names import in_order, matched, numbers_of, renumbered
from vitlab.data.fingerprint import fingerprint
from vitlab.data.loading.batches import order_of
from vitlab.data.sources.catalogue import open_source


@pytest.mark.parametrize(
    ("expected", "found", "numbers"),
    [
        (("a", "b", "c"), ("a", "b", "c"), (0, 1, 2)),
        (("a", "b", "c"), ("c", "a"), (2, 0)),
        (("crane", "crane"), ("crane", "crane"), (0, 1)),
        (("0", "1", "10", "2"), ("0", "1", "2", "10"), (0, 1, 3, 2)),
        (("0", "1", "2"), ("02", "00"), (2, 0)),
        ((), (), ()),
    ],
)
def test_classes_are_matched_by_name_and_numbers_by_number(expected, found, numbers):
    assert matched(expected, found) == numbers


@pytest.mark.parametrize(
    ("expected", "found", "message"),
    [
        (("a", "b"), ("a", "c"), r"missing 'b', new 'c'"),
        (("a", "b"), (), r"2 expected, 0 found"),
        (("crane", "dog", "crane"), ("crane",), r"several are called 'crane'"),
        (("7", "8"), ("7", "08", "9"), r"new '9'"),
        (("7",), ("007", "07"), r"'007', '07' are the same number"),
    ],
)
def test_what_cannot_be_matched_is_refused(expected, found, message):
    with pytest.raises(ValueError, match=message):
        matched(expected, found)


def test_names_that_are_all_numbers_stand_for_them():
    assert in_order(["10", "9", "b"]) == ("10", "9", "b")
    assert in_order(["10", "9", "0"]) == ("0", "9", "10")
    assert numbers_of(("0", "9", "10")) == (0, 9, 10)
    assert numbers_of(("9", "b")) == (0, 1)


def test_a_renumbered_source_is_the_same_but_for_its_labels():
    source = open_source("shapes?classes=3&images=9&size=16")
    a, b, c = source.class_names
    other = renumbered(source, (c, "none", a, b))
    assert renumbered(source, source.class_names) is source
    assert other.missing() == ("none",)
    for one in (other, pickle.loads(pickle.dumps(other))):  # noqa: S301 - workers get it so
        assert one.class_names == (c, "none", a, b)
        for index in range(len(source)):
            named = {of: [of.class_names[label] for label in of.label(index)] for of in (source, one)}
            assert named[source] == named[one]
            assert one.item(index).labels == one.label(index)
            assert (one.item(index).data == source.item(index).data).all()
    assert operator.attrgetter("identity")(other) == source.identity
    assert order_of(other) == order_of(source)
    assert fingerprint(other) != fingerprint(source)
