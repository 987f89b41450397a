"""Members of folders, tars and zips that Python's own modules wrote."""

import gzip
import io
import pickle
import tarfile
import zipfile

import pytest

from vitlab.data.archives.members import FolderMembers, open_inner, open_members
from vitlab.data.images.refusals import BadImage

FILES = {"set/b/2.jpg": b"two" * 500, "set/a/1.jpg": b"one", "set/list.txt": b"\xef\xbb\xbfa/1.jpg\n\n b/2.jpg \n"}


def tar_bytes(files=FILES, mode="w") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("set/link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return stream.getvalue()


def zip_bytes(files=FILES, method=zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.mkdir("set")
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def written(folder, name):
    path = folder / name
    if name == "folder":
        for file, data in FILES.items():
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            (path / file).write_bytes(data)
        (path / "set" / ".hidden").write_bytes(b"")
        return FolderMembers(path / "set")
    made = {
        "x.tar": tar_bytes,
        "x.tar.gz": lambda: tar_bytes(mode="w:gz"),
        "x.tgz": lambda: gzip.compress(tar_bytes()),
        "x.zip": zip_bytes,
        "stored.zip": lambda: zip_bytes(method=zipfile.ZIP_STORED),
        "nested.zip": lambda: zip_bytes({"x.tar.gz": tar_bytes(mode="w:gz")}),
        "nested-stored.zip": lambda: zip_bytes({"x.tar.gz": tar_bytes(mode="w:gz")}, zipfile.ZIP_STORED),
    }[name]()
    path.write_bytes(made)
    found = open_members(path)
    return (open_inner(found, "x.tar.gz") if "nested" in name else found).below("set/")


KINDS = ["folder", "x.tar", "x.tar.gz", "x.tgz", "x.zip", "stored.zip", "nested.zip", "nested-stored.zip"]


@pytest.mark.parametrize("kind", KINDS)
def test_members_are_the_same_in_every_kind_of_archive(tmp_path, kind):
    members = written(tmp_path, kind)
    assert list(members.names()) == ["a/1.jpg", "b/2.jpg", "list.txt"]
    assert members.lines("list.txt") == ["a/1.jpg", "b/2.jpg"]
    assert members.contains("a/1.jpg")
    assert not members.contains("a/2.jpg")
    files = members.choose(["b/2.jpg", "a/1.jpg"])
    sent = pickle.loads(pickle.dumps(files))  # noqa: S301  our own bytes
    for each in (files, sent):
        assert [each.name(0), each.read(0), each.read(1)] == ["b/2.jpg", FILES["set/b/2.jpg"], b"one"]
    assert all(isinstance(path, str) for path in files.paths())


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_member_is_an_error_that_names_it(tmp_path, kind):
    members = written(tmp_path, kind)
    with pytest.raises((ValueError, FileNotFoundError), match=r"no\.txt"):
        members.lines("no.txt")
    with pytest.raises(BadImage, match=r"3\.jpg"):
        members.choose(["3.jpg"]).read(0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_above_the_limit_is_not_read(tmp_path, kind):
    with pytest.raises(ValueError, match="at most 100 "):
        written(tmp_path, kind).read("b/2.jpg", 100)


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.zip"])
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.8])
def test_a_part_of_an_archive_is_an_error_of_one_line(tmp_path, name, keep):
    files = {f"{n}.jpg": bytes([n]) * 700 + bytes(range(256)) for n in range(40)}
    whole = zip_bytes(files) if name == "x.zip" else tar_bytes(files, "w:gz" if name.endswith("gz") else "w")
    path = tmp_path / name
    path.write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(ValueError, match="download it again") as caught:
        open_members(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(name)


def test_a_flipped_byte_in_a_zip_is_found_by_its_checksum(tmp_path):
    path = tmp_path / "x.zip"
    data = bytearray(zip_bytes(method=zipfile.ZIP_STORED))
    data[data.index(b"twotwo")] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadImage, match="checksum"):
        open_members(path).choose(["set/b/2.jpg"]).read(0)


def test_a_zip_that_changes_is_noticed(tmp_path):
    path = tmp_path / "x.zip"
    path.write_bytes(zip_bytes())
    files = open_members(path).choose(["set/a/1.jpg"])
    path.write_bytes(zip_bytes({"set/a/1.jpg": b"other"}))
    with pytest.raises(BadImage, match="changed"):
        files.read(0)


def test_a_member_that_unpacks_to_more_than_it_says_is_refused(tmp_path):
    path = tmp_path / "x.zip"
    data = bytearray(zip_bytes({"a.jpg": bytes(100_000)}))
    for mark, at in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        start = data.rindex(mark) + at
        data[start : start + 4] = (1000).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(BadImage, match="checksum"):
        open_members(path).choose(["a.jpg"]).read(0)
