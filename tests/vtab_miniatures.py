"""Small archives in the formats of VTAB's image sets, written with other tools than the readers use, and their truth.

Every function writes one set into a folder and returns a `Miniature`: for each TFDS split, key -> (facts, image). Facts
are what the label of a task is made from.
"""

import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io
from PIL import Image

from vitlab.paper.vtab import TASKS, Slice, VtabTask


@dataclass(frozen=True)
class Miniature:
    """The truth: TFDS split -> key -> (facts, the file or the pixels that must come back)."""

    splits: dict[str, dict[str, tuple[Any, Any]]]

    def task(self, key: str, classes: int) -> VtabTask:
        """The task on this few images: a fifth of each slice's split, where the original takes 800, 200 and a test."""
        task = next(task for task in TASKS if task.key == key)
        sizes = {name: len(images) for name, images in self.splits.items()}
        train = sizes["train"]
        first = train // 5
        validation = task.validation.split
        start = 0 if validation != "train" else train // 2
        held = first if validation == "train" else sizes[validation] // 4
        test = task.test.split
        begin = 0 if task.test.start == 0 else train * 3 // 4 if test == "train" else sizes[test] // 2
        return replace(
            task,
            classes=classes,
            available=train,
            train=Slice("train", 0, first),
            validation=Slice(validation, start, start + held),
            test=Slice(test, begin, sizes[test]),
            held=sizes[validation] if task.held else 0,
        )


def encoded(number: int, kind: str = "JPEG", size: tuple[int, int] = (12, 10)) -> bytes:
    """An image file of one colour that only this number has."""
    stream = io.BytesIO()
    Image.new("RGB", size, (number * 37 % 256, number * 91 % 256, number // 7 % 256)).save(stream, kind)
    return stream.getvalue()


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> None:
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def write_zip(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def write_folder(path: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)


# -- Natural ---------------------------------------------------------------------------------------


def caltech101(root: Path, form: str = "zip") -> Miniature:
    counts = {"BACKGROUND_Google": 33, "Faces": 31, "accordion": 45}
    files = {
        f"101_ObjectCategories/{name}/image_{n:04d}.jpg": encoded(100 * place + n)
        for place, (name, count) in enumerate(counts.items())
        for n in range(1, count + 1)
    }
    drawn, splits = np.random.RandomState(1234), {"train": {}, "test": {}}
    for name in sorted(counts):
        own = sorted(file.rpartition("/")[2] for file in files if f"/{name}/" in file)
        train = drawn.choice(own, 30, replace=False)
        for file in own:
            truth = (name.lower(), files[f"101_ObjectCategories/{name}/{file}"])
            splits["train" if file in train else "test"][f"{name}/{file}"] = truth
    files["101_ObjectCategories/BACKGROUND_Google/tmp"] = b"not an image"
    if form == "zip":
        write_tar(root / "inner.tar.gz", files)
        inner = (root / "inner.tar.gz").read_bytes()
        write_zip(root / "caltech-101.zip", {"caltech-101/101_ObjectCategories.tar.gz": inner, "caltech-101/x": b""})
        (root / "inner.tar.gz").unlink()
    elif form == "tar":
        write_tar(root / "101_ObjectCategories.tar", files, "w")
    else:
        write_folder(root / "caltech101", files)
    return Miniature(splits)


def cifar100(root: Path, form: str = "binary") -> Miniature:
    splits = {}
    for name, count in (("train", 60), ("test", 24)):
        planes = np.random.default_rng(count).integers(0, 256, (count, 3, 32, 32), np.uint8)
        records = b"".join(bytes([n % 20, n * 7 % 100]) + planes[n].tobytes() for n in range(count))
        write_folder(root / "cifar-100-binary", {f"{name}.bin": records})
        splits[name] = {str(n): (n * 7 % 100, np.moveaxis(planes[n], 0, 2)) for n in range(count)}
    names = "".join(f"fine {n}\n" for n in range(100)).encode()
    write_folder(root / "cifar-100-binary", {"fine_label_names.txt": names})
    if form == "archive":
        files = {f"cifar-100-binary/{f.name}": f.read_bytes() for f in (root / "cifar-100-binary").iterdir()}
        write_tar(root / "cifar-100-binary.tar.gz", files)
        for file in list((root / "cifar-100-binary").iterdir()):
            file.unlink()
        (root / "cifar-100-binary").rmdir()
    return Miniature(splits)


def dtd(root: Path, form: str = "tar.gz") -> Miniature:
    splits, files, number = {}, {}, 0
    for name, file, count in (("train", "train1", 30), ("validation", "val1", 16), ("test", "test1", 20)):
        splits[name] = {}
        for n in range(count):
            kind = ("banded", "zigzagged", "dotted")[n % 3]
            key, number = f"{kind}/{kind}_{number:04d}.jpg", number + 1
            splits[name][key] = (kind, encoded(number))
            files[f"dtd/images/{key}"] = splits[name][key][1]
        files[f"dtd/labels/{file}.txt"] = "\n".join(splits[name]).encode()
    if form == "tar.gz":
        write_tar(root / "dtd-r1.0.1.tar.gz", files)
    else:
        write_folder(root, files)
    return Miniature(splits)


def oxford_flowers102(root: Path, form: str = "tgz") -> Miniature:
    rng = np.random.default_rng(0)
    labels = rng.integers(1, 4, 70)
    numbers = rng.permutation(70) + 1
    parts = {"train": numbers[:30], "validation": numbers[30:46], "test": numbers[46:]}
    files = {f"jpg/image_{n:05d}.jpg": encoded(n) for n in range(1, 71)}
    if form == "tgz":
        write_tar(root / "102flowers.tgz", files)
    else:
        write_folder(root / "flowers", files)
    scipy.io.savemat(root / "imagelabels.mat", {"labels": labels.astype(np.uint8)[None]})
    named = {"trnid": parts["train"], "valid": parts["validation"], "tstid": parts["test"]}
    scipy.io.savemat(root / "setid.mat", {name: own.astype(np.uint16)[None] for name, own in named.items()})
    return Miniature(
        {
            split: {f"image_{n:05d}.jpg": (int(labels[n - 1]), files[f"jpg/image_{n:05d}.jpg"]) for n in own.tolist()}
            for split, own in parts.items()
        }
    )


def oxford_iiit_pet(root: Path, form: str = "tar.gz") -> Miniature:
    breeds = ["Abyssinian", "american_bulldog", "Bengal"]
    splits, images, lists = {"train": {}, "test": {}}, {}, {"trainval.txt": [], "test.txt": []}
    for n in range(70):
        breed = n % 3
        key = f"{breeds[breed]}_{n}.jpg"
        data = encoded(n, "GIF" if n == 4 else "PNG" if n == 5 else "JPEG")
        split, file = ("train", "trainval.txt") if n < 50 else ("test", "test.txt")
        splits[split][key] = (breed + 1, data)
        images[f"images/{key}"] = data
        lists[file].append(f"{key[:-4]} {breed + 1} {1 + breed % 2} {breed + 1}")
    notes = {
        f"annotations/{name}": "\n".join(["#Image CLASS-ID SPECIES BREED ID", *rows]).encode()
        for name, rows in lists.items()
    }
    own = root / "oxford_iiit_pet"
    own.mkdir()
    if form == "tar.gz":
        write_tar(own / "images.tar.gz", images)
        write_tar(own / "annotations.tar.gz", notes)
    else:
        write_folder(own, images | notes)
    return Miniature(splits)


def sun397(root: Path, form: str = "tar.gz") -> Miniature:
    kinds = ["/a/abbey", "/c/car_interior/backseat", "/c/church/outdoor"]
    splits, files, number = {}, {}, 0
    for name, short, count in (("train", "tr", 30), ("validation", "va", 16), ("test", "te", 20)):
        splits[name] = {}
        for n in range(count):
            number += 1
            kind = kinds[n % 3]
            key = f"{kind}/sun_{number:04x}.jpg"
            data = encoded(number, "BMP" if n == 3 else "JPEG", (500, 400) if n % 4 == 1 else (30, 20))
            splits[name][key] = (kind, data)
            files[f"SUN397{key}"] = data
        (root / f"sun397_tfds_{short}.txt").write_text("\n".join(splits[name]))
    files["SUN397/a/abbey/sun_unlisted.jpg"] = b"not listed"
    if form == "tar.gz":
        write_tar(root / "SUN397.tar.gz", files)
    else:
        write_folder(root, files)
    return Miniature(splits)


def svhn(root: Path, form: str = "mat") -> Miniature:
    splits = {}
    for name, count in (("train", 60), ("test", 24)):
        rng = np.random.default_rng(count)
        images, labels = rng.integers(0, 256, (count, 32, 32, 3), np.uint8), rng.permutation(count) % 10 + 1
        stored = {"X": images.transpose(1, 2, 3, 0), "y": labels[:, None].astype(np.uint8)}
        scipy.io.savemat(root / f"{name}_32x32.mat", stored, do_compression=form == "compressed")
        splits[name] = {str(n): (int(labels[n]), images[n]) for n in range(count)}
    return Miniature(splits)


# -- Specialized -----------------------------------------------------------------------------------


def patch_camelyon(root: Path, form: str = "h5.gz") -> Miniature:
    splits = {}
    for name, part, count in (("train", "train", 30), ("validation", "valid", 12), ("test", "test", 10)):
        rng = np.random.default_rng(count)
        images, labels = rng.integers(0, 256, (count, 96, 96, 3), np.uint8), rng.integers(0, 2, (count, 1, 1, 1))
        for letter, values in (("x", images), ("y", labels.astype(np.uint8))):
            path = root / f"camelyonpatch_level_2_split_{part}_{letter}.h5"
            with h5py.File(path, "w") as file:
                file.create_dataset(letter, data=values, chunks=True, compression="gzip")
            if form == "h5.gz":
                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
                path.unlink()
        splits[name] = {f"{part}_{n}": (int(labels[n, 0, 0, 0]), images[n]) for n in range(count)}
    return Miniature(splits)


def eurosat(root: Path, form: str = "zip") -> Miniature:
    splits, files = {"train": {}}, {}
    for n in range(80):
        kind = ("AnnualCrop", "River", "Forest")[n % 3]
        files[f"2750/{kind}/{kind}_{n}.jpg"] = encoded(n, size=(64, 64))
        splits["train"][f"{kind}_{kind}_{n}.jpg"] = (kind, files[f"2750/{kind}/{kind}_{n}.jpg"])
    write_zip(root / "EuroSAT.zip", files) if form == "zip" else write_folder(root / "eurosat", files)
    return Miniature(splits)


def resisc45(root: Path, form: str = "folder") -> Miniature:
    splits, files = {"train": {}}, {}
    for n in range(80):
        kind = ("airplane", "wetland", "bridge")[n % 3]
        files[f"NWPU-RESISC45/{kind}/{kind}_{n:03d}.jpg"] = encoded(n)
        splits["train"][f"{kind}_{kind}_{n:03d}.jpg"] = (kind, files[f"NWPU-RESISC45/{kind}/{kind}_{n:03d}.jpg"])
    write_folder(root, files) if form == "folder" else write_zip(root / "NWPU-RESISC45.zip", files)
    return Miniature(splits)


def fundus(number: int) -> bytes:
    """A bright disc on black."""
    y, x = np.mgrid[:20, :30]
    disc = ((y - 10) ** 2 + (x - 15) ** 2 < 9**2)[..., None]
    stream = io.BytesIO()
    Image.fromarray((disc * (100 + number)).astype(np.uint8).repeat(3, 2)).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def diabetic_retinopathy(root: Path, form: str = "folder") -> Miniature:
    own = root / "diabetic_retinopathy"
    own.mkdir()
    splits: dict[str, dict[str, tuple[Any, Any]]] = {"train": {}, "validation": {}, "test": {}}
    files, tables = {}, {"train": ["image,level"], "test": ["image,level,Usage"]}
    for n in range(66):
        split = "train" if n < 30 else "validation" if n % 3 else "test"
        key, folder = f"{n}_{('left', 'right')[n % 2]}", "train" if n < 30 else "test"
        files[f"{folder}/{key}.jpeg"] = fundus(n)
        tables[folder].append(f"{key},{n % 5}" + ("" if n < 30 else ",Public" if n % 3 else ",Private"))
        splits[split][key] = (n % 5, files[f"{folder}/{key}.jpeg"])
    (own / "trainLabels.csv").write_text("\n".join(tables["train"]))
    (own / "retinopathy_solution.csv").write_text("\n".join(tables["test"]))
    if form == "folder":
        write_folder(own, files)
    else:
        for folder in ("train", "test"):
            write_zip(own / f"{folder}.zip", {name: data for name, data in files.items() if name.startswith(folder)})
    return Miniature(splits)


# -- Structured ------------------------------------------------------------------------------------

DEPTHS = (7.5, 8.0, 8.0001, 8.5, 8.75, 9.0, 9.2, 9.5, 9.9, 10.0, 10.01, 14.0)  # both sides of every edge


def clevr(root: Path, form: str = "zip") -> Miniature:
    splits, files = {}, {}
    for name, short, count in (("train", "train", 60), ("validation", "val", 24)):
        splits[name], scenes = {}, []
        for n in range(count):
            key = f"CLEVR_{short}_{n:06d}.png"
            objects, nearest = 3 + n % 8, DEPTHS[n % len(DEPTHS)]
            depths = [nearest + 0.5 * extra for extra in range(objects)][::-1]
            things = [{"color": "red", "pixel_coords": [1, 2, depth], "3d_coords": [0, 0, 0]} for depth in depths]
            scenes.append({"split": short, "image_filename": key, "objects": things, "relationships": {"left": [[1]]}})
            files[f"CLEVR_v1.0/images/{short}/{key}"] = encoded(n, "PNG")
            splits[name][key] = ((objects, nearest), files[f"CLEVR_v1.0/images/{short}/{key}"])
        info = {"date": "7/8/2017", "split": short, "nested": {"scenes": [1]}}
        files[f"CLEVR_v1.0/scenes/CLEVR_{short}_scenes.json"] = json.dumps({"info": info, "scenes": scenes}).encode()
    write_zip(root / "CLEVR_v1.0.zip", files) if form == "zip" else write_folder(root, files)
    return Miniature(splits)


def crc32c(data: bytes) -> int:
    """Bit by bit, from the definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def tfrecord(data: bytes) -> bytes:
    def mask(crc: int) -> int:
        return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF

    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", mask(crc32c(length))) + data + struct.pack("<I", mask(crc32c(data)))


def field(number: int, data: bytes) -> bytes:
    """A field of a protocol buffer that has a length."""
    length, left = b"", len(data)
    while left >= 128:
        length, left = length + bytes([left & 127 | 128]), left >> 7
    return bytes([number << 3 | 2]) + length + bytes([left]) + data


def tf_example(image: bytes, filename: str, label: int, *, packed: bool) -> bytes:
    features = {
        "filename": field(1, field(1, filename.encode())),
        "image": field(1, field(1, image)),
        "label": field(3, field(1, bytes([label])) if packed else b"\x08" + bytes([label])),
        "weight": field(2, field(1, struct.pack("<f", 0.5))),
    }
    return field(1, b"".join(field(1, field(1, name.encode()) + field(2, value)) for name, value in features.items()))


def dmlab(root: Path, form: str = "tar.gz") -> Miniature:
    splits, files = {}, {}
    for name, count in (("train", 30), ("validation", 16), ("test", 20)):
        splits[name] = {f"{name}-{n}": (n % 6, encoded(n, size=(48, 36))) for n in range(count)}
        records = [
            tfrecord(tf_example(image, key, label, packed=label % 2 == 0))
            for key, (label, image) in splits[name].items()
        ]
        for part in range(2):
            file = f"dmlab-{name}.tfrecord-{part:05d}-of-00002"
            files[f"dmlab/{file}"] = b"".join(records[part * count // 2 : (part + 1) * count // 2])
    write_tar(root / "dmlab.tar.gz", files) if form == "tar.gz" else write_folder(root, files)
    return Miniature(splits)


def dsprites(root: Path, form: str = "npz") -> Miniature:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 2, (160, 64, 64), np.uint8)
    latents = np.stack([rng.permutation(160) % size for size in (1, 3, 6, 40, 32, 32)], axis=1)
    stem = root / "dsprites_ndarray_co1sh3sc6or40x32y32_64x64"
    if form == "npz":
        np.savez_compressed(f"{stem}.npz", imgs=images, latents_classes=latents, latents_values=latents / 7)
    else:
        with h5py.File(f"{stem}.hdf5", "w") as file:
            file.create_dataset("imgs", data=images, chunks=(16, 64, 64), compression="gzip")
            file.create_dataset("latents/classes", data=latents)
    facts = [(int(row[3]), int(row[4])) for row in latents]
    return Miniature({"train": {str(n): (facts[n], images[n, ..., None].repeat(3, 2) * 255) for n in range(160)}})


KITTI_BOX = "{} 0.00 0 -1.58 587.01 173.33 614.12 200.12 1.65 1.67 3.64 -0.65 1.71 {:.2f} -1.59"
KITTI_SCENES = (  # boxes (kind, z) and the distance of the nearest vehicle
    ([("Car", 8.0), ("Pedestrian", 2.0)], 8.0),
    ([("Van", 8.01), ("Car", 30.0)], 8.01),
    ([("Truck", 20.0), ("DontCare", -1000.0)], 20.0),
    ([("Car", 20.01)], 20.01),
    ([("Cyclist", 3.0), ("DontCare", -1000.0)], 1000.0),
    ([], 1000.0),
    ([("Car", -2.5), ("Tram", 4.0)], -2.5),
)


def kitti(root: Path, form: str = "zip") -> Miniature:
    count, videos = 80, [f"2011_09_26_drive_{n:04d}_sync" for n in range(20)]
    order = np.random.default_rng(0).permutation(count)  # image i is line order[i]
    lines = [f"2011_09_26 {videos[n * 7 % 20]} {n:010d}" for n in range(count)]
    video = [lines[order[n]].split()[1] for n in range(count)]
    drawn = np.random.RandomState(123)
    test = set(drawn.choice(sorted(videos), 2, replace=False))
    validation = set(drawn.choice(sorted(set(videos) - test), 2, replace=False))
    images, boxes = {}, {}
    splits: dict[str, dict[str, tuple[Any, Any]]] = {"train": {}, "validation": {}, "test": {}}
    for n in range(count):
        things, nearest = KITTI_SCENES[n % len(KITTI_SCENES)]
        images[f"training/image_2/{n:06d}.png"] = encoded(n, "PNG")
        boxes[f"training/label_2/{n:06d}.txt"] = "\n".join(KITTI_BOX.format(*thing) for thing in things).encode()
        split = "test" if video[n] in test else "validation" if video[n] in validation else "train"
        splits[split][f"{n:06d}.png"] = (nearest, images[f"training/image_2/{n:06d}.png"])
    devkit = {
        "readme.txt": b"",
        "mapping/train_rand.txt": ",".join(str(place + 1) for place in order).encode(),
        "mapping/train_mapping.txt": "\n".join(lines).encode(),
    }
    if form == "zip":
        write_zip(root / "data_object_image_2.zip", images | {"testing/image_2/000000.png": b""})
        write_zip(root / "data_object_label_2.zip", boxes)
        write_zip(root / "devkit_object.zip", devkit)
    else:
        write_folder(root / "kitti", images | boxes | devkit)
    return Miniature(splits)


def smallnorb(root: Path, form: str = "mat.gz") -> Miniature:
    splits = {}
    names = {"train": "5x46789x9x18x6x2x96x96-training", "test": "5x01235x9x18x6x2x96x96-testing"}
    for split, name in names.items():
        count = 40
        rng = np.random.default_rng(len(name))
        images = rng.integers(0, 256, (count, 2, 96, 96), np.uint8)
        info = np.stack(
            [np.arange(count) % 10, rng.permutation(count) % 9, rng.permutation(count) % 18 * 2, np.arange(count) % 6]
        )
        category = struct.pack("<iiiii", 0x1E3D4C54, 1, count, 1, 1) + bytes(4 * count)
        dat = struct.pack("<iiiiii", 0x1E3D4C55, 4, count, 2, 96, 96) + images.tobytes()
        facts = struct.pack("<iiiii", 0x1E3D4C54, 2, count, 4, 1) + info.T.astype("<i4").tobytes()
        for kind, data in (("dat", dat), ("cat", category), ("info", facts)):
            path = root / f"smallnorb-{name}-{kind}.mat"
            if form == "mat.gz":
                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(data, 1))
            else:
                path.write_bytes(data)
        splits[split] = {
            str(n): ((int(info[1, n]), int(info[2, n])), images[n, 0, ..., None].repeat(3, 2)) for n in range(count)
        }
    return Miniature(splits)


# task: (writer, forms, classes in the miniature, label rule written out by hand)
Rule = Callable[[Any], int]
SETS: dict[str, tuple[Callable[..., Miniature], tuple[str, ...], int, Rule]] = {
    "caltech101": (caltech101, ("zip", "tar", "folder"), 3, ["accordion", "background_google", "faces"].index),
    "cifar100": (cifar100, ("binary", "archive"), 100, int),
    "dtd": (dtd, ("tar.gz", "folder"), 3, ["banded", "dotted", "zigzagged"].index),
    "oxford_flowers102": (oxford_flowers102, ("tgz", "folder"), 3, lambda label: label - 1),
    "oxford_iiit_pet": (oxford_iiit_pet, ("tar.gz", "folder"), 3, lambda breed: breed - 1),
    "sun397": (sun397, ("tar.gz", "folder"), 3, ["/a/abbey", "/c/car_interior/backseat", "/c/church/outdoor"].index),
    "svhn": (svhn, ("mat", "compressed"), 10, lambda digit: 0 if digit == 10 else digit),
    "patch_camelyon": (patch_camelyon, ("h5.gz", "h5"), 2, int),
    "eurosat": (eurosat, ("zip", "folder"), 3, ["AnnualCrop", "Forest", "River"].index),
    "resisc45": (resisc45, ("folder", "zip"), 3, ["airplane", "bridge", "wetland"].index),
    "diabetic_retinopathy": (diabetic_retinopathy, ("folder", "zip"), 5, int),
    "clevr_count": (clevr, ("zip", "folder"), 8, lambda scene: scene[0] - 3),
    "clevr_distance": (clevr, ("zip",), 6, lambda scene: sum(scene[1] > edge for edge in (8, 8.5, 9, 9.5, 10))),
    "dmlab": (dmlab, ("tar.gz", "folder"), 6, int),
    "dsprites_location": (dsprites, ("npz", "hdf5"), 16, lambda latents: latents[1] // 2),
    "dsprites_orientation": (dsprites, ("npz",), 16, lambda latents: int(latents[0] / 2.5)),
    "kitti_distance": (kitti, ("zip", "folder"), 4, lambda z: 0 if z <= 8 else 1 if z <= 20 else 2 if z <= 999 else 3),
    "smallnorb_azimuth": (smallnorb, ("mat.gz", "mat"), 18, lambda info: info[1] // 2),
    "smallnorb_elevation": (smallnorb, ("mat.gz",), 9, lambda info: info[0]),
}


def written(root: Path, *keys: str) -> list[VtabTask]:
    """Write the image sets of tasks in their first form; returns the tasks on them."""
    root.mkdir(exist_ok=True)
    made, tasks = {}, []
    for key in keys:
        write, forms, classes, _ = SETS[key]
        if write not in made:
            made[write] = write(root, forms[0])
        tasks.append(made[write].task(key, classes))
    return tasks
