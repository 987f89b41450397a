"""From pictures to names: good ones are answered, bad ones named, and the command line says the same."""

import io
import json
import os
import re

import numpy as np
import pytest
import torch
from PIL import Image

from agreement import randomised
from pictures import exif, jpeg, with_exif
from vitlab import load_model, predict, save_model
from vitlab.cli import main
from vitlab.data.transforms.evaluation import evaluation_pixels, normalised
from vitlab.engines.agreement import agreement
from vitlab.engines.making import missing_packages
from vitlab.engines.opening import open_engine
from vitlab.models.build import build_from_spec
from vitlab.runs.measure.inputs import class_names
from vitlab.runs.measure.prediction import BATCH, answers, batch_of, preprocess
from vitlab.spec import CONVENTIONS, ViTSpec


@pytest.fixture
def model():
    spec = ViTSpec(4, 2, 24, 40, 3, (16, 16), 5, head="linear", conventions=CONVENTIONS["timm"])
    made = randomised(build_from_spec(spec))
    made.class_names = ("ant", "bee", "[red]cat", "dog", "evil\x1b[2J\u202ename")
    return made


@pytest.fixture
def pictures(tmp_path):
    generator = torch.Generator().manual_seed(0)
    paths = []
    for number in range(19):  # more than one batch
        pixels = torch.randint(0, 256, (20 + number, 30, 3), generator=generator, dtype=torch.uint8)
        paths.append(tmp_path / f"p{number}.png")
        Image.fromarray(pixels.numpy()).save(paths[-1])
    return paths


def test_answers_equal_the_model_on_each_picture(model, pictures):
    found = predict(model, pictures, top=5)
    assert [answer.image for answer in found] == [str(path) for path in pictures]
    how = model.spec.conventions.preprocessing
    for path, answer in zip(pictures, found, strict=True):
        pixels = evaluation_pixels(Image.open(path), (16, 16), how)
        with torch.inference_mode():
            expected = model(normalised(pixels[None], how)).softmax(-1)[0]
        assert answer.guesses[0].index == expected.argmax()
        assert [g.probability for g in answer.guesses] == pytest.approx(
            sorted(expected.tolist(), reverse=True), abs=1e-5
        )
        assert answer.guesses[0].name == model.class_names[answer.guesses[0].index]


def test_an_engine_is_chosen_for_the_pictures_that_are_given():
    pixels = np.zeros((20, 30, 3), np.uint8)
    known = {1: pixels, 2: [pixels, b"junk"], 4: [pixels] * 3, 8: torch.zeros(5, 3, 16, 16), 16: (pixels,) * 40}
    assert {size: batch_of(given) for size, given in known.items()} == {size: size for size in known}
    assert [batch_of(given) for given in (iter([pixels]), "photos", ["a.jpg", pixels], [])] == [16, 16, 16, 1]


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_packages("onnxruntime")), reason="onnxruntime is not installed")
def test_one_picture_has_the_engine_that_is_fastest_for_one(model, pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VITLAB_ENGINE_CACHE", str(tmp_path / "engines"))
    found = predict(model, pictures[0], engine="auto")
    said = " ".join(capsys.readouterr().err.split())
    expected = (
        r"auto: estimated time for 1 image in batches of 1: torch [\d.]+ s \(opens in [\d.]+ s, [\d.]+ images/s\), "
    )
    assert re.search(f"engine {found.engine}: {expected}", said)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_packages("onnxruntime")), reason="onnxruntime is not installed")
def test_the_agreement_of_int8_is_in_the_answers(model, pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VITLAB_ENGINE_CACHE", str(tmp_path / "engines"))
    found = predict(model, pictures, engine="onnxruntime-int8")
    expected = agreement(open_engine(model, "onnxruntime-int8"), model, preprocess(model, pictures[:BATCH]))
    assert found.agreement == expected
    assert found.to_json()["agreement"] == {
        "images": BATCH,
        "same": expected.same,
        "difference": expected.difference,
    }
    assert f"onnxruntime-int8: {expected}" in " ".join(capsys.readouterr().err.split())
    assert len(found) == len(pictures)
    prepared = predict(model, preprocess(model, pictures), engine="onnxruntime-int8", quiet=True)
    assert prepared.agreement == expected
    assert predict(model, pictures, quiet=True).to_json()["agreement"] is None


def test_a_multi_label_model_answers_with_a_probability_of_each_class(model, pictures, tmp_path, capsys):
    model.task = "multi-label"
    with torch.inference_mode():
        expected = model(preprocess(model, pictures[0])).sigmoid()[0]
    (found,) = predict(model, pictures[0], top=5)
    assert {g.index: g.probability for g in found.guesses} == pytest.approx(
        dict(enumerate(expected.tolist())), abs=1e-5
    )
    assert sum(g.probability for g in found.guesses) != pytest.approx(1, abs=0.01)
    save_model(model, tmp_path / "model")
    assert main(["predict", str(tmp_path / "model"), str(pictures[0]), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["task"] == "multi-label"
    assert said["probabilities"].startswith("a sigmoid of each class")
    assert [g["probability"] for g in said["answers"][0]["guesses"]] == [g.probability for g in found.guesses]
    assert main(["predict", str(tmp_path / "model"), str(pictures[0])]) == 0
    assert "a sigmoid of each class" in " ".join(capsys.readouterr().err.split())


def test_no_engine_is_prepared_if_no_picture_exists(model, tmp_path, monkeypatch):
    monkeypatch.setattr("vitlab.engines.opening.fastest", None)
    (found,) = predict(model, tmp_path / "absent.png", engine="auto", quiet=True)
    assert found.reason == "missing"


def test_a_bad_picture_is_named_and_the_others_are_answered(model, pictures, tmp_path):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "page.jpg").write_text("<html>404</html>")
    os.mkfifo(tmp_path / "fifo.jpg")
    bad = [tmp_path / "empty.jpg", tmp_path / "page.jpg", tmp_path / "fifo.jpg", tmp_path / "absent.png"]
    mixed = [pictures[0], *bad, pictures[1]]
    found = predict(model, mixed)
    assert [answer.reason for answer in found] == ["", "empty", "not_an_image", "special_file", "missing", ""]
    (alone,) = predict(model, pictures[1:2])
    assert [g.index for g in found[-1].guesses] == [g.index for g in alone.guesses]


def test_a_long_thin_picture_does_not_stop_the_others(pictures, tmp_path):
    Image.new("RGB", (4000, 40)).save(tmp_path / "thin.png")
    spec = ViTSpec(64, 1, 24, 40, 3, (1024, 1024), 5, conventions=CONVENTIONS["timm"])  # few tokens
    model = build_from_spec(spec)
    found = predict(model, [tmp_path / "thin.png", pictures[0]])
    assert [answer.reason for answer in found] == ["aspect_ratio", ""]


def test_preprocess_gives_what_predict_sees(model, pictures):
    images = preprocess(model, pictures[:3])
    assert images.shape == (3, 3, 16, 16)
    with torch.inference_mode():
        best = model(images).argmax(-1).tolist()
    assert best == [answer.guesses[0].index for answer in predict(model, pictures[:3])]


def test_a_model_without_classes_says_what_to_do(model, pictures):
    model.reset_head(0)
    with pytest.raises(ValueError, match="no classes"):
        predict(model, pictures)


class TestWhatIsGiven:
    def test_one_path_is_a_list_of_one(self, model, pictures):
        for one in (pictures[0], str(pictures[0])):
            assert predict(model, one) == predict(model, [one])
            assert torch.equal(preprocess(model, one), preprocess(model, [one]))

    def test_any_iterable_of_paths_is_read_once(self, model, pictures):
        assert predict(model, iter(pictures)) == predict(model, pictures)
        for nothing in ([], {}, (), iter(())):
            with pytest.raises(ValueError, match="no picture was given; give a path"):
                predict(model, nothing)

    def test_nan_in_the_images_is_not_blamed_on_the_model(self, model):
        images = torch.zeros(2, 3, 16, 16)
        images[1, 0, 0, 0] = torch.nan
        with pytest.raises(ValueError, match="1 of 2 images contain NaN or infinity"):
            predict(model, images)

    def test_answers_print_as_what_the_model_says(self, model, pictures, tmp_path):
        (tmp_path / "page.jpg").write_text("<html>404</html>")
        model.class_names = ("ant", "bee", "cat", "dog", "eel")
        good, bad = predict(model, [pictures[0], tmp_path / "page.jpg"], top=2)
        first, second = good.guesses
        said = f"{first.name!r} {first.probability:.1%}, {second.name!r} {second.probability:.1%}"
        assert repr([good]) == f"[Answer({str(pictures[0])!r}: {said})]"
        assert repr(bad).startswith(f"Answer({str(tmp_path / 'page.jpg')!r}: starts with")

    def test_answers_come_a_batch_at_a_time(self, model, pictures, tmp_path):
        made = []

        def names():
            for path in pictures:
                made.append(path)
                yield path

        next(answers(model, names()))
        assert 1 <= len(made) < len(pictures)

    @pytest.mark.parametrize(
        ("act", "said"),
        [(predict, "photos: no such file or folder"), (preprocess, r"model is a str, 'photos'; .*vitlab.load_model")],
    )
    def test_what_is_no_model_or_no_path_is_named(self, act, said, model, pictures):
        with pytest.raises(ValueError, match=said):
            act("photos", pictures)
        with pytest.raises(ValueError, match=r"model is a Linear; .*vitlab.load_model"):
            act(torch.nn.Linear(2, 2), pictures)
        for wrong, kind in ((None, "NoneType"), (3, "int"), ([pictures[0], None], "NoneType"), ({1: 2}, "int")):
            with pytest.raises(ValueError, match=f"images must be a path .* not {kind}"):
                act(model, wrong)

    @pytest.mark.parametrize("act", [predict, preprocess])
    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            (np.zeros((3, 20, 30), np.uint8), r"array is \(H, W, 3\) of uint8, not \(3, 20, 30\) of uint8"),
            (np.zeros((20, 30, 3), np.float32), r"array is \(H, W, 3\) of uint8, not \(20, 30, 3\) of float32"),
            (np.zeros((20, 30), np.uint8), r"not \(20, 30\) of uint8"),
            (np.zeros((0, 30, 3), np.uint8), r"not \(0, 30, 3\) of uint8"),
            (torch.zeros(20, 30, 3, dtype=torch.uint8), r"tensor is \(3, H, W\) of uint8, not \(20, 30, 3\)"),
            ([torch.zeros(3, 16, 16)], r"tensor is \(3, H, W\) of uint8, not \(3, 16, 16\) of torch.float32"),
        ],
    )
    def test_an_array_of_another_form_is_refused_in_words(self, act, model, wrong, said):
        with pytest.raises(ValueError, match=said):
            act(model, wrong)

    def test_pictures_in_memory_are_answered_as_their_files(self, model, pictures):
        path = pictures[0]
        (expected,) = predict(model, path)
        with Image.open(path) as image:
            array = np.array(image)
            forms = [path.read_bytes(), image, array, torch.from_numpy(array).permute(2, 0, 1)]
            for form in forms:
                assert predict(model, form)[0].guesses == expected.guesses
                assert torch.equal(preprocess(model, form), preprocess(model, path))
            mixed = predict(model, [path, *forms])
        assert [answer.guesses[0].index for answer in mixed] == [expected.guesses[0].index] * 5
        assert [answer.image for answer in mixed] == [str(path), *(f"picture {place}" for place in range(2, 6))]

    def test_a_batch_of_arrays_or_tensors_is_so_many_pictures(self, model):
        generator = torch.Generator().manual_seed(0)
        batch = torch.randint(0, 256, (3, 3, 20, 30), generator=generator, dtype=torch.uint8)
        expected = predict(model, list(batch))
        assert len(expected) == 3
        for form in (batch, batch.permute(0, 2, 3, 1).numpy()):
            assert predict(model, form) == expected

    def test_floats_are_preprocessed_already(self, model, pictures):
        expected = predict(model, pictures)
        made = predict(model, preprocess(model, pictures))
        assert [answer.guesses[0].index for answer in made] == [answer.guesses[0].index for answer in expected]
        assert made[0].guesses[0].probability == pytest.approx(expected[0].guesses[0].probability, abs=1e-6)
        assert [made[0].image, made[-1].image] == ["picture 1", "picture 19"]
        with pytest.raises(ValueError, match=r"must be a preprocessed batch \(B, 3, H, W\), not \(3, 16, 16\)"):
            predict(model, torch.zeros(3, 16, 16))
        with pytest.raises(ValueError, match="32"):
            predict(model, torch.zeros(1, 3, 32, 32))

    def test_a_turned_photograph_opened_by_pillow_is_turned(self, model, tmp_path):
        (tmp_path / "turned.jpg").write_bytes(with_exif(jpeg(), exif(6)))
        with Image.open(tmp_path / "turned.jpg") as image:
            assert predict(model, image)[0].guesses == predict(model, tmp_path / "turned.jpg")[0].guesses
            assert image.size == (48, 32)  # stays as it was given

    def test_a_picture_in_memory_that_cannot_be_read_has_a_reason(self, model, tmp_path):
        (tmp_path / "cut.jpg").write_bytes(jpeg()[:-200])
        with Image.open(tmp_path / "cut.jpg") as cut:
            found = predict(model, [cut, b"", Image.new("F", (8, 8)), np.zeros((1, 200, 3), np.uint8)])
        assert [answer.reason for answer in found] == ["corrupt", "empty", "unsupported_mode", "aspect_ratio"]

    def test_a_folder_and_a_pattern_are_their_images(self, model, pictures, tmp_path):
        in_order = sorted(pictures)
        assert predict(model, tmp_path) == predict(model, in_order)
        assert predict(model, f"{tmp_path}/p1*.png") == predict(model, [p for p in in_order if p.name[1] == "1"])

    def test_the_pixel_limit_is_an_argument(self, model, pictures):
        assert predict(model, pictures[0], max_pixels=599)[0].reason == "too_many_pixels"  # it is 30 x 20
        assert predict(model, pictures[0], max_pixels=600)[0].reason == ""
        assert predict(model, np.zeros((20, 30, 3), np.uint8), max_pixels=599)[0].reason == "too_many_pixels"
        with pytest.raises(ValueError, match="max_pixels 0 must be at least 1"):
            predict(model, pictures[0], max_pixels=0)

    def test_preprocess_needs_a_picture(self, model):
        with pytest.raises(ValueError, match="no picture was given"):
            preprocess(model, [])

    def test_a_compiled_model_is_a_model(self, model, pictures):
        assert preprocess(torch.compile(model, backend="eager"), pictures[:1]).shape == (1, 3, 16, 16)


def test_names_come_from_the_model_from_imagenet_or_are_numbers(model):
    assert class_names(model)[0] == model.class_names
    model.reset_head(1000)
    names, whence = class_names(model)
    assert names[207] == "golden retriever"
    assert "assumed ImageNet" in whence
    model.reset_head(3)
    assert class_names(model)[0] == ("class 0", "class 1", "class 2")


class TestCommand:
    @pytest.fixture
    def folder(self, model, tmp_path):
        save_model(model, tmp_path / "model")
        return tmp_path / "model"

    def test_json_has_every_answer(self, folder, model, pictures, capsys):
        assert main(["predict", str(folder), *map(str, pictures), "--top", "2", "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        own = predict(model, pictures, top=2)
        assert [a["image"] for a in printed["answers"]] == [a.image for a in own]
        assert all(len(a["guesses"]) == 2 for a in printed["answers"])
        assert printed["answers"][3]["guesses"][0]["index"] == own[3].guesses[0].index
        assert "mean 0.5" in printed["preprocessing"]

    def test_a_folder_a_pattern_and_standard_input(self, folder, pictures, tmp_path, capsys, monkeypatch):
        photos = tmp_path / "photos"
        (photos / "deep").mkdir(parents=True)
        for name in ("b.png", "deep/a.png"):
            (photos / name).write_bytes(pictures[0].read_bytes())
        (photos / "phone.jxl").write_bytes(b"\xff\x0a\x2f\x03")
        (photos / "notes.txt").write_text("not a picture")
        stream = io.TextIOWrapper(io.BytesIO(pictures[1].read_bytes()))
        monkeypatch.setattr("sys.stdin", stream)
        words = ["predict", str(folder), str(photos), f"{tmp_path}/p1?.png", "-", "--json", "--device", "cpu"]
        assert main(words) == 1
        told = capsys.readouterr()
        answers = json.loads(told.out)["answers"]
        matched = [str(path) for path in sorted(pictures) if len(path.name) == 7]
        below = [str(photos / name) for name in ("b.png", "deep/a.png", "phone.jxl")]
        assert [answer["image"] for answer in answers] == [*below, *matched, "-"]
        assert [answer["reason"] for answer in answers if answer["reason"]] == ["unsupported_format"]
        assert f"1 of {len(answers)} pictures could not be read" in told.err
        assert "left out: 1 .txt file" in told.err
        with torch.inference_mode():
            assert answers[-1]["guesses"][0]["index"] == predict(load_model(folder), pictures[1])[0].guesses[0].index

    def test_a_run_folder_stands_for_its_model(self, folder, pictures, tmp_path, capsys):
        run = tmp_path / "run"
        run.mkdir()
        (run / "run.json").write_text("{}")
        assert main(["predict", str(run), str(pictures[0])]) == 2
        assert f"is a run without a trained model; finish it first: vitlab resume {run}" in capsys.readouterr().err
        folder.rename(run / "model")
        assert main(["predict", str(run), str(pictures[0])]) == 0

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (["--device", "tpu"], "no device is named 'tpu'"),
            (["--max-pixels", "0"], "max_pixels 0 must be at least 1"),
            (["-", "-"], "standard input holds one image"),
        ],
    )
    def test_a_wrong_flag_says_what_is_allowed(self, folder, pictures, more, said, capsys):
        assert main(["predict", str(folder), str(pictures[0]), *more]) == 2
        assert said in capsys.readouterr().err

    def test_table_shows_names_and_reasons_without_control_characters(self, folder, pictures, tmp_path, capsys):
        strange = tmp_path / "new\nline\x1b[31m\u202e=cmd<img>.png"
        strange.write_bytes(pictures[0].read_bytes())
        assert main(["predict", str(folder), str(strange), str(tmp_path / "gone.jpg")]) == 1
        captured = capsys.readouterr()
        assert "[red]cat" in captured.out  # not read as markup
        assert "does not exist" in captured.out
        assert "1 of 2 pictures could not be read" in captured.err
        for text in (captured.out, captured.err):
            assert "\x1b[31m" not in text
            assert "\x1b[2J" not in text
            assert "\u202e" not in text

    def test_a_name_that_is_not_utf8(self, folder, pictures, tmp_path, capsys):
        raw = os.fsencode(tmp_path) + b"/bad\xff.png"
        with open(raw, "wb") as file:  # noqa: PTH123 - Path cannot hold these bytes portably
            file.write(pictures[0].read_bytes())
        assert main(["predict", str(folder), os.fsdecode(raw)]) == 0
        assert "\\udcff" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["predict", "absent", "x.png"], "absent: no such file or folder"),
            (["predict", "MODEL", "x.png", "--image", "15"], "nearest sizes are 12x12 or 16x16"),
            (["predict", "MODEL", "x.png", "--image", "big"], "is not a size"),
            (["predict", "MODEL", "x.png", "--top", "0"], "top 0"),
            (["predict", "MODEL"], "no picture"),
            (["models", "--image", "foo"], "is not a size"),
            (["models", "--image", "0"], "--image '0' is not a size; give one side (384)"),
            (["convert", "MODEL", "out", "--entry", "model"], "is not a pickle"),
            (["convert", "MODEL", "out.safetensors"], "names a file"),
            (["convert", "MODEL", "MODEL"], "exists already"),
        ],
    )
    def test_mistakes_are_one_line_and_exit_two(self, folder, arguments, message, capsys):
        assert main([str(folder) if a == "MODEL" else a for a in arguments]) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1

    def test_another_resolution(self, folder, pictures, capsys):
        assert main(["predict", str(folder), str(pictures[0]), "--image", "24x32", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["answers"][0]["guesses"]

    def test_convert_then_predict(self, folder, pictures, tmp_path, capsys):
        assert main(["convert", str(folder), str(tmp_path / "timm"), "--to", "timm"]) == 0
        first = main(["predict", str(folder), str(pictures[0]), "--json"]), capsys.readouterr().out
        second = main(["predict", str(tmp_path / "timm"), str(pictures[0]), "--json"]), capsys.readouterr().out
        start = first[1].index("{")
        assert json.loads(first[1][start:])["answers"] == json.loads(second[1])["answers"]


def test_answers_that_are_not_finite_are_refused_and_no_json_is_written(model, pictures, tmp_path, capsys):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1e30)
    with pytest.raises(ValueError, match="NaN or infinity for 2 of 2 pictures"):
        predict(model, pictures[:2])
    save_model(model, tmp_path / "model")
    assert main(["predict", str(tmp_path / "model"), str(pictures[0]), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the model returned NaN or infinity for the picture" in captured.err


def test_notes_are_passed_on(model, tmp_path):
    buffer = io.BytesIO()
    Image.new("RGB", (20, 20)).save(buffer, "PNG")
    (tmp_path / "really.jpg").write_bytes(buffer.getvalue())
    (answer,) = predict(model, [tmp_path / "really.jpg"])
    assert answer.notes == ("format_mismatch",)
