"""What the service answers: the same as the command line, alone and together with others."""

import http.client
import io
import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from servers import FORM, Service, multipart
from vitlab.cli import main
from vitlab.data.transforms.evaluation import normalised
from vitlab.page.trace import at_size, trace
from vitlab.runs.measure.prediction import prepared

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def probabilities(said):
    (answer,) = said["answers"]
    return {guess["index"]: guess["probability"] for guess in answer["guesses"]}


def assert_same(said, expected):
    """The same JSON, with probabilities that differ by rounding only."""
    assert probabilities(said) == pytest.approx(probabilities(expected), rel=1e-5, abs=1e-7)

    def rest(one):
        (answer,) = one["answers"]
        guesses = [{**guess, "probability": 0} for guess in answer["guesses"]]
        return {**one, "answers": [{**answer, "guesses": guesses}]}

    assert rest(said) == rest(expected)


@pytest.mark.parametrize("model", ["small", "plain"])
def test_an_answer_is_that_of_the_command_line(service, models, files, model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for data in files[:6]:
        (tmp_path / "a.jpg").write_bytes(data)
        assert main(["predict", str(models / model), "a.jpg", "--top", "3", "--json"]) == 0
        expected = json.loads(capsys.readouterr().out)
        form = service.post(f"/predict?top=3&model={model}", multipart(data), content_type=FORM)
        assert form.status == 200
        assert_same(form.json, expected)
        raw = service.post(f"/predict?top=3&model={model}", data).json
        assert raw["answers"][0]["image"] == "-"
        assert probabilities(raw) == pytest.approx(probabilities(expected), rel=1e-5, abs=1e-7)


def test_the_logits_are_those_of_the_module(service, models, files):
    model = vitlab.load_model(models / "small")
    for data in files[:6]:
        with torch.inference_mode():
            logits = model(vitlab.preprocess(model, data))[0]
        found = probabilities(service.post("/predict?top=1000", data).json)
        logarithms = torch.tensor([found[index] for index in range(5)], dtype=torch.float64).log()
        expected = logits.double().log_softmax(-1)
        assert (logarithms - expected).abs().max() <= 1e-5 * max(1, expected.abs().max())


def test_answers_computed_together_are_those_computed_alone(service, files):
    """Also beside a picture that cannot be read, which is refused alone."""
    forms = [
        multipart(data, filename=f"{number}.jpg") for number, data in enumerate([*files[:20], b"bad", *files[20:24]])
    ]
    before = service.metrics()
    with service.stopped_worker() as pid, ThreadPoolExecutor(len(forms)) as pool:  # so that requests wait
        sent = [pool.submit(service.post, "/predict", form, content_type=FORM) for form in forms]
        service.wait_for(lambda: service.metrics()["vitlab_open_requests"] == len(forms) + 1)
        os.kill(pid, signal.SIGCONT)
        together = [one.result() for one in sent]
    batches = service.metrics()["vitlab_batch_requests_count"] - before["vitlab_batch_requests_count"]
    assert batches < len(forms) / 2  # they were computed together
    alone = [service.post("/predict", form, content_type=FORM) for form in forms]
    assert [reply.status for reply in together] == [200] * 20 + [422] + [200] * 4
    for one, other in zip(together, alone, strict=True):
        if one.status == 200:
            assert_same(one.json, other.json)
        else:
            assert one.json == other.json
    with pytest.raises(AssertionError):  # no two of the pictures have the same answer
        assert probabilities(together[0].json) == pytest.approx(probabilities(alone[1].json), rel=1e-5, abs=1e-7)


def test_the_rollout_is_that_of_explain(service, models, files):
    model = vitlab.load_model(models / "small")
    for data in files[:3]:
        (one,) = prepared(model, [("-", data)], None)
        images = normalised(one.pixels[None], model.spec.conventions.preprocessing)
        expected = vitlab.explain(model, images)[0].numpy()
        found = np.load(io.BytesIO(service.post("/explain?format=npy", data).body), allow_pickle=False)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        said = service.post("/explain?format=json", data).json
        assert said["shape"] == [16, 16]
        np.testing.assert_allclose(said["rollout"], expected, atol=2e-6)
        png = service.post("/explain", data)
        assert png.headers["content-type"] == "image/png"
        shown = np.asarray(Image.open(io.BytesIO(png.body)))
        assert shown.shape == (16, 16, 3)
        bright = one.pixels.permute(1, 2, 0).numpy() * expected[..., None]
        assert np.abs(shown - bright).max() <= 0.5001


def test_a_model_without_attention_says_so(service, files):
    refused = service.post("/explain?model=plain", files[0])
    assert (refused.status, refused.code) == (422, "no_attention")
    assert "no attention between patches" in refused.json["error"]["message"]


def test_a_trace_is_that_of_the_page(service, models):
    model = vitlab.load_model(models / "small")
    (card, other) = service.get("/api/models").json["models"]
    assert (card["id"], card["kind"], other["id"], other["kind"]) == ("small", "vit", "plain", "answers only")
    generator = np.random.default_rng(0)
    for side in (16, 24):
        assert [side, side] in card["sizes"]
        pixels = generator.integers(0, 256, (side, side, 3), np.uint8)
        keep = generator.random((side // 4) ** 2) < 0.7
        bits = np.packbits(keep, bitorder="little").tobytes()
        answer = service.post(f"/api/trace?model=small&size={side}x{side}", pixels.tobytes() + bits)
        assert answer.headers["content-type"] == "application/octet-stream"
        expected = trace(at_size(model, side), pixels, keep)
        assert len(answer.body) == len(expected.to_bytes())
        logits = np.frombuffer(answer.body[-expected.tokens.nbytes :], "<f4").reshape(expected.tokens.shape)
        np.testing.assert_allclose(logits, expected.tokens, atol=1e-5)
    pixels = generator.integers(0, 256, (32, 32, 3), np.uint8)
    assert service.post("/api/trace?model=plain", pixels.tobytes()).status == 200


def test_a_picture_that_cannot_be_read_has_the_reason_of_the_gate(service):
    refused = service.post("/predict", b"<html>404</html>")
    assert refused.status == 422
    assert refused.json["error"]["code"] == "not_an_image"
    assert refused.json["error"]["field"] == "image"
    assert "allowed are JPEG" in refused.json["error"]["message"]


def test_an_unknown_model_is_named_with_those_that_there_are(service, files):
    refused = service.post("/predict?model=big", files[0])
    assert (refused.status, refused.code) == (404, "unknown_model")
    assert "small, plain" in refused.json["error"]["message"]
    assert "?model=small, ?model=plain; without it, small answers" in " ".join(service.said)


def test_the_api_is_described(service):
    described = service.get("/openapi.json").json
    assert {"/predict", "/explain", "/health", "/ready", "/metrics", "/api/models", "/api/trace"} <= set(
        described["paths"]
    )
    assert "multipart/form-data" in described["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert all("422" not in way["responses"] for path in described["paths"].values() for way in path.values())


def test_a_connection_serves_one_request_after_the_other(service, files):
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    for number in range(3):
        connection.request("POST", "/predict", files[number])
        assert json.loads(connection.getresponse().read())["answers"]
    connection.close()


def test_a_service_whose_model_cannot_be_loaded_ends_with_the_reason(tmp_path):
    with Service(tmp_path / "nothing", is_awaited=False) as started:
        assert started.process.wait(120) == 2
        started.listener.join()
        assert "no such file or folder" in started.said[-1]


def test_a_damaged_model_is_not_served(models, tmp_path):
    folder = shutil.copytree(models / "small", tmp_path / "model")
    weights = folder / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with Service(folder, is_awaited=False) as started:
        assert started.process.wait(120) == 2
        started.listener.join()
        assert "SHA-256" in started.said[-1] or "hash" in started.said[-1]


def test_the_front_process_knows_neither_torch_nor_pillow(service):
    mapped = Path(f"/proc/{service.process.pid}/maps").read_text()
    assert "libtorch" not in mapped
    assert "_imaging" not in mapped
    (worker,) = service.workers()
    assert "_imaging" in Path(f"/proc/{worker}/maps").read_text()


def test_an_exported_model_is_served_with_the_answers_of_the_model(service, models, files, tmp_path):
    vitlab.export(models / "small", tmp_path / "shipped", "onnx", quiet=True)
    with Service(tmp_path / "shipped") as exported:
        for data in files[:4]:
            ours, theirs = exported.post("/predict", data).json, service.post("/predict?model=small", data).json
            assert probabilities(ours) == pytest.approx(probabilities(theirs), rel=1e-4, abs=1e-6)
            assert ours["engine"] == "onnxruntime"
        assert exported.get("/api/models").json["models"] == []
        assert exported.post("/explain", files[0]).code == "no_attention"
        assert exported.post("/predict", b"no picture").status == 422
