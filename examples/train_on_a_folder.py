"""Train on a folder of pictures, predict, and look inside: the three commands of the README, with a folder made here.

Writes `pictures/<class>/*.png` (handwritten digits), trains a very small ViT on them, asks it for one, and draws what
it looks at into `inside/`. With your own folder and released weights the first command is `vitlab finetune` instead.
"""

import shlex
import sys
from pathlib import Path

from PIL import Image

from vitlab.cli import main
from vitlab.data.sources.digits import DigitsSource

source = DigitsSource("train")
for number in range(200):
    sample = source.item(number)
    folder = Path("pictures", f"digit-{sample.labels[0]}")
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(sample.data).save(folder / f"{number}.png")

train = shlex.split("""pretrain ViT-Ti/2 --data folder:pictures --out run --image 8 --batch 32
    --model.layers 2 --model.width 32 --model.heads 2 --model.mlp 64 --dropout 0
    --schedule.total 120 --schedule.warmup 12 --schedule.peak 8e-3 --optimizer.weight-decay 0.1
    --loss softmax --label-smoothing 0 --augmentation.crop none --augmentation.flip false""")
picture = str(sorted(Path("pictures", "digit-7").iterdir())[0])
for command in (
    train,
    ["predict", "run/model", picture, "--top", "3"],
    ["inspect", "run/model", picture, "--out", "inside"],
):
    print("\n$ vitlab", *command, flush=True)
    if code := main(command):
        sys.exit(code)
