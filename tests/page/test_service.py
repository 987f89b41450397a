"""The page as `vitlab serve` serves it: what it shows is what Python computes."""

import pytest

import vitlab
from agreement import randomised
from page.showing import CLASSES, Shown
from servers import Service
from vitlab.models.build import build_from_spec
from vitlab.spec import ViTSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_page_of_a_service_shows_the_answers_of_the_models(page_at, tmp_path):
    for number, name in enumerate(("first", "second")):
        made = randomised(build_from_spec(ViTSpec(8, 2, 24, 40, 3, (64, 64), 12)), seed=number)
        made.class_names = CLASSES
        vitlab.save_model(made, tmp_path / name)
    with Service(tmp_path / "first", tmp_path / "second") as service:
        shown = Shown(page_at(f"http://127.0.0.1:{service.port}/")).ready()
        assert "are sent to the server" in shown.text("where")
        assert shown.page.evaluate("() => [...document.getElementById('model').options].map(one => one.text)") == [
            "first",
            "second",
        ]
        sample = service.get("/" + service.get("/api/samples").json[0]["url"]).body
        for name in ("first", "second"):
            shown.page.select_option("#model", name)
            (expected,) = vitlab.predict(tmp_path / name, sample, top=5, quiet=True)
            top = expected.guesses[0]
            shown.page.wait_for_function("name => document.querySelector('#answers li')?.title === name", arg=top.name)
            named = dict(shown.ready().answers())
            assert [guess.name for guess in expected.guesses] == list(named)[:5]
            for guess in expected.guesses:
                assert float(named[guess.name].rstrip(" %")) == pytest.approx(100 * guess.probability, abs=0.06)
