"""Write the pictures behind the figures in this folder: nobody's photographs, the same pixels every time.

python docs/figures/draw_pictures.py pictures
vitlab inspect ViT-Ti_16-augreg-in1k-224.npz pictures/*.png --maps 1 --out inside-ti
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from vitlab.data.sources.catalogue import open_source
from vitlab.page.samples import PICTURES, drawn


def main(folder: Path) -> None:
    """Write the drawings, then a fractal and a shape of the built-in data sets."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(PICTURES, 1):
        drawn(name).save(folder / f"{number}-{name}.png")
    for name, spec in (
        ("5-fractal", "fractals?classes=8&images=64&size=256"),
        ("6-shapes", "shapes?images=64&size=256"),
    ):
        Image.fromarray(np.asarray(open_source(spec).item(5).data)).save(folder / f"{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
