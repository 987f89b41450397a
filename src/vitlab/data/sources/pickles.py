"""The content of a pickle of numpy arrays, strings and numbers, read without unpickling it.

`pickletools` splits the file into opcodes, and a small machine here interprets the few that data needs. The only
globals it accepts are the names with which numpy writes an array, and they stand for data: nothing is imported, looked
up or called. Any other opcode or name is refused.
"""

import pickletools
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


def read_pickle(data: bytes) -> object:
    """Return the value: dicts, lists, tuples, str, bytes, int, bool, None and numpy arrays; raises UnsafePickle."""
    machine = Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MOST_OPCODES:
                _refuse(f"over {MOST_OPCODES:,} opcodes")
            if opcode.name == "STOP":
                return _plain(machine.pop())
            machine.step(opcode.name, argument)
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


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value if isinstance(value, str) else ""


@dataclass
class Machine:
    """The stack, its marks and the memo that the opcodes of a pickle work on."""

    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def pop(self) -> Any:
        """Take a value off the stack."""
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            _refuse("an empty stack")
        return self.stack.pop()

    def _since_mark(self) -> list[Any]:
        if not self.marks:
            _refuse("a missing mark")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def _top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            _refuse(f"no {kind.__name__} where one is needed")
        return self.stack[-1]

    def step(self, opcode: str, argument: Any) -> None:
        """Interpret one opcode; raises UnsafePickle for those that data does not need."""
        push = self.stack.append
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "INT" | "LONG" | "LONG1" | "BININT" | "BININT1" | "BININT2":
                push(argument)
            case "UNICODE" | "BINUNICODE" | "SHORT_BINUNICODE" | "BINBYTES" | "SHORT_BINBYTES" | "BINBYTES8":
                push(argument)
            case "STRING" | "BINSTRING" | "SHORT_BINSTRING":  # of Python 2, which pickletools gives as latin-1 text
                push(argument.encode("latin-1") if isinstance(argument, str) else argument)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                push({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[opcode])
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                push({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[opcode]())
            case "MARK":
                self.marks.append(len(self.stack))
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self._top(object)
            case "MEMOIZE":
                self.memo[len(self.memo)] = self._top(object)
            case "GET" | "BINGET" | "LONG_BINGET":
                if argument not in self.memo:
                    _refuse("a reference to nothing")
                push(self.memo[argument])
            case "LIST":
                push(self._since_mark())
            case "TUPLE":
                push(tuple(self._since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                push(tuple(self.pop() for _ in range(int(opcode[-1])))[::-1])
            case "APPEND":
                value = self.pop()
                self._top(list).append(_plain(value))
            case "APPENDS":
                values = self._since_mark()
                self._top(list).extend(map(_plain, values))
            case "DICT":
                values = self._since_mark()
                push({})
                self._set_items(values)
            case "SETITEM":
                self._set_items([self.pop(), self.pop()][::-1])
            case "SETITEMS":
                self._set_items(self._since_mark())
            case "GLOBAL":
                push(_known_global(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                push(_known_global(*[self.pop(), self.pop()][::-1]))
            case "REDUCE":
                push(_called(*[self.pop(), self.pop()][::-1]))
            case "BUILD":
                _build(state=self.pop(), target=self._top(object))
            case _:
                _refuse(f"the opcode {opcode}")

    def _set_items(self, values: list[Any]) -> None:
        target = self._top(dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str | bytes):
                _refuse("a key that is not text")
            target[_text(key)] = _plain(value)


def _known_global(module: object, name: object) -> _Global:
    if not isinstance(name, str) or not isinstance(module, str):
        _refuse("a name that is not text")
    if (module, name) not in KNOWN:
        _refuse(f"the name {module:.60}.{name:.60}")
    return _Global(module, name)


def _called(function: object, arguments: object) -> object:
    """The result that calling a global would give, for the three known calls."""
    known = (function.module, function.name) if isinstance(function, _Global) else None
    values = list(arguments) if isinstance(arguments, tuple) else []
    if known in RECONSTRUCT and len(values) == 3 and values[0] == _Global("numpy", "ndarray"):
        return _Array()
    if known == ("numpy", "dtype") and len(values) == 3 and _text(values[0]) in ("u1", "|u1"):
        return _Dtype("u1")
    if known == ("_codecs", "encode") and len(values) == 2 and isinstance(values[0], str) and values[1] == "latin1":
        return values[0].encode("latin-1")  # how Python 3 writes bytes for Python 2
    return _refuse("a call")


def _build(state: object, target: object) -> None:
    """Set the state of a dtype, which is empty for bytes, or of an array: version, shape, dtype, order, data."""
    if isinstance(target, _Dtype) and isinstance(state, tuple):
        return
    if not isinstance(target, _Array) or target.values is not None or not isinstance(state, tuple) or len(state) != 5:
        _refuse("the state of an object")
    _, shape, dtype, fortran, data = state
    is_shape = isinstance(shape, tuple) and all(type(side) is int and side >= 0 for side in shape)
    if not is_shape or not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
        _refuse("an array that is not of bytes")
    target.values = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")
