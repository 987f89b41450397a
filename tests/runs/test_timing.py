"""An estimate knows what takes long: reading and small models as they are here, large ones by their size."""

import time
from dataclasses import dataclass, replace

import torch

import crashes
from vitlab.data.digits import DigitsSource
from vitlab.data.source import Source
from vitlab.paper.models import model_spec
from vitlab.runs.timing import learning_seconds, reading_seconds

SPEC = crashes.small_run()
CPU = torch.device("cpu")


@dataclass
class Slow:
    """A source of which every sample takes a while; `asked` counts them."""

    source: Source
    seconds: float
    asked: int = 0

    def __getattr__(self, name):
        return getattr(self.source, name)

    def __len__(self):
        return len(self.source)

    def item(self, index):
        self.asked += 1
        time.sleep(self.seconds)
        return self.source.item(index)


def test_a_slow_disk_is_in_the_estimate_and_few_images_are_read_for_it():
    slow = Slow(DigitsSource("test"), 0.03)
    assert reading_seconds(SPEC, slow) >= 0.03
    assert slow.asked <= 8
    slower = Slow(DigitsSource("test"), 0.6)
    assert reading_seconds(SPEC, slower) >= 0.6
    assert slower.asked == 1


def test_a_small_model_is_tried_whatever_is_expected_of_it(monkeypatch):
    now = iter((5.0, 7.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    assert learning_seconds(SPEC, CPU, 1e-9) == 2.0 / SPEC.execution.micro_batch


def test_a_trial_leaves_the_state_of_chance_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    learning_seconds(SPEC, CPU, 1e-9)
    reading_seconds(SPEC, DigitsSource("test"))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_takes_long_to_try_is_not_tried():
    assert learning_seconds(SPEC, CPU, 0.4) == 0.4
    large = replace(
        SPEC, model=model_spec("ViT-B/16", image=16, classes=2), recipe=replace(SPEC.recipe, image=(16, 16))
    )
    assert learning_seconds(large, CPU, 1e-9) == 1e-9
    assert learning_seconds(SPEC, torch.device("meta"), 1e-9) == 1e-9
