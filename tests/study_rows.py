"""Rows of studies with made-up values, for tests of what is made from rows."""

from vitlab.paper.models import name_of
from vitlab.studies.catalogue import STUDIES
from vitlab.studies.claims import Row
from vitlab.studies.scales import TINY

SEEDS = 3


def synthetic(name, bonus, seeds=SEEDS, machine="", scale=TINY):
    """Rows of a study with made-up values: those of the levels in `bonus` are higher; seeds differ a little."""
    for cell in STUDIES[name].cells(scale):
        extra = sum(points for level, points in bonus.items() if level in cell.levels.values())
        weights = f"{machine}{cell.training.name}" if cell.training else ""
        model = name_of(cell.training.model if cell.training else cell.measurement.model)
        compute = cell.training.chain[0].exaflops if cell.training else 0.0
        for seed in range(seeds):
            value = 50.0 + extra + 0.1 * seed * (1 + len(cell.name) % 3)
            measure = cell.measurement.value
            yield Row(name, scale.name, dict(cell.levels), seed, measure, {measure: value}, model=model,
                      exaflops=compute, seconds=36.0, published=cell.published,
                      weights=weights and f"{weights}, {seed}", command=f"vitlab study {name}")  # fmt: skip
