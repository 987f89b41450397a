"""Attention patterns of a plain ViT as values with a string form, such as `window:7`. Standard library only.

A pattern says which patches a patch attends to. Patches are numbered row by row. The class and distillation tokens
attend to all tokens, and all tokens attend to them, in every pattern.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from vitlab.files.strict_json import check_fields
from vitlab.require import require

Grid = tuple[int, int]  # rows and columns of patches
LARGEST = 65_536  # of every number in a pattern but the seed, because specs may come from untrusted files
LARGEST_SEED = 2**63 - 1
LARGEST_TABLES = 2**21  # entries of BigBird's tables in all layers, which are made in seconds


@dataclass(frozen=True)
class Pattern:
    """What all patterns have. Their fields are whole numbers; `least` states the smallest where it is not 1."""

    name = ""
    least = {}  # noqa: RUF012 - never changed; an annotation would make it a field

    def __post_init__(self) -> None:
        check_fields(self)
        for field in dataclasses.fields(self):
            value, first = getattr(self, field.name), self.least.get(field.name, 1)
            most = LARGEST_SEED if field.name == "seed" else LARGEST
            inside = value is None or first <= value <= most
            require(inside, f"attention {self.name!r}: {field.name.rstrip('_')} {value} is outside {first}..{most:,}")

    def __str__(self) -> str:
        """The string form, with the options that differ from their defaults: `fixed:block=14,summary=2`."""
        names = self.options()
        given = {name: getattr(self, field) for name, field in names.items()}
        given = {name: value for name, value in given.items() if value != getattr(type(self), names[name], None)}
        if not given:
            return self.name
        if list(given) == list(names)[:1]:
            return f"{self.name}:{given[next(iter(names))]}"
        return f"{self.name}:{','.join(f'{name}={value}' for name, value in given.items())}"

    @classmethod
    def options(cls) -> dict[str, str]:
        """The options in the string form, and the fields that hold them: `global` is a word of Python."""
        return {field.name.rstrip("_"): field.name for field in dataclasses.fields(cls)}

    def at_layer(self, layer: int) -> "Pattern":
        """The pattern of one layer, numbered from 0."""
        return self

    def check(self, grid: Grid, layers: int) -> None:
        """Raise a ValueError if the pattern is not for so many layers on this grid."""

    def pairs(self, grid: Grid, prefix: int) -> int:
        """The products of a query with a key that one layer computes, with `prefix` tokens before the patches.

        Pairs that are computed and masked, and those of padding, count.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Full(Pattern):
    """Every patch attends to every patch, as in the paper."""

    name = "full"

    def pairs(self, grid: Grid, prefix: int) -> int:
        return (math.prod(grid) + prefix) ** 2


@dataclass(frozen=True)
class Axial(Pattern):
    """A layer is two blocks: along the columns, then along the rows (appendix D.6). There is no class token."""

    name = "axial"

    def pairs(self, grid: Grid, prefix: int) -> int:
        return math.prod(grid) * sum(grid)


@dataclass(frozen=True)
class Window(Pattern):
    """Non-overlapping windows of `size` x `size` patches from the top left; one layer in `every` is full.

    `window:7` has no full layer; in `window:7+global:6` layers 6, 12 and so on attend to all patches.
    """

    size: int
    every: int = 0
    name = "window"
    least = {"every": 0}  # noqa: RUF012

    def __str__(self) -> str:
        return f"window:{self.size}" + (f"+global:{self.every}" if self.every else "")

    def at_layer(self, layer: int) -> Pattern:
        if self.every and (layer + 1) % self.every == 0:
            return Full()
        return Window(self.size)

    def sides(self, grid: Grid) -> Grid:
        """Rows and columns of a window: never more than the grid has."""
        return min(self.size, grid[0]), min(self.size, grid[1])

    def pairs(self, grid: Grid, prefix: int) -> int:
        down, across = (
            ((side // size, size), (1, side % size)) for side, size in zip(grid, self.sides(grid), strict=True)
        )
        windows = [(rows * columns, height * width) for rows, height in down for columns, width in across]
        return _first(grid, prefix) + sum(number * inside * (inside + prefix) for number, inside in windows)


@dataclass(frozen=True)
class Neighbourhood(Pattern):
    """The `size` x `size` patches around each patch; at the border the square is shifted inward."""

    size: int
    name = "neighbourhood"

    def __post_init__(self) -> None:
        super().__post_init__()
        near = f"{self.size - 1} or {self.size + 1}" if self.size > 1 else "1"
        require(self.size % 2 == 1, f"attention {str(self)!r} has no patch in the middle; give an odd size, {near}")

    def sides(self, grid: Grid) -> Grid:
        """Rows and columns of a neighbourhood: never more than the grid has."""
        return min(self.size, grid[0]), min(self.size, grid[1])

    def regions(self, grid: Grid) -> Grid:
        """Rows and columns of the region that holds the neighbourhoods of a tile of queries, which has `sides`."""
        return min(2 * self.size - 1, grid[0]), min(2 * self.size - 1, grid[1])

    def pairs(self, grid: Grid, prefix: int) -> int:
        sides = self.sides(grid)
        queries = math.prod(map(_ceil, grid, sides)) * math.prod(sides)
        return _first(grid, prefix) + queries * (math.prod(self.regions(grid)) + prefix)


@dataclass(frozen=True)
class Strided(Pattern):
    """Patches less than `stride` places away in the sequence, and those a multiple of `stride` away.

    The Sparse Transformer's strided pattern without causality. The default stride is the square root of the number of
    patches, rounded up: the length of a row of a square grid.
    """

    stride: int | None = None
    name = "strided"

    def step(self, grid: Grid) -> int:
        """The stride on this grid: never more than the number of patches."""
        return _root(grid) if self.stride is None else min(self.stride, math.prod(grid))

    def pairs(self, grid: Grid, prefix: int) -> int:
        step = self.step(grid)
        blocks = _ceil(math.prod(grid), step)
        return _first(grid, prefix) + blocks * step * (3 * step + blocks + prefix)


@dataclass(frozen=True)
class Fixed(Pattern):
    """The patches of one's own block, and the last `summary` patches of every block.

    The Sparse Transformer's fixed pattern without causality. The default block is as long as the default stride of
    `Strided`.
    """

    block: int | None = None
    summary: int = 1
    name = "fixed"

    def sizes(self, grid: Grid) -> tuple[int, int]:
        """The patches of a block, and how many of them are its summary, on this grid."""
        block = _root(grid) if self.block is None else min(self.block, math.prod(grid))
        return block, min(self.summary, block)

    def pairs(self, grid: Grid, prefix: int) -> int:
        block, summary = self.sizes(grid)
        blocks = _ceil(math.prod(grid), block)
        return _first(grid, prefix) + blocks * block * (block - summary + blocks * summary + prefix)


@dataclass(frozen=True)
class BigBird(Pattern):
    """Blocks of `block` patches that attend to a `window` of blocks around them, and to `random` other blocks.

    The first and last blocks, `global_` in all, attend to all and are attended to by all. The random blocks are drawn
    from `seed`, the number of the layer and the number of blocks.
    """

    block: int = 16
    global_: int = 2
    window: int = 3
    random: int = 3
    seed: int = 0
    name = "bigbird"
    least = {"global_": 0, "random": 0, "seed": 0}  # noqa: RUF012

    def __post_init__(self) -> None:
        super().__post_init__()
        odd = f"attention {str(self)!r}: a window of {self.window} blocks has none in the middle; give an odd number"
        require(self.window % 2 == 1, odd)

    def check(self, grid: Grid, layers: int) -> None:
        size = layers * self.blocks(grid)[0] * self.slots(grid)
        advice = f"at most {LARGEST_TABLES:,} are allowed; give larger blocks, or fewer random ones"
        needs = f"attention {str(self)!r} needs tables of {size:,} blocks in {layers} layers"
        require(size <= LARGEST_TABLES, f"{needs}; {advice}")

    def blocks(self, grid: Grid) -> tuple[int, int, int]:
        """Blocks of the sequence, and how many of the first and of the last are global."""
        blocks = _ceil(math.prod(grid), self.block)
        ends = min(self.global_, blocks)
        return blocks, ends - ends // 2, ends // 2

    def slots(self, grid: Grid) -> int:
        """The most blocks that a block attends to, unless it is global."""
        blocks, first, last = self.blocks(grid)
        return min(first + last + self.window + self.random, blocks)

    def table(self, grid: Grid, layer: int) -> tuple[tuple[int, ...], ...]:
        """The blocks that each block attends to, in order; of those that are not global, and -1 fills up the rows."""
        blocks, first, last = self.blocks(grid)
        draw = Random(f"{self.seed} {layer} {blocks}")  # its `random` is the same in every Python
        ends = {*range(first), *range(blocks - last, blocks)}
        slots, rows = self.slots(grid), []
        for row in range(first, blocks - last):
            reach = self.window // 2
            seen = ends | set(range(max(row - reach, 0), min(row + reach + 1, blocks)))
            seen |= set(_drawn(draw, blocks, seen, self.random))
            rows.append((*sorted(seen), *[-1] * (slots - len(seen))))
        return tuple(rows)

    def pairs(self, grid: Grid, prefix: int) -> int:
        patches, (blocks, first, last) = math.prod(grid), self.blocks(grid)
        inner = blocks - first - last
        if not inner:
            return (patches + prefix) ** 2
        ends = first * self.block + (patches - (blocks - last) * self.block if last else 0)
        own = inner * self.block * (self.slots(grid) * self.block + prefix)
        return (prefix + ends) * (patches + prefix) + own


KINDS: dict[str, type[Pattern]] = {
    kind.name: kind for kind in (Full, Axial, Window, Neighbourhood, Strided, Fixed, BigBird)
}
EXAMPLES = ("full", "axial", "window:7", "window:7+global:6", "neighbourhood:7", "strided", "fixed", "bigbird")
OF_SWIN = "a Swin always attends within its own windows, whose side is `window`"
PATTERNS = tuple(example for example in EXAMPLES if example != "axial")  # that weights of a plain ViT fit into


def parse_pattern(given: "str | Pattern") -> Pattern:
    """Read a pattern from its string form; a pattern is returned as it is."""
    if isinstance(given, Pattern):
        return given
    require(isinstance(given, str), f"attention {given!r:.60} is not text; {_allowed()}")
    match = re.fullmatch(r"([a-z]+)(?::([^+]*))?(?:\+global:(\d{1,9}))?", given, re.ASCII)
    kind = KINDS.get(match[1]) if match else None
    is_windowed = kind is Window or not (match and match[3])
    if match is None or kind is None or not is_windowed:
        raise ValueError(f"attention {given!r:.60} is unknown; {_allowed()}")
    options = {} if match[2] is None else _options(kind, match[2], given)
    if match[3]:
        require(int(match[3]) > 0 and "every" not in options, f"attention {given!r:.60} is unknown; {_allowed()}")
        options["every"] = int(match[3])
    lacks = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING and f.name not in options]
    require(not lacks, f"attention {given!r:.60} lacks its {', '.join(lacks)}; {_allowed()}")
    return kind(**options)


def no_pattern(attention: str, why: str) -> str:
    """Say that a family has no patterns of attention."""
    return f"attention {attention!r:.60} is for Vision Transformers and hybrids; {why}"


def _options(kind: type[Pattern], text: str, given: str) -> dict[str, int]:
    """Read `7`, which is the first field, or `block=16,seed=1`."""
    names, parts = kind.options(), text.split(",")
    known = f"its options are {', '.join(names)}, as in {kind.name}:{next(iter(names))}=7" if names else "it has none"
    found: dict[str, int] = {}
    for part in parts:
        name, equals, value = part.rpartition("=")
        name = name if equals or len(parts) > 1 else next(iter(names), "")
        is_new = name in names and names[name] not in found and bool(re.fullmatch(r"\d{1,19}", value, re.ASCII))
        require(is_new, f"attention {given!r:.60}: option {part!r:.40} is not understood; {known}")
        found[names[name]] = int(value)
    return found


def _allowed() -> str:
    return f"allowed are {', '.join(EXAMPLES)}, with other numbers"


def _drawn(draw: Random, blocks: int, seen: set[int], number: int) -> Iterator[int]:
    """Draw blocks that are not seen yet, each at most once; all of them if there are no more."""
    seen = set(seen)
    if blocks - len(seen) <= number:
        yield from set(range(blocks)) - seen
        return
    for _ in range(number):
        block = int(draw.random() * blocks)
        while block in seen:
            block = int(draw.random() * blocks)
        seen.add(block)
        yield block


def _first(grid: Grid, prefix: int) -> int:
    """The pairs of the tokens before the patches, which attend to all."""
    return prefix * (math.prod(grid) + prefix)


def _ceil(number: int, by: int) -> int:
    return -(-number // by)


def _root(grid: Grid) -> int:
    """The square root of the number of patches, rounded up."""
    return math.isqrt(math.prod(grid) - 1) + 1
