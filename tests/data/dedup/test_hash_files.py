"""Files of hashes: complete if they exist, and made again if pictures or files have changed."""

import numpy as np
import pytest

import vitlab
from near_duplicates import picture
from pictures import jpeg
from vitlab.data.dedup import hash_files
from vitlab.data.dedup.hash_files import Hashes, HashFolder, hash_part
from vitlab.data.dedup.hashing import perceptual_hashes, thumbnail


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(hash_files, "PER_FILE", 4)
    monkeypatch.setattr(hash_files, "READ", 3)


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "photos" / "a").mkdir(parents=True)
    for number in range(10):
        picture(number).save(tmp_path / "photos" / "a" / f"{number}.png")
    return tmp_path / "photos"


def written(source, folder):
    """Write what is missing; returns the numbers of those files."""
    folder.begin(source)
    missing = [number for number in range(folder.files) if not (folder.path / folder.name(number)).exists()]
    for number in missing:
        (*_, made) = hash_part(source, folder.part(number))
        folder.write(number, made, source)
    return missing


def test_files_hold_the_hashes_of_all_pictures(photos, tmp_path):
    (photos / "a" / "5.png").write_bytes(b"not a picture")
    source = vitlab.open_data(f"folder:{photos}")
    folder = HashFolder(tmp_path / "hashes", len(source))
    assert written(source, folder) == [0, 1, 2]
    parts = [folder.read(number) for number in range(3)]
    assert np.concatenate([part.numbers for part in parts]).tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    assert [(bad.id, bad.reason) for part in parts for bad in part.bad] == [("a/5.png", "not_an_image")]
    assert all(bad.sha256 for part in parts for bad in part.bad)
    expected = [thumbnail(picture(number)) for number in (0, 1, 2, 3, 4, 6, 7, 8, 9)]
    assert np.array_equal(np.concatenate([part.thumbnails for part in parts]), expected)
    assert np.concatenate([part.hashes for part in parts]).tolist() == perceptual_hashes(np.stack(expected)).tolist()


def test_progress_is_reported_before_the_result(photos):
    *counts, made = hash_part(vitlab.open_data(f"folder:{photos}"), range(2, 9))
    assert counts == [3, 6, 7]
    assert isinstance(made, Hashes)


def test_what_is_there_is_not_read_again(photos, tmp_path):
    source = vitlab.open_data(f"folder:{photos}")
    folder = HashFolder(tmp_path / "hashes", len(source))
    written(source, folder)
    (folder.path / folder.name(1)).unlink()  # as after a kill
    assert written(source, folder) == [1]
    assert written(source, folder) == []


def test_a_changed_picture_is_hashed_again(photos, tmp_path):
    source = vitlab.open_data(f"folder:{photos}")
    folder = HashFolder(tmp_path / "hashes", len(source))
    written(source, folder)
    (photos / "a" / "9.png").write_bytes(jpeg())
    assert written(vitlab.open_data(f"folder:{photos}"), folder) == [2]


def test_other_pictures_are_hashed_anew(photos, tmp_path):
    source = vitlab.open_data(f"folder:{photos}")
    written(source, HashFolder(tmp_path / "hashes", len(source)))
    (photos / "a" / "9.png").rename(photos / "a" / "99.png")
    source = vitlab.open_data(f"folder:{photos}")
    assert written(source, HashFolder(tmp_path / "hashes", len(source))) == [0, 1, 2]


DAMAGES = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "changed": lambda data: data[:3000] + bytes([data[3000] ^ 1]) + data[3001:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_made_again(photos, tmp_path, damage):
    source = vitlab.open_data(f"folder:{photos}")
    folder = HashFolder(tmp_path / "hashes", len(source))
    written(source, folder)
    file = folder.path / folder.name(1)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"00001.npz is damaged"):
        folder.read(1)
    assert written(source, folder) == [1]


def test_data_in_no_file_is_always_hashed_anew(tmp_path):
    class Pictures:
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return picture(index), 0

    source = vitlab.open_data(Pictures())
    folder = HashFolder(tmp_path / "hashes", 5)
    assert written(source, folder) == [0, 1]
    assert written(source, folder) == [0, 1]


def test_drawn_data_keeps_its_hashes(tmp_path):
    source = vitlab.open_data("shapes?images=5")
    folder = HashFolder(tmp_path / "hashes", 5)
    assert written(source, folder) == [0, 1]
    assert written(source, folder) == []
