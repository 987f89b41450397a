"""A training image and a test image that show the same."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """A near-duplicate: ids and numbers of both images, and how alike they are."""

    train: str
    train_number: int
    test_set: str
    test: str
    test_number: int
    distance: int  # bits of the perceptual hash, of 64
    correlation: float  # of the thumbnails
    same: bool  # whether the files, or the pixels, are equal byte by byte
    similarity: float | None = None  # cosine of the features, if a model was given

    def to_json(self) -> dict[str, object]:
        """The pair as JSON values; without a model there is no similarity."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def described(self) -> str:
        """How alike the images are, in a few words."""
        if self.same:
            return "identical"
        cosine = "" if self.similarity is None else f", similarity {self.similarity:.3f}"
        return f"correlation {self.correlation:.3f}, {self.distance} of 64 bits differ{cosine}"
