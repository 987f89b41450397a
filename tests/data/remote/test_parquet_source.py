"""Parquet in stores, on web servers and on a hub is the same data as in a folder."""

import io
import pickle

import pyarrow as pa
import pytest
from pyarrow import parquet

from data.remote.conftest import jpegs, upload
from faulty_servers import FileServer, Hub, in_turn
from vitlab.data.contents import compare, take
from vitlab.data.fingerprint import fingerprint
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.remote import files, retries, stores
from vitlab.data.remote.retries import Patience
from vitlab.data.sources.catalogue import open_source
from vitlab.errors import RemoteFailed, RemoteRefused

NAMES = [f"train-0000{number}-of-00002.parquet" for number in range(2)] + ["test-00000-of-00001.parquet"]
FAULTS = ("500", "cut", "503", "reset", "short")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 4096)
    monkeypatch.setattr(retries, "PATIENCE", Patience(attempts=8, first=0.001, longest=0.01))


def written(seed):
    rows = [
        {"image": {"bytes": data, "path": None}, "label": n % 3} for n, data in enumerate(jpegs(40, seed, (60, 80)))
    ]
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows), file, row_group_size=8)
    return file.getvalue()


@pytest.fixture(scope="module")
def made():
    return {name: written(seed) for seed, name in enumerate(NAMES)}


@pytest.fixture
def folder(made, tmp_path):
    (tmp_path / "set").mkdir()
    for name, data in made.items():
        (tmp_path / "set" / name).write_bytes(data)
    return tmp_path / "set"


@pytest.fixture
def hub(made, clean):
    with Hub({"main": {f"data/{name}": data for name, data in made.items()} | {"README.md": b"#"}}) as server:
        clean.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        with pytest.MonkeyPatch.context() as patch:
            from fsspec.config import conf

            patch.setattr(stores, "_open", {})  # of another server
            patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # peers of other tests switch it on
            patch.setitem(conf, "hf", {"endpoint": server.url, "token": "secret-token"})
            yield server


def everything(source):
    return [(item.id, item.labels, item.data) for item in map(source.item, range(len(source)))]


def assert_same(remote, local):
    assert everything(remote) == everything(local)
    assert fingerprint(remote) == fingerprint(local)
    assert (remote.block, remote.window, remote.class_names) == (local.block, local.window, local.class_names)
    assert compare(take(local, "print"), remote, "print").is_same
    assert compare(take(remote, "print"), local, "print").is_same


def test_a_copy_in_s3_is_the_same_data_under_faults(made, folder, s3):
    upload(s3, "parquet", [(f"a/data/{name}", data) for name, data in made.items()])
    s3.choose = in_turn(*FAULTS, every=2)
    remote = open_source("parquet:s3://parquet/a?split=train")
    assert_same(remote, open_source(f"parquet:{folder}?split=train"))
    assert set(FAULTS) <= set(s3.faults)
    assert remote.requested()["retries"] > 3
    assert everything(pickle.loads(pickle.dumps(remote))) == everything(remote)  # noqa: S301 - as a DataLoader does


def test_only_the_row_groups_in_use_are_requested(made, clean):
    with FileServer({f"/{NAMES[0]}": made[NAMES[0]]}) as server:
        source = open_source(f"parquet:{server.url}/{NAMES[0]}")
        before = source.requested()["received"]
        source.item(0)
        assert source.requested()["received"] - before < len(made[NAMES[0]]) // 2
        asked = len(server.requests)
        again = open_source(f"parquet:{server.url}/{NAMES[0]}")
        assert again.label(20) == source.label(20)
        assert len(server.requests) == asked + 1  # the version; footer and labels are in the cache


def test_a_file_that_changes_is_noticed(made, clean):
    with FileServer({"/x.parquet": made[NAMES[0]]}) as server:
        source = open_source(f"parquet:{server.url}/x.parquet")
        server.files["/x.parquet"] = made[NAMES[1]]
        with pytest.raises(BadImage) as caught:
            source.item(0)
        assert caught.value.reason == Reason.changed


def test_a_server_that_stays_away_stops_the_reading(made, clean):
    with FileServer({"/x.parquet": made[NAMES[0]]}) as server:
        source = open_source(f"parquet:{server.url}/x.parquet")
        server.choose = lambda request: "500"
        with pytest.raises(RemoteFailed, match=r"/x.parquet failed 8 times"):
            source.item(0)


def test_a_folder_of_a_web_server_has_to_be_named_by_file(made, clean):
    with FileServer({}) as server, pytest.raises(RemoteRefused, match=r"give the address of one .parquet file"):
        open_source(f"parquet:{server.url}/folder")


@pytest.mark.parametrize(
    "spec",
    [
        "hf:owner/name?split=train",
        "parquet:hf://datasets/owner/name?split=train",
        "hf:owner/name?split=train&revision=main",
    ],
)
def test_a_data_set_of_a_hub_opens_by_its_name(hub, folder, spec):
    hub.choose = in_turn("500", "cut", "reset", every=3, on="/storage/")
    assert_same(open_source(spec), open_source(f"parquet:{folder}?split=train"))
    assert "cut" in hub.faults
    assert {token for path, token in hub.tokens if path.startswith("/storage")} == {""}  # it is for the hub alone
    assert "Bearer secret-token" in {token for path, token in hub.tokens if "/resolve/" in path}


def test_one_commit_is_read_even_if_the_branch_moves(hub, made, folder):
    source = open_source("hf:owner/name?split=train")
    hub.move("main", {f"data/{name}": written(9) for name in made})
    assert everything(source) == everything(open_source(f"parquet:{folder}?split=train"))
    assert everything(open_source("hf:owner/name?split=train")) != everything(source)


def test_the_parquet_form_that_a_hub_makes_is_found(made, hub, folder):
    hub.move("main", {"README.md": b"#", "train/cat/0.jpg": b"x"})
    with pytest.raises(
        RemoteRefused, match=r"has no parquet files of its own, and the hub has none at .*default/train"
    ):
        open_source("hf:owner/name")
    hub.move("refs/convert/parquet", {f"default/train/{NAMES[0]}": made[NAMES[0]], "default/test/0.parquet": b""})
    assert everything(open_source("hf:owner/name")) == everything(open_source(f"parquet:{folder / NAMES[0]}"))


def test_an_offline_hub_is_refused_at_once(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(RemoteRefused, match="HF_HUB_OFFLINE is set; unset it"):
        open_source("hf:owner/name?split=train")


def test_what_a_hub_does_not_have_is_said(hub):
    with pytest.raises(RemoteRefused, match=r"hf://datasets/owner/other does not exist, or you may not see it"):
        open_source("hf:owner/other")
    with pytest.raises(ValueError, match=r"has the splits .'test', 'train'.; choose one with .split=NAME"):
        open_source("hf:owner/name")
    with pytest.raises(ValueError, match=r"'name' is not the name of a data set; give OWNER/NAME"):
        open_source("hf:name")
