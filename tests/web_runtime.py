"""The files of onnxruntime-web, fetched once for all tests of a session."""

import fcntl
import os
from pathlib import Path

from vitlab.page.runtime import HASHES, runtime_files


def fetched_runtime(tmp_path_factory) -> Path:
    """A folder with the files; ValueError if they cannot be fetched."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # which all workers share
    folder = root / "onnxruntime-web"
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((folder / name).exists() for name in HASHES):
            for name, data in runtime_files().items():
                (folder / name).write_bytes(data)
    return folder
