"""Every family learns, is saved, comes back, goes on learning, and answers."""

import copy

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from vitlab import load_model, predict, save_model
from vitlab.models.build import build_from_spec
from vitlab.spec import AxialResNetSpec, Backbone, ResNetSpec, SwinSpec, ViTSpec

VIT = {"patch": 8, "layers": 2, "width": 24, "mlp": 48, "heads": 3, "image": (32, 32), "classes": 4, "head": "linear"}
FAMILIES = {
    "BiT": ResNetSpec((1, 1), 8, (32, 32), 4),
    "hybrid": ViTSpec(**(VIT | {"patch": 1, "backbone": Backbone((1, 1), 8)})),
    "hybrid of a root alone": ViTSpec(**(VIT | {"patch": 2, "backbone": Backbone((), 8)})),
    "Axial-ViT": ViTSpec(**(VIT | {"attention": "axial", "pool": "mean", "positions": "2d"})),
    "windows": ViTSpec(**(VIT | {"attention": "window:3"})),
    "neighbourhoods": ViTSpec(**(VIT | {"attention": "neighbourhood:3"})),
    "strided": ViTSpec(**(VIT | {"attention": "strided"})),
    "fixed": ViTSpec(**(VIT | {"attention": "fixed:3"})),
    "BigBird": ViTSpec(**(VIT | {"attention": "bigbird:block=2,random=1,seed=5"})),
    "AxialResNet": AxialResNetSpec((1, 1), 8, 2, (32, 32), 4),
    "Swin": SwinSpec((2, 2), 12, 3, 3, image=(32, 32), classes=4),
    "distilled DeiT": ViTSpec(**(VIT | {"distilled": True})),
    "no positions": ViTSpec(**(VIT | {"positions": "none"})),
    "relative positions": ViTSpec(**(VIT | {"positions": "relative"})),
    "2d positions in every layer": ViTSpec(**(VIT | {"positions": "2d", "positions_at": "every-layer"})),
    "shared 1d positions": ViTSpec(**(VIT | {"positions_at": "shared"})),
}


def pictures():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (8, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return images, torch.arange(8) % 4


def train(model, steps, optimizer=None):
    pixels, labels = pictures()
    images = pixels / 127.5 - 1
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    model.train()
    for _ in range(steps):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_small_member_overfits_and_its_folder_answers(family, tmp_path):
    model = build_from_spec(FAMILIES[family], seed=1)
    losses = train(model, 60)
    assert losses[0] == pytest.approx(1.386, abs=0.01)  # a zero head is uniform over 4 classes
    assert losses[-1] < 0.05
    assert all(parameter.grad is not None for parameter in model.parameters())

    model.class_names = ("ant", "bee", "cat", "dog")
    save_model(model, tmp_path / "m")
    loaded = load_model(tmp_path / "m")
    assert loaded.spec == model.spec
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    pixels, labels = pictures()
    files = []
    for number, image in enumerate(pixels):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(files[-1])
    answers = [answer.guesses[0].name for answer in predict(loaded, files)]
    assert answers == [model.class_names[label] for label in labels]


@pytest.mark.parametrize("family", FAMILIES)
def test_training_goes_on_bit_for_bit_after_saving_and_loading(family, tmp_path):
    model = build_from_spec(FAMILIES[family], seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train(model, 3, optimizer)
    save_model(model, tmp_path / "m")
    state = copy.deepcopy(optimizer.state_dict())
    resumed = load_model(tmp_path / "m")
    again = torch.optim.AdamW(resumed.parameters(), lr=3e-3)
    again.load_state_dict(state)
    assert train(resumed, 3, again) == train(model, 3, optimizer)
