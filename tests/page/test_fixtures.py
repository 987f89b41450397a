"""The watch on a page notices what it must notice."""

import pytest

PAGE = "<!doctype html><meta charset=utf-8><link rel=icon href=data:,><script type=module src=app.js></script>"


def write(folder, script):
    (folder / "index.html").write_text(PAGE)
    (folder / "app.js").write_text(script + "\ndocument.title = 'done';")
    return folder


def complaints(page_at, address):
    page = page_at(address)
    page.wait_for_function("() => document.title === 'done'")
    found = [*page.complaints, *page.evaluate("violations")]
    page.complaints.clear()
    page.evaluate("violations.length = 0")
    return " ".join(found)


@pytest.mark.parametrize(
    ("script", "noticed"),
    [
        ("", ""),
        ("await fetch('http://localhost:9/x').catch(() => {});", "connect-src http://localhost:9/x"),
        ("document.body.innerHTML = '<p style=\"color:red\">x</p>';", "style-src"),
        ("setTimeout(() => { throw new Error('oops'); }); await new Promise(f => setTimeout(f, 50));", "oops"),
        ("console.error('bad');", "console: bad"),
        ("await fetch('absent');", "404"),
    ],
)
def test_a_page_is_watched(page_at, served, tmp_path, script, noticed):
    found = complaints(page_at, served(write(tmp_path, script)))
    assert noticed in found
    assert bool(found) == bool(noticed)
