"""One rule for every command that takes images: files, folders and patterns."""

import pytest

from vitlab.data.images.pictures import image_files
from vitlab.data.loading.accounting import Excluded


@pytest.fixture
def photos(tmp_path):
    for name in ("b.jpg", "a.PNG", "below/c.webp", "below/deep/d.heic", "notes.txt", ".hidden.jpg", "below/e.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "below" / "loop").symlink_to(tmp_path)
    return tmp_path


def found(*given, excluded=None):
    return list(image_files(given, excluded))


def test_a_folder_is_its_images_at_any_depth_sorted_and_the_rest_is_counted(photos):
    left_out = Excluded()
    names = ("a.PNG", "b.jpg", "below/c.webp", "below/deep/d.heic")
    assert found(str(photos), excluded=left_out) == [f"{photos}/{name}" for name in names]
    assert left_out == {"hidden": 1, "other_suffix": 2, "linked_folder": 1}
    assert "1 .json file, 1 .txt file" in left_out.described()


def test_a_pattern_is_its_matches_sorted(photos):
    assert found(f"{photos}/*.[jP]*[gG]") == [f"{photos}/a.PNG", f"{photos}/b.jpg"]
    assert found(f"{photos}/**/*.webp") == [f"{photos}/below/c.webp"]  # once, although a link leads back
    assert found(f"{photos}/*.jpg") == [f"{photos}/b.jpg"]  # nothing hidden


def test_a_pattern_may_be_relative(photos, monkeypatch):
    monkeypatch.chdir(photos)
    assert found("below/*") == ["below/c.webp"]
    assert found("*/*/*.heic") == ["below/deep/d.heic"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(photos):
    (photos / "x[1].jpg").touch()
    assert found(f"{photos}/x[1].jpg") == [f"{photos}/x[1].jpg"]


def test_files_stay_as_they_were_given_and_in_their_order(photos):
    given = (f"{photos}/b.jpg", photos / "absent.png", f"{photos}/notes.txt", f"{photos}/a.PNG")
    assert found(*given) == list(given)


def test_what_holds_no_image_is_refused_with_what_it_holds(photos):
    (photos / "empty").mkdir()
    (photos / "words").mkdir()
    (photos / "words" / "a.txt").touch()
    with pytest.raises(ValueError, match=r"empty' has no images in it; it is empty"):
        found(photos / "empty")
    with pytest.raises(ValueError, match=r"words' has no images in it; left out: 1 \.txt file"):
        found(photos / "words")
    with pytest.raises(ValueError, match=r"no file matches '.*\*\.gif'"):
        found(f"{photos}/*.gif")
    with pytest.raises(ValueError, match=r"no image matches '.*\*\.txt'; left out: 1 \.txt file"):
        found(f"{photos}/*.txt")


def test_many_suffixes_and_names_are_counted_in_little_memory():
    left_out = Excluded()
    for number in range(10_000):
        left_out.leave_out("other_suffix", f"f{number}.x{number}")
    assert left_out == {"other_suffix": 10_000}
    assert sum(count for _, (count, _) in left_out.by_rule()) == 10_000
    assert len(left_out.kinds) <= 51
    assert all(len(names) <= 3 for _, names in left_out.kinds.values())
