"""What models cost: the measurements, their table, and the figure of images per second and largest batch."""

from dataclasses import dataclass
from pathlib import Path

from vitlab.costing.measuring import Timing
from vitlab.costing.search import FIRST
from vitlab.costing.work import PASSES, Mode
from vitlab.drawing.canvas import Drawn
from vitlab.drawing.charts import draw_panels
from vitlab.report.tables import Cell, Results, Tabular

TABLE, FIGURE = "cost", "cost"  # names of files, without suffix
COLUMNS = ("model", "image", "mode", "engine", "images/s", "batch", "peak MB", "largest batch", "limit MB", "GMACs")
COLUMNS += ("GFLOP/s", "of matmul %", "note")
PAYS = ("model", "mode", "attention", "pays from", "times full at the largest image")
MB = 1e6
SPEED, BATCH, MACS, MEMORY = "images per second", "largest batch", "GMACs of one image", "peak MB of the smallest batch"


@dataclass(frozen=True)
class Cost:
    """A model at one image size (H, W) in one mode: the `timings` of its batches, and the largest batch.

    `macs` are the multiply-accumulates of one image's forward pass, `limit` is the memory allowed in bytes, `matmul`
    are the FLOPs per second of a large square fp32 matrix product in the same process. `note` says why something is
    missing, or that the largest batch is extrapolated. `attention` is the pattern that was asked for, which `model`
    names as well; empty for the model's own.
    """

    model: str
    image: tuple[int, int]
    mode: Mode
    macs: int = 0
    timings: tuple[Timing, ...] = ()
    largest: int | None = None
    limit: int | None = None
    matmul: float | None = None
    note: str = ""
    attention: str = ""

    @property
    def best(self) -> Timing | None:
        """The timing with the most images per second."""
        return max(self.timings, key=lambda timing: timing.images_per_second, default=None)

    @property
    def is_settled(self) -> bool:
        """Whether a larger batch than the best was tried, or memory has no room for one.

        If not, time ran out early: a larger batch may be faster, or other programs disturbed the measurement.
        """
        largest = max((timing.batch for timing in self.timings), default=0)
        has_passed_best = self.best is not None and self.best.batch < largest and largest >= FIRST
        return has_passed_best or (self.largest is not None and self.largest < max(2 * largest, 1))

    @property
    def flops(self) -> float | None:
        """FLOPs per second at the best batch: two for each multiply-accumulate, three passes for a training step."""
        return None if self.best is None else self.best.images_per_second * 2 * self.macs * PASSES[self.mode]

    @property
    def utilisation(self) -> float | None:
        """The FLOPs per second as a share of those of the matrix product."""
        return None if self.flops is None or self.matmul is None else self.flops / self.matmul

    @property
    def size(self) -> str:
        """The image size as text: 224, or 224x320."""
        height, width = self.image
        return str(height) if height == width else f"{height}x{width}"

    @property
    def name(self) -> str:
        """What was measured, in words."""
        return f"{self.model} at {self.size}, {self.mode}"

    def cells(self) -> tuple[Cell, ...]:
        """The row of the table, rounded to what a measurement can say."""
        best = self.best
        speed = None if best is None else _rounded(best.images_per_second)
        peak = None if best is None or best.held is None else round(best.held / MB)
        limit = None if self.limit is None else round(self.limit / MB)
        flops = None if self.flops is None else _rounded(self.flops / 1e9)
        share = None if self.utilisation is None else round(100 * self.utilisation, 1)
        gmacs = round(self.macs / 1e9, 3) if self.macs else None
        batch = None if best is None else best.batch
        measured = (speed, batch, peak, self.largest, limit, gmacs, flops, share)
        engine = None if best is None else best.engine
        return (self.model, self.size, self.mode, engine, *measured, self.note or None)


@dataclass(frozen=True, repr=False)
class Costs(Tabular):
    """The results of `cost`, one row for each model, image size and mode. A notebook displays the table."""

    rows: tuple[Cost, ...]

    @property
    def table(self) -> Results:
        """All rows; "engine" and "peak MB" are those of the best batch, "limit MB" is the memory of the largest one."""
        return Results(COLUMNS, tuple(row.cells() for row in self.rows))

    @property
    def figure(self) -> Drawn:
        """Images per second and largest batch against the image size, as in figure 12; needs the extra `plot`.

        Where patterns of attention are compared, also multiply-accumulates and memory.
        """
        panels = (SPEED, BATCH, MACS, MEMORY) if any(row.attention for row in self.rows) else (SPEED, BATCH)
        return draw_panels({what: self._curves(what) for what in panels}, x="image size in pixels")

    @property
    def where_patterns_pay(self) -> Results:
        """For each model, mode and pattern the smallest measured image from which on it is faster than full attention.

        There is no row unless full attention was measured at the same sizes.
        """
        speeds: dict[tuple[str, str], dict[str, dict[int, tuple[str, float]]]] = {}
        for row in self.rows:
            if row.attention and row.best is not None:
                label = row.model.removesuffix(f", {row.attention}")
                curve = speeds.setdefault((label, row.mode), {}).setdefault(row.attention, {})
                curve[row.image[0] * row.image[1]] = row.size, row.best.images_per_second
        rows = []
        for (label, mode), patterns in speeds.items():
            full = patterns.pop("full", {})
            for attention, curve in patterns.items():
                shared = sorted(set(curve) & set(full))
                slower = [pixels for pixels in shared if curve[pixels][1] <= full[pixels][1]]
                faster = [pixels for pixels in shared if not slower or pixels > slower[-1]]
                if shared:
                    times = round(curve[shared[-1]][1] / full[shared[-1]][1], 2)
                    rows.append((label, mode, attention, curve[faster[0]][0] if faster else None, times))
        return Results(PAYS, tuple(rows))

    def _curves(self, what: str) -> dict[str, dict[float, float]]:
        """One curve for each model and mode, over the side of a square with as many pixels."""
        modes = {row.mode for row in self.rows}
        curves: dict[str, dict[float, float]] = {}
        for row in self.rows:
            name = row.model if len(modes) == 1 else f"{row.model}, {row.mode}"
            found = {
                SPEED: 0.0 if row.best is None else row.best.images_per_second,
                BATCH: row.largest,
                MACS: row.macs / 1e9,
                MEMORY: (row.timings[0].held or 0) / MB if row.timings else 0,
            }[what]
            points = curves.setdefault(name, {})
            if found:  # 0 has no place on a logarithmic axis
                points[(row.image[0] * row.image[1]) ** 0.5] = found
        return curves

    def save(self, out: str | Path) -> None:
        """Write the table to the folder `out` as CSV, Markdown and JSON."""
        self.table.save(Path(out) / TABLE)

    __repr__ = Tabular.__str__


def _rounded(number: float) -> float:
    """Three significant digits."""
    return float(f"{number:.3g}")
