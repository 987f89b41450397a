"""Swin Transformers as frozen values, and how they cut maps into windows."""

import math
from dataclasses import dataclass
from typing import Literal

from vitlab.files.strict_json import check_fields
from vitlab.require import require
from vitlab.spec.conventions import CONVENTIONS, Conventions
from vitlab.spec.sizes import LARGEST_WINDOW, LIMITS, check_classes, check_image

WindowOrder = Literal["pad-roll", "roll-pad"]


@dataclass(frozen=True)
class Windows:
    """How one stage of a Swin cuts its `map` into windows: their sides, and how far every second layer shifts them.

    All are (rows, columns), in cells of the map.
    """

    map: tuple[int, int]
    sides: tuple[int, int]
    shift: tuple[int, int]

    @property
    def number(self) -> tuple[int, int]:
        """Rows and columns of windows; the last ones may reach over the edge of the map."""
        rows, columns = (math.ceil(cells / side) for cells, side in zip(self.map, self.sides, strict=True))
        return rows, columns

    @property
    def padding(self) -> tuple[int, int]:
        """The cells to add to the map at its lower and its right edge."""
        rows, columns = (n * side for n, side in zip(self.number, self.sides, strict=True))
        return rows - self.map[0], columns - self.map[1]

    @property
    def offsets(self) -> int:
        """The number of different offsets between two cells of a window."""
        return (2 * self.sides[0] - 1) * (2 * self.sides[1] - 1)


@dataclass(frozen=True)
class SwinSpec:
    """A Swin Transformer: layers per stage, and channels and heads of its first stage; both double in each stage.

    Images of any size are padded to whole patches, and maps to whole windows.
    """

    stages: tuple[int, ...]
    root: int = 96
    heads: int = 3
    window: int = 7
    patch: int = 4
    image: tuple[int, int] = (224, 224)
    classes: int = 1000
    head: Literal["linear"] = "linear"
    stochastic_depth: float = 0.0
    conventions: Conventions = CONVENTIONS["paper"]
    kind: Literal["swin"] = "swin"

    def __post_init__(self) -> None:
        check_fields(self)
        require(1 <= len(self.stages) <= 5, f"{len(self.stages)} stages are outside 1..5")
        most = LIMITS["layers"]
        require(all(1 <= n <= most for n in self.stages), f"stages {self.stages} are outside 1..{most} layers each")
        require(1 <= self.root <= 1024, f"root {self.root} is outside 1..1,024 channels")
        require(1 <= self.heads <= LIMITS["heads"], f"heads {self.heads} is outside 1..{LIMITS['heads']}")
        require(self.root % self.heads == 0, f"root {self.root} is not a multiple of {self.heads} heads")
        require(1 <= self.window <= LARGEST_WINDOW, f"window {self.window} is outside 1..{LARGEST_WINDOW} cells")
        require(1 <= self.patch <= LIMITS["patch"], f"patch {self.patch} is outside 1..{LIMITS['patch']:,}")
        require(0 <= self.stochastic_depth < 1, f"stochastic_depth {self.stochastic_depth} is outside [0, 1)")
        check_classes(self.classes)
        check_image(self.image, self.stride)

    @property
    def width(self) -> int:
        """Channels of the last stage, which are the length of a feature vector."""
        return self.widths[-1]

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each stage."""
        return tuple(self.root * 2**stage for stage in range(len(self.stages)))

    @property
    def stride(self) -> int:
        """Image sides must be multiples of this; any side will do."""
        return 1

    @property
    def maps(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of the feature map of each stage; odd maps are padded before they are halved."""
        height, width = self.image
        scales = (self.patch * 2**stage for stage in range(len(self.stages)))
        return tuple((math.ceil(height / scale), math.ceil(width / scale)) for scale in scales)

    @property
    def order(self) -> WindowOrder:
        """What comes first where a map is padded to whole windows and rolled by their shift.

        The authors' code for detection and transformers pad first, timm rolls first.
        """
        return "roll-pad" if self.conventions.position_resize == "timm" else "pad-roll"

    @property
    def windows(self) -> tuple[Windows, ...]:
        """The windows of each stage.

        By the authors' rule, a map with a side no larger than the window is cut into squares of its smaller side, and
        nothing is shifted. timm looks at each side by itself, and rounds the sides of odd maps down to do so.
        """
        return tuple(self._windows(stage, grid) for stage, grid in enumerate(self.maps))

    def _windows(self, stage: int, grid: tuple[int, int]) -> Windows:
        window, shift = self.window, self.window // 2
        if self.order == "pad-roll":
            smaller = min(grid)
            if smaller > window:
                return Windows(grid, (window, window), (shift, shift))
            return Windows(grid, (smaller, smaller), (0, 0))
        rows, columns = (max(side // 2**stage, 1) for side in self.maps[0])
        sides = min(rows, window), min(columns, window)
        return Windows(grid, sides, (shift if rows > window else 0, shift if columns > window else 0))
