"""Train on a folder of images, predict, and look inside, from Python.

Writes `scans/<class>/*.png` (handwritten digits), trains a very small ViT on them, asks it about one, and draws what it
looks at into `inside/`. With released weights and your own folder the training is one line:
`vitlab.finetune("augreg-Ti_16-i1k-224", data="folder:photos")`.
"""

from pathlib import Path

from PIL import Image

import vitlab
from vitlab.data.sources.digits import DigitsSource

source = DigitsSource("train")
for number in range(200):
    sample = source.item(number)
    folder = Path("scans", f"digit-{sample.labels[0]}")
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(sample.data).save(folder / f"{number}.png")

run = vitlab.pretrain(
    "ViT-Ti/2",
    data="folder:scans",
    out="run",
    image=8,
    architecture={"layers": 2, "width": 32, "heads": 2, "mlp": 64},
    batch=32,
    schedule={"total": 120, "warmup": 12, "peak": 8e-3},
    optimizer={"weight_decay": 0.1},
    augmentation={"crop": "none", "flip": False},
    loss="softmax",
    label_smoothing=0.0,
    dropout=0.0,
)
print(run, run.history, sep="\n")

picture = sorted(Path("scans", "digit-7").iterdir())[0]
print(vitlab.predict(run.model, picture, top=3))
print(vitlab.inspect(run.model, picture, out="inside"))
