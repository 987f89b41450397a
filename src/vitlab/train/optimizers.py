"""The paper's optimizers for any module: parameter groups, gradient clipping, weight averaging."""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.spec.recipe import SGD, AdamW
from vitlab.world.group import ALONE, World
from vitlab.world.parallel import is_sharded, own_part

STAGE = re.compile(r"stages\.\d+\.")  # in the name of a parameter
BLOCK = re.compile(r"(stages\.\d+\.)?blocks\.\d+\.")


def make_optimizer(module: nn.Module, how: AdamW | SGD, *, layer_decay: float = 1.0) -> torch.optim.Optimizer:
    """An optimizer for the module's trainable parameters; `set_learning_rate` sets the rate of each step.

    `layer_decay` below 1 slows early layers: the rate of block l of L is multiplied by layer_decay^(L - l), that of the
    embedding by layer_decay^(L + 1); the head has the full rate.
    """
    groups = _groups(module, how.weight_decay, how.decay, layer_decay)
    if isinstance(how, SGD):
        kind = torch.optim.SGD if how.momentum_precision == "fp32" else HalfMomentum
        return kind(groups, lr=0.0, momentum=how.momentum)
    is_on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
    # Fused is one pass over memory; on a CPU torch would choose a loop over parameters, elsewhere it chooses well.
    return torch.optim.AdamW(groups, lr=0.0, betas=how.betas, eps=how.epsilon, fused=True if is_on_cpu else None)


class HalfMomentum(torch.optim.SGD):
    """SGD whose momentum is computed in the parameters' precision and stored in bfloat16 between steps."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient."""
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
        """Load a state; torch would cast every buffer to the precision of its parameter."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state["momentum_buffer"] = state["momentum_buffer"].to(torch.bfloat16)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of the next step, multiplied by each group's scale."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], norm: float | None, world: World = ALONE) -> Tensor:
    """Scale all gradients by min(1, norm / their global norm over all ranks); returns the global norm before."""
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
    """Group parameters by weight decay and scale of the learning rate, in the module's order."""
    groups: dict[tuple[float, float], list[Tensor]] = {}
    blocks = list(dict.fromkeys(match[0] for name, _ in module.named_parameters() if (match := BLOCK.match(name))))
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            # Kernels, in big_vision's words: matrices and convolutions, not tokens and position tables.
            is_decayed = decay == "all" or (parameter.dim() > 1 and name.endswith("weight"))
            key = (weight_decay if is_decayed else 0.0, layer_decay ** _depth_below_head(name, blocks))
            groups.setdefault(key, []).append(parameter)
    if not groups:
        raise ValueError("all parameters are frozen; leave at least the head trainable")
    return [{"params": own, "weight_decay": wd, "scale": scale} for (wd, scale), own in groups.items()]


def _depth_below_head(name: str, blocks: list[str]) -> int:
    """0 for the head and the final norm, 1 for the last of L `blocks`, L + 1 for what comes before them.

    What a stage of a Swin begins with counts as part of its first block.
    """
    if name.startswith(("head.", "norm.")):
        return 0
    own = BLOCK.match(name) or STAGE.match(name)
    first = next((number for number, block in enumerate(blocks) if own and block.startswith(own[0])), -1)
    return len(blocks) - first
