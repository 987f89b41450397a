"""Sample pictures of the page: drawn by a program, so that the page has something to show before it is given a picture.

The pixels are the same every time. A folder of pictures can be added to them.
"""

import io
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from vitlab.data.images.pictures import image_files, read_picture
from vitlab.require import require

SIDE, FINE = 256, 4  # pixels, and how many times finer things are drawn


def backdrop(top: tuple[int, int, int], bottom: tuple[int, int, int], seed: int) -> Image.Image:
    """A vertical gradient with soft blotches, so that there is something to ignore."""
    side = SIDE * FINE
    ramp = np.linspace(0, 1, side)[:, None, None]
    plain = (1 - ramp) * np.array(top) + ramp * np.array(bottom)
    coarse = np.random.default_rng(seed).normal(0, 9, (12, 12, 3))
    blotches = [Image.fromarray(coarse[..., c].astype(np.float32)).resize((side, side), 3) for c in range(3)]
    return Image.fromarray(
        (plain + np.stack([np.asarray(one) for one in blotches], axis=-1)).clip(0, 255).astype(np.uint8)
    )


def clock() -> Image.Image:
    """A wall clock, left of the middle."""
    image = backdrop((196, 178, 150), (150, 130, 104), 1)
    draw = ImageDraw.Draw(image)
    x, y, r = 440, 450, 300
    draw.ellipse((x - r + 18, y - r + 26, x + r + 18, y + r + 26), fill=(96, 82, 66))
    draw.ellipse((x - r, y - r, x + r, y + r), fill=(58, 36, 22))
    draw.ellipse((x - r + 34, y - r + 34, x + r - 34, y + r - 34), fill=(248, 246, 238))
    for minute in range(60):
        angle, deep = math.radians(6 * minute), 40 if minute % 5 == 0 else 16
        a, b = r - 50, r - 50 - deep
        ends = (x + a * math.sin(angle), y - a * math.cos(angle), x + b * math.sin(angle), y - b * math.cos(angle))
        draw.line(ends, fill=(20, 20, 24), width=14 if minute % 5 == 0 else 5)
    for degrees, length, width in ((305, 130, 22), (60, 200, 14)):
        angle = math.radians(degrees)
        draw.line((x, y, x + length * math.sin(angle), y - length * math.cos(angle)), fill=(16, 16, 20), width=width)
    draw.ellipse((x - 18, y - 18, x + 18, y + 18), fill=(16, 16, 20))
    return image


def traffic_light() -> Image.Image:
    """A traffic light on a pole, right of the middle, red."""
    image = backdrop((120, 168, 220), (206, 220, 232), 2)
    draw = ImageDraw.Draw(image)
    draw.rectangle((640, 760, 676, 1024), fill=(70, 72, 76))
    draw.rounded_rectangle((540, 120, 776, 780), 40, fill=(28, 30, 30))
    for place, colour in enumerate(((250, 40, 28), (84, 66, 10), (12, 62, 30))):
        y = 236 + 214 * place
        draw.pieslice((562, y - 110, 754, y + 82), 180, 360, fill=(12, 12, 12))
        draw.ellipse((576, y - 82, 740, y + 82), fill=colour)
    draw.ellipse((612, 178, 670, 222), fill=(255, 150, 130))
    return image


def balloon() -> Image.Image:
    """A striped hot-air balloon over hills."""
    image = backdrop((64, 128, 214), (190, 214, 236), 3)
    draw = ImageDraw.Draw(image)
    draw.ellipse((-300, 800, 700, 1400), fill=(70, 112, 54))
    draw.ellipse((420, 850, 1500, 1400), fill=(92, 132, 62))
    x, y, r = 560, 330, 230
    stripes = ((210, 44, 40), (246, 196, 52), (40, 96, 176), (246, 196, 52))
    for number, share in enumerate(np.linspace(1, 0.14, 7)):
        draw.polygon(
            [(x - r * share * 0.96, y + 90), (x + r * share * 0.96, y + 90), (x, y + 400)], fill=stripes[number % 4]
        )
        draw.ellipse((x - r * share, y - r, x + r * share, y + r), fill=stripes[number % 4])
    draw.rectangle((x - 34, y + 330, x + 34, y + 420), fill=image.getpixel((x + 260, y + 340)))
    for side in (-34, 34):
        draw.line((x + side, y + 300, x + side * 0.9, y + 400), fill=(70, 50, 30), width=5)
    draw.rounded_rectangle((x - 40, y + 390, x + 40, y + 450), 10, fill=(112, 74, 40))
    return image


def lemons() -> Image.Image:
    """Three lemons on a table."""
    image = backdrop((92, 66, 50), (142, 104, 74), 4)
    for x, y, turn in ((360, 600, 20), (640, 560, -30), (500, 740, 5)):
        fruit = Image.new("RGBA", (420, 420))
        draw = ImageDraw.Draw(fruit)
        for step in range(60):
            t = step / 60
            box = (40 + 100 * t, 90 + 90 * t, 380 - 130 * t, 330 - 120 * t)
            draw.ellipse(box, fill=(214 + int(38 * t), 170 + int(62 * t), 20 + int(70 * t), 255))
            if step == 0:
                draw.ellipse((12, 180, 80, 240), fill=(206, 160, 20, 255))
                draw.ellipse((340, 180, 408, 240), fill=(206, 160, 20, 255))
        fruit = fruit.rotate(turn, Image.Resampling.BICUBIC)
        shadow = Image.new("RGBA", fruit.size, (30, 18, 10, 255))
        mask = fruit.getchannel("A").filter(ImageFilter.GaussianBlur(14))
        image.paste(shadow, (x - 190, y - 180), mask.point(lambda v: v // 2))
        image.paste(fruit, (x - 210, y - 210), fruit)
    return image


PICTURES: dict[str, Callable[[], Image.Image]] = {
    "clock": clock,
    "traffic-light": traffic_light,
    "balloon": balloon,
    "lemons": lemons,
}


class Sample(NamedTuple):
    """A picture as a PNG file; `name` has only letters, digits, `-`, `_` and `.`, so that it fits a URL."""

    name: str
    png: bytes


def drawn(name: str) -> Image.Image:
    """Draw one of `PICTURES`, SIDE x SIDE pixels."""
    return PICTURES[name]().resize((SIDE, SIDE), Image.Resampling.BOX)


def samples(folder: str | Path | None = None) -> list[Sample]:
    """Draw all of `PICTURES`, then read the pictures below `folder` in the order of their names.

    Raises BadImage for a picture that cannot be read, and ValueError if two have the same name.
    """
    found = [Sample(name, _png(drawn(name))) for name in PICTURES]
    for path in image_files((folder,)) if folder is not None else ():
        picture = read_picture(path, str(path)).image
        found.append(Sample(re.sub(r"[^\w.-]+", "-", Path(path).stem, flags=re.ASCII) or "picture", _png(picture)))
    names = [sample.name for sample in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"two sample pictures have the name {', '.join(twice)}; rename one")
    return found


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
