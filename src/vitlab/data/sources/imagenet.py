"""ImageNet (ILSVRC-2012) as distributed: synset folders, or the validation images with their ground truth."""

import os
import re
from pathlib import Path

import numpy as np

from vitlab.data.loading.accounting import Excluded
from vitlab.data.source import Labels
from vitlab.data.sources.folders import Files, FilesSource, FolderSource, PackedFiles, is_image_name, split_folder
from vitlab.data.sources.tar import Member, TarError, TarFile
from vitlab.files.user_files import read_regular
from vitlab.paper.imagenet import imagenet_classes
from vitlab.require import require

CLASSES = 1000
WORDNET_ID = re.compile(r"n\d{8}")
PAIR = re.compile(r'"?([^\s,"]+)"?[\s,]+"?(n\d{8})\b')  # name, WordNet id; the rest (Kaggle: boxes) is ignored
SYNSET = re.compile(r'"?(?:(\d+)"?[\s,]+"?)?(n\d{8})"?(?:[\s,]+"?(\d+)\b)?')  # an id before or after, or none
LARGEST_TEXT = 64 * 2**20  # bytes


class ImageNetSource(FilesSource):
    """ImageNet's images with classes 0 to 999 in the order of sorted WordNet ids, named as in `imagenet_classes`.

    `path` is a folder of synset folders (or of splits of such), or a flat folder or tar of ILSVRC2012_val_*.JPEG.
    The latter need `labels`: lines of a file name and its WordNet id, or ILSVRC2012_validation_ground_truth.txt
    together with `synsets`, the thousand WordNet ids in the order of the development kit (its meta as text).
    """

    def __init__(self, path: Path, split: str = "", *, labels: Path | None = None, synsets: Path | None = None) -> None:
        path = Path(path)
        self.class_names = tuple(name for _, name in imagenet_classes())
        numbers = {wordnet_id: number for number, (wordnet_id, _) in enumerate(imagenet_classes())}
        require(not split or path.is_dir(), f"{path} is not a folder, so it has no split {split!r}; leave it out")
        folder = path if path.is_file() else split_folder(path, split)
        if folder.is_dir() and [entry for entry in os.scandir(folder) if WORDNET_ID.fullmatch(entry.name)]:
            is_plain = labels is synsets is None
            require(is_plain, f"{folder} is sorted into synsets; it needs no files of labels or synsets")
            found = FolderSource(folder)
            strange = sorted(set(found.class_names) - set(numbers))
            require(not strange, f"{folder} has folders {strange!r:.200}, which are none of ImageNet's 1000 synsets")
            self.files, self.excluded = found.files, found.excluded
            order = np.array([numbers[name] for name in found.class_names])
            self.labels = Labels(order[found.labels.numbers])
        else:
            self.excluded = Excluded()
            names = _flat_names(folder, self.excluded) if folder.is_dir() else []
            self.files = Files(folder, names) if folder.is_dir() else TarImages(folder, self.excluded)
            require(len(self.files) > 0, f"{folder} has no images and no synset folders")
            require(labels is not None, f"{folder} is not sorted into synsets; give the file of its labels")
            self.labels = Labels(_labels_of(self.files, Path(labels or ""), synsets, numbers))


def _flat_names(folder: Path, excluded: Excluded) -> list[bytes]:
    names = sorted(os.fsencode(entry.name) for entry in os.scandir(folder))
    return [name for name in names if _is_image(name, excluded)]


def _is_image(name: bytes, excluded: Excluded) -> bool:
    """Whether a name is that of an image; counts it if not."""
    rule = "hidden" if name.startswith(b".") else "" if is_image_name(name) else "other_suffix"
    if rule:
        excluded.leave_out(rule, os.fsdecode(name))
    return not rule


class TarImages(PackedFiles):
    """The images of one tar file, sorted by name."""

    def __init__(self, file: Path, excluded: Excluded) -> None:
        tar, members = TarFile(file), list[Member]()
        stamp = tar.stamp()
        try:
            for member in tar.members():
                if member.kind not in ("file", "folder"):
                    excluded.leave_out(member.kind, os.fsdecode(member.name))
                elif member.kind == "file" and _is_image(member.name.rpartition(b"/")[2], excluded):
                    members.append(member)
        except TarError as error:
            raise ValueError(f"{file} is {error.reason}: it is not a complete tar file; download it again") from None
        members.sort(key=lambda member: member.name.rpartition(b"/")[2])
        names = [os.fsdecode(member.name.rpartition(b"/")[2]) for member in members]
        require(len(set(names)) == len(members), f"{file} has two images of one name")
        super().__init__(file.absolute(), names, stamp)
        self._tar: TarFile | None = tar
        self._places = np.array([(member.offset, member.size) for member in members], np.int64).reshape(-1, 2)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_tar": None}  # another process opens the file itself

    def read(self, index: int) -> bytes:
        name = self.name(index)
        self._tar = self._tar or TarFile(self._path)
        offset, size = self._places[index].tolist()
        return self._tar.read_image(offset, size, self._stamp, name, "start again")


def _labels_of(images: Files | TarImages, file: Path, synsets: Path | None, numbers: dict[str, int]) -> list[int]:
    lines = _lines(file)
    require(bool(lines), f"{file.name} is empty; give the file of the labels")
    if lines[0][1].isdigit():
        require(synsets is not None, f"{file.name} has the development kit's numbers; give its synsets too")
        truth = _devkit_truth(file, lines, _devkit_order(Path(synsets or ""), numbers))
    else:
        require(synsets is None, f"{file.name} names the synsets itself; leave out {synsets}")
        truth = _named_truth(file, lines, numbers)
    stems = [images.name(index).rpartition(".")[0] for index in range(len(images))]
    missing = [stem for stem in stems if stem not in truth]
    require(not missing, f"{file.name} has no label for {len(missing):,} images, the first being {missing[:1]!r:.200}")
    return [truth[stem] for stem in stems]


def _lines(file: Path) -> list[tuple[int, str]]:
    """(number, text) of the lines that are not blank."""
    text = read_regular(file, LARGEST_TEXT).decode("utf-8-sig", errors="replace")
    return [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _named_truth(file: Path, lines: list[tuple[int, str]], numbers: dict[str, int]) -> dict[str, int]:
    """Name without suffix -> class number; the first line may be a header."""
    truth: dict[str, int] = {}
    for position, (line, text) in enumerate(lines):
        match = PAIR.match(text)
        if match is None and position == 0:
            continue
        wanted = "a file name and one of ImageNet's WordNet ids"
        require(match is not None and match[2] in numbers, f"{file.name}, line {line}: {text!r:.100} is not {wanted}")
        assert match is not None
        stem = re.sub(r"\.jpe?g$", "", match[1].rpartition("/")[2], flags=re.IGNORECASE)
        agrees = truth.setdefault(stem, numbers[match[2]]) == numbers[match[2]]
        require(agrees, f"{file.name}, line {line}: {stem!r:.100} has another label on an earlier line")
    return truth


def _devkit_truth(file: Path, lines: list[tuple[int, str]], order: dict[int, int]) -> dict[str, int]:
    """The i-th line is the ILSVRC id of ILSVRC2012_val_{i:08d}."""
    for line, text in lines:
        is_known = text.isdigit() and len(text) < 5 and int(text) in order
        require(is_known, f"{file.name}, line {line}: {text!r:.60} is not a number from 1 to {CLASSES}")
    return {f"ILSVRC2012_val_{i:08d}": order[int(text)] for i, (_, text) in enumerate(lines, 1)}


def _devkit_order(file: Path, numbers: dict[str, int]) -> dict[int, int]:
    """ILSVRC id 1 to 1000 -> class number, from lines of `wnid ...`, `wnid id ...` or `id,wnid,...`."""
    found = [match for _, text in _lines(file) if (match := SYNSET.match(text))]
    given = [match[1] or match[3] for match in found]
    has_ids = all(given)
    pairs = [(int(given[i]) if has_ids else i + 1, match[2]) for i, match in enumerate(found)]
    order = {i: numbers[wnid] for i, wnid in pairs if i <= CLASSES and wnid in numbers}
    whole = sorted(order) == list(range(1, CLASSES + 1)) and len(set(order.values())) == CLASSES
    require(whole, f"{file.name} does not give each of the {CLASSES} synsets an id from 1 to {CLASSES}")
    # Caffe's synset_words.txt looks the same and would make nearly every label wrong.
    is_sorted = all(number == i - 1 for i, number in order.items())
    require(not is_sorted, f"{file.name} is sorted by WordNet id; the development kit has another order, see its meta")
    return order
