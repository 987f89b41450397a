"""ObjectNet: its folders, its map to ImageNet's classes, and its border."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from vitlab.models.build import build_from_spec
from vitlab.paper.imagenet import imagenet_classes
from vitlab.spec import ViTSpec

OBJECTS = {"alarm_clock": "Alarm clock", "pen": "Pen", "airfreshener": "Air freshener"}
MAP = {"Alarm clock": "analog clock; digital clock", "Pen": "ballpoint, ballpoint pen, ballpen, Biro"}
NUMBERS = {"analog clock": 409, "digital clock": 530, "ballpoint, ballpoint pen, ballpen, Biro": 418}


def write(root, first=0, folder="objectnet-1.0"):
    """Two images of each object; lines are in an order of their own, counted from `first`."""
    root = root / folder
    (root / "mappings").mkdir(parents=True)
    order = np.random.default_rng(0).permutation(1000)  # the line of each class
    lines = [""] * 1000
    named = {number: text for text, number in NUMBERS.items()}
    for number, line in enumerate(order):
        lines[line] = named.get(number, f"class {number}")
    (root / "mappings" / "imagenet_to_label_2012_v2").write_text("\n".join(lines))
    texts = {
        "folder_to_objectnet_label.json": OBJECTS,
        "objectnet_to_imagenet_1k.json": MAP,
        "pytorch_to_imagenet_2012_id.json": {str(n): int(line) + first for n, line in enumerate(order)},
    }
    for name, value in texts.items():
        (root / "mappings" / name).write_text(json.dumps(value))
    for place, name in enumerate(OBJECTS):
        (root / "images" / name).mkdir(parents=True)
        for number in range(2):
            pixels = np.full((20, 30, 3), (255, 0, 0), np.uint8)
            pixels[1:-1, 1:-1] = 40 * place + number
            Image.fromarray(pixels).save(root / "images" / name / f"{number}.png")
    return root


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("folder", ["objectnet-1.0", "."])
def test_objects_with_classes_of_imagenet_are_read_without_their_border(tmp_path, first, folder):
    write(tmp_path, first, folder)
    source = vitlab.open_data(f"objectnet:{tmp_path}")
    assert source.class_names == ("Alarm clock", "Pen")
    assert source.imagenet_numbers == ((409, 530), (418,))
    assert [source.id(n) for n in range(4)] == ["alarm_clock/0.png", "alarm_clock/1.png", "pen/0.png", "pen/1.png"]
    assert [source.label(n) for n in range(4)] == [(0,), (0,), (1,), (1,)]
    assert [np.unique(source.item(n).data).tolist() for n in range(4)] == [[0], [1], [40], [41]]
    assert source.item(0).data.shape == (18, 28, 3)
    assert dict(source.excluded) == {"no_imagenet_class": 2}


def test_any_class_of_the_map_is_correct_when_a_model_is_evaluated(tmp_path):
    write(tmp_path)
    spec = ViTSpec(patch=8, layers=1, width=8, mlp=8, heads=1, image=(8, 8), classes=1000, head="linear")
    model = build_from_spec(spec)
    model.class_names = tuple(name for _, name in imagenet_classes())
    for answer, right in ((409, 2), (530, 2), (418, 2), (5, 0)):
        with torch.no_grad():
            model.head.logits.weight.zero_()
            model.head.logits.bias.copy_(torch.nn.functional.one_hot(torch.tensor(answer), 1000).float())
        found = vitlab.evaluate(model, f"objectnet:{tmp_path}", None, quiet=True)
        row = dict(zip(found.table.columns, found.table.rows[0], strict=True))
        assert (row["top-1 %"], row["count"]) == (100 * right / 4, 4)


def test_models_of_other_classes_are_refused(tmp_path):
    write(tmp_path)
    model = build_from_spec(ViTSpec(patch=8, layers=1, width=8, mlp=8, heads=1, image=(8, 8), classes=5, head="linear"))
    with pytest.raises(ValueError, match="the data's own map is for a model of ImageNet's 1000 classes"):
        vitlab.evaluate(model, f"objectnet:{tmp_path}", None, quiet=True)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("pytorch_to_imagenet_2012_id.json", {"0": 0}, "does not give each of ImageNet's 1000 classes a line"),
        ("objectnet_to_imagenet_1k.json", {"Pen": "quill pen"}, "which is no class of ImageNet"),
        ("folder_to_objectnet_label.json", {"pen": "Pen"}, "does not name the folder 'airfreshener'"),
    ],
)
def test_wrong_maps_are_errors(tmp_path, name, value, said):
    root = write(tmp_path)
    (root / "mappings" / name).write_text(json.dumps(value))
    with pytest.raises(ValueError, match=said):
        vitlab.open_data(f"objectnet:{tmp_path}")


def test_an_archive_must_be_unpacked(tmp_path):
    (tmp_path / "objectnet-1.0.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match="unpack the archive with its password"):
        vitlab.open_data(f"objectnet:{tmp_path}")
