"""How long a training is: what a user says of it, over what the recipe's own paper says.

What depends on it follows unless the user sets it: the warm-up follows the steps, the peak learning rate the batch.
"""

from dataclasses import dataclass
from typing import Final

from vitlab.require import require
from vitlab.strict_json import check_fields


@dataclass(frozen=True)
class Length:
    """What is said of a training's length; what is not, is the recipe's own.

    Steps follow from the `epochs` of so many `images`, or they are `total`.
    """

    images: int | None = None
    epochs: int | None = None
    batch: int | None = None  # images
    total: int | None = None  # steps
    warmup: int | None = None  # steps

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.epochs is None or self.epochs >= 1, f"--epochs {self.epochs} must be 1 or more")
        require(
            self.epochs is None or self.total is None,
            f"--epochs {self.epochs} and --schedule.total {self.total} both set the length; give one of them",
        )

    @property
    def is_set(self) -> bool:
        """Whether the user states how long to train."""
        return self.epochs is not None or self.total is not None

    def batch_or(self, own: int) -> int:
        """Images in a batch."""
        return self.batch or own

    def steps(self, *, images: int, epochs: int, batch: int) -> int:
        """Steps in all, of a recipe with these numbers of its own; raises for epochs of fewer than two steps."""
        if self.total is not None:
            return self.total
        epochs, images, batch = self.epochs or epochs, self.images or images, self.batch_or(batch)
        steps = epochs * images // batch
        require(
            steps > 1,
            f"{epochs} epochs of {images:,} images make {steps} steps of {batch:,} images; give a smaller --batch, "
            f"such as {max(images // 4, 1):,}, more --epochs, or the steps (--schedule.total)",
        )
        return steps

    def warmup_of(self, own: int, *, total: int, own_total: int) -> int:
        """Steps of warm-up in a run of `total` steps, of a recipe with `own` in its own number; 0 is none.

        A shorter run keeps the share; a longer one the number, as the paper's runs of 7 and 14 epochs do.
        """
        return min(own, own * total // own_total) if self.warmup is None else self.warmup

    def peak_of(self, own: float, *, batch: int, power: float) -> float:
        """The peak learning rate, of a recipe with `own` for its own `batch`: it grows with a power of the batch."""
        return own * (self.batch_or(batch) / batch) ** power


# SGD's rate is proportional to the batch: BiT's rule (0.03 for 256 images), from whose recipes the paper starts. Adam
# divides by the size of the gradient, so its rate follows the square root (Malladi and others, 2022).
SGD_POWER: Final = 1.0
ADAM_POWER: Final = 0.5
OWN: Final = Length()  # all as the recipe's paper has it
