"""Thousands of damaged files of every format: each is loaded or refused in one line; no crash, hang or memory."""

import json
import math
import os
import sys
from pathlib import Path

import pytest

import mutations
from crashes import processes

COUNT = int(os.environ.get("VITLAB_MUTATIONS", "10000"))
PICKLES = len(mutations.PICKLES) * COUNT // 60  # each is read by a process of its own, which takes 30 times as long
EACH = {
    kind: math.ceil(PICKLES / len(mutations.PICKLES))
    if kind in mutations.PICKLES
    else math.ceil((COUNT - PICKLES) / (len(mutations.KINDS) - len(mutations.PICKLES)))
    for kind in mutations.KINDS
}


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
    count, out, failed = EACH[kind], tmp_path / "account.json", tmp_path / "account.failed"
    child = processes.Process(target=mutations.write_account, args=(kind, tmp_path, count, 0, out))
    child.start()
    child.join()
    assert child.exitcode == 0, failed.read_text() if failed.exists() else f"it ended with {child.exitcode}"
    account = json.loads(out.read_text())
    accounts.append(account)
    sys.stdout.write(
        f"\n{kind}: {account['files']:,} mutated files, {account['equal']:,} loaded equal, {account['other']:,} loaded "
        f"with other values, {account['refused']:,} refused ({account['reasons']} kinds of message), 0 crashes, "
        f"{account['slowest']:.2f} s of CPU at most, grew by {account['grown']} MB, {account['seconds']:,.0f} s\n"
    )
    assert account["equal"] + account["other"] + account["refused"] == account["files"] == count
    assert account["refused"] > count // 4
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
