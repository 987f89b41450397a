"""Every sample once, whatever the size, the batch, the ranks and the interruptions."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
import torch

from agreement import randomised
from ranks import run_ranks
from vitlab.data.source import Sample, Source
from vitlab.errors import TooManyBadImages
from vitlab.metrics.scores import Scores
from vitlab.metrics.targets import LabelMap
from vitlab.models.build import build_from_spec
from vitlab.models.classifier import evaluating
from vitlab.models.fingerprint import fingerprint_of
from vitlab.runs.measure.scoring import Reading, outputs
from vitlab.runs.measure.scoring import score_source as run
from vitlab.spec import ViTSpec
from vitlab.spec.pixels import Preprocessing
from vitlab.world.group import ALONE, World, join

HOW = Preprocessing()


def score_source(model, source, *targets, batch=32, max_bad=0.0, world=ALONE, **options):
    return run(model, source, *targets, reading=Reading(batch, 0, max_bad, world), **options)


class Numbers(Source):
    """Pictures that differ in every sample; `bad` ones cannot be decoded, and `stop` interrupts."""

    class_names = tuple("abcde")

    def __init__(self, samples, bad=(), stop=None):
        self.samples, self.bad, self.stop = samples, frozenset(bad), stop

    def __len__(self):
        return self.samples

    def id(self, index):
        return f"n{index}"

    def label(self, index):
        return (index * 7 % 5,)

    def item(self, index):
        if index == self.stop:
            raise KeyboardInterrupt
        if index in self.bad:
            return Sample(b"\xff\xd8\xff broken", self.label(index), self.id(index))
        return Sample(drawn(index), self.label(index), self.id(index))


@cache
def drawn(index):
    return np.random.default_rng(index).integers(0, 256, (16, 16, 3), dtype=np.uint8)


class Brightness(torch.nn.Module):
    """Logits from means of the picture alone: the same to the last bit in any batch, unlike those of a matmul."""

    def __init__(self, spec):
        super().__init__()
        self.spec = spec
        self.scale = torch.nn.Parameter(torch.tensor(3.0, dtype=torch.float64))

    def forward(self, images):
        means = images.double().mean(dim=(2, 3))  # (B, 3)
        corners = torch.stack([images[:, 0, 0, 0], images[:, 1, 5, 5]], dim=1).double()
        return self.scale * torch.cat([means, corners], dim=1)  # (B, 5)


@pytest.fixture
def brightness(tiny_spec):
    return Brightness(tiny_spec).eval()


def by_hand(model, source):
    """Picture by picture, without the loader."""
    scores = Scores(5)
    for index in range(len(source)):
        if index in source.bad:
            continue
        pixels = torch.from_numpy(source.item(index).data.copy()).permute(2, 0, 1)[None]
        with torch.inference_mode():
            scores.add(model((pixels.float() / 255 - 0.5) / 0.5), [source.label(index)])
    return scores


@dataclass(frozen=True)
class Thread(World):
    """A rank that is a thread."""

    exchange: Callable = None

    def gather(self, value):
        return self.exchange(value)


def on_ranks(ranks, run):
    """What `run(world)` gives on each of several ranks, one a thread, which tell each other JSON and nothing else."""
    told, meeting = [""] * ranks, threading.Barrier(ranks, timeout=600)

    def gather(rank, value):
        told[rank] = json.dumps(value)
        meeting.wait()
        parts = [json.loads(text) for text in told]
        meeting.wait()  # nobody writes the next before all have read
        return parts

    with ThreadPoolExecutor(ranks) as pool:
        worlds = [Thread(rank, ranks, exchange=partial(gather, rank)) for rank in range(ranks)]
        return [future.result() for future in [pool.submit(run, world) for world in worlds]]


def check_count(model, source, expected, batch, ranks):
    samples = len(source)
    done = on_ranks(ranks, lambda world: score_source(model, source, how=HOW, batch=batch, max_bad=1.0, world=world))
    for progress in done:
        assert progress.scores["own"] == expected
        assert progress.account.found == samples == expected.count + len(progress.account.quarantined)
        assert set(progress.account.quarantined) == {f"n{i}" for i in (3, 17) if i < samples}


@pytest.mark.parametrize(("samples", "batch", "ranks"), [(1, 1, 1), (1, 7, 3), (20, 3, 2), (40, 7, 3), (19, 1, 2)])
def test_the_count_is_exact_and_the_accuracy_identical(brightness, samples, batch, ranks):
    source = Numbers(samples, bad={3, 17})
    check_count(brightness, source, by_hand(brightness, source), batch, ranks)


@pytest.mark.slow
def test_the_count_is_exact_for_every_size_batch_and_number_of_ranks(brightness):
    for samples in range(1, 41):
        source = Numbers(samples, bad={3, 17})
        expected = by_hand(brightness, source)
        for batch, ranks in product(range(1, 8), (1, 2, 3)):
            check_count(brightness, source, expected, batch, ranks)


def score_in_group(folder):
    """What each rank does: score two sources together, and write what came of it."""
    spec = ViTSpec(patch=4, layers=3, width=24, mlp=40, heads=3, image=(16, 16), classes=5)
    model, found = randomised(build_from_spec(spec)), []
    with join("cpu", 120.0) as world:
        for samples in (1, 37):
            done = score_source(model, Numbers(samples, bad={3}), how=HOW, batch=4, max_bad=1.0, world=world)
            own = done.scores["own"]
            found.append([own.count, own.top1, sorted(done.account.quarantined), own.numbers()["loss"]])
        (folder / f"{world.rank}.json").write_text(json.dumps(found))


@pytest.mark.slow
def test_two_processes_of_a_gloo_group_score_as_one(tiny, tmp_path):
    said = tmp_path / "said"
    assert run_ranks(2, score_in_group, tmp_path, said=said) == [0, 0], said.read_text()
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert found[0] == found[1]
    for samples, (count, right, bad, loss) in zip((1, 37), found[0], strict=True):
        alone = score_source(tiny, Numbers(samples, bad={3}), how=HOW, batch=4, max_bad=1.0).scores["own"]
        assert (count, right, bad) == (alone.count, alone.top1, ["n3"] if samples > 3 else [])
        assert loss == pytest.approx(alone.numbers()["loss"], rel=1e-5)  # other batches, other rounding in the matmuls


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_interrupted_evaluation_continues_with_the_same_numbers(brightness, tmp_path, ranks):
    whole = score_source(brightness, Numbers(90, bad={5, 85}), how=HOW, batch=3, max_bad=1.0)
    options = {"how": HOW, "batch": 3, "max_bad": 1.0, "saved": tmp_path / "progress.json", "identity": {"is": "this"}}
    read = []

    class Watched(Numbers):
        def item(self, index):
            read.append(index)
            return super().item(index)

    with pytest.raises(KeyboardInterrupt):
        score_source(brightness, Numbers(90, bad={5}, stop=80), save_every=0.0, **options)
    done = on_ranks(ranks, lambda world: score_source(brightness, Watched(90, bad={5, 85}), world=world, **options))
    for progress in done:
        assert progress.scores == whole.scores
        assert progress.mistakes == whole.mistakes
        assert progress.account == whole.account
    assert sorted(read) == list(range(72, 90))  # 24 batches were saved, none is scored again
    read.clear()
    assert score_source(brightness, Watched(90, bad={5, 85}), **options).scores == whole.scores
    assert read == []


def interrupted(model, saved, stop=80):
    source = Numbers(90, bad={5}, stop=stop)
    with pytest.raises(KeyboardInterrupt):
        score_source(model, source, how=HOW, batch=3, max_bad=1.0, saved=saved, save_every=0.0)


@pytest.mark.parametrize("other", ["nothing", "another progress", "no progress at all"])
def test_ranks_go_on_from_what_the_first_has_read_whatever_is_on_their_disks(brightness, tmp_path, other):
    whole = score_source(brightness, Numbers(90, bad={5, 85}), how=HOW, batch=3, max_bad=1.0)
    interrupted(brightness, tmp_path / "0.json")
    if other == "another progress":
        interrupted(brightness, tmp_path / "1.json", stop=50)
    elif other == "no progress at all":
        (tmp_path / "1.json").write_text("{}")

    def run(world):
        saved = tmp_path / f"{world.rank}.json"
        options = {"how": HOW, "batch": 3, "max_bad": 1.0, "saved": saved, "world": world}
        return score_source(brightness, Numbers(90, bad={5, 85}), **options)

    for progress in on_ranks(2, run):
        assert progress.scores == whole.scores
        assert progress.account == whole.account


def score_apart(folder):
    """What each rank does: score with the progress in a folder of its own, and tell what came of it."""
    spec = ViTSpec(patch=4, layers=1, width=8, mlp=8, heads=2, image=(16, 16), classes=5)
    with join("cpu", 20.0) as world:
        own = folder / str(world.rank)
        options = {"how": HOW, "batch": 3, "max_bad": 1.0, "saved": own / "progress.json"}
        done = score_source(Brightness(spec).eval(), Numbers(90, bad={5, 85}), world=world, **options)
        (own / "found.json").write_text(json.dumps(done.scores["own"].to_json()))


@pytest.mark.slow
def test_processes_that_see_other_disks_go_on_from_one_progress(brightness, tmp_path):
    whole = score_source(brightness, Numbers(90, bad={5, 85}), how=HOW, batch=3, max_bad=1.0)
    for rank in "01":
        (tmp_path / rank).mkdir()
    interrupted(brightness, tmp_path / "0" / "progress.json")
    said = tmp_path / "said"
    assert run_ranks(2, score_apart, tmp_path, said=said) == [0, 0], said.read_text()
    for rank in "01":
        assert json.loads((tmp_path / rank / "found.json").read_text()) == whole.scores["own"].to_json()


def test_the_progress_of_something_else_is_refused(brightness, tmp_path):
    saved = tmp_path / "progress.json"
    score_source(brightness, Numbers(9), how=HOW, saved=saved, identity={"weights": "a"})
    with pytest.raises(ValueError, match="another evaluation"):
        score_source(brightness, Numbers(9), how=HOW, saved=saved, identity={"weights": "b"})
    saved.write_text(saved.read_text().replace('"next":9', '"next":8'))
    with pytest.raises(ValueError, match="inconsistent"):
        score_source(brightness, Numbers(9), how=HOW, saved=saved, identity={"weights": "a"})
    saved.write_text("{}")
    with pytest.raises(ValueError, match="not the progress"):
        score_source(brightness, Numbers(9), how=HOW, saved=saved, identity={"weights": "a"})


def test_a_bad_image_stops_by_default_on_every_rank_and_is_named(brightness):
    source = Numbers(30, bad={4, 21})

    def run(world):
        with pytest.raises(TooManyBadImages, match="'n4'"):
            score_source(brightness, source, how=HOW, batch=2, world=world)
        return True

    for ranks in (1, 2, 3):
        assert on_ranks(ranks, run) == [True] * ranks
    allowed = score_source(brightness, source, how=HOW, batch=2, max_bad=0.1)
    assert allowed.scores["own"] == by_hand(brightness, source)
    assert allowed.scores["own"].count == 28


def test_only_the_chosen_classes_compete(brightness):
    source = Numbers(25)
    columns = (1, 3, 4)
    labels = LabelMap(((), (1,), (), (3,), (4,)))
    assert labels.used == columns
    done = score_source(brightness, source, {"few": labels.restricted()}, how=HOW, columns=columns).scores["few"]
    expected = Scores(3)
    for index in range(25):
        pixels = torch.from_numpy(source.item(index).data.copy()).permute(2, 0, 1)[None]
        logits = brightness((pixels.float() / 255 - 0.5) / 0.5)[:, list(columns)]
        own = source.label(index)[0]
        expected.add(logits, [(columns.index(own),) if own in columns else ()])
    assert done == expected
    assert done.skipped == 10


def test_a_module_is_scored_as_by_hand_and_left_as_it_was(tiny):
    source = Numbers(11, bad={10})
    tiny.train()
    tiny.blocks[0].eval()
    modes = [part.training for part in tiny.modules()]
    done = score_source(tiny, source, how=HOW, batch=4, max_bad=1.0)
    assert [part.training for part in tiny.modules()] == modes
    pixels = torch.stack([torch.from_numpy(drawn(index)).permute(2, 0, 1) for index in range(10)])
    labels = [source.label(index)[0] for index in range(10)]
    with evaluating(tiny), torch.inference_mode():
        logits = tiny(pixels.float() / 127.5 - 1)
    answers = logits.argmax(-1).tolist()
    scores = done.scores["own"]
    assert scores.count == 10
    assert Counter(zip(labels, answers, strict=True)) == scores.confusion
    wrong = [n for n in range(10) if answers[n] != labels[n]]
    losses = -logits.log_softmax(-1)[range(10), labels]
    assert [mistake.number for mistake in done.mistakes["own"]] == sorted(wrong, key=lambda n: -losses[n])


def test_a_picture_gets_the_same_logits_alone_and_in_a_batch(tiny):
    source, alone, together = Numbers(13), [], []
    for batch, found in ((1, alone), (13, together)):
        found += [logits for _, logits in outputs(tiny, source, HOW, Reading(batch))]
    assert (torch.cat(alone) - together[0]).abs().max() <= 1e-5
    assert torch.equal(torch.cat(alone).argmax(-1), together[0].argmax(-1))


def test_a_model_is_known_by_its_weights_and_its_architecture(tiny):
    first = fingerprint_of(tiny)
    assert first == fingerprint_of(tiny)
    with torch.no_grad():
        tiny.norm.bias[0] += 1e-6
    assert fingerprint_of(tiny) != first
    assert len(fingerprint_of(tiny.bfloat16())) == 64
