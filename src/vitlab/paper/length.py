"""How long a pre-training is: what a user says of it, over what the recipe's own paper says."""

from dataclasses import dataclass
from typing import Final

from vitlab.strict_json import check_fields, require


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

    def batch_or(self, own: int) -> int:
        """Images in a batch."""
        return self.batch or own

    def steps(self, *, images: int, epochs: int, batch: int) -> int:
        """Steps in all, of a recipe with these numbers of its own."""
        return self.total or self.steps_of(self.epochs or epochs, images=images, batch=batch)

    def steps_of(self, epochs: int, *, images: int, batch: int) -> int:
        """Whole steps in so many epochs."""
        return epochs * (self.images or images) // self.batch_or(batch)

    def warmup_or(self, own: int) -> int:
        """Steps of warm-up; 0 is none."""
        return own if self.warmup is None else self.warmup


OWN: Final = Length()  # all as the recipe's paper has it
