"""Small mistakes that a person might make in one function, found by the positions of its syntax tree.

From:  the text of a Python file (environments.tasksets.python_bugs.making).
To:    Mutation records: replace these bytes by those.
Holds: a mutation lies within one line of one function, so that one line of a patch undoes it; the same text gives the
       same mutations in the same order.
Never: runs anything, judges whether a test notices.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

KINDS = ("comparison", "arithmetic", "boolean", "condition", "off-by-one", "swapped-arguments", "dropped-line")

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
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
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
MAX_NUMBER = 1000


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """start, end: bytes of the file. line counts from 1."""

    file: str
    function: str
    kind: str
    line: int
    start: int
    end: int
    old: str
    new: str


@dataclass(frozen=True, kw_only=True)
class _Edit:
    """On one line; columns in bytes."""

    line: int
    column: int
    end_column: int
    new: str


class _Source:
    def __init__(self, file: str, data: bytes) -> None:
        self.file = file
        self.data = data
        self.lines = data.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def text(self, node: ast.expr) -> str:
        """Empty where the node does not lie within one line."""
        if node.lineno != node.end_lineno:
            return ""
        return self.lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

    def mutation(self, function: str, kind: str, edit: _Edit) -> Mutation:
        start = self.starts[edit.line - 1] + edit.column
        end = self.starts[edit.line - 1] + edit.end_column
        old = self.data[start:end].decode()
        return Mutation(
            file=self.file, function=function, kind=kind, line=edit.line, start=start, end=end, old=old, new=edit.new
        )


def find_mutations(file: str, data: bytes) -> list[Mutation]:
    """Every mutation of every function of a file, in order of position. data: its bytes, UTF-8."""
    source = _Source(file, data)
    found: list[Mutation] = []
    for name, function in _iter_functions(ast.parse(data), ()):
        for node in _iter_own_nodes(function):
            for kind, find in FINDERS.items():
                found += [source.mutation(name, kind, edit) for edit in find(source, node)]
    return sorted(found, key=lambda one: (one.start, one.end, one.kind, one.new))


def _iter_functions(
    node: ast.AST, above: tuple[str, ...]
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name = (*above, child.name)
            yield ".".join(name), child
            yield from _iter_functions(child, name)
        elif isinstance(child, ast.ClassDef):
            yield from _iter_functions(child, (*above, child.name))
        else:
            yield from _iter_functions(child, above)


def _iter_own_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """The function itself and what belongs to it and to no function or class inside it; no docstring, no messages."""
    yield function
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Raise | ast.Assert):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield node
        if not isinstance(node, ast.JoinedStr):  # positions inside f-strings are not to be trusted before 3.12
            pending += ast.iter_child_nodes(node)


def _between(source: _Source, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[_Edit]:
    """Replace the operator that stands between two expressions of one line."""
    if left.end_lineno != right.lineno or left.end_lineno is None or left.end_col_offset is None:
        return
    gap = source.lines[right.lineno - 1][left.end_col_offset : right.col_offset].decode()
    if gap.strip(" ()") != old:
        return
    column = left.end_col_offset + len(gap[: gap.index(old)].encode())
    yield _Edit(line=right.lineno, column=column, end_column=column + len(old.encode()), new=new)


def _comparison(source: _Source, node: ast.AST) -> Iterator[_Edit]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _between(source, node.left, node.comparators[0], *COMPARISONS[type(node.ops[0])])


def _is_text(node: ast.expr) -> bool:
    """Other operators on text only raise TypeError, which is too easy."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _arithmetic(source: _Source, node: ast.AST) -> Iterator[_Edit]:
    if (
        isinstance(node, ast.BinOp)
        and type(node.op) in ARITHMETIC
        and not _is_text(node.left)
        and not _is_text(node.right)
    ):
        yield from _between(source, node.left, node.right, *ARITHMETIC[type(node.op)])
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub) and not _is_text(node.value):
        old, new = ARITHMETIC[type(node.op)]
        yield from _between(source, node.target, node.value, f"{old}=", f"{new}=")


def _boolean(source: _Source, node: ast.AST) -> Iterator[_Edit]:
    if isinstance(node, ast.BoolOp) and len(node.values) == 2:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        yield from _between(source, node.values[0], node.values[1], old, new)


def _condition(source: _Source, node: ast.AST) -> Iterator[_Edit]:
    if not isinstance(node, ast.If | ast.IfExp):
        return
    test = node.test
    text = source.text(test)
    if not text or isinstance(test, ast.Compare):  # a comparison has mutations of its own
        return
    negated = source.text(test.operand) if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else ""
    simple = isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    yield _replace(test, negated or (f"not {text}" if simple else f"not ({text})"))


def _replace(node: ast.expr, new: str) -> _Edit:
    return _Edit(line=node.lineno, column=node.col_offset, end_column=node.end_col_offset or 0, new=new)


def _off_by_one(source: _Source, node: ast.AST) -> Iterator[_Edit]:
    if not isinstance(node, ast.Constant) or type(node.value) is not int or not 0 <= node.value <= MAX_NUMBER:
        return
    if source.text(node) == str(node.value):
        yield _replace(node, str(node.value + 1))
        if node.value > 0:
            yield _replace(node, str(node.value - 1))


def _swapped_arguments(source: _Source, node: ast.AST) -> Iterator[_Edit]:
    if not isinstance(node, ast.Call) or len(node.args) < 2 or any(isinstance(a, ast.Starred) for a in node.args[:2]):
        return
    first, second = node.args[:2]
    if first.lineno != second.end_lineno or isinstance(first, ast.GeneratorExp):
        return
    texts = source.text(first), source.text(second)
    gap = source.lines[first.lineno - 1][first.end_col_offset : second.col_offset].decode()
    if all(texts) and texts[0] != texts[1] and gap.strip() == ",":
        end = second.end_col_offset or 0
        yield _Edit(line=first.lineno, column=first.col_offset, end_column=end, new=f"{texts[1]}{gap}{texts[0]}")


def _dropped_line(source: _Source, node: ast.AST) -> Iterator[_Edit]:
    for body in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
        if not isinstance(body, list) or len(body) < 2:
            continue
        for statement in body:
            whole = isinstance(statement, ast.Assign | ast.AugAssign | ast.Return | ast.Continue | ast.Expr)
            if not whole or statement.lineno != statement.end_lineno:
                continue
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            line = source.lines[statement.lineno - 1]
            text = line[statement.col_offset : statement.end_col_offset]
            if line.strip() == text and line.endswith(b"\n"):
                yield _Edit(line=statement.lineno, column=0, end_column=len(line), new="")


FINDERS: dict[str, Callable[[_Source, ast.AST], Iterator[_Edit]]] = {
    "comparison": _comparison,
    "arithmetic": _arithmetic,
    "boolean": _boolean,
    "condition": _condition,
    "off-by-one": _off_by_one,
    "swapped-arguments": _swapped_arguments,
    "dropped-line": _dropped_line,
}
