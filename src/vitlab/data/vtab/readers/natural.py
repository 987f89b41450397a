"""Readers of the natural sets: photographs, and house numbers. Each lists one TFDS split."""

from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np

from vitlab.data.archives.matlab import read_mat
from vitlab.data.archives.members import LARGEST_TEXT
from vitlab.data.images.gate import read_image
from vitlab.data.sources.cifar import CifarSource
from vitlab.data.transforms.resizing import resized
from vitlab.data.vtab.listing import Converted, Listing, Pictures, PixelRows, file_listing, jpeg
from vitlab.data.vtab.places import Place
from vitlab.files.user_files import read_lines
from vitlab.paper.vtab import VtabTask
from vitlab.require import require

SPLIT_FILES = {"train": "train", "validation": "val", "test": "test"}
CIFAR_FILES = (
    *("cifar-100-binary/train.bin", "train.bin", "cifar-100-python/train", "train"),
    *("cifar-100-python.tar", "cifar-100-python.tar.gz", "cifar-100-binary.tar", "cifar-100-binary.tar.gz"),
)
CALTECH_PER_CLASS, CALTECH_SEED = 30, 1234  # TFDS draws 30 training images of every class
SUN_PIXELS = 120_000  # the most that TFDS keeps of an image of SUN397
SUN_QUALITY = 95  # of the JPEGs that OpenCV writes by default
SUN_LISTS = {"train": "tr", "validation": "va", "test": "te"}


def caltech101(place: Place, split: str, task: VtabTask) -> Listing:
    """Class folders; 30 images of each class are training images, drawn with the seed that TFDS uses.

    Which ones they are depends on the order in which the authors' file system listed the folders. Here it is
    alphabetical.
    """
    archives = ("101_ObjectCategories.tar", "101_ObjectCategories.tar.gz", "caltech-101.zip")
    members = place.members(("101_ObjectCategories",), archives)
    by_class: dict[str, list[str]] = {}
    for name in members.names():
        folder, slash, file = name.partition("/")
        if slash and file.lower().endswith(".jpg") and "/" not in file:
            by_class.setdefault(folder, []).append(file)
    generator, names = np.random.RandomState(CALTECH_SEED), []
    for folder, files in sorted(by_class.items()):
        enough = len(files) >= CALTECH_PER_CLASS
        require(enough, f"{members.path.name} has {len(files)} images of {folder!r:.60}; at least 30 are needed")
        train = set(generator.choice(files, CALTECH_PER_CLASS, replace=False).tolist())
        names += [f"{folder}/{file}" for file in files if (file in train) == (split == "train")]
    classes = [name.partition("/")[0].lower() for name in names]
    return file_listing(members, names, names, classes, sorted(folder.lower() for folder in by_class))


def cifar100(place: Place, split: str, task: VtabTask) -> Listing:
    """The binary or the python form; fine labels."""
    first = place.file(*CIFAR_FILES)
    folder = next(folder for folder in place.folders() if first.is_relative_to(folder))
    source = CifarSource(100, folder, "test" if split == "test" else "train")

    def choose(numbers: np.ndarray) -> Pictures:
        pixels = np.stack([np.asarray(source.item(number).data) for number in numbers.tolist()])
        return PixelRows(pixels, [Path(file) for file in source.paths() or ()])

    keys = [str(number) for number in range(len(source))]
    return Listing(keys, source.labels.numbers, source.class_names, choose)


def dtd(place: Place, split: str, task: VtabTask) -> Listing:
    """The lists of fold 1; an image's key attribute is its folder."""
    members = place.members(("dtd",), ("dtd-r1.0.1.tar", "dtd-r1.0.1.tar.gz"))
    lists = {name: members.lines(f"labels/{file}1.txt") for name, file in SPLIT_FILES.items()}
    class_names = sorted({key.partition("/")[0] for keys in lists.values() for key in keys})
    keys = lists[split]
    classes = [key.partition("/")[0] for key in keys]
    return file_listing(members, [f"images/{key}" for key in keys], keys, classes, class_names)


def flowers102(place: Place, split: str, task: VtabTask) -> Listing:
    """Image numbers by split in setid.mat, labels from 1 on in imagelabels.mat."""
    members = place.members(("jpg",), ("102flowers.tar", "102flowers.tar.gz", "102flowers.tgz"))
    labels = read_mat(place.file("imagelabels.mat"), "labels").reshape(-1).astype(np.int64)
    field = {"train": "trnid", "validation": "valid", "test": "tstid"}[split]
    numbers = read_mat(place.file("setid.mat"), field).reshape(-1).astype(np.int64)
    known = numbers.min() >= 1 and numbers.max() <= len(labels) and labels.min() >= 1
    require(bool(known), f"setid.mat has images up to {numbers.max()}, imagelabels.mat {len(labels)} labels")
    keys = [f"image_{number:05d}.jpg" for number in numbers.tolist()]
    class_names = [str(label) for label in range(1, int(labels.max()) + 1)]
    return file_listing(members, keys, keys, [str(label) for label in labels[numbers - 1].tolist()], class_names)


def pets(place: Place, split: str, task: VtabTask) -> Listing:
    """Lines of `name class species breed`; the class is a number from 1 on and the name without its number."""
    images = place.members(("images",), ("images.tar", "images.tar.gz"))
    annotations = place.members(("annotations",), ("annotations.tar", "annotations.tar.gz"))
    file = {"train": "trainval.txt", "test": "test.txt"}[split]
    rows = [line.split() for line in annotations.lines(file) if not line.startswith("#")]
    sound = all(len(row) == 4 and row[1].isdecimal() for row in rows)
    require(sound, f"{file} has a line that is not `name class species breed`; download it again")
    names: dict[int, str] = {}
    for name, number, *_ in rows:
        called = names.setdefault(int(number), name.rpartition("_")[0])
        same = called == name.rpartition("_")[0]
        require(same, f"{file} has class {number} for {called!r:.60} and for {name!r:.60}; download it again")
    order = sorted(names)
    require(order == list(range(1, len(order) + 1)), f"{file} does not number its classes from 1 on")
    keys = [f"{row[0]}.jpg" for row in rows]
    return file_listing(images, keys, keys, [names[int(row[1])] for row in rows], [names[n] for n in order])


def sun397(place: Place, split: str, task: VtabTask) -> Listing:
    """The lists of TFDS; the class is the path of the folder. Larger images are reduced to 120,000 pixels."""
    lists = {name: read_lines(place.file(f"sun397_tfds_{file}.txt"), LARGEST_TEXT) for name, file in SUN_LISTS.items()}
    members = place.members(("SUN397",), ("SUN397.tar", "SUN397.tar.gz"))
    class_names = sorted({key.rpartition("/")[0] for keys in lists.values() for key in keys})
    keys = sorted(set(lists[split]))
    classes = [key.rpartition("/")[0] for key in keys]
    found = file_listing(members, [key.lstrip("/") for key in keys], keys, classes, class_names)
    return replace(found, choose=lambda numbers: Converted(found.choose(numbers), reduced))


def reduced(data: bytes) -> bytes:
    """An image with at most 120,000 pixels; one that had more is compressed again, as in TFDS."""
    image = read_image(data).image
    if image.width * image.height <= SUN_PIXELS:
        return data
    factor = sqrt(SUN_PIXELS / (image.width * image.height))
    size = round(image.height * factor), round(image.width * factor)
    return jpeg(resized(image, size, "bilinear", antialias=False), SUN_QUALITY)


def svhn(place: Place, split: str, task: VtabTask) -> Listing:
    """X (32, 32, 3, n) and y (n, 1), where 10 stands for the digit 0."""
    file = place.file(f"{'test' if split == 'test' else 'train'}_32x32.mat")
    images, labels = read_mat(file, "X"), read_mat(file, "y").reshape(-1).astype(np.int64)
    is_pixels = images.dtype == np.uint8 and images.ndim == 4 and images.shape[:3] == (32, 32, 3)
    require(is_pixels, f"{file.name} has images of {images.dtype}, {images.shape}; expected uint8, (32, 32, 3, n)")
    fits = len(labels) == images.shape[3] and labels.min() >= 1 and labels.max() <= 10
    require(bool(fits), f"{file.name} has {images.shape[3]:,} images and {len(labels):,} labels, or labels over 10")

    def choose(numbers: np.ndarray) -> Pictures:
        return PixelRows(images[..., numbers].transpose(3, 0, 1, 2), [file])

    return Listing([str(n) for n in range(len(labels))], labels % 10, tuple("0123456789"), choose)
