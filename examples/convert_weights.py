"""One model through the formats of Google, timm and Hugging Face and back, with the same logits to the last bit.

What a format cannot say is refused or noted on saving, never changed in silence: the notes are printed.
"""

import torch

import vitlab

model = vitlab.build_model("ViT-Ti/16", image=64, classes=5, head="linear").eval()
torch.nn.init.normal_(model.head.logits.weight)  # a fresh head is zero and would prove nothing
images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
for format, path in (("google-npz", "model.npz"), ("timm", "timm"), ("hf", "hf"), ("vitlab", "vitlab")):
    notes = vitlab.save_model(model, path, format=format)
    again = vitlab.load_model(path, conventions="paper").eval()
    with torch.inference_mode():
        same = torch.equal(again(images), model(images))
    print(f"{format}: the same logits: {same}", *(f"\n  note: {note}" for note in notes))
    assert same
