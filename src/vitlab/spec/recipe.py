"""How a model is trained, as frozen values: schedule, optimizer, recipe and execution. Standard library only."""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from vitlab.files.strict_json import check_fields
from vitlab.require import require
from vitlab.spec.pixels import Augmentation

Decay = Literal["linear", "cosine", "staircase", "constant"]
Loss = Literal["sigmoid", "softmax"]
Precision = Literal["fp32", "tf32", "bf16"]
TargetName = Literal["mean-colour", "colours-4x4", "pixels"]
Parallel = Literal["auto", "ddp", "fsdp"]
LONGEST_TIMEOUT = 7 * 86_400  # seconds
SHARDS = 4  # per batch, if sums must not depend on the number of ranks
AUTHORS_CROP = Augmentation()
VALIDATION = "validation"  # the event whose numbers decide which weights are best
MEASURES = ("map", "top1")  # the first of them that it has decides; a multi-label model has no top-1


def measure_of(numbers: Mapping[str, object]) -> str:
    """The name of the number by which validations are compared; higher is better."""
    return next((name for name in MEASURES if name in numbers), MEASURES[-1])


def check_range(spec: object, allowed: str, *names: str) -> None:
    """Raise unless the fields are None or in an interval such as "[0, 1)"."""
    least, most = map(float, allowed[1:-1].split(","))
    is_above = operator.gt if allowed[0] == "(" else operator.ge
    is_below = operator.lt if allowed[-1] == ")" else operator.le
    for name in names:
        value = getattr(spec, name)
        is_inside = value is None or (is_above(value, least) and is_below(value, most))
        require(is_inside, f"{name} {value} is outside {allowed}")


def check_not_negative(spec: object, *names: str) -> None:
    """Raise unless the fields are 0 or more."""
    for name in names:
        require(getattr(spec, name) >= 0, f"{name} {getattr(spec, name)} must not be negative")


@dataclass(frozen=True)
class Distillation:
    """Distillation from a teacher: the teacher's prediction has `weight` in the loss, the label has the rest.

    `hard` uses the teacher's top class as a label; `soft` uses its softmax at a `temperature`, which `hard` ignores. A
    weight of None stands for DeiT's value.
    """

    kind: Literal["hard", "soft"] = "hard"
    weight: float | None = None
    temperature: float = 3.0

    def __post_init__(self) -> None:
        check_fields(self)
        check_range(self, "[0, 1]", "weight")
        check_range(self, "(0, 1000]", "temperature")

    @property
    def share(self) -> float:
        """The weight of the teacher in the loss."""
        return DEIT_WEIGHTS[self.kind] if self.weight is None else self.weight


DEIT_WEIGHTS = {"hard": 0.5, "soft": 0.1}  # in the loss, from DeiT's paper
HARD = Distillation()


@dataclass(frozen=True)
class Schedule:
    """The learning rate over `total` steps: linear warm-up from 0 to `peak`, then a decay.

    `linear` and `cosine` end at `end`; `staircase` divides by 10 after each of `boundaries`; `constant` keeps the peak.
    """

    peak: float
    total: int
    warmup: int
    decay: Decay = "linear"
    end: float = 1e-5
    boundaries: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.peak > 0, f"peak {self.peak} must be positive")
        require(0 <= self.end <= self.peak, f"end {self.end} is outside [0, peak {self.peak}]")
        check_not_negative(self, "warmup")
        steps = f"the {self.total:,} total steps must be more than the {self.warmup:,} steps of warm-up"
        require(self.total > self.warmup, f"{steps}; set schedule.warmup, for example to {max(self.total // 10, 0):,}")
        is_complete = (self.decay == "staircase") == bool(self.boundaries)
        require(is_complete, "boundaries are needed for the decay staircase, and have no effect for others")

    def learning_rate(self, step: int) -> float:
        """Return the rate of update `step`, counted from 0; with warm-up the first rate is 0."""
        return self._decayed(step) * (min(1.0, step / self.warmup) if self.warmup else 1.0)

    def _decayed(self, step: int) -> float:
        progress = min(max((step - self.warmup) / (self.total - self.warmup), 0.0), 1.0)
        match self.decay:
            case "linear":
                return self.end + (self.peak - self.end) * (1 - progress)
            case "cosine":
                return self.end + (self.peak - self.end) * 0.5 * (1 + math.cos(math.pi * progress))
            case "staircase":
                return self.peak / 10 ** sum(boundary < step for boundary in self.boundaries)
            case "constant":
                return self.peak


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay, by default of all parameters, as in the paper: also biases and norms."""

    kind: Literal["adamw"] = "adamw"
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    decay: Literal["all", "kernels"] = "all"
    clip: float | None = None  # largest global norm of the gradient

    def __post_init__(self) -> None:
        check_fields(self)
        require(all(0 <= beta < 1 for beta in self.betas), f"betas {self.betas} are outside [0, 1)")
        _check_optimizer(self)


@dataclass(frozen=True)
class SGD:
    """SGD with plain momentum; the defaults are those of fine-tuning: no weight decay, gradients clipped to norm 1.

    With `momentum_precision` bf16 the momentum is stored in bfloat16 between steps, as in the released code.
    """

    # Differs from the paper: momentum is stored in float32. The released code stores it in bfloat16, which the paper
    # does not mention: `--optimizer.momentum-precision bf16`.
    kind: Literal["sgd"] = "sgd"
    momentum: float = 0.9
    momentum_precision: Literal["fp32", "bf16"] = "fp32"
    weight_decay: float = 0.0
    decay: Literal["all", "kernels"] = "all"
    clip: float | None = 1.0  # largest global norm of the gradient

    def __post_init__(self) -> None:
        check_fields(self)
        check_range(self, "[0, 1)", "momentum")
        _check_optimizer(self)


def _check_optimizer(how: AdamW | SGD) -> None:
    check_not_negative(how, "weight_decay")
    require(how.clip is None or how.clip > 0, f"clip {how.clip} must be positive, or None for no clipping")


COLOUR_BITS = 3  # per channel of a predicted colour, B.1.2
COLOURS = 2 ** (3 * COLOUR_BITS)
CELLS: dict[TargetName, int] = {"mean-colour": 1, "colours-4x4": 4}  # colours per side of a patch; `pixels` has none


@dataclass(frozen=True)
class Masking:
    """Masked patch prediction: predict the `corrupted` share of an image's patches from the others.

    Of the corrupted patches, the share `masked` is replaced by a learned vector, `swapped` by another patch, and `kept`
    stays. The `target` is a patch's mean colour, its 4 x 4 colours (each one of 512), or all its pixels.
    """

    target: TargetName
    corrupted: float
    masked: float
    swapped: float
    kept: float

    def __post_init__(self) -> None:
        check_fields(self)
        check_range(self, "(0, 1]", "corrupted")
        check_range(self, "[0, 1]", "masked", "swapped", "kept")
        shares = f"masked {self.masked}, swapped {self.swapped} and kept {self.kept}"
        require(math.isclose(self.masked + self.swapped + self.kept, 1), f"{shares} must add up to 1; set all three")

    def chosen(self, patches: int) -> int:
        """Return the number of corrupted patches, which is the same in every image."""
        return round(self.corrupted * patches)

    def outputs(self, side: int) -> int:
        """Return the number of values predicted for a patch of side x side pixels."""
        return 3 * side**2 if self.target == "pixels" else CELLS[self.target] ** 2 * COLOURS


@dataclass(frozen=True)
class Recipe:
    """All settings that decide what a model learns from given data, except the model and the seed.

    `batch` is global: ranks and micro-batches share it. It is divided into `shards`, and a rank processes whole shards;
    images are mixed within a shard by `mixup` or `cutmix` (with both, one at random), with `partners` in reverse order
    or rolled by one sample. `distillation` applies to runs with a teacher. `frozen` names parts of the model that are
    not trained; `backbone` is everything but the head. After `patience` validations in a row without improvement the
    run stops and keeps its best weights; 0 trains to the end and keeps the last. `settle_window` is the number of steps
    over which the training loss is averaged; the run stops when the average no longer falls
    (`train.state.Settling`).
    """

    name: str
    source: str
    batch: int
    image: tuple[int, int]
    schedule: Schedule
    optimizer: AdamW | SGD
    loss: Loss = "softmax"
    label_smoothing: float = 0.0
    dropout: float = 0.0
    stochastic_depth: float = 0.0
    augmentation: Augmentation = AUTHORS_CROP
    mixup: float = 0.0  # alpha of Beta(alpha, alpha), one draw per shard
    cutmix: float = 0.0  # the same for CutMix
    partners: Literal["reversed", "rolled"] = "reversed"
    shards: int = 1
    average: float | None = None  # decay of a moving average of the weights
    layer_decay: float = 1.0
    frozen: tuple[str, ...] = ()
    class_weights: Literal["none", "balanced"] = "none"
    distillation: Distillation = HARD
    validate_every: int = 0  # steps; 0 validates only at the end
    patience: int = 0
    settle_window: int = 0  # steps; 0 trains to the end
    masking: Masking | None = None  # None learns the labels

    def __post_init__(self) -> None:
        check_fields(self)
        require(1 <= self.batch <= 2**20, f"batch {self.batch} is outside 1..{2**20:,}")
        check_range(self, "[0, 1)", "label_smoothing", "dropout", "stochastic_depth")
        check_range(self, "(0, 1)", "average")
        check_range(self, "(0, 1]", "layer_decay")
        check_not_negative(self, "mixup", "cutmix", "validate_every", "patience", "settle_window")
        require(1 <= self.shards <= self.batch, f"shards {self.shards} is outside 1..{self.batch:,}, the batch")
        is_weighted = self.class_weights != "none"
        require(not is_weighted or self.loss == "softmax", "class_weights need the softmax loss, not sigmoid")
        if self.patience and not self.validate_every:
            raise ValueError(f"patience {self.patience} counts validations; set validate_every to a number of steps")
        if self.masking is not None:
            self._check_without_labels()

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with others of their shard."""
        return bool(self.mixup or self.cutmix)

    def _check_without_labels(self) -> None:
        """Raise for settings that have no effect without labels."""
        without_effect = {"loss": "softmax", "label_smoothing": 0, "mixup": 0, "cutmix": 0, "class_weights": "none"}
        for name, unused in without_effect.items():
            given = getattr(self, name)
            require(given == unused, f"masked patches have no labels; leave {name} at {unused!r}, not {given!r}")


CHOSEN = -1  # workers and streams: as many as suit the cores, the device and the run
MOST_STREAMS = 64  # every stream has its own gradients in memory


@dataclass(frozen=True)
class Execution:
    """How a run is executed: speed and memory. It changes what is learned only by rounding and dropout's draws.

    Args:
        device: cpu, cuda, cuda:1 or mps; auto is a GPU if there is one.
        micro_batch: Images in memory at once; 0 for the whole batch. It does not change the batch of a step.
        streams: Parts of a micro-batch that a CPU computes at the same time, each on one thread: faster, less memory.
            0 for none, -1 chooses from threads and model. They need a model without dropout and stochastic depth.
        precision: bf16 is faster and takes less memory on GPUs that support it; fp32 is more exact. tf32 is fp32 with
            products and convolutions rounded to 10 bits, on NVIDIA GPUs only; no other choice uses it.
        recompute: Recompute activations in the backward pass: less memory, more time.
        compile: Speed the model up with torch.compile; the first steps take longer.
        workers: Processes that decode images; 0 decodes in the training process, -1 chooses from cores and device.
        save_every: Steps between checkpoints; 0 saves twenty times per run.
        keep: Number of newest checkpoints to keep.
        max_bad: Largest share of unreadable images; unless it is 0, up to 10 images are always tolerated.
        tensorboard: Also write logs for TensorBoard; needs the extra vitlab[log].
        parallel: On several ranks: ddp keeps the whole model on each, fsdp a part of it; auto decides by memory.
        exact_elastic: Give the same bits on any number of ranks; slower.
        timeout: Seconds to wait for a rank that does not respond.
        report: Write report.html at the end: curves, confusions, mistakes; needs the extra vitlab[plot].
    """

    device: str = "cpu"
    micro_batch: int = 0
    streams: int = 0
    precision: Precision = "fp32"
    recompute: bool = False
    compile: bool = False
    workers: int = 0
    save_every: int = 0
    keep: int = 2
    max_bad: float = 0.05
    tensorboard: bool = False
    parallel: Parallel = "auto"
    exact_elastic: bool = False
    timeout: float = 60.0
    report: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.workers >= CHOSEN, f"workers {self.workers} must be 0 or more, or {CHOSEN} to choose the number")
        is_allowed = CHOSEN <= self.streams <= MOST_STREAMS
        require(is_allowed, f"streams {self.streams} is outside 0..{MOST_STREAMS}; {CHOSEN} chooses the number")
        check_not_negative(self, "micro_batch", "save_every")
        require(self.keep >= 1, f"keep {self.keep} must be at least 1: a crash would lose a run without checkpoints")
        check_range(self, "[0, 1]", "max_bad")
        longest = f"{LONGEST_TIMEOUT:,} seconds (one week)"
        require(1 <= self.timeout <= LONGEST_TIMEOUT, f"timeout {self.timeout} is outside 1..{longest}")
        is_whole = not self.exact_elastic or self.parallel != "fsdp"
        require(is_whole, "exact_elastic needs the whole model on each rank; give parallel='ddp'")
        require(not self.compile or self.parallel != "fsdp", "compile does not work with fsdp; give parallel='ddp'")


AUTOMATIC = Execution(device="auto", streams=CHOSEN, workers=CHOSEN, report=True)  # the default for users
UNREPORTED = replace(AUTOMATIC, report=False)  # that of studies, which train many models
