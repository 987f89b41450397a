"""What training a ViT costs on many devices: time, memory and traffic of a step in closed form. No torch.

A small model on purpose: every term is a line below, and `bench/scale.py` sets it beside what was measured.
"""

from dataclasses import dataclass
from typing import Literal

from vitlab.counting import count_spec
from vitlab.require import require
from vitlab.spec import ViTSpec
from vitlab.strict_json import check_fields

Parallel = Literal["ddp", "fsdp"]
MASTER = 4  # bytes of a parameter, a gradient and each moment of Adam, which stay in fp32
ADAM = 2  # moments


@dataclass(frozen=True)
class Machine:
    """Devices in nodes. Speeds are what a large matrix product and a large exchange reach, not a data sheet's peak."""

    name: str
    flops: float  # a second and device
    utilisation: float  # share of `flops` that a training step reaches
    memory: float  # bytes a device
    inside: float  # bytes a second and device, to the others of its node
    outside: float  # bytes a second and device, to other nodes
    devices_per_node: int
    decoding: float  # images a second and device that its share of the node's processors decodes and crops

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 < self.utilisation <= 1, f"utilisation {self.utilisation} is outside (0, 1]")
        require(self.devices_per_node >= 1, f"devices_per_node {self.devices_per_node} must be at least 1")

    def link(self, devices: int) -> float:
        """The slowest link of a ring over so many devices, in bytes a second."""
        return self.inside if devices <= self.devices_per_node else self.outside


@dataclass(frozen=True)
class Step:
    """The cost of one update of the global batch, seen from one device."""

    images: int  # of the device that has most
    compute: float  # seconds
    exchange: float  # seconds of traffic, were nothing hidden behind the computation
    data: float  # seconds to decode the images
    traffic: float  # bytes sent
    memory: float  # bytes: weights, gradients, optimizer, activations

    @property
    def seconds(self) -> float:
        """The step: whatever is slowest, because decoding and exchange run beside the computation."""
        return max(self.compute, self.exchange, self.data)

    @property
    def bound(self) -> str:
        """What is slowest."""
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
    """One update; `activation` is the bytes of a number in a forward pass: 2 for bf16, 4 for fp32."""
    require(devices >= 1 and batch >= 1, f"{devices} devices and a batch of {batch}: at least 1 of each is needed")
    images = -(-batch // devices)
    counted = count_spec(spec)
    passes = 4 if recompute else 3  # forward, twice back, and once more forward where it was forgotten
    compute = 2 * passes * counted.macs * images / (machine.flops * machine.utilisation)
    traffic = exchanged(counted.parameters, devices, parallel, activation)
    held = min(micro_batch or images, images)
    memory = held * activations(spec, activation, recompute=recompute) + state_bytes(
        spec, devices, parallel, activation
    )
    link = machine.link(devices)
    return Step(images, compute, traffic / link, images / machine.decoding, traffic, memory)


def exchanged(parameters: int, devices: int, parallel: Parallel, activation: int = MASTER) -> float:
    """Bytes that a device sends in one step, rings being used.

    DDP reduces all gradients: 2 (n - 1) / n of their size. FSDP scatters them reduced, half of that, and gathers the
    weights twice, for the way there and the way back.
    """
    part = (devices - 1) / devices
    gradients = parameters * MASTER * part
    return 2 * gradients if parallel == "ddp" else gradients + 2 * parameters * activation * part


def state_bytes(spec: ViTSpec, devices: int, parallel: Parallel, activation: int = MASTER) -> float:
    """Weights, gradients and moments of a device; under FSDP its share, and the largest two blocks gathered whole."""
    parameters = count_spec(spec).parameters
    whole = parameters * MASTER * (2 + ADAM)
    if parallel == "ddp":
        return whole + parameters * MASTER  # gradients once more, in the buckets they are exchanged in
    block = 4 * spec.width**2 + 2 * spec.width * spec.mlp
    return whole / devices + 2 * block * (activation + MASTER)


def activations(spec: ViTSpec, activation: int = MASTER, *, recompute: bool = False) -> float:
    """Bytes that one image's forward pass keeps for the way back.

    A block keeps eight sequences of the model's width and two of the MLP's; the fused attention keeps no n x n matrix.
    With `recompute` only what enters each block stays, and one block at a time is whole.
    """
    inner = spec.tokens * (8 * spec.width + 2 * spec.mlp)
    if not recompute:
        return activation * spec.layers * inner
    return activation * (spec.layers * spec.tokens * spec.width + inner)
