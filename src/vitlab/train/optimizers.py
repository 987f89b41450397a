"""Optimizers of the paper on any module: parameter groups, clipping, averaging."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.recipe import SGD, AdamW
from vitlab.world.group import ALONE, World
from vitlab.world.parallel import is_sharded, own_part


def make_optimizer(module: nn.Module, how: AdamW | SGD, *, layer_decay: float = 1.0) -> torch.optim.Optimizer:
    """An optimizer over the module's trainable parameters; `set_learning_rate` gives each step its rate.

    `layer_decay` below 1 slows early layers: the rate of layer l of L blocks is multiplied by layer_decay^(L - l), the
    embedding's by one more; the head keeps the full rate.
    """
    groups = _groups(module, how.weight_decay, how.decay, layer_decay)
    if isinstance(how, SGD):
        kind = torch.optim.SGD if how.momentum_precision == "fp32" else HalfMomentum
        return kind(groups, lr=0.0, momentum=how.momentum)
    is_on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
    # One pass over memory on a CPU, where torch's own choice is a loop over parameters; elsewhere torch chooses.
    return torch.optim.AdamW(groups, lr=0.0, betas=how.betas, eps=how.epsilon, fused=True if is_on_cpu else None)


class HalfMomentum(torch.optim.SGD):
    """SGD whose momentum is computed and used in the parameters' precision and kept in bfloat16 between steps."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state, change = self.state[parameter], parameter.grad
                if group["weight_decay"]:
                    change = change.add(parameter, alpha=group["weight_decay"])
                if "momentum_buffer" in state:
                    change = change.add(state["momentum_buffer"].to(change.dtype), alpha=group["momentum"])
                parameter.add_(change, alpha=-group["lr"])
                state["momentum_buffer"] = change.to(torch.bfloat16, copy=True)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As saved; torch's own gives every buffer the precision of its parameter."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state["momentum_buffer"] = state["momentum_buffer"].to(torch.bfloat16)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The rate of the next step, times each group's own scale."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], norm: float | None, world: World = ALONE) -> Tensor:
    """Scale all gradients by min(1, norm / their global norm); returns the global norm before.

    Of sharded gradients each rank has a part; the norm is that of all parts, the same on every rank.
    """
    found = [p.grad for p in parameters if p.grad is not None]
    gradients = [own_part(gradient) for gradient in found]
    total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
    if is_sharded(found[0]):
        total = world.sum(total.square()).sqrt()
    if norm is not None and total.isfinite():
        torch._foreach_mul_(gradients, torch.clamp(norm / total, max=1.0))
    return total


@torch.no_grad()
def update_average(average: nn.Module, module: nn.Module, decay: float = 0.9999) -> None:
    """Polyak averaging: average <- decay * average + (1 - decay) * module, parameters in place."""
    averages, current = ([own_part(p) for p in one.parameters()] for one in (average, module))
    torch._foreach_lerp_(averages, current, 1 - decay)


def _groups(module: nn.Module, weight_decay: float, decay: str, layer_decay: float) -> list[dict[str, object]]:
    """Parameters that share a weight decay and a scale of the learning rate, in the module's own order."""
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            is_decayed = decay == "all" or _is_kernel(name, parameter)
            key = (weight_decay if is_decayed else 0.0, layer_decay ** _depth_below_head(name, module))
            groups.setdefault(key, []).append(parameter)
    if not groups:
        raise ValueError("no parameter is trainable; unfreeze at least the head")
    return [{"params": own, "weight_decay": wd, "scale": scale} for (wd, scale), own in groups.items()]


def _is_kernel(name: str, parameter: Tensor) -> bool:
    """Matrices and convolutions, but no token or table of positions: what big_vision calls kernels."""
    return parameter.dim() > 1 and name.endswith("weight")


def _depth_below_head(name: str, module: nn.Module) -> int:
    """0 for head and final norm, 1 for the last block, and one more than all blocks for what comes before them."""
    blocks = len(getattr(module, "blocks", ()))
    parts = name.split(".")
    if parts[0] == "blocks":
        return blocks - int(parts[1])
    return 0 if parts[0] in ("head", "norm") else blocks + 1
