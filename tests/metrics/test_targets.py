"""ReaL labels and label maps: who is right, and what is refused."""

import json

import pytest

from vitlab.metrics.targets import RealLabels, read_label_map, read_real


def test_real_labels_are_joined_by_the_number_in_the_name_and_empty_lists_stay_empty():
    real = RealLabels(((3, 4), (), (7,)))
    assert real.of((9,), "ILSVRC2012_val_00000001.JPEG") == (3, 4)
    assert real.of((9,), "n01440764/ILSVRC2012_val_00000002.JPEG") == ()
    assert real.of((9,), "ILSVRC2012_val_00000003") == (7,)
    for strange in ("cat.jpg", "ILSVRC2012_val_00000004.JPEG", "ILSVRC2012_val_00000000.JPEG", "ILSVRC2012_val_1.JPEG"):
        with pytest.raises(ValueError, match="ReaL"):
            real.of((), strange)


@pytest.mark.parametrize("value", [{}, [[1]], [[1]] * 49_999, [[1000]] * 50_000, [1] * 50_000, [["1"]] * 50_000])
def test_a_file_that_is_not_real_json_is_refused(tmp_path, value):
    (tmp_path / "real.json").write_text(json.dumps(value))
    with pytest.raises(ValueError, match=r"real\.json"):
        read_real(tmp_path / "real.json")


def written(tmp_path, value):
    (tmp_path / "map.json").write_text(json.dumps(value))
    return tmp_path / "map.json"


def test_a_label_map_takes_names_numbers_lists_and_nothing(tmp_path):
    path = written(tmp_path, {"bird": "crow", "pet": ["cat", 2, "cat"], "chair": [], "fish": 0})
    found = read_label_map(path, ("fish", "bird", "pet", "chair"), ("eel", "crow", "dog", "cat"), range(4))
    assert found.classes == ((0,), (1,), (3, 2), ())
    assert found.of((1, 2), "") == (1, 3, 2)
    assert found.used == (0, 1, 2, 3)


def test_a_number_in_a_label_map_is_the_class_of_that_number(tmp_path):
    path = written(tmp_path, {"bird": 10, "pet": "2", "fish": [0, 10]})
    assert read_label_map(path, ("fish", "bird", "pet"), ("0", "2", "10"), (0, 2, 10)).classes == ((0, 2), (2,), (1,))
    with pytest.raises(ValueError, match="no class 10"):
        read_label_map(path, ("fish", "bird", "pet"), ("zero", "2", "10"), range(3))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 0}, r"lacks \['b'\]"),
        ({"a": 0, "b": 1, "c": 2}, r"has \['c'\]"),
        ({"a": 0, "b": 9}, "no class 9"),
        ({"a": 0, "b": "z"}, "no class 'z'"),
        ({"a": 0, "b": "crane"}, "several classes 'crane'"),
        ({"a": 0, "b": None}, "no class None"),
        ({"a": 0, "b": True}, "no class True"),
        ([], "must be an object"),
    ],
)
def test_a_label_map_that_leaves_a_doubt_is_refused(tmp_path, value, message):
    with pytest.raises(ValueError, match=message):
        read_label_map(written(tmp_path, value), ("a", "b"), ("x", "crane", "crane"), range(3))
