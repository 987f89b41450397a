"""Thousands of damaged files of every format: each is loaded or refused in one line; no crash, hang or memory."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mutations

COUNT = int(os.environ.get("VITLAB_MUTATIONS", "10000"))
EACH = math.ceil(COUNT / len(mutations.KINDS))


@pytest.fixture(scope="module")
def accounts():
    """The outcomes of every kind; their sum is printed at the end."""
    kept = []
    yield kept
    total = {name: sum(account[name] for account in kept) for name in ("files", "equal", "other", "refused", "seconds")}
    sys.stdout.write(
        f"\nin all: {total['files']:,} mutated files of {len(kept)} formats, {total['equal']:,} loaded equal, "
        f"{total['other']:,} loaded with other values, {total['refused']:,} refused with a message, 0 crashes, "
        f"{total['seconds']:,.0f} s\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", mutations.KINDS)
def test_mutated_files_are_loaded_or_refused(kind, tmp_path: Path, accounts):
    command = [sys.executable, mutations.__file__, str(tmp_path), kind, str(EACH), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert child.stdout is not None
        said = []
        for line in child.stderr:  # progress, or why it died
            said.append(line)
            sys.stderr.write(line)
        printed = child.stdout.read()
    assert child.returncode == 0, "".join(said)[-2000:]
    account = json.loads(printed)
    accounts.append(account)
    sys.stdout.write(
        f"\n{kind}: {account['files']:,} mutated files, {account['equal']:,} loaded equal, {account['other']:,} loaded "
        f"with other values, {account['refused']:,} refused ({account['reasons']} kinds of message), 0 crashes, "
        f"{account['slowest']:.2f} s of CPU at most, grew by {account['grown']} MB, {account['seconds']:,.0f} s\n"
    )
    assert account["equal"] + account["other"] + account["refused"] == account["files"] == EACH
    assert account["refused"] > EACH // 4
    assert account["equal"] + account["other"] > 0
    assert account["grown"] <= 64


def test_every_format_that_loads_is_mutated(tmp_path):
    """A format that joins `FORMATS` needs weights here; each kind is recognised as what it is called."""
    from vitlab import load_model
    from vitlab.weights.foreign import FORMATS

    found = set()
    for number, kind in enumerate(kind for kind in mutations.KINDS if kind not in mutations.PICKLES):
        (tmp_path / str(number)).mkdir()
        found.add(load_model(mutations.write_good(kind, tmp_path / str(number))).provenance.get("format", "vitlab"))
    assert found == {"vitlab", *FORMATS}
