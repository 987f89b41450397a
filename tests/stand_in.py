"""An accelerator that is not there: a stand-in device for fake tensors, and a check that nothing leaves it.

Registering the device changes the whole process, and must come before its first backward pass. So only a process of its
own imports this module: see `world/test_stand_in.py`.
"""

from contextlib import contextmanager

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

CUDA = torch.device("cuda:0")  # without gradients: CPU builds of torch abort where autograd meets it
COPIES = {"aten._to_copy.default", "aten.copy_.default", "aten.lift_fresh.default", "aten.lift_fresh_copy.default"}
SCALAR = torch.ops.aten._local_scalar_dense.default


class _Backend(_DummyBackendModule):
    def is_available(self):
        return False  # so that fake tensors never ask it for real memory

    def get_amp_supported_dtype(self):
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend("standin", _Backend())
DEVICE = torch.device("standin:0")


# -- Autocast as on CUDA: `test_autocast_of_the_stand_in_is_that_of_cuda` compares ------------------

HALF = "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv2d", "scaled_dot_product_attention"
FULL = "layer_norm", "group_norm", "softmax.int", "log_softmax.int", "binary_cross_entropy_with_logits", "kl_div"
AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _casting(operator, dtype):
    def cast(value):
        is_cast = isinstance(value, torch.Tensor) and value.dtype in (torch.float32, torch.bfloat16)
        return value.to(dtype) if is_cast else value

    def kernel(*args, **options):
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
            args, options = tree_map(cast, (args, options))
            return operator(*args, **options)

    return kernel


_every, _some = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
_every.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
for _names, _dtype in ((HALF, torch.bfloat16), (FULL, torch.float32)):
    for _name in _names:
        _plain, _, _overload = _name.partition(".")
        _operator = getattr(getattr(torch.ops.aten, _plain), _overload or "default")
        _some.impl(_name, _casting(_operator, _dtype), "AutocastPrivateUse1")


@contextmanager
def autocast(device):
    """bfloat16 autocast; torch.autocast itself turns off where there is no CUDA."""
    torch.set_autocast_dtype(device.type, torch.bfloat16)
    torch.set_autocast_enabled(device.type, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device.type, False)
        torch.clear_autocast_cache()


# -- The check -------------------------------------------------------------------------------------


class OneDevice(TorchDispatchMode):
    """Raise if an operator takes or returns a tensor that is elsewhere.

    With `host` operators may also compute on the CPU alone, and copy from there; no other operator may mix the two.
    Fake tensors have no values: what is read is 1, and `reads` counts how often the CPU would wait for the device.
    """

    def __init__(self, device, *, host=False):
        super().__init__()
        self.device, self.host = device, host
        self.operators, self.reads = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = self._check(func, (args, kwargs))
        if func is SCALAR:
            self.reads += given[0].device == self.device
            return {torch.bool: True, torch.float32: 1.0, torch.float64: 1.0}.get(given[0].dtype, 1)
        result = func(*args, **kwargs)
        made = self._check(func, result)
        if not str(func).startswith(("prim.device", "aten.detach", "aten.alias")):
            self.operators.append((str(func), *(tensor.dtype for tensor in made)))
        return result

    def _check(self, func, values):
        tensors = [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
        where = {tensor.device for tensor in tensors}
        is_allowed = where <= {self.device} or (self.host and (len(where) == 1 or str(func) in COPIES))
        if not is_allowed:
            held = ", ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in tensors)
            raise AssertionError(f"{func} has {held}; all must be on {self.device}")
        return tensors


class IndexByOperators(TorchFunctionMode):
    """Index tensors by operators: Python's indexing needs the device guard of CUDA, which CPU builds lack."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not torch.Tensor.__getitem__:
            return func(*args, **(kwargs or {}))
        z, places = args
        places = places if isinstance(places, tuple) else (places,)
        if any(isinstance(place, torch.Tensor) for place in places):
            return torch.ops.aten.index(z, [place if isinstance(place, torch.Tensor) else None for place in places])
        dim = 0
        for number, place in enumerate(places):
            if place is Ellipsis:
                dim = z.dim() - sum(later is not None for later in places[number + 1 :])
            elif isinstance(place, int):
                z = z.select(dim, place)
            else:
                z = z.unsqueeze(dim) if place is None else torch.ops.aten.slice(z, dim, place.start, place.stop)
                dim += 1
        return z


@contextmanager
def on(device, *, host=False):
    """Fake tensors that must all be on the device; yields the check."""
    with FakeTensorMode(), OneDevice(device, host=host) as check:
        yield check


def placed(model, device, dtype=torch.float32):
    """Give a model's parameters and buffers fake values on the device; tensors that it holds otherwise stay.

    Called inside `on`. Not `model.to`: torch cannot swap fake parameters.
    """
    for part in model.modules():
        for own in (part._parameters, part._buffers):
            for name, tensor in own.items():
                if tensor is not None:
                    fake = torch.empty(tensor.shape, dtype=dtype, device=device)
                    is_trained = tensor.requires_grad and device.type != "cuda"
                    own[name] = nn.Parameter(fake, requires_grad=is_trained) if own is part._parameters else fake
    return model


def left_behind(model, device):
    """The names of parameters, gradients and buffers that are not on the device."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    tensors |= {f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return [name for name, tensor in tensors.items() if tensor.device != device]
