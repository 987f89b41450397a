"""Batches are the same whatever the workers, ranks, stops and resumes; bad samples are booked, deaths explained."""

import collections
import hashlib
import io
import itertools
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pictures import jpeg
from vitlab.data.images.refusals import BadImage
from vitlab.data.loading.accounting import Account
from vitlab.data.loading.batches import evaluation_batches, on_device, order_of, share, slice_sizes, training_batches
from vitlab.data.loading.order import Order
from vitlab.data.source import Sample, Source
from vitlab.data.transforms.augmentation import draws, inception_box, training_pixels, uniform_area_box
from vitlab.data.transforms.resizing import check_result, resized
from vitlab.errors import TooManyBadImages, WorkerDied
from vitlab.spec import CONVENTIONS
from vitlab.spec.pixels import Augmentation, Erasing, RandAugment

SIZE = (8, 8)


class Numbers(Source):
    """A source whose pictures say their number; `bad` ones are broken, `deadly` ones kill the process."""

    class_names = ("even", "odd")

    def __init__(self, samples, bad=(), deadly=(), by=signal.SIGKILL):
        self.samples, self.bad, self.deadly, self.by = samples, frozenset(bad), frozenset(deadly), by

    def __len__(self):
        return self.samples

    def id(self, index):
        return f"n{index}"

    def label(self, index):
        return (index % 2,)

    def item(self, index):
        if index in self.deadly:
            os.kill(os.getpid(), self.by)
        if index in self.bad:
            return Sample(b"\xff\xd8\xff broken", self.label(index), self.id(index))
        pixels = np.random.default_rng(index).integers(0, 256, (12, 10, 3), dtype=np.uint8)
        return Sample(pixels, self.label(index), self.id(index))


def train(source, *, seed=0, **options):
    options = {"batch": 7, "size": SIZE, "augmentation": Augmentation(), "stop": 6, "max_bad": 1.0} | options
    return list(training_batches(source, Order(len(source), seed=seed, block=4, window=2), **options))


def evaluate(source, **options):
    how = CONVENTIONS["paper"].preprocessing
    options = {"batch": 7, "size": SIZE, "preprocessing": how, "max_bad": 1.0} | options
    return list(evaluation_batches(source, **options))


def ids(batches):
    return [name for batch in batches for name in batch.ids]


def test_ids_are_the_same_for_any_stops_and_ranks():
    rng = random.Random(0)
    for _ in range(290):
        samples, batch, seed = rng.randrange(1, 60), rng.randrange(1, 20), rng.randrange(100)
        order = Order(samples, seed=seed, block=rng.randrange(1, 9), window=rng.randrange(1, 5))
        steps = rng.randrange(1, 12)
        unbroken = [order.at(position) for position in range(steps * batch)]
        stops = sorted(rng.randrange(steps + 1) for _ in range(rng.randrange(1, 6)))
        resumed = []
        for begin, end in zip([0, *stops], [*stops, steps], strict=True):
            ranks = rng.randrange(1, 5)  # another number after every stop
            for step in range(begin, end):
                whole = range(step * batch, (step + 1) * batch)
                parts = [share(whole, rank, ranks) for rank in range(ranks)]
                assert max(map(len, parts)) - min(map(len, parts)) <= 1
                resumed += [order.at(position) for part in parts for position in part]
        assert resumed == unbroken
        for epoch in range(steps * batch // samples):
            numbers = [number for e, number in unbroken if e == epoch]
            assert sorted(numbers) == list(range(samples))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_ranks_take_whole_shards(ranks):
    for batch, shards in itertools.product((8, 11, 12), (2, 4, 5)):
        ends = [batch * (number + 1) // shards for number in range(shards)]
        belongs = [next(shard for shard, end in enumerate(ends) if position < end) for position in range(batch)]
        sizes, ids = {}, ()
        for rank in range(ranks):
            (part,) = train(Numbers(23), stop=1, batch=batch, rank=rank, ranks=ranks, slices=shards)
            own = slice_sizes(part, batch, shards)
            assert not set(own) & set(sizes)
            sizes |= own
            ids += part.ids
        assert sizes == dict(collections.Counter(belongs))
        assert ids == train(Numbers(23), stop=1, batch=batch)[0].ids


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_real_workers_and_ranks_give_the_same_batches(workers, ranks):
    source = Numbers(23)
    expected = train(source)
    parts = [train(source, workers=workers, rank=rank, ranks=ranks) for rank in range(ranks)]
    for step, whole in enumerate(expected):
        assert sum((part[step].ids for part in parts), ()) == whole.ids
        assert torch.equal(torch.cat([part[step].pixels for part in parts]), whole.pixels)
        assert sum((part[step].labels for part in parts), ()) == whole.labels


MODERN = Augmentation(
    randaugment=RandAugment(2, 9, "timm", 0.5, 0.5), colour_jitter=0.3, erasing=Erasing(0.5), repeats=3
)


def test_repeats_come_in_a_row_each_drawn_anew_and_every_sample_as_often():
    source, account = Numbers(14, bad={4}), Account(found=14)
    batches = train(source, batch=6, stop=14, augmentation=MODERN, account=account)  # two epochs of 42 pictures
    order = Order(14, seed=0, block=4, window=2)
    expected = [order.at(position // 3) for position in range(6 * 14)]
    sound = [(epoch, number) for epoch, number in expected if number != 4]
    assert [pair for b in batches for pair in zip(b.epochs, b.numbers, strict=True)] == sound
    assert Counter(sound) == Counter({(epoch, n): 3 for epoch in (0, 1) for n in range(14) if n != 4})
    assert [account.used[epoch] + account.bad[epoch] for epoch in (0, 1)] == [3 * account.found] * 2
    pictures = {}
    for batch in batches:
        for name, epoch, position, pixels in zip(batch.ids, batch.epochs, batch.positions, batch.pixels, strict=True):
            again = training_pixels(
                Image.fromarray(source.item(int(name[1:])).data), SIZE, MODERN, draws(0, epoch, name, position % 3)
            )
            assert torch.equal(pixels, again)
            pictures.setdefault(name, set()).add(pixels.numpy().tobytes())
    assert all(len(different) >= 5 for different in pictures.values())  # of 6 draws


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["tf", "timm"])
def test_modern_augmentation_is_the_same_for_workers_ranks_and_resumes(flavour):
    how = replace(MODERN, randaugment=replace(MODERN.randaugment, flavour=flavour))
    source = Numbers(11)
    expected = train(source, augmentation=how)
    for options in ({"workers": 2}, {"start": 2, "workers": 1}):
        found = train(source, augmentation=how, **options)
        for one, other in zip(found, expected[options.get("start", 0) :], strict=True):
            assert torch.equal(one.pixels, other.pixels)
    parts = [train(source, augmentation=how, rank=rank, ranks=2) for rank in range(2)]
    for one, two, whole in zip(*parts, expected, strict=True):
        assert torch.equal(torch.cat([one.pixels, two.pixels]), whole.pixels)


@pytest.mark.slow
def test_resuming_with_other_workers_continues_exactly():
    source = Numbers(23)
    expected = train(source, stop=9)
    resumed = [
        *train(source, stop=2),
        *train(source, start=2, stop=5, workers=2),
        *train(source, start=5, stop=9, workers=1),
    ]
    assert ids(resumed) == ids(expected)
    assert all(torch.equal(a.pixels, b.pixels) for a, b in zip(resumed, expected, strict=True))


@pytest.mark.parametrize(
    "workers", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_one_to_five_stops_an_epoch_repeat_and_miss_nothing(workers):
    rng = random.Random(workers)
    for _ in range(12 if workers == 0 else 2):
        samples, batch = rng.randrange(5, 40), rng.randrange(1, 9)
        steps = 2 * -(-samples // batch)  # two epochs
        stops = sorted(rng.randrange(steps + 1) for _ in range(2 * rng.randrange(1, 6)))
        source, options = Numbers(samples, bad={3}), {"seed": rng.randrange(100), "batch": batch}
        unbroken, resumed = Account(samples), Account(samples)
        expected = train(source, stop=steps, account=unbroken, **options)
        parts = []
        for start, stop in zip([0, *stops], [*stops, steps], strict=True):
            parts += train(source, start=start, stop=stop, workers=workers, account=resumed, **options)
            resumed = Account.from_json(resumed.to_json())  # as a checkpoint keeps it
        assert [one.ids for one in parts] == [one.ids for one in expected]
        assert resumed == unbroken


def test_a_late_start_reads_nothing_of_what_was_before():
    class Counted(Numbers):
        read = 0

        def item(self, index):
            self.read += 1
            return super().item(index)

    source = Counted(10**7)
    (batch,) = train(source, start=10**9, stop=10**9 + 1)
    assert len(batch.ids) == source.read == 7
    assert set(batch.epochs) == {700}


def test_the_same_sample_is_augmented_differently_in_every_epoch():
    source = Numbers(1)
    first, second = train(source, batch=1, stop=2)
    assert first.ids == second.ids
    assert not torch.equal(first.pixels, second.pixels)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("samples", [1, 2, 7, 20])
def test_evaluation_has_every_sample_once_and_ranks_go_in_step(samples, ranks):
    source = Numbers(samples)
    parts = [evaluate(source, rank=rank, ranks=ranks, batch=3) for rank in range(ranks)]
    assert len({len(part) for part in parts}) == 1
    for step in range(len(parts[0])):
        together = [name for part in parts for name in part[step].ids]
        assert together == [f"n{i}" for i in range(3 * step, min(3 * step + 3, samples))]


def test_evaluation_continues_from_any_sample():
    assert ids(evaluate(Numbers(20), start=13)) == [f"n{i}" for i in range(13, 20)]


class TestBadImages:
    def test_are_quarantined_by_name_and_the_others_stay(self):
        (batch,) = evaluate(Numbers(5, bad={1, 3}), batch=5)
        assert batch.ids == ("n0", "n2", "n4")
        assert len(batch.pixels) == len(batch.labels) == 3
        assert [(bad.id, bad.reason) for _, bad in batch.bad] == [("n1", "truncated"), ("n3", "truncated")]
        assert batch.bad[0][1].sha256 == hashlib.sha256(b"\xff\xd8\xff broken").hexdigest()

    def test_a_batch_of_nothing_but_bad_images_is_empty(self):
        (batch,) = evaluate(Numbers(2, bad={0, 1}))
        assert batch.pixels.shape == (0, 3, 8, 8)

    def test_found_is_used_and_quarantined_and_excluded(self):
        account = Account(found=43, excluded=Counter({"other_suffix": 3}))
        evaluate(Numbers(40, bad={5, 17}), account=account)
        assert account.is_balanced()
        assert list(account.entries()) == [
            ("found", "43"),
            ("used", "38"),
            ("quarantined", "2 truncated"),
            ("excluded", "3 files that are not images"),
        ]
        account.used[0] -= 1
        assert not account.is_balanced()

    def test_the_books_of_every_epoch_balance_and_a_bad_image_is_listed_once(self):
        account = Account(found=20)
        train(Numbers(20, bad={7}), batch=6, stop=10, account=account)  # three epochs
        assert [account.is_balanced(epoch) for epoch in range(3)] == [True] * 3
        assert list(account.quarantined) == ["n7"]
        assert account.to_json()["bad"] == {"0": 1, "1": 1, "2": 1}

    def test_evaluation_stops_at_the_first_by_default_and_names_it(self):
        how = CONVENTIONS["paper"].preprocessing
        with pytest.raises(TooManyBadImages, match=r"1 bad image, none is allowed: 'n17' \(truncated\)"):
            list(evaluation_batches(Numbers(40, bad={17}), batch=7, size=SIZE, preprocessing=how))

    @pytest.mark.parametrize(("samples", "allowed"), [(2000, 100), (60, 10), (49, 10), (12, 6), (3, 1)])
    def test_training_stops_when_more_than_a_twentieth_and_more_than_ten_are_bad(self, samples, allowed):
        """More than half of a set with fewer than twenty."""
        options = {"batch": samples, "size": SIZE, "augmentation": Augmentation(), "stop": 2}
        few, many = (Numbers(samples, bad=set(range(bad))) for bad in (allowed, allowed + 1))
        assert len(list(training_batches(few, Order(samples), **options))) == 2
        with pytest.raises(TooManyBadImages, match=rf"bad images, at most {allowed} of {samples:,} are allowed"):
            list(training_batches(many, Order(samples), **options))
        with pytest.raises(TooManyBadImages, match="none is allowed"):
            list(training_batches(few, Order(samples), max_bad=0.0, **options))

    def test_excluded_files_do_not_loosen_the_limit(self):
        account = Account(found=10_000, excluded=Counter({"other_suffix": 9_960}))
        with pytest.raises(TooManyBadImages, match="at most 10 of 40"):
            train(Numbers(40, bad=set(range(11))), stop=6, account=account, max_bad=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch 0"),
        ({"batch": -3}, "batch -3"),
        ({"size": (0, 8)}, "size 0x8"),
        ({"size": (5000, 5000)}, "size 5000x5000"),
        ({"rank": 2, "ranks": 2}, "rank 2"),
        ({"workers": -1}, "workers -1"),
        ({"start": -1}, "start -1"),
    ],
)
def test_impossible_requests_are_refused_at_once(options, message):
    for call in (train, evaluate):
        with pytest.raises(ValueError, match=message):
            call(Numbers(5), **options)


def test_an_order_of_another_length_is_refused():
    with pytest.raises(ValueError, match="order is of 10 samples, the source has 63"):
        training_batches(Numbers(63), Order(10), batch=2, size=SIZE, augmentation=Augmentation())
    with pytest.raises(ValueError, match=r"outside 0\.\.5"):
        evaluate(Numbers(5), start=6)


def test_the_order_of_a_source_keeps_together_what_it_stores_together():
    class Sharded(Numbers):
        block = 16

    assert order_of(Numbers(50), seed=3) == Order(50, 3)
    assert order_of(Sharded(50)) == Order(50, block=16)


def test_an_error_in_a_worker_is_not_called_a_death():
    class Failing(Numbers):
        def item(self, index):
            raise RuntimeError("unexpected thing")

    with pytest.raises(RuntimeError, match="unexpected thing") as error:
        evaluate(Failing(5), workers=1)
    assert not isinstance(error.value, WorkerDied)


def importing_this() -> dict[str, str]:
    """The environment of a process that can import this module."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}


KILLED = """
import sys
from test_batches import Numbers, WorkerDied, evaluate
try: evaluate(Numbers(20, deadly={4}, by=int(sys.argv[1])), batch=2, workers=2)
except WorkerDied as error: print(error)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker_is_an_error_that_names_the_sample(by):
    """In a process of its own: torch may leave temporary files unclosed when it is interrupted by the death."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(int(by))], capture_output=True, text=True, check=False, env=importing_this()
    )
    assert "a worker process died; samples in flight: " in done.stdout, done.stderr[-500:]
    assert "'n4'" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_stop_leaves_workers_alive_long_enough_to_save(by):
    """A stop that is sent to a whole job reaches the workers too; the main process decides when they go."""
    script = KILLED.replace(
        "except WorkerDied as error: print(error)", "except WorkerDied as error: print(error)\nelse: print('all')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(int(by))], capture_output=True, text=True, check=False, env=importing_this()
    )
    assert done.stdout == "all\n", done.stderr[-500:]


FULL = """
from test_batches import Numbers, evaluate
from vitlab.data.loading import workers
workers.FAREWELL = 1
try: evaluate(Numbers(64), batch=32, size=(64, 64), workers=1)
except RuntimeError as error: print("told" if "enlarge /dev/shm" in str(error) else error)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_full_shared_memory_is_an_error_and_not_a_hang():
    mount = "mount -t tmpfs -o size=256k tmpfs /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("a small /dev/shm needs a mount namespace, which this user may not make")
    command = ["unshare", "-m", "sh", "-c", f"{mount} && exec {sys.executable} -c '{FULL}'"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=importing_this())
    assert done.stdout == "told\n", done.stderr[-500:]


CROWDED = """
import resource
from test_batches import Numbers, evaluate
from vitlab.data.loading import workers
from vitlab.errors import WorkerDied
workers.FAREWELL = 1
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
try: evaluate(Numbers(64), batch=4, workers=8)
except WorkerDied as error: print(error)
"""


def test_workers_that_cannot_be_started_are_one_line():
    done = subprocess.run(
        [sys.executable, "-c", CROWDED], capture_output=True, text=True, check=False, env=importing_this()
    )
    assert done.stdout == (
        "8 worker processes could not be started (Too many open files); give fewer with workers=, 0 for none\n"
    ), done.stderr[-500:]


def test_more_workers_than_eight_a_core_are_refused():
    cores = len(os.sched_getaffinity(0))
    for read in (train, evaluate):
        with pytest.raises(
            ValueError, match=rf"workers= {8 * cores + 1:,} is too many for {cores} cores; give at most {8 * cores}"
        ):
            read(Numbers(8), workers=8 * cores + 1)


def test_labels_as_numbers_and_as_rows():
    (batch,) = evaluate(Numbers(3))
    assert batch.one_label().tolist() == [0, 1, 0]
    assert batch.multi_hot(2).tolist() == [[1, 0], [0, 1], [1, 0]]


def test_prefetching_is_one_batch_ahead_and_changes_nothing():
    batches = evaluate(Numbers(20), batch=3)
    taken = []

    def watched():
        for batch in batches:
            taken.append(batch)
            yield batch

    ahead = on_device(watched(), torch.device("meta"))
    first = next(ahead)
    assert len(taken) == 2
    assert first.pixels.is_meta
    assert ids([first, *ahead]) == ids(batches)


class TestDraws:
    def test_no_two_of_a_hundred_thousand_collide(self):
        seen = {draws(0, epoch, str(number)).integers(2**63) for epoch in range(10) for number in range(10_000)}
        assert len(seen) == 100_000

    def test_seed_epoch_and_number_each_matter(self):
        values = {
            draws(*key).integers(2**63) for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 10, 0), (0, 1, 10)]
        }
        assert len(values) == 6
        assert draws(3, 4, "5").random() == draws(3, 4, "5").random()


class TestInceptionCrop:
    # mean, median, 10 and 90 per cent of the area of TensorFlow's boxes, to two places
    STATISTICS = (((500, 375), (0.34, 0.30, 0.08, 0.67)), ((400, 400), (0.38, 0.33, 0.09, 0.74)))

    @pytest.mark.parametrize(("size", "expected"), STATISTICS)
    def test_areas_are_distributed_as_tensorflows(self, size, expected):
        rng = draws(0, 0, "a")
        boxes = [inception_box(*size, 0.05, rng) for _ in range(40_000)]
        areas = np.array([(right - left) * (lower - upper) for left, upper, right, lower in boxes]) / (
            size[0] * size[1]
        )
        measured = (areas.mean(), *np.quantile(areas, (0.5, 0.1, 0.9)))
        assert measured == pytest.approx(expected, abs=0.01)
        assert areas.min() >= 0.05
        torchvision = [uniform_area_box(*size, 0.05, rng) for _ in range(20_000)]
        wide = np.mean([(b[2] - b[0]) * (b[3] - b[1]) for b in torchvision]) / (size[0] * size[1])
        assert wide > areas.mean() + 0.05

    @pytest.mark.parametrize("size", [(500, 375), (400, 400), (60, 200)])
    def test_the_mean_area_is_that_of_all_aspects_and_heights(self, size):
        width, height = size
        means = []
        for aspect in np.linspace(0.75, 1.33, 2001):
            heights = np.arange(round((0.05 * width * height / aspect) ** 0.5), height + 1)
            areas = np.rint(heights * aspect) * heights
            means.append(areas[(np.rint(heights * aspect) <= width) & (areas <= width * height)].mean())
        rng = draws(0, 0, "mean")
        boxes = np.array([inception_box(width, height, 0.05, rng) for _ in range(20_000)])
        drawn = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        assert abs(drawn.mean() - np.mean(means)) < 4 * drawn.std() / len(drawn) ** 0.5

    @pytest.mark.parametrize("size", [(1, 1), (2, 500), (500, 2), (3, 3), (640, 7), (100, 100)])
    def test_boxes_lie_inside_the_picture(self, size):
        rng = draws(0, 0, "b")
        for _ in range(300):
            left, upper, right, lower = inception_box(*size, 0.05, rng)
            assert 0 <= left < right <= size[0]
            assert 0 <= upper < lower <= size[1]
            if (right - left, lower - upper) != size:
                assert 0.7 <= (right - left) / (lower - upper) <= 1.45 or min(size) <= 8


@pytest.mark.parametrize("crop", ["inception", "uniform-area", "square-crop", "shorter-crop", "none"])
@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (5, 9), (1, 1)])
def test_every_crop_gives_the_size_and_repeats_itself(crop, shape):
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    how = Augmentation(crop=crop)
    one, two = (training_pixels(image, (12, 16), how, draws(0, 0, "a")) for _ in range(2))
    assert one.shape == (3, 12, 16)
    assert torch.equal(one, two)


def test_flips_mirror_half_of_the_pictures():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8))
    straight = training_pixels(image, SIZE, Augmentation(crop="none", flip=False), draws(0, 0, "a"))
    flipped = 0
    for number in range(400):
        pixels = training_pixels(image, SIZE, Augmentation(crop="none"), draws(0, 0, str(number)))
        if torch.equal(pixels, straight.flip(-1)):
            flipped += 1
        else:
            assert torch.equal(pixels, straight)
    assert 160 < flipped < 240


class TestResizing:
    @pytest.fixture
    def image(self):
        return Image.fromarray(np.random.default_rng(1).integers(0, 256, (37, 53, 3), dtype=np.uint8))

    @pytest.mark.parametrize("how", ["bilinear", "bicubic"])
    @pytest.mark.parametrize("box", [None, (3, 5, 40, 30)])
    def test_antialiased_kinds_are_pillows(self, image, how, box):
        kind = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[how]
        assert resized(image, (20, 24), how, antialias=True, box=box) == image.resize((24, 20), kind, box=box)

    def test_area_is_the_mean_under_each_pixel(self, image):
        old = np.asarray(image).astype(float)
        fine = old.repeat(20, axis=0).repeat(24, axis=1)  # 37 * 20 rows and 53 * 24 columns
        expected = fine.reshape(20, 37, 24, 53, 3).mean(axis=(1, 3))
        assert np.abs(np.asarray(resized(image, (20, 24), "area", antialias=False)) - expected).max() <= 0.5 + 1e-9

    @pytest.mark.parametrize("size", [(74, 106), (100, 24), (20, 131)])
    def test_area_enlarges_by_the_pixels_under_each(self, image, size):
        """Of an enlarged picture a new pixel lies in one old one, or over the border of two."""
        old = np.asarray(image).astype(float)
        fine = old.repeat(size[0], axis=0).repeat(size[1], axis=1)
        expected = fine.reshape(size[0], 37, size[1], 53, 3).mean(axis=(1, 3))
        assert np.abs(np.asarray(resized(image, size, "area", antialias=False)) - expected).max() <= 0.5 + 1e-9

    def test_area_needs_little_memory(self):
        import tracemalloc

        pixels = np.zeros((4000, 4000, 3), np.uint8)
        image = Image.fromarray(pixels)
        tracemalloc.start()
        resized(image, (256, 256), "area", antialias=False)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 120 * 2**20  # the picture is 48 MB; in floats it would be 384

    @pytest.mark.parametrize("size", [(1, 1), (1, 16_000_000), (4000, 4000)])
    def test_results_from_one_pixel_to_the_limit_are_allowed(self, size):
        check_result(size)

    @pytest.mark.parametrize("size", [(0, 5), (5, 0), (1, 16_000_001)])
    def test_results_beyond_are_refused(self, size):
        with pytest.raises(ValueError, match="must be 1x1 or more, and at most 16,000,000 pixels"):
            check_result(size)

    def test_the_result_is_bounded(self, image):
        with pytest.raises(BadImage, match="pixels are allowed"):
            resized(image, (5000, 5000), "bilinear", antialias=True)


SMALL = jpeg()


class Encoded(Numbers):
    """The same small JPEG under every number."""

    def item(self, index):
        return Sample(SMALL, self.label(index), self.id(index))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_long_loop_over_encoded_images_keeps_memory_flat(workers):
    import resource

    options = {"batch": 50, "size": SIZE, "augmentation": Augmentation(), "workers": workers}
    batches = training_batches(Encoded(2000), Order(2000), stop=271, **options)
    for step, _ in enumerate(batches):
        if step == 20:
            before = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    after = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    assert after[0] - before[0] < 2_500  # KB, over 12,500 images: 200 bytes each
    assert after[1] <= max(before[1], after[0] + 50_000)  # no worker grew beyond its parent


def test_bad_bytes_in_a_source_go_through_the_gate():
    buffer = io.BytesIO()
    Image.new("RGB", (9, 9)).save(buffer, "PNG")

    class Cut(Numbers):
        def item(self, index):
            data = buffer.getvalue()
            return Sample(data if index else data[:40], (0,), self.id(index))

    (batch,) = evaluate(Cut(2))
    assert batch.ids == ("n1",)
    assert batch.bad[0][1].reason == "truncated"
