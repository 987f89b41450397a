"""The paper's ResNets: BiT's ResNet-v2, the baseline, and the ResNet-v1 in front of a hybrid's Transformer.

Both use weight standardisation and GroupNorm. In v2 norm and ReLU come before a convolution, and padding is symmetric;
in v1 they come after it, and padding is TensorFlow's SAME.
"""

import functools
import math
from collections.abc import Iterable, Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.classifier import Classifier, make_head
from vitlab.models.embedding import lecun_normal_
from vitlab.spec import Backbone, Convolutions, ResNetSpec, norm_groups


def standardised(weight: Tensor, how: Convolutions) -> Tensor:
    """Standardise (C', C, k, k) to mean 0 and deviation 1 over the inputs of each output channel."""
    if how.epsilon_joins == "variance":  # batch norm of one "image" with C' channels does this in one pass
        return F.batch_norm(weight.flatten(1)[None], None, None, training=True, eps=how.epsilon)[0].view_as(weight)
    variance, mean = torch.var_mean(weight, dim=(1, 2, 3), correction=0, keepdim=True)
    return (weight - mean) / (variance.sqrt() + how.epsilon)


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and after a side under TensorFlow's SAME; an odd zero comes after."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def pad_same(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Pad (B, C, H, W) with zeros as TensorFlow's SAME does."""
    (top, bottom), (left, right) = (same_padding(side, kernel, stride) for side in x.shape[2:])
    return F.pad(x, (left, right, top, bottom)) if top or bottom or left or right else x


torch.fx.wrap("pad_same")  # symbolic tracing has no sizes to pad


def framed(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, C, H+2, W+2), framed with zeros."""
    # Not F.pad: onnxruntime folds padding into a following max-pooling, which pads with -infinity.
    row = torch.zeros_like(x[:, :, :1])  # (B, C, 1, W)
    x = torch.cat([row, x, row], dim=2)  # (B, C, H+2, W)
    column = torch.zeros_like(x[..., :1])  # (B, C, H+2, 1)
    return torch.cat([column, x, column], dim=3)


@functools.cache
def keeps_channels_last(device: torch.device) -> bool:
    """Whether GroupNorm on this device keeps the memory order (B, H, W, C), in which GPUs convolve faster.

    Where it does not, as with the first CUDA kernels of GroupNorm, every convolution would have to copy its input.
    """
    x = torch.zeros(1, 32, 2, 2, device=device).to(memory_format=torch.channels_last)
    return F.group_norm(x, 1).is_contiguous(memory_format=torch.channels_last)


def in_fast_layout(x: Tensor) -> Tensor:
    """(B, C, H, W) in the memory order in which the device convolves faster; on a CPU unchanged."""
    # A compiler chooses its own.
    is_plain = x.device.type != "cuda" or torch.compiler.is_compiling() or torch.jit.is_tracing()
    if is_plain or not keeps_channels_last(x.device):
        return x
    return x.to(memory_format=torch.channels_last)


torch.fx.wrap("in_fast_layout")  # symbolic tracing has no device to look at


def root_pool(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, C, H/2, W/2): max-pool with SAME padding; after a ReLU, zeros do not change the maximum."""
    return F.max_pool2d(pad_same(x, 3, 2), 3, 2)


class StandardConv(nn.Module):
    """A convolution without bias that standardises its weight in every forward pass."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, how: Convolutions, stride: int = 1, same: bool = False
    ) -> None:
        super().__init__()
        self.how = how
        self.kernel = kernel
        self.stride = stride
        self.same = same
        self.weight = nn.Parameter(torch.empty(outputs, inputs, kernel, kernel))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H/stride, W/stride), rounded up."""
        weight = standardised(self.weight, self.how)
        if self.same:
            return F.conv2d(pad_same(x, self.kernel, self.stride), weight, stride=self.stride)
        return F.conv2d(x, weight, stride=self.stride, padding=self.kernel // 2)

    def initialise(self, generator: torch.Generator) -> None:
        lecun_normal_(self.weight, generator)


def group_norm(channels: int, epsilon: float) -> nn.GroupNorm:
    """Make the GroupNorm that all ResNets here use."""
    return nn.GroupNorm(norm_groups(channels), channels, eps=epsilon)


class PreUnit(nn.Module):
    """A ResNet-v2 bottleneck: norm and ReLU before each convolution, nothing after the sum."""

    def __init__(self, inputs: int, middle: int, *, stride: int, how: Convolutions) -> None:
        super().__init__()
        outputs = 4 * middle
        self.norm1 = group_norm(inputs, how.norm_eps)
        self.conv1 = StandardConv(inputs, middle, 1, how=how)
        self.norm2 = group_norm(middle, how.norm_eps)
        self.conv2 = StandardConv(middle, middle, 3, how=how, stride=stride)
        self.norm3 = group_norm(middle, how.norm_eps)
        self.conv3 = StandardConv(middle, outputs, 1, how=how)
        changes = stride != 1 or inputs != outputs
        self.shortcut = StandardConv(inputs, outputs, 1, how=how, stride=stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 4 C', H/stride, W/stride)."""
        a = F.relu(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(a)
        m = F.relu(self.norm2(self.conv1(a)))
        m = F.relu(self.norm3(self.conv2(m)))
        return self.conv3(m) + shortcut

    def initialise(self, generator: torch.Generator) -> None:
        initialise_all(self, generator)


class PostUnit(nn.Module):
    """A ResNet-v1 bottleneck: norm and ReLU after each convolution, the last ReLU after the sum."""

    def __init__(self, inputs: int, middle: int, *, stride: int, how: Convolutions) -> None:
        super().__init__()
        outputs = 4 * middle
        self.conv1 = StandardConv(inputs, middle, 1, how=how, same=True)
        self.norm1 = group_norm(middle, how.norm_eps)
        self.conv2 = StandardConv(middle, middle, 3, how=how, stride=stride, same=True)
        self.norm2 = group_norm(middle, how.norm_eps)
        self.conv3 = StandardConv(middle, outputs, 1, how=how, same=True)
        self.norm3 = group_norm(outputs, how.norm_eps)
        changes = stride != 1 or inputs != outputs
        self.shortcut = StandardConv(inputs, outputs, 1, how=how, stride=stride, same=True) if changes else None
        self.shortcut_norm = group_norm(outputs, how.norm_eps) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 4 C', H/stride, W/stride)."""
        m = F.relu(self.norm1(self.conv1(x)))
        m = F.relu(self.norm2(self.conv2(m)))
        m = self.norm3(self.conv3(m))
        if self.shortcut is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return F.relu(x + m)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the convolutions; the last norm starts at zero, so that a new unit equals its shortcut."""
        initialise_all(self, generator)
        nn.init.zeros_(self.norm3.weight)


class ResNetV1(nn.Module):
    """The ResNet in front of a hybrid's Transformer: root and stages, without a final norm."""

    def __init__(self, spec: Backbone, how: Convolutions) -> None:
        super().__init__()
        self.root = StandardConv(3, spec.root, 7, how=how, stride=2, same=True)
        self.root_norm = group_norm(spec.root, how.norm_eps)
        self.stages = make_stages(PostUnit, spec.stages, spec.root, how)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, C, H/stride, W/stride)."""
        x = F.relu(self.root_norm(self.root(in_fast_layout(images))))  # (B, C, H/2, W/2)
        return self.stages(root_pool(x))  # by way of (B, C, H/4, W/4)

    def initialise(self, generator: torch.Generator) -> None:
        self.root.initialise(generator)
        self.root_norm.reset_parameters()
        for unit in units_of(self.stages):
            unit.initialise(generator)


class ResNet(Classifier[ResNetSpec]):
    """BiT's ResNet-v2, the paper's convolutional baseline."""

    def __init__(self, spec: ResNetSpec) -> None:
        super().__init__(spec)
        how = spec.conventions.bit
        self.root = StandardConv(3, spec.root, 7, how=how, stride=2)
        self.stages = make_stages(PreUnit, spec.stages, spec.root, how)
        self.norm = group_norm(spec.width, how.norm_eps)
        self.head = make_head(spec)

    def pooled(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D): the mean of the last feature map."""
        x = self.stages(self.stem(images))
        return F.relu(self.norm(x)).mean(dim=(2, 3))

    def stem(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, C, H/4, W/4). Without a ReLU before the pooling its padding matters."""
        self.check(images)
        x = self.root(in_fast_layout(images))  # (B, C, H/2, W/2)
        if self.spec.conventions.bit.pool_padding == "zero":
            return F.max_pool2d(framed(x), 3, 2)
        return F.max_pool2d(x, 3, 2, padding=1)

    def layer_features(self, images: Tensor) -> Iterator[Tensor]:
        """Yield (B, C, H, W) after each unit, one at a time."""
        x = self.stem(images)
        for unit in units_of(self.stages):
            x = unit(x)
            yield x

    def initialise(self, generator: torch.Generator, head_bias: float = 0.0) -> None:
        """Draw LeCun normal convolutions; norms are the identity, the head is zero."""
        self.root.initialise(generator)
        for unit in units_of(self.stages):
            unit.initialise(generator)
        self.norm.reset_parameters()
        self.head.initialise(generator, head_bias)


def make_stages(
    unit: type[PreUnit] | type[PostUnit], stages: tuple[int, ...], root: int, how: Convolutions
) -> nn.Sequential:
    """Build stages of units; each stage but the first starts with stride 2 and doubles the channels."""
    built, inputs = [], root
    for stage, number in enumerate(stages):
        middle = root * 2**stage
        units: list[nn.Module] = []
        for index in range(number):
            stride = 2 if stage and not index else 1
            units.append(unit(inputs, middle, stride=stride, how=how))
            inputs = 4 * middle
        built.append(nn.Sequential(*units))
    return nn.Sequential(*built)


def units_of(stages: nn.Sequential) -> Iterable[PreUnit | PostUnit]:
    """Iterate over the units of all stages in order."""
    return (unit for stage in stages for unit in cast(Iterable[PreUnit | PostUnit], stage))


def initialise_all(module: nn.Module, generator: torch.Generator) -> None:
    """Draw the convolutions among a module's children in order; GroupNorms become the identity."""
    for child in module.children():
        if isinstance(child, StandardConv):
            child.initialise(generator)
        elif isinstance(child, nn.GroupNorm):
            child.reset_parameters()
