"""Lists of samples to leave out: every kind of data takes one, and the account says so."""

import json
import os
import pickle

import numpy as np
import pytest

import vitlab
from kinds import cifar, folder, idx, stored_arrays, table
from pictures import jpeg
from vitlab.data.contents import compare, take
from vitlab.data.dedup.exclusion import Entry, Remaining, read_list, write_list
from vitlab.data.dedup.hash_files import identity
from vitlab.data.fingerprint import fingerprint
from vitlab.data.loading.accounting import Excluded
from vitlab.data.sources.catalogue import KINDS, described_kinds
from vitlab.data.splits import development_split
from vitlab.data.survey import empty_survey, survey


def listed(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def photos(tmp_path):
    """12 images of two classes, and a text file that is no image."""
    for number in range(12):
        (tmp_path / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / "ab"[number % 2] / f"{number}.jpg").write_bytes(jpeg())
    (tmp_path / "photos" / "a" / "notes.txt").write_text("words")
    return f"folder:{tmp_path / 'photos'}"


def test_the_samples_of_a_list_are_left_out_and_accounted_for(tmp_path, photos):
    names = [
        {"id": "a/2.jpg", "reason": "near_duplicate"},
        {"id": "b/7.jpg", "reason": "near_duplicate"},
        {"id": "b/1.jpg"},
    ]
    source = vitlab.open_data(f"{photos}?exclude={listed(tmp_path / 'list', *names)}")
    assert len(source) == 9
    assert {source.id(n) for n in range(9)} == {f"{'ab'[n % 2]}/{n}.jpg" for n in range(12)} - {
        "a/2.jpg",
        "b/7.jpg",
        "b/1.jpg",
    }
    found = empty_survey(source)
    for _ in survey(source, found):
        pass
    assert found.account.found == 13
    assert found.account.is_balanced()
    assert dict(found.account.excluded) == {"other_suffix": 1, "near_duplicate": 2, "listed": 1}
    assert ("excluded", "2 near-duplicates of test images") in list(found.account.entries())
    assert "2 near-duplicates of test images ('a/2.jpg', 'b/7.jpg')" in source.excluded.lines()


def test_another_list_is_another_fingerprint(tmp_path, photos):
    some = [listed(tmp_path / f"{n}", {"id": f"a/{n}.jpg"}) for n in (2, 4)]
    marks = {fingerprint(vitlab.open_data(spec)) for spec in (photos, *(f"{photos}?exclude={file}" for file in some))}
    assert len(marks) == 3


@pytest.mark.parametrize("removed", [[], [0], [9], [0, 1, 2], [7, 8, 9], [0, 2, 4, 6, 8], list(range(9)), [3, 4, 8]])
def test_the_others_keep_their_order(removed):
    whole = vitlab.open_data("shapes?images=10")
    rest = Remaining(whole, np.array(removed, int), Excluded())
    kept = [n for n in range(10) if n not in removed]
    assert [rest.place(n) for n in range(len(rest))] == kept
    assert [rest.label(n) for n in range(len(rest))] == [whole.label(n) for n in kept]
    with pytest.raises(IndexError):
        rest.item(len(rest))


@pytest.mark.parametrize("made", [folder, table, stored_arrays, idx, cifar])
def test_every_kind_of_data_takes_a_list(tmp_path, made):
    spec, _ = made(tmp_path)
    whole = vitlab.open_data(spec)
    file = listed(tmp_path / "list", {"id": whole.id(1), "number": 1})
    rest = vitlab.open_data(f"{spec}{'&' if '?' in spec else '?'}exclude={file}")
    assert [rest.id(n) for n in range(len(rest))] == [whole.id(n) for n in range(len(whole)) if n != 1]


def test_all_kinds_say_that_they_take_a_list():
    assert all("exclude=" in form for form in described_kinds())
    assert len(described_kinds()) == len(KINDS)


def test_a_list_goes_to_workers_and_into_splits(tmp_path, photos):
    source = vitlab.open_data(f"{photos}?exclude={listed(tmp_path / 'list', {'id': 'a/2.jpg'})}")
    again = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    assert [again.id(n) for n in range(11)] == [source.id(n) for n in range(11)]
    parts = development_split(source, 0.3)
    assert "a/2.jpg" not in {part.id(n) for part in parts for n in range(len(part))}


def test_changed_pictures_are_still_noticed(tmp_path, photos):
    source = vitlab.open_data(f"{photos}?exclude={listed(tmp_path / 'list', {'id': 'a/2.jpg'})}")
    mark = fingerprint(source)
    before = take(source, mark)
    assert compare(before, source, mark).is_same
    (tmp_path / "photos" / "b" / "3.jpg").write_bytes(jpeg(quality=30))
    assert not compare(before, source, mark).is_same


def test_what_is_written_is_read_again(tmp_path):
    entries = [Entry("a\nb.jpg", "near_duplicate", 3), Entry(os.fsdecode(b"\xff.jpg"), "listed", 4)]
    write_list(tmp_path / "list", "some data", entries)
    header, found = read_list(tmp_path / "list")
    assert header is not None
    assert header.pictures == "some data"
    assert list(found.values()) == entries


def test_the_list_of_other_data_is_refused(tmp_path, photos):
    write_list(tmp_path / "list", identity(vitlab.open_data(photos)), [Entry("a/2.jpg", "near_duplicate", 1)])
    spec = f"{photos}?exclude={tmp_path / 'list'}"
    assert len(vitlab.open_data(spec)) == 11
    (tmp_path / "photos" / "a" / "new.jpg").write_bytes(jpeg())
    with pytest.raises(ValueError, match=r"was made for other data.*run vitlab data dedup again"):
        vitlab.open_data(spec)


def test_wrong_numbers_do_not_matter(tmp_path, photos):
    source = vitlab.open_data(f"{photos}?exclude={listed(tmp_path / 'list', {'id': 'a/2.jpg', 'number': 5})}")
    assert "a/2.jpg" not in {source.id(n) for n in range(len(source))}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([{"id": "a/2.jpg"}, {"id": "c/1"}, {"id": "c/2"}], "lists 2 samples that the data lacks: 'c/1', 'c/2'"),
        ([{"id": f"{'ab'[n % 2]}/{n}.jpg"} for n in range(12)], "lists all 12 samples"),
        ([{"id": 3}], "line 1.id is 3; expected a string"),
        ([{"id": "a/2.jpg", "reason": "ugly"}], "allowed are 'near_duplicate', 'listed'"),
        ([{"id": "a/2.jpg", "label": 1}], "unknown keys"),
        ([["a/2.jpg"]], "expected an object"),
        ([{"format": "zip", "version": 1, "pictures": ""}], "line 1 is 'zip', version 1; expected 'vitlab-exclusion'"),
    ],
)  # fmt: skip
def test_a_list_that_makes_no_sense_is_refused(tmp_path, photos, lines, told):
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        vitlab.open_data(f"{photos}?exclude={listed(tmp_path / 'list', *lines)}")


def test_a_missing_list_and_one_that_is_no_file_are_refused(tmp_path, photos):
    os.mkfifo(tmp_path / "pipe")
    for name, told in (("none", "does not exist"), ("pipe", "is a FIFO")):
        with pytest.raises(OSError, match=told):
            vitlab.open_data(f"{photos}?exclude={tmp_path / name}")


def test_the_first_sample_with_several_labels_is_still_known(tmp_path):
    names = ["one", "two;three", "four", "two;four"]
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg())
    rows = "".join(f"{number}.jpg,{name}\n" for number, name in enumerate(names))
    (tmp_path / "t.csv").write_text(f"path,label\n{rows}")
    spec = f"csv:{tmp_path / 't.csv'}?separator=;&exclude="
    for removed, first in ((["0.jpg"], 0), (["1.jpg"], 2), (["1.jpg", "3.jpg"], None), (["2.jpg"], 1)):
        source = vitlab.open_data(f"{spec}{listed(tmp_path / 'list', *({'id': name} for name in removed))}")
        assert source.first_not_single == first


# -- Whole lists -----------------------------------------------------------------------------------


@pytest.fixture
def whole(tmp_path, photos):
    """A list of three samples as vitlab writes it."""
    entries = [Entry(f"a/{n}.jpg", "near_duplicate") for n in (0, 2, 4)]
    write_list(tmp_path / "list", identity(vitlab.open_data(photos)), entries)
    assert len(vitlab.open_data(f"{photos}?exclude={tmp_path / 'list'}")) == 9
    return tmp_path / "list"


@pytest.mark.parametrize("lines", [0, 1, 2, 3, 5])
def test_a_list_that_was_cut_short_or_extended_is_refused(whole, photos, lines):
    kept = [*whole.read_text().splitlines(keepends=True), '{"id": "a/6.jpg"}'][:lines]
    whole.write_text("".join(kept))
    with pytest.raises(ValueError, match=r"cut short.*; write the list again with vitlab data dedup"):
        vitlab.open_data(f"{photos}?exclude={whole}")


def test_a_list_of_nothing_is_whole(tmp_path, photos):
    write_list(tmp_path / "list", identity(vitlab.open_data(photos)), [])
    assert len(vitlab.open_data(f"{photos}?exclude={tmp_path / 'list'}")) == 12


def test_an_older_list_is_whole_if_the_summary_beside_it_says_so(whole, photos):
    header, *lines = whole.read_text().splitlines()
    without = {name: value for name, value in json.loads(header).items() if name != "entries"}
    spec = f"{photos}?exclude={whole}"
    listed(whole, without, *map(json.loads, lines))
    with pytest.raises(ValueError, match="cannot be told whether it is complete; write the list again"):
        vitlab.open_data(spec)
    whole.with_name("dedup.json").write_text('{"removed": 3}')
    assert len(vitlab.open_data(spec)) == 9
    listed(whole, without, *map(json.loads, lines[:2]))
    with pytest.raises(ValueError, match="lists 2 samples of 3"):
        vitlab.open_data(spec)


def test_a_missing_list_says_what_to_do(tmp_path, photos):
    with pytest.raises(OSError, match=r"does not exist; write the list again with vitlab data dedup, or leave"):
        vitlab.open_data(f"{photos}?exclude={tmp_path / 'none'}")
