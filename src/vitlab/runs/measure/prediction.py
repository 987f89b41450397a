"""Classify pictures with a model given by name, path or module: `vitlab.predict`, `vitlab predict`."""

import sys
from collections.abc import Iterator, Sized
from pathlib import Path
from typing import cast

import numpy as np
from rich.console import Console
from torch import Tensor

from vitlab.data.images.files import image_files
from vitlab.data.images.pictures import KINDS, Named, Pictures
from vitlab.data.images.refusals import LARGEST_FILE
from vitlab.data.loading.accounting import Excluded
from vitlab.deploy.predict import Answer, Answers, answers
from vitlab.report.tables import printable
from vitlab.require import require
from vitlab.runs.measure.model_options import ImageSize, ModelLike, ModelOptions, label_of, open_model
from vitlab.runs.progress import Images, default_console, say
from vitlab.spec import ConventionName

STANDARD_INPUT = "-"


def predict(
    model: ModelLike,
    images: Pictures,
    top: int = 5,
    *,
    max_pixels: int | None = None,
    conventions: ConventionName | None = None,
    image: ImageSize | None = None,
    heads: int | None = None,
    allow_partial: bool = False,
    allow_nonfinite: bool = False,
    device: str = "auto",
    console: Console | None = None,
    quiet: bool = False,
) -> Answers:
    """Classify one or several pictures; returns an `Answer` for each, in order.

    `model` is a name of released weights, a path or a module. A picture is a path (also of a folder, or a pattern such
    as "photos/*.jpg"), the bytes of an image file, a PIL image, an (H, W, 3) array or a (3, H, W) tensor of uint8. A
    (B, 3, H, W) float tensor is taken as already preprocessed. Images of more than `max_pixels` are rejected; by
    default each format has its own limit. See `ModelOptions` for how weights are loaded.

    `answer.guesses` are the `top` classes, most probable first, each with `name`, `index` and `probability`: of a
    softmax over the classes, or of each class by itself for a multi-label model. A picture that cannot be read has no
    guesses but a `reason` and a `detail`; the others are answered all the same. `quiet` prints no progress.
    """
    screen = default_console(console, quiet=quiet)
    pictures = named(images, screen)
    options = ModelOptions(conventions, image, "own", device, heads, allow_partial, allow_nonfinite)
    loaded = open_model(model, options, screen)
    found = Answers(
        _shown(answers(loaded, pictures, top, max_pixels=max_pixels), pictures, screen), loaded, label_of(model)
    )
    require(bool(found), f"no picture was given; give {KINDS}")
    return found


def named(images: Pictures, console: Console) -> Pictures:
    """Expand paths, folders and patterns to image files, and "-" to standard input; reports the files left out."""
    if isinstance(images, Sized) and not isinstance(images, bytes | np.ndarray | Tensor):
        require(len(images) > 0, f"no picture was given; give {KINDS}")
    words = images if isinstance(images, list | tuple) else [images]
    if not all(isinstance(word, str | Path) for word in words):
        return images
    found, excluded = [], Excluded()
    require(words.count(STANDARD_INPUT) < 2, "standard input holds one image; give - once")
    for word in words:
        if word == STANDARD_INPUT:
            found.append(Named(STANDARD_INPUT, _standard_input()))
        else:
            found += [Named(str(path), path) for path in image_files((cast(str, word),), excluded)]
    if excluded:
        say(console, printable(excluded.described()))
    return found


def _standard_input() -> bytes:
    is_terminal = sys.stdin is None or sys.stdin.isatty()
    require(
        not is_terminal, "- reads an image from standard input, which is a terminal; pipe one: cat cat.jpg | vitlab ..."
    )
    return sys.stdin.buffer.read(LARGEST_FILE + 1)


def _shown(found: Iterator[Answer], pictures: Pictures, console: Console) -> Iterator[Answer]:
    """The same answers, counted on the console."""
    total = len(pictures) if isinstance(pictures, list) else 0
    with Images(console, "classified") as display:
        for done, answer in enumerate(found, 1):
            display.show(done, total)
            yield answer
