"""KITTI: views of a road. The task is the distance of the nearest vehicle, in bins; images are split by video."""

from collections.abc import Sequence

import numpy as np

from vitlab.data.vtab.bins import bin_names, binned
from vitlab.data.vtab.listing import Listing, file_listing
from vitlab.data.vtab.places import Place
from vitlab.paper.vtab import VtabTask
from vitlab.require import require

VEHICLES = ("Car", "Van", "Truck")
NO_VEHICLE = 1000.0  # metres
KITTI_SEED, KITTI_PERCENT = 123, 10  # of the videos, for each of validation and test
LARGEST_BOXES = 2**20  # bytes of the boxes of an image


def kitti(place: Place, split: str, task: VtabTask) -> Listing:
    """Distance of the nearest vehicle, in bins; images are split by video."""
    images = place.members(("training/image_2",), ("data_object_image_2.zip",))
    boxes = place.members(("training/label_2",), ("data_object_label_2.zip",))
    mapping = place.members(("mapping",), ("devkit_object.zip", "data_object_devkit.zip"))
    frames = videos_of(mapping.lines("train_rand.txt"), mapping.lines("train_mapping.txt"))
    numbers = video_split(frames)[split]
    keys = [f"{number:06d}.png" for number in numbers]
    class_names = bin_names(task.edges, "no vehicle")
    classes = []
    for number in numbers:
        lines = boxes.lines(f"{number:06d}.txt", LARGEST_BOXES)
        classes.append(class_names[binned(nearest_vehicle(lines, f"{number:06d}.txt"), task.edges)])
    return file_listing(images, keys, keys, classes, class_names)


def nearest_vehicle(lines: Sequence[str], name: str) -> float:
    """Distance along the camera's axis of the nearest car, van or truck, in metres; 1000 without one."""
    found = [NO_VEHICLE]
    for line in lines:
        words = line.split()
        try:
            depth = float(words[13])
        except (IndexError, ValueError):
            raise ValueError(f"{name} has a line that is not 15 columns of a box: {line!r:.80}") from None
        if words[0] in VEHICLES:
            found.append(depth)
    return min(found)


def videos_of(order: Sequence[str], lines: Sequence[str]) -> list[str]:
    """The video of every training image: line number `order[i]`, from 1 on, of the mapping names that of image i."""
    numbers = [number.strip() for line in order for number in line.split(",") if number.strip()]
    videos = [line.split()[1] for line in lines if len(line.split()) > 1]
    matches = len(videos) == len(lines) and all(n.isdecimal() and 1 <= int(n) <= len(videos) for n in numbers)
    advice = "download the development kit again"
    require(matches, f"train_rand.txt and train_mapping.txt do not match; {advice}")
    return [videos[int(number) - 1] for number in numbers]


def video_split(videos: Sequence[str]) -> dict[str, list[int]]:
    """Numbers of the images by TFDS split: a tenth of the videos for test, then as many of the rest for validation."""
    generator = np.random.RandomState(KITTI_SEED)
    names = sorted(set(videos))
    share = max(KITTI_PERCENT * len(names) // 100, 1)
    test = set(generator.choice(names, share, replace=False).tolist())
    rest = sorted(set(names) - test)
    require(len(rest) > share, f"{len(names)} videos are too few to split")
    validation = set(generator.choice(rest, share, replace=False).tolist())
    found: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for number, video in enumerate(videos):
        found["test" if video in test else "validation" if video in validation else "train"].append(number)
    return found
