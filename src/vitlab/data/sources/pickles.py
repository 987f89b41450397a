"""The content of a pickle of numpy arrays, strings and numbers, read without unpickling it.

`pickletools` splits the file into opcodes, and a small machine here interprets the few that data needs. The only
globals it accepts are the names with which numpy writes an array, and they stand for data: nothing is imported, looked
up or called. Any other opcode or name is refused.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

MOST_OPCODES = 5_000_000  # the largest of the CIFAR files has about 600,000
RECONSTRUCT = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}
KNOWN = RECONSTRUCT | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}


class UnsafePickle(ValueError):  # noqa: N818  it is the file that is unsafe
    """A file that holds more than data, or is damaged."""


@dataclass(frozen=True)
class _Global:
    module: str
    name: str


@dataclass
class _Dtype:
    code: str


@dataclass
class _Array:
    values: np.ndarray | None = None


@dataclass
class _Machine:
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            _refuse("an empty stack")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        if not self.marks:
            _refuse("a missing mark")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            _refuse(f"no {kind.__name__} where one is needed")
        return self.stack[-1]


def read_pickle(data: bytes) -> object:
    """Return the value: dicts, lists, tuples, str, bytes, int, bool, None and numpy arrays; raises UnsafePickle."""
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MOST_OPCODES:
                _refuse(f"over {MOST_OPCODES:,} opcodes")
            if opcode.name == "STOP":
                return _plain(machine.pop())
            act = ACTIONS.get(opcode.name)
            if act is None:
                _refuse(f"the opcode {opcode.name}")
            act(machine, argument)
    except UnsafePickle:
        raise
    except (ValueError, IndexError, TypeError, OverflowError, MemoryError, UnicodeError) as error:
        raise UnsafePickle(f"is a damaged pickle ({type(error).__name__}: {error!s:.100})") from None
    return _refuse("no end")


def _refuse(what: str) -> NoReturn:
    raise UnsafePickle(f"holds {what}, which no file of arrays and labels needs; nothing of it was run")


def _plain(value: object) -> object:
    if isinstance(value, _Global | _Dtype):
        _refuse("a name of numpy's in place of data")
    return value.values if isinstance(value, _Array) else value


# -- Opcodes -------------------------------------------------------------------------------------


def _push(machine: _Machine, value: object) -> None:
    machine.stack.append(value)


def _push_byte_string(machine: _Machine, value: object) -> None:
    """Push a str of Python 2, which pickletools gives as latin-1 text, as bytes."""
    machine.stack.append(value.encode("latin-1") if isinstance(value, str) else value)


def _push_global(machine: _Machine, module: object, name: object) -> None:
    if (module, name) not in KNOWN:
        _refuse(f"the name {module!s:.60}.{name!s:.60}")
    machine.stack.append(_Global(str(module), str(name)))


def _stack_global(machine: _Machine, _: object) -> None:
    name, module = machine.pop(), machine.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        _refuse("a name that is not text")
    _push_global(machine, module, name)


def _reduce(machine: _Machine, _: object) -> None:
    """Push the result that calling the global would give, for the three known calls."""
    arguments, function = machine.pop(), machine.pop()
    known = (function.module, function.name) if isinstance(function, _Global) else None
    values = list(arguments) if isinstance(arguments, tuple) else []
    if known in RECONSTRUCT and len(values) == 3 and values[0] == _Global("numpy", "ndarray"):
        machine.stack.append(_Array())
    elif known == ("numpy", "dtype") and len(values) == 3 and _text(values[0]) in ("u1", "|u1"):
        machine.stack.append(_Dtype("u1"))
    elif known == ("_codecs", "encode") and len(values) == 2 and isinstance(values[0], str) and values[1] == "latin1":
        machine.stack.append(values[0].encode("latin-1"))  # how Python 3 writes bytes for Python 2
    else:
        _refuse("a call")


def _build(machine: _Machine, _: object) -> None:
    """Set the state of a dtype, which is empty for bytes, or of an array: version, shape, dtype, order, data."""
    state = machine.pop()
    target = machine.top(object)
    if isinstance(target, _Dtype) and isinstance(state, tuple):
        return
    if not isinstance(target, _Array) or target.values is not None or not isinstance(state, tuple) or len(state) != 5:
        _refuse("the state of an object")
    _, shape, dtype, fortran, data = state
    is_shape = isinstance(shape, tuple) and all(type(side) is int and side >= 0 for side in shape)
    if not is_shape or not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
        _refuse("an array that is not of bytes")
    target.values = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


def _set_items(machine: _Machine, values: list[Any]) -> None:
    target = machine.top(dict)
    for key, value in zip(values[::2], values[1::2], strict=True):
        if not isinstance(key, str | bytes):
            _refuse("a key that is no text")
        target[_text(key)] = _plain(value)


def _set_item(machine: _Machine, _: object) -> None:
    value, key = machine.pop(), machine.pop()
    _set_items(machine, [key, value])


def _new_dict(machine: _Machine, _: object) -> None:
    values = machine.since_mark()
    machine.stack.append({})
    _set_items(machine, values)


def _append(machine: _Machine, _: object) -> None:
    value = machine.pop()
    machine.top(list).append(_plain(value))


def _appends(machine: _Machine, _: object) -> None:
    values = machine.since_mark()
    machine.top(list).extend(map(_plain, values))


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def act(machine: _Machine, _: object) -> None:
        machine.stack.append(tuple(machine.pop() for _ in range(count))[::-1])

    return act


def _put(machine: _Machine, place: int) -> None:
    machine.memo[place] = machine.top(object)


def _get(machine: _Machine, place: int) -> None:
    if place not in machine.memo:
        _refuse("a reference to nothing")
    machine.stack.append(machine.memo[place])


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value if isinstance(value, str) else ""


ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda machine, _: None),
    **dict.fromkeys(("INT", "LONG", "LONG1", "BININT", "BININT1", "BININT2"), _push),
    **dict.fromkeys(("UNICODE", "BINUNICODE", "SHORT_BINUNICODE"), _push),
    **dict.fromkeys(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), _push),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), _push_byte_string),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _get),
    "MEMOIZE": lambda machine, _: _put(machine, len(machine.memo)),
    "NONE": lambda machine, _: _push(machine, None),
    "NEWTRUE": lambda machine, _: _push(machine, True),
    "NEWFALSE": lambda machine, _: _push(machine, False),
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "EMPTY_DICT": lambda machine, _: _push(machine, {}),
    "EMPTY_LIST": lambda machine, _: _push(machine, []),
    "EMPTY_TUPLE": lambda machine, _: _push(machine, ()),
    "DICT": _new_dict,
    "LIST": lambda machine, _: _push(machine, machine.since_mark()),
    "TUPLE": lambda machine, _: _push(machine, tuple(machine.since_mark())),
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "APPEND": _append,
    "APPENDS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": lambda machine, _: _set_items(machine, machine.since_mark()),
    "GLOBAL": lambda machine, argument: _push_global(machine, *argument.split(" ", 1)),
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _reduce,
    "BUILD": _build,
}
