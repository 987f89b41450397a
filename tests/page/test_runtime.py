"""The runtime of the browser is used only if it is the one that is known."""

import shutil

import pytest

from vitlab.page.runtime import BINARY, HASHES, SCRIPT, runtime_files


@pytest.mark.slow
@pytest.mark.parametrize("inside", ["", "dist", "package/dist", "node_modules/onnxruntime-web/dist"])
def test_the_files_are_found_where_npm_puts_them(runtime, tmp_path, inside):
    place = tmp_path / inside
    place.mkdir(parents=True, exist_ok=True)
    for name in HASHES:
        (place / name).symlink_to(runtime / name)
    found = runtime_files(tmp_path)
    assert set(found) == {SCRIPT, BINARY, "LICENSE.txt"}
    assert b"Microsoft" in found["LICENSE.txt"]
    assert b"MIT License" in found["LICENSE.txt"]


@pytest.mark.slow
def test_another_file_is_refused(runtime, tmp_path, monkeypatch):
    shutil.copy(runtime / BINARY, tmp_path)
    (tmp_path / SCRIPT).write_bytes((runtime / SCRIPT).read_bytes() + b"\n")
    with pytest.raises(ValueError, match=r"bundle\.min\.mjs has SHA-256 \w{64}, not that of onnxruntime-web@1"):
        runtime_files(tmp_path)
    monkeypatch.setenv("VITLAB_WEB_RUNTIME", str(runtime))
    assert SCRIPT in runtime_files()


def test_a_folder_without_the_files_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no ort\.wasm.*npm pack onnxruntime-web@1\.30\.0"):
        runtime_files(tmp_path)


def test_nothing_is_fetched_offline_or_without_npm(monkeypatch, tmp_path):
    monkeypatch.delenv("VITLAB_WEB_RUNTIME", raising=False)
    monkeypatch.setenv("VITLAB_OFFLINE", "1")
    with pytest.raises(ValueError, match="VITLAB_OFFLINE is set; run `npm pack"):
        runtime_files()
    monkeypatch.setenv("VITLAB_OFFLINE", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"npm, which fetches onnxruntime-web@1[.]30[.]0, is not installed"):
        runtime_files()


def test_a_fetch_that_fails_says_why(monkeypatch, tmp_path):
    monkeypatch.delenv("VITLAB_WEB_RUNTIME", raising=False)
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho 'no such host' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"could not fetch onnxruntime-web@1\.30\.0 \(no such host\); try again"):
        runtime_files()
