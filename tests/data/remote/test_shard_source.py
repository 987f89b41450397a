"""Shards in a store are the same data as in a folder: ids, labels, bytes, fingerprint and hashes."""

import pickle
import tarfile
from io import BytesIO

import pytest

import vitlab
from data.remote.conftest import jpegs, upload
from faulty_servers import FileServer, in_turn
from vitlab.data.contents import compare, take
from vitlab.data.fingerprint import fingerprint
from vitlab.data.images.refusals import BadImage, Reason
from vitlab.data.remote import files, retries
from vitlab.data.remote.retries import Patience
from vitlab.data.sources.catalogue import open_source
from vitlab.data.sources.shards import INDEX, index_folder
from vitlab.errors import RemoteFailed, RemoteRefused

FAULTS = ("500", "503", "cut", "reset", "slow", "short")


@pytest.fixture
def folder(tmp_path):
    """Three indexed shards of 20 images each, with class names."""
    made = tmp_path / "shards"
    made.mkdir()
    pictures = jpegs(60)
    for shard in range(3):
        with tarfile.open(made / f"s{shard}.tar", "w") as tar:
            for number in range(20):
                for suffix, data in (("jpg", next(pictures)), ("cls", b"%d" % (number % 3))):
                    info = tarfile.TarInfo(f"k{number:02d}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, BytesIO(data))
    (made / "classnames.txt").write_text("a\nb\nc\n")
    index_folder(made)
    return made


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 4096)
    monkeypatch.setattr(retries, "PATIENCE", Patience(attempts=8, first=0.001, longest=0.01))


def everything(source):
    return [(item.id, item.labels, item.data) for item in map(source.item, range(len(source)))]


def contents_of(folder):
    return [(f"set/{path.name}", path.read_bytes()) for path in sorted(folder.iterdir())]


def test_a_copy_in_s3_is_the_same_data(folder, s3):
    upload(s3, "one", contents_of(folder))
    local, remote = open_source(f"shards:{folder}"), open_source("shards:s3://one/set")
    assert everything(remote) == everything(local)
    assert remote.class_names == local.class_names == ("a", "b", "c")
    assert (remote.block, remote.excluded) == (local.block, local.excluded)
    prints = fingerprint(local), fingerprint(remote)
    assert prints[0] == prints[1]
    records = take(local, prints[0]), take(remote, prints[1])
    assert (records[0].files[["size", "hash"]] == records[1].files[["size", "hash"]]).all()
    for before, after in ((records[0], remote), (records[1], local)):
        assert compare(before, after, prints[0]).is_same


def test_faults_of_the_store_lose_nothing_and_repeat_nothing(folder, s3):
    upload(s3, "two", contents_of(folder))
    s3.choose = in_turn(*FAULTS, every=2)
    source = open_source("shards:s3://two/set/")
    assert everything(source) == everything(open_source(f"shards:{folder}"))
    assert set(FAULTS) <= set(s3.faults)
    counts = source.requested()
    assert counts["retries"] > 5
    assert counts["requests"] <= len(s3.requests)


@pytest.mark.parametrize("fault", [*FAULTS, "429", "shifted"])
@pytest.mark.parametrize("place", range(3))
def test_no_request_of_an_opening_is_without_retries(folder, s3, fault, place):
    upload(s3, "opening", contents_of(folder))
    s3.choose = lambda request: fault if request.number == place else ""
    assert len(open_source("shards:s3://opening/set")) == 60
    assert fault in s3.faults


def test_another_process_opens_the_same_source(folder, s3):
    upload(s3, "three", contents_of(folder))
    source = open_source("shards:s3://three/set")
    for path in source._remote.reading.cache.folder.glob("*/*"):
        if path.is_file():  # as if other blocks had needed the room
            path.unlink()
    sent = pickle.loads(pickle.dumps(source))  # noqa: S301 - as a DataLoader does
    assert everything(sent) == everything(source)
    assert sent.spec == source.spec == "shards:s3://three/set"


def test_a_shard_that_changes_is_noticed_and_not_mixed(folder, s3):
    upload(s3, "four", contents_of(folder))
    source = open_source("shards:s3://four/set")
    before = take(source, "print")
    source.item(0)
    upload(s3, "four", [("set/s2.tar", bytes(reversed((folder / "s2.tar").read_bytes())))])
    fresh = open_source("shards:s3://four/set")
    found = compare(before, fresh, "print")
    assert found.changed == (2,)
    for path in source._remote.reading.cache.folder.glob("*/*"):
        if path.is_file():  # what is cached stays good; look at what is not
            path.unlink()
    files._kept.clear()
    with pytest.raises(BadImage) as caught:
        source.item(45)
    assert caught.value.reason == Reason.changed


def test_a_store_that_stays_away_stops_the_reading(folder, s3):
    upload(s3, "five", contents_of(folder))
    source = open_source("shards:s3://five/set")
    s3.choose = lambda request: "503"
    with pytest.raises(RemoteFailed, match=r"s3://five/set/s0.tar failed 8 times .*status 503, SlowDown"):
        source.item(0)


def test_what_is_missing_is_said(folder, s3):
    upload(s3, "six", contents_of(folder)[:1])
    with pytest.raises(
        RemoteRefused, match=r"s3://six/set has no file vitlab-shards.index; run vitlab data index shards:s3://six/set"
    ):
        open_source("shards:s3://six/set")
    with pytest.raises(RemoteRefused, match=r"s3://no-such-bucket does not exist .status 404, NoSuchBucket."):
        open_source("shards:s3://no-such-bucket")
    upload(s3, "six", [(key, data) for key, data in contents_of(folder) if INDEX not in key])
    assert len(open_source(f"shards:s3://six/set?index={folder / INDEX}")) == 60
    upload(s3, "six", [("set/more.tar", b"")])
    with pytest.raises(ValueError, match=r"has other shards than were indexed: .'more.tar'"):
        open_source(f"shards:s3://six/set?index={folder / INDEX}")


def test_shards_in_a_store_are_indexed_and_verified_where_they_are(folder, s3, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    upload(s3, "seven", [(key, data) for key, data in contents_of(folder) if INDEX not in key])
    s3.choose = in_turn(*FAULTS, every=3)
    made = vitlab.index_data("shards:s3://seven/set", quiet=True)
    assert set(FAULTS) & set(s3.faults)
    assert (made.samples, made.spec) == (60, "shards:s3://seven/set?index=set.index")
    assert everything(open_source(made.spec)) == everything(open_source(f"shards:{folder}"))
    assert fingerprint(open_source(made.spec)) == fingerprint(open_source(f"shards:{folder}"))
    before = sum(f"{request.path}".endswith(".tar") for request in s3.requests)
    assert vitlab.verify_data(made.path, quiet=True).is_sound
    assert sum(f"{request.path}".endswith(".tar") for request in s3.requests) >= before + 3  # the store, not the cache
    assert vitlab.verify_data(made.path, f"shards:{folder}", quiet=True).is_sound  # a copy is the same data
    data = bytearray((folder / "s1.tar").read_bytes())
    data[700] ^= 1  # in the first image
    upload(s3, "seven", [("set/s1.tar", bytes(data)), ("set/more.tar", (folder / "s0.tar").read_bytes())])
    found = vitlab.verify_data(made.path, quiet=True)
    assert found.counts == {"changed": 1, "added": 20}
    for call, given in (
        (vitlab.verify_data, (made.path, "shards:s3://seven/other")),
        (vitlab.index_data, ("shards:s3://seven/other", "other.index")),
    ):
        with pytest.raises(RemoteRefused, match=r"s3://seven/other is empty or does not exist; check the address"):
            call(*given, quiet=True)
    with pytest.raises(RemoteRefused, match=r"s3://seven/other is empty or does not exist; check the address"):
        open_source("shards:s3://seven/other")
    upload(s3, "eight", [("set/s0.tar", (folder / "s0.tar").read_bytes())])
    with pytest.raises(ValueError, match=r"set.index is the index of shards:s3://seven/set; give another file"):
        vitlab.index_data("shards:s3://eight/set", quiet=True)


def test_the_folder_of_a_web_server_cannot_be_indexed(folder, clean):
    cannot = pytest.raises(RemoteRefused, match=r"cannot be listed.*index the shards where they are stored")
    with FileServer({"/data/s0.tar": (folder / "s0.tar").read_bytes()}) as server, cannot:
        vitlab.index_data(f"shards:{server.url}/data", quiet=True)


def test_without_credentials_the_error_says_what_to_set(folder, s3, clean):
    clean.delenv("AWS_ACCESS_KEY_ID")
    clean.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(RemoteRefused, match=r"no credentials to read s3://x/y; check the AWS_"):
        open_source("shards:s3://x/y")


def test_shards_on_a_web_server_open_through_their_index(folder, clean):
    served = {f"/data/{path.name}": path.read_bytes() for path in folder.iterdir()}
    with FileServer(served, in_turn("500", "cut", "short", every=3)) as server:
        source = open_source(f"shards:{server.url}/data")
        assert everything(source) == everything(open_source(f"shards:{folder}"))
        assert fingerprint(source) == fingerprint(open_source(f"shards:{folder}"))
        assert source.class_names == ("a", "b", "c")
        server.files["/data/s0.tar"] = served["/data/s0.tar"] + bytes(512)
        with pytest.raises(ValueError, match=r"s0.tar has .* bytes, and .* were indexed"):
            open_source(f"shards:{server.url}/data").item(0)


def test_class_names_are_those_of_the_index_where_a_web_server_has_no_file_of_them(folder, clean):
    served = {f"/{path.name}": path.read_bytes() for path in folder.iterdir() if path.suffix != ".txt"}
    with FileServer(served) as server:
        assert open_source(f"shards:{server.url}").class_names == ("a", "b", "c")
