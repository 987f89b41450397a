"""The sample pictures of the page."""

import io

import numpy as np
import pytest
from PIL import Image

from vitlab.data.images.refusals import BadImage
from vitlab.page.samples import PICTURES, samples


def pixels(png):
    with Image.open(io.BytesIO(png)) as image:
        return np.array(image)


def test_drawn_samples_are_named_png_files_and_the_same_every_time():
    first, again = samples(), samples()
    assert [sample.name for sample in first] == list(PICTURES)
    assert first == again
    assert {pixels(sample.png).shape for sample in first} == {(256, 256, 3)}
    assert len({sample.png for sample in first}) == len(PICTURES)


def test_pictures_of_a_folder_follow_with_names_that_fit_an_address(tmp_path):
    colour = Image.new("RGB", (30, 20), (200, 10, 40))
    colour.save(tmp_path / "b & c?.bmp")
    colour.save(tmp_path / "a.png")
    found = samples(tmp_path)[len(PICTURES) :]
    assert [sample.name for sample in found] == ["a", "b-c-"]
    assert (pixels(found[1].png) == np.array(colour)).all()


def test_two_samples_cannot_share_a_name(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "clock.png")
    with pytest.raises(ValueError, match="two sample pictures have the name clock; rename one"):
        samples(tmp_path)


def test_a_file_that_is_no_picture_is_named(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(BadImage, match=r"broken\.png"):
        samples(tmp_path)
