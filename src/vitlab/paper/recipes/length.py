"""The length of a training run: what the user sets, and what follows from it.

Unless the user sets them too, the warm-up follows the number of steps, and the peak learning rate follows the batch.
"""

from dataclasses import dataclass
from typing import Final

from vitlab.errors import InvalidValue
from vitlab.files.strict_json import check_fields
from vitlab.require import require


@dataclass(frozen=True)
class Length:
    """Settings of a run's length; None leaves a setting to the recipe.

    The number of steps is `total`, or follows from `epochs` over `images`.
    """

    images: int | None = None
    epochs: int | None = None
    batch: int | None = None  # images
    total: int | None = None  # steps
    warmup: int | None = None  # steps

    def __post_init__(self) -> None:
        if self.epochs is not None and (type(self.epochs) is not int or self.epochs < 1):
            raise InvalidValue(f"is {self.epochs!r}; expected a whole number, 1 or more", field="epochs")
        check_fields(self)
        both = f"epochs= ({self.epochs}) and schedule.total= ({self.total}) both set the length"
        require(self.epochs is None or self.total is None, f"{both}; give one of them")

    @property
    def is_set(self) -> bool:
        """Whether the number of epochs or steps is set."""
        return self.epochs is not None or self.total is not None

    def batch_or(self, own: int) -> int:
        """Return the batch that is set, or else the recipe's `own`."""
        return self.batch or own

    def steps(self, *, images: int, epochs: int, batch: int) -> int:
        """Return the total steps; the arguments are the recipe's own numbers. Fewer than two steps are a ValueError."""
        if self.total is not None:
            return self.total
        epochs, images, batch = self.epochs or epochs, self.images or images, self.batch_or(batch)
        steps = epochs * images // batch
        few = f"{epochs} epoch{'s' * (epochs > 1)} of {images:,} images: {steps} step{'s' * (steps != 1)} of {batch:,}"
        more = f"give batch={max(images // 4, 1)}, for example, more epochs=, or schedule.total="
        require(steps > 1, f"{few}, and a schedule needs at least 2; {more}")
        return steps

    def warmup_of(self, own: int, *, total: int, own_total: int) -> int:
        """Return the steps of warm-up in a run of `total` steps, for a recipe with `own` in `own_total` steps.

        A shorter run keeps the share of warm-up, a longer one the number, as in the paper's runs of 7 and 14 epochs.
        """
        return min(own, own * total // own_total) if self.warmup is None else self.warmup

    def peak_of(self, own: float, *, batch: int, power: float) -> float:
        """Return the peak learning rate for a recipe with `own` at `batch`: it grows with a power of the batch."""
        return own * (self.batch_or(batch) / batch) ** power


# SGD's rate is proportional to the batch, as in BiT (0.03 for 256 images), on whose recipes the paper builds. Adam
# divides by the size of the gradient, so that its rate follows the square root (Malladi et al., 2022).
SGD_POWER: Final = 1.0
ADAM_POWER: Final = 0.5
OWN: Final = Length()  # everything from the recipe
