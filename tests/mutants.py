"""Small faults put into Python source on purpose: other constants, signs, operators, comparisons, argument orders."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

OPERATORS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitXor: ("^", "|"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
BOOLEANS = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
PAIRS = [("min", "max"), ("amin", "amax"), ("argmin", "argmax"), ("floor", "ceil"), ("sin", "cos"), ("any", "all")]
NAMES = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])} | {"sum": "mean"}
# What no test need look at: types, messages, imports, and checks that a type checker or a reader wants.
SKIPPED = (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """One change of one place of a source."""

    line: int
    start: int  # bytes of the source
    stop: int
    old: str
    new: str

    def applied(self, source: str) -> str:
        """The source with the change."""
        whole = source.encode()
        return (whole[: self.start] + self.new.encode() + whole[self.stop :]).decode()

    def lines(self, source: str) -> tuple[str, str]:
        """The line before and after, without its indentation."""
        return tuple(text.splitlines()[self.line - 1].strip() for text in (source, self.applied(source)))


def mutants_of(source: str) -> list[Mutant]:
    """Every mutant of a source that still parses and is another program."""
    tree = ast.parse(source)
    before = ast.dump(tree)
    found = [mutant for node in _counted(tree) for mutant in _of_node(node, _Text(source))]
    return [mutant for mutant in dict.fromkeys(found) if _is_another(mutant.applied(source), before)]


def _is_another(source: str, before: str) -> bool:
    try:
        return ast.dump(ast.parse(source)) != before
    except SyntaxError:
        return False


def _counted(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below it, without types and messages."""
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not isinstance(child, SKIPPED):
                    yield from _counted(child)


class _Text:
    """Places of nodes in the bytes of a source."""

    def __init__(self, source: str) -> None:
        self.whole = source.encode()
        self.starts = [0]
        for line in self.whole.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.expr) -> tuple[int, int]:
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def of(self, node: ast.expr) -> str:
        return slice_of(self.whole, *self.span(node))

    def change(self, start: int, stop: int, new: str) -> Mutant:
        line = self.whole[:start].count(b"\n") + 1
        return Mutant(line, start, stop, slice_of(self.whole, start, stop), new)

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Mutant]:
        """The operator that stands between two operands."""
        begin, end = self.span(left)[1], self.span(right)[0]
        place = self.whole.find(old.encode(), begin, end)
        if place >= 0:
            yield self.change(place, place + len(old), new)


def slice_of(whole: bytes, start: int, stop: int) -> str:
    return whole[start:stop].decode()


def _of_node(node: ast.AST, text: _Text) -> Iterator[Mutant]:
    match node:
        case ast.Constant(value=bool() | int() | float()):
            yield from (text.change(*text.span(node), new) for new in _constants(node.value))
        case ast.BinOp() if type(node.op) in OPERATORS:
            yield from text.between(node.left, node.right, *OPERATORS[type(node.op)])
        case ast.Compare():
            operands = [node.left, *node.comparators]
            for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
                yield from text.between(left, right, *COMPARISONS[type(operator)])
        case ast.BoolOp():
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from text.between(left, right, *BOOLEANS[type(node.op)])
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield text.change(text.span(node)[0], text.span(node.operand)[0], "")
        case ast.If() | ast.IfExp() if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
            yield text.change(*text.span(node.test), f"not ({text.of(node.test)})")
        case ast.Call():
            yield from _of_call(node, text)


def _constants(value: float) -> list[str]:
    if isinstance(value, bool):
        return [repr(not value)]
    if isinstance(value, int):
        return [repr(value + 1), *([repr(value - 1)] if value else [])]
    return [repr(round(value * 0.8, 12)) if value > 1e-9 else repr(value + 0.1)]


def _of_call(node: ast.Call, text: _Text) -> Iterator[Mutant]:
    """The first two arguments in the other order, and functions for their opposites."""
    if len(node.args) >= 2 and not any(isinstance(argument, ast.Starred) for argument in node.args[:2]):
        first, second = node.args[:2]
        between = slice_of(text.whole, text.span(first)[1], text.span(second)[0])
        new = text.of(second) + between + text.of(first)
        yield text.change(text.span(first)[0], text.span(second)[1], new)
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name in NAMES and not (name == "sum" and isinstance(node.func, ast.Name)):
        end = text.span(node.func)[1]
        yield text.change(end - len(name), end, NAMES[name])
