"""What a ViT looks at, as arrays and as a figure: attention rollout and how far each head looks.

The model is fresh, so its attention is nearly even and each head's mean distance is close to that of all patches; load
your own with `vitlab.load_model` to see where it looks. Writes `seen.png` beside the picture `drawn.png`.
"""

import numpy as np
from PIL import Image, ImageDraw

import vitlab
from vitlab.inspection.attention import attention_distance

picture = Image.new("RGB", (96, 64), "white")
ImageDraw.Draw(picture).ellipse((50, 10, 90, 50), fill="firebrick")
picture.save("drawn.png")

model = vitlab.build_model("ViT-Ti/16", image=(64, 96))  # any whole number of patches, square or not
images = vitlab.preprocess(model, ["drawn.png"])
seen = vitlab.explain(model, images)  # (B, H, W) of 0..1
pixels = attention_distance(model, images)  # (L, h)
print("rollout", tuple(seen.shape), f"from {seen.min():.2f} to {seen.max():.2f}")
for layer in (0, len(pixels) - 1):
    print(f"layer {layer}: its heads look", ", ".join(f"{head:.1f}" for head in pixels[layer]), "pixels far on average")

shade = seen[0].numpy()[..., None]
Image.fromarray((np.asarray(picture) * shade).astype(np.uint8)).save("seen.png")
