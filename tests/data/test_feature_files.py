"""Features of anybody: every form reads the same, and what does not pair or lies is refused."""

import io
import zipfile

import numpy as np
import pytest

from vitlab.data.feature_files import is_vectors, open_vectors, read_folder

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")
X = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
Y = np.arange(7) % 2


def parquet(path, x, y, names=("features", "labels")):
    table = pyarrow.table(dict(zip(names, (list(x), y), strict=True)))
    pyarrow.parquet.write_table(table, path, row_group_size=2)


def test_every_error_of_pyarrow_is_explained(tmp_path, monkeypatch):
    parquet(tmp_path / "a.parquet", X, Y)

    def fail(*arguments, **options):
        raise pyarrow.ArrowCapacityError("too long")

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "read", fail)
    with pytest.raises(ValueError, match=r"a.parquet is not a valid parquet file \(too long\); download"):
        open_vectors(f"{tmp_path}/a.parquet")


def test_no_features_are_an_error_that_says_what_was_given():
    with pytest.raises(ValueError, match=r"'' names no features; give FILE.npz"):
        open_vectors("")


def test_npy_npz_and_parquet_read_the_same(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(X))
    np.savez(tmp_path / "a.npz", features=X, labels=Y, ids=np.array([f"i{n}" for n in range(7)]))
    np.savez_compressed(tmp_path / "b.npz", train=X, of=Y)
    parquet(tmp_path / "c.parquet", X, Y)
    parquet(tmp_path / "d.parquet", X, Y, ("embedding", "class"))
    forms = [
        f"{tmp_path}/x.npy?y={tmp_path}/y.npy",
        f"{tmp_path}/fortran.npy?y={tmp_path}/y.npy",
        f"{tmp_path}/a.npz",
        f"{tmp_path}/b.npz?x=train&y=of",
        f"{tmp_path}/c.parquet",
        f"{tmp_path}/d.parquet?x=embedding&y=class",
    ]
    for form in forms:
        assert is_vectors(form), form
        found = open_vectors(form)
        assert np.array_equal(found.x, X), form
        assert np.array_equal(found.y, Y), form
    assert open_vectors(forms[2]).ids == tuple(f"i{n}" for n in range(7))


def test_images_are_not_taken_for_features(tmp_path):
    for spec in ("npz:a.npz", "parquet:a.parquet?split=train", "digits", "folder:photos", "fractals?classes=3"):
        assert not is_vectors(spec)


class Runs:
    """Were it unpickled, it would leave a trace."""

    def __reduce__(self):
        return (eval, ("__import__('pathlib').Path('ran').touch()",))


def test_what_is_no_features_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("short.npy", Y[:5])
    np.save("float.npy", Y.astype(float))
    np.savez("object.npz", features=X, labels=np.array([Runs()] * 7, dtype=object))
    (tmp_path / "torn.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-4])
    lying = io.BytesIO()
    np.lib.format.write_array_header_1_0(lying, {"descr": "<f4", "fortran_order": False, "shape": (10**9, 10**6)})
    (tmp_path / "lying.npy").write_bytes(lying.getvalue())
    with zipfile.ZipFile("lying.npz", "w") as archive:
        archive.writestr("features.npy", lying.getvalue())
        archive.write("short.npy", "labels.npy")
    np.savez("named.npz", a=X, b=Y)
    (tmp_path / "junk.npz").write_bytes(b"PK junk")
    (tmp_path / "junk.parquet").write_bytes(b"PAR1 junk")
    cases = {
        "x.npy": "holds no labels",
        "x.npy?y=short.npy": "not \\(n, D\\)",
        "x.npy?y=float.npy": "x.npy: labels are of float64; allowed are whole numbers",
        "short.npy?y=short.npy": "not \\(n, D\\)",
        "torn.npy?y=short.npy": "does not match its size",
        "lying.npy?y=short.npy": "does not match its size",
        "lying.npz": "does not match its size",
        "object.npz": "pickled",
        "named.npz": "has no features or x",
        "x.npy?z=1": "options x and y",
        "junk.npz": "not a valid",
        "junk.parquet": "not a valid",
    }
    for name, message in cases.items():
        with pytest.raises(ValueError, match=message):
            open_vectors(name)
    assert not (tmp_path / "ran").exists()
    parquet("ragged.parquet", [[1.0], [1.0, 2.0]], [0, 1])
    with pytest.raises(ValueError, match="differ in length"):
        open_vectors("ragged.parquet")
    parquet("flat.parquet", [1.0, 2.0], [0, 1])
    with pytest.raises(ValueError, match="not lists"):
        open_vectors("flat.parquet")
    with pytest.raises(FileNotFoundError):
        read_folder(tmp_path)
