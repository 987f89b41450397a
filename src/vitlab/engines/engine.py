"""An engine: computes features and logits of a model for batches of any size, and says by what."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from vitlab.engines.streams import Streams
from vitlab.models.classifier import check_images, check_shape
from vitlab.spec import EngineName

Output = Literal["features", "logits"]
OUTPUTS: tuple[Output, Output] = ("features", "logits")
Function = Callable[[Tensor, Output], Tensor]  # images (B, 3, H, W) -> features (B, D) or logits (B, K)
CPU = torch.device("cpu")
Prepare = Callable[[Tensor], Tensor]
CHUNK = 4  # images that a stream computes at once: enough rows for the matrix products, few enough for the caches
BALANCE = 0.75  # least share of the streams' time that must be used; else one operator at a time on all cores


class Pending:
    """The output for a batch that may still be computing."""

    def __init__(self, parts: Sequence[Future[Tensor]] | Tensor) -> None:
        self._parts = parts

    def result(self) -> Tensor:
        """The output of the whole batch; waits for it."""
        if not isinstance(self._parts, Tensor):
            self._parts = torch.cat([part.result() for part in self._parts])
        return self._parts

    def cancel(self) -> None:
        """Give up what has not begun."""
        if not isinstance(self._parts, Tensor):
            for part in self._parts:
                part.cancel()


@dataclass(frozen=True)
class Engine:
    """Computes features and logits of a model without gradients, with the weights it had when the engine was opened.

    Only the engine `plain` is the model itself and follows its changes; open any other again for the new weights.
    `wide` uses all cores for a batch; `narrow`, if there is one, uses a single core and runs on several at a time.
    Inputs are moved to the `device` and `dtype` of the model, and must have its image `size` unless that is None.
    `note` says how an automatic choice came about.
    """

    name: EngineName
    wide: Function
    narrow: Function | None = None
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    streams: Streams[Tensor, Tensor] = field(default_factory=lambda: Streams(torch.get_num_threads()))
    note: str = ""
    size: tuple[int, int] | None = None

    @property
    def is_concurrent(self) -> bool:
        """Whether `submit` returns before the batch is computed, so that the next one can be read meanwhile."""
        return self.narrow is not None and self.streams.number > 1

    def __call__(self, images: Tensor) -> Tensor:
        """(B, 3, H, W), preprocessed -> logits (B, K)."""
        return self.submit(self._checked(images)).result()

    def features(self, images: Tensor) -> Tensor:
        """(B, 3, H, W), preprocessed -> features (B, D)."""
        return self.submit(self._checked(images), "features").result()

    def submit(self, images: Tensor, output: Output = "logits", prepare: Prepare | None = None) -> Pending:
        """Begin to compute a batch; `prepare` turns what is given into the model's inputs."""

        def computed(function: Function, given: Tensor) -> Tensor:
            with torch.inference_mode():
                given = given.to(self.device)
                inputs = given if prepare is None else prepare(given)
                return function(inputs.to(self.dtype), output)

        chunks, narrow = self._chunks(images), self.narrow
        if narrow is None or len(chunks) < 2:
            return Pending(computed(self.wide, images))
        return Pending(self.streams.submit(lambda chunk: computed(narrow, chunk), chunks))

    def _chunks(self, images: Tensor) -> Sequence[Tensor]:
        """Split a batch for the streams, or leave it whole if some of them would be idle for too long."""
        streams = self.streams.number
        if streams < 2 or len(images) < 2:
            return [images]
        size = min(CHUNK, math.ceil(len(images) / streams))
        turns = math.ceil(math.ceil(len(images) / size) / streams)
        return images.split(size) if len(images) >= BALANCE * turns * streams * size else [images]

    def _checked(self, images: object) -> Tensor:
        """The images themselves; a ValueError that names the given shape unless the model can take such a batch."""
        check_images(images)
        assert isinstance(images, Tensor)
        check_shape(images, self.size)
        return images
