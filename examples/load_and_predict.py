"""Load weights of another library's layout and say what is in pictures, from Python.

A fresh ViT stands in for a downloaded one, so its guesses mean nothing; those of `vitlab download augreg-Ti_16-i1k-224`
do. A file that is no picture is answered with its reason, and the others are answered all the same.
"""

from pathlib import Path

import numpy as np
from PIL import Image

import vitlab

vitlab.save_model(vitlab.build_model("ViT-Ti/16", image=64), "stand-in.npz", format="google-npz")
Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)).save("noise.png")
Path("no-picture.jpg").write_text("hello")

model = vitlab.load_model("stand-in.npz")  # the format is known by the content
print(model.provenance["format"], model.spec.image, model.spec.classes, "classes")
for answer in vitlab.predict(model, ["noise.png", "no-picture.jpg"], top=3):
    guesses = ", ".join(f"{guess.name} {guess.probability:.2%}" for guess in answer.guesses)
    print(f"{answer.image}: {guesses or answer.reason}")

images = vitlab.preprocess(model, ["noise.png"])  # (1, 3, 64, 64) in the model's own normalisation
print("features", tuple(model.features(images).shape))
