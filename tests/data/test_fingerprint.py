"""Files that were overwritten under the same names are noticed, for every kind of data and without reading them."""

import os

import pytest

from kinds import KINDS, folder, shards
from vitlab.data.fingerprint import state
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.shards import index_folder
from vitlab.data.splits import take


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_of_files_changes_when_one_is_written_again(kind, tmp_path):
    spec, file = kind(tmp_path)

    def opened():
        if kind is shards:
            index_folder(tmp_path)
        return open_source(spec)

    before = state(opened())
    assert len(before) == 64
    assert state(opened()) == before
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))  # as after other bytes of the same number
    assert state(opened()) != before


def test_a_part_of_a_set_has_the_state_of_its_own_files_alone(tmp_path):
    spec, changed = folder(tmp_path)  # the second of three
    before = open_source(spec)
    os.utime(changed, ns=(0, 1))
    after = open_source(spec)
    assert state(take(before, [0, 2])) == state(take(after, [0, 2]))
    assert state(take(before, [0, 1])) != state(take(after, [0, 1]))


def test_what_lies_in_no_file_has_no_state():
    drawn = open_source("shapes?classes=3&images=9&size=16")
    assert state(drawn) == state(take(drawn, [1, 2])) == ""
