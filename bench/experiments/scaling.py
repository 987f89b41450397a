"""The cost of training a ViT on many devices: time, memory and traffic per step in closed form. No torch.

The model is deliberately small: every term is one line below, and `scale.py` compares it with measurements.
"""

from dataclasses import dataclass
from typing import Literal

from vitlab.counting import count_spec
from vitlab.files.strict_json import check_fields
from vitlab.require import require
from vitlab.spec import ViTSpec

Parallel = Literal["ddp", "fsdp"]
MASTER = 4  # bytes per parameter, gradient and moment of Adam, which stay in fp32
ADAM = 2  # moments


@dataclass(frozen=True)
class Machine:
    """Devices in nodes. Speeds are those of a large matrix product and a large exchange, not the data sheet's peak."""

    name: str
    flops: float  # per second and device
    utilisation: float  # share of `flops` that a training step reaches
    memory: float  # bytes per device
    inside: float  # bytes per second and device, within a node
    outside: float  # bytes per second and device, between nodes
    devices_per_node: int
    decoding: float  # images per second and device that the node's processors decode and crop

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 < self.utilisation <= 1, f"utilisation {self.utilisation} is outside (0, 1]")
        require(self.devices_per_node >= 1, f"devices_per_node {self.devices_per_node} must be at least 1")

    def link(self, devices: int) -> float:
        """Return the speed of the slowest link in a ring over `devices`, in bytes per second."""
        return self.inside if devices <= self.devices_per_node else self.outside


@dataclass(frozen=True)
class Step:
    """The cost of one update of the global batch, seen from one device."""

    images: int  # on the device with the most
    compute: float  # seconds
    exchange: float  # seconds of traffic, if none of it overlapped with computation
    data: float  # seconds to decode the images
    traffic: float  # bytes sent
    memory: float  # bytes: weights, gradients, optimizer, activations

    @property
    def seconds(self) -> float:
        """The time of the slowest part, because decoding and exchange overlap with the computation."""
        return max(self.compute, self.exchange, self.data)

    @property
    def bound(self) -> str:
        """The name of the slowest part."""
        return max((("compute", self.compute), ("exchange", self.exchange), ("data", self.data)), key=lambda c: c[1])[0]


def step_cost(
    spec: ViTSpec,
    machine: Machine,
    *,
    devices: int,
    batch: int,
    parallel: Parallel,
    micro_batch: int = 0,
    activation: int = 2,
    recompute: bool = False,
) -> Step:
    """Return the cost of one update; `activation` is the bytes per activation: 2 for bf16, 4 for fp32."""
    require(
        devices >= 1 and batch >= 1, f"{devices} devices and a batch of {batch} were given; both must be at least 1"
    )
    images = -(-batch // devices)
    counted = count_spec(spec)
    passes = 4 if recompute else 3  # forward, twice that backward, forward again to recompute
    compute = 2 * passes * counted.macs * images / (machine.flops * machine.utilisation)
    traffic = exchanged(counted.parameters, devices, parallel, activation)
    held = min(micro_batch or images, images)
    memory = held * activations(spec, activation, recompute=recompute) + state_bytes(
        spec, devices, parallel, activation
    )
    link = machine.link(devices)
    return Step(images, compute, traffic / link, images / machine.decoding, traffic, memory)


def exchanged(parameters: int, devices: int, parallel: Parallel, activation: int = MASTER) -> float:
    """Return the bytes that a device sends per step with ring algorithms.

    DDP all-reduces the gradients: 2 (n - 1) / n of their size. FSDP reduce-scatters them, which is half of that, and
    gathers the weights twice, for the forward and the backward pass.
    """
    part = (devices - 1) / devices
    gradients = parameters * MASTER * part
    return 2 * gradients if parallel == "ddp" else gradients + 2 * parameters * activation * part


def state_bytes(spec: ViTSpec, devices: int, parallel: Parallel, activation: int = MASTER) -> float:
    """Return the bytes of weights, gradients and moments on a device; FSDP holds its share and two gathered blocks."""
    parameters = count_spec(spec).parameters
    whole = parameters * MASTER * (2 + ADAM)
    if parallel == "ddp":
        return whole + parameters * MASTER  # a second copy of the gradients, in the buckets of the all-reduce
    block = 4 * spec.width**2 + 2 * spec.width * spec.mlp
    return whole / devices + 2 * block * (activation + MASTER)


def activations(spec: ViTSpec, activation: int = MASTER, *, recompute: bool = False) -> float:
    """Return the bytes that the forward pass of one image keeps for the backward pass.

    A block keeps eight sequences of the model's width and two of the MLP's; fused attention keeps no n x n matrix. With
    `recompute` only the inputs of the blocks are kept, and the activations of one block at a time.
    """
    inner = spec.tokens * (8 * spec.width + 2 * spec.mlp)
    if not recompute:
        return activation * spec.layers * inner
    return activation * (spec.layers * spec.tokens * spec.width + inner)
